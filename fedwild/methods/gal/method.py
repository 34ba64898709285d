"""GAL. Wang et al.: Federated continual novel class learning (FedNovel). 2024.

The labelled classes are learnt first, with a contrast between samples and class prototypes, which are the rows of a
head without bias. Then, in each stage, clients cluster the unlabelled samples that resemble no known class, the server
estimates the number of classes in the clusters of all clients, and the head grows by one row per novel class. Clients
learn these classes by the semantic-weighted loss, while an average with earlier weights keeps what is known. This is
`gal-paper`; `gal` labels novel samples with their nearest prototype and trains on them beside the labelled ones.

    known        rounds of cross-entropy + eta * contrast (Eq. 4)
    describe     how known samples look: novelty threshold, clusters of known classes, bias against novel classes
    discover-1   clusters of novel samples (Eq. 5-8); the head grows
    novel-1      rounds of SWL (Eq. 9) and moving average (Eq. 10), or of labels and rehearsal
    describe     again; then discover-2, novel-2, describe, and so on for every stage
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedwild.contract import Answering, Discovers, Exhibit, Outcome, Phase, Record, Server, Traits
from fedwild.core.classes import NOVEL
from fedwild.core.errors import UserError
from fedwild.discovery import Estimator
from fedwild.discovery.truth import covered_truth
from fedwild.methods.fedavg import FedAvg
from fedwild.methods.gal.describe import Describe
from fedwild.methods.gal.discover import Discover
from fedwild.methods.gal.exhibits import discovery_exhibits
from fedwild.methods.gal.known import Known
from fedwild.methods.gal.novel import Novel, NovelModel
from fedwild.methods.gal.stage import class_counts, count_labelled, inherited_bias
from fedwild.methods.registry import METHODS
from fedwild.models import Network
from fedwild.openset.metrics import ari, closed_accuracy, forgetting, gal_accuracy, hungarian_accuracy, nmi


@METHODS.add("gal")
class GAL(FedAvg, Discovers):
    """Discovers the classes among unlabelled samples of many clients and learns them beside the known ones."""

    class Params(FedAvg.Params):
        rounds: int = Field(20, ge=0, description="rounds of known-class learning; 0 with federation.start_from")
        epochs: int = Field(3, ge=0, description="passes over the client's own data per round")
        lr: float = Field(0.02, gt=0, description="learning rate")
        stages: int = Field(1, ge=0, le=1000, description="number of discoveries, one after the other")
        novel_rounds: int = Field(5, ge=0, description="rounds of novel-class learning per stage; 0: prototypes only")
        clusters: int | None = Field(None, ge=1, description="k-means clusters per client (default: one per class)")
        min_count: int = Field(3, ge=1, description="smallest cluster of novel samples that a client sends")
        min_known_count: int = Field(1, ge=1, description="smallest cluster of validation samples that a client sends")
        novelty: Literal["separate", "accept", "fixed"] = Field(
            "separate",
            description="threshold of the cosine to known rows: separates known from novel samples of the pool, "
            "accepts known validation samples, or is r",
        )
        accept: float = Field(0.95, gt=0, le=1, description="share of known validation samples that are not novel")
        r: float = Field(0.5, ge=-1, le=1, description="the novelty threshold if novelty=fixed (Eq. 5)")
        init: Literal["prototypes", "random"] = Field("prototypes", description="initial rows of novel classes")
        rows: Literal["scaled", "raw"] = Field(
            "scaled", description="scaled: novel rows get the mean length of the known rows; raw: as in the paper"
        )
        loss: Literal["labels", "swl", "bce"] = Field(
            "labels",
            description="labels: the objective, with novel samples labelled by their nearest prototype; "
            "swl: semantic-weighted (Eq. 9); bce: pairwise (Eq. 11)",
        )
        rehearse: bool = Field(
            True, description="novel-class learning also uses labelled samples and trains known rows"
        )
        prototypes: Literal["frozen", "learnt"] = Field(
            "frozen", description="targets of swl: the discovered prototypes, or the trained rows of the head"
        )
        temperature: float = Field(0.07, gt=0, description="temperature of the similarities in swl")
        normalised: bool = Field(True, description="similarities in swl are cosines instead of dot products")
        against_forgetting: Literal["ema", "distillation", "nothing"] = Field(
            "nothing", description="moving average (Eq. 10), iNCD's distillation and replay, or neither"
        )
        beta: float = Field(0.99, ge=0, le=1, description="weight of the model before the stage in the moving average")
        pseudo_labels: bool = Field(
            False, description="novel-class learning also uses unlabelled samples that are not novel, as answered"
        )
        keep_known: float = Field(
            0.95, ge=0, le=1, description="share of known validation samples that novel classes must not win; 0: argmax"
        )

        def clusters_for(self, classes: int) -> int:
            """Return the number of k-means clusters per client."""
            return self.clusters or classes

    parts = {**FedAvg.parts, "objective": {"name": "prototype-contrast", "balanced": True}, "estimator": {}}
    traits = Traits(starts_from=True, sends_embeddings=True)
    bias = False
    params: Params
    estimator: Estimator

    def check(self, network: Network | None, start_from: str | None) -> None:
        if self.objective.extra_outputs:
            raise UserError(
                f"objective.name = {self.objective.name!r} is not allowed with method {self.name!r}: its output for "
                "unknown would count as a class; use prototype-contrast, ce or balanced."
            )

    def phases(self) -> Sequence[Phase]:
        phases: list[Phase] = [Known("known", self.params.rounds, self), Describe("describe", 1, self)]
        for stage in range(1, self.params.stages + 1):
            phases += [Discover(f"discover-{stage}", stage, self), Novel(stage, self)]
            phases += [Describe("describe", stage + 1, self)]
        return phases

    def start(self, server: Server) -> None:
        """Begin with the classes that have labels, then those that an earlier run discovered."""
        server.classes.entries.sort(key=lambda entry: entry.origin == NOVEL)
        super().start(server)
        if server.classes.novel:
            assert server.initial is not None
            server.state.info |= {"bias": inherited_bias(server.initial), "inherited": len(server.classes.novel)}

    def answers(self, server: Server) -> Answering:
        return Answering(lambda _: self.predictor(server), server.clients, truth=partial(covered_truth, server))

    def model(self, server: Server) -> Network:
        """Return the network without the bias against novel classes, which the predictor subtracts."""
        return server.task.network(server.state.group("model"), len(server.classes), self.bias, slot="predictor")

    def predictor(self, server: Server) -> NovelModel:
        """Return the network that answers, with the bias against novel classes."""
        model, labelled, origin = self.model(server), count_labelled(server), None
        if "origin" in server.state:
            before = server.state.group("origin")
            origin = server.task.network(before, len(before["head.weight"]), self.bias, slot="origin").eval()
        bias = server.state.info.get("bias", 0.0)
        return NovelModel(model, len(server.classes), self.score, labelled, bias, origin)

    def weights(self, server: Server) -> dict[str, Tensor]:
        """Return the model, with the bias against novel classes as the bias of its head."""
        weights, bias = dict(server.state.group("model")), server.state.info.get("bias", 0.0)
        if bias and "head.weight" in weights:
            weights["head.bias"] = torch.zeros(len(weights["head.weight"]))
            weights["head.bias"][count_labelled(server) :] = -bias
        return weights

    def measure(self, server: Server, outcome: Outcome) -> dict[str, float]:
        """Return metrics on the known classes and on the novel classes of the stages so far."""
        counts = class_counts(server)
        if not counts:
            return {}
        stages = max(len(counts), *(entry.stage for entry in server.classes.novel), 0)
        novel, known = [name for names in outcome.novel[:stages] for name in names], count_labelled(server)
        ids = {name: i for i, name in enumerate((*server.classes.names[:known], *novel))}
        truth = torch.tensor([ids.get(name, -1) for name in outcome.true_names])
        rows = truth >= 0
        truth, logits = truth[rows], outcome.prediction.logits[rows]
        old = truth < known
        joint = gal_accuracy(logits.argmax(1), truth, range(known))
        # Without test samples, there are no answers of the earlier model.
        before = closed_accuracy(outcome.prediction.details.get("before", outcome.truth)[rows][old], truth[old])
        # The "told" metrics restrict each answer to known or to novel classes by the truth, as many papers do.
        apart = logits[~old, known:].argmax(1) if logits.shape[1] > known else truth[~old] * 0
        return {
            "known_accuracy": joint.old,
            "novel_accuracy": joint.new,
            "all_accuracy": joint.all,
            "forgetting": forgetting(before, joint.old),
            "number_found": float(len(server.classes.novel)),
            "number_found_last": float(counts[-1].number),
            "number_true": float(len(novel)),
            "known_accuracy_told": closed_accuracy(logits[old, :known], truth[old]),
            "novel_accuracy_told": hungarian_accuracy(apart, truth[~old]),
            "novel_nmi": nmi(apart, truth[~old]),
            "novel_ari": ari(apart, truth[~old]),
        }

    def exhibits(self, record: Record) -> Sequence[Exhibit]:
        return discovery_exhibits(record, self.estimator)
