"""GAL. Wang et al.: Federated continual novel class learning (FedNovel). 2024.

Known classes are learnt first, with a contrast of samples and class prototypes, which are the rows of a head without
bias. Then, in each stage, clients cluster what they hold without labels and what looks like no known class, the server
counts the classes in all clients' clusters, the head grows by a row for each, and clients learn them by the
semantic-weighted loss while an average with the weights before keeps what is known. That is `gal-paper`; `gal` learns
novel samples with the class of their nearest prototype, beside the labelled ones.

    known        rounds of cross-entropy + eta * contrast (Eq. 4)
    describe     what known samples look like: novelty threshold, radius between clusters, bias against novel rows
    discover-1   clusters of novel samples (Eq. 5-8); the head grows
    novel-1      rounds of SWL (Eq. 9) and moving average (Eq. 10), or of labels and rehearsal
    describe     and so on for every further stage
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedwild.classes import NOVEL
from fedwild.data.samples import Samples
from fedwild.discovery import Clusters, Estimate, Estimator, KnownClasses, clusters_of
from fedwild.discovery.learning import (
    FrozenRows,
    NovelObjective,
    NovelTargets,
    embeddings,
    moving_average,
    tensors_of,
)
from fedwild.discovery.novelty import BINS, accepting, histogram, known_share, likeness, nearest, separating
from fedwild.discovery.replies import check_clusters, check_cosines, check_margins, clusters_in
from fedwild.discovery.truth import covered_truth
from fedwild.errors import UserError
from fedwild.hyper import with_default
from fedwild.methods.base import METHODS
from fedwild.methods.fedavg import FedAvg
from fedwild.metrics import ari, closed_accuracy, forgetting, gal_accuracy, hungarian_accuracy, nmi
from fedwild.models import Network
from fedwild.objectives import Objective
from fedwild.openset import Score, threshold_at_acceptance
from fedwild.payload import Payload
from fedwild.predictors import ScoredModel
from fedwild.protocol import Client, Outcome, Phase, Prediction, Predictor, Replies, Server, Step
from fedwild.rng import Rng
from fedwild.task import weights_of
from fedwild.training import train


@METHODS.add("gal")
class GAL(FedAvg):
    """Discovers the classes among unlabelled samples of many clients, and learns them beside the known ones."""

    class Params(FedAvg.Params):
        rounds: int = Field(20, ge=0, description="rounds of known-class learning; 0 with federation.start_from")
        epochs: int = Field(3, ge=0, description="passes over the client's own data per round")
        lr: float = Field(0.02, gt=0, description="learning rate")
        stages: int = Field(1, ge=0, description="how many times novel classes are looked for, one after the other")
        novel_rounds: int = Field(5, ge=0, description="rounds of novel-class learning per stage; 0: clusters only")
        clusters: int | None = Field(
            None, ge=1, description="clusters per client in k-means (as many as there are known classes)"
        )
        min_count: int = Field(3, ge=1, description="clusters of fewer samples stay at the client")
        min_known_count: int = Field(
            1, ge=1, description="the same for clusters of known validation samples, which the committee measures with"
        )
        novelty: Literal["separate", "accept", "fixed"] = Field(
            "separate",
            description="threshold on the cosine to known rows: separates this pool, accepts known ones, or r",
        )
        accept: float = Field(0.95, gt=0, le=1, description="share of known validation samples not taken for novel")
        r: float = Field(0.5, ge=-1, le=1, description="the threshold itself, with novelty=fixed (Eq. 5)")
        init: Literal["prototypes", "random"] = Field("prototypes", description="first values of novel rows")
        rows: Literal["scaled", "raw"] = Field(
            "scaled", description="scaled: prototypes get the known rows' mean length in the head; raw: as the paper"
        )
        loss: Literal["labels", "swl", "bce"] = Field(
            "labels",
            description="labels: the objective, with the nearest prototype's class; swl: semantic-weighted (Eq. 9); "
            "bce: pairwise (Eq. 11)",
        )
        rehearse: bool = Field(
            True,
            description="clients still have their labelled samples and train on them, too; the known rows learn on",
        )
        prototypes: Literal["frozen", "learnt"] = Field(
            "frozen", description="what SWL pulls to: the discovered prototypes, or the rows of the head as they learn"
        )
        temperature: float = Field(0.07, gt=0, description="divides similarities in SWL")
        normalised: bool = Field(True, description="similarities in SWL are cosines, not dot products")
        against_forgetting: Literal["ema", "distillation", "nothing"] = Field(
            "nothing", description="moving average (Eq. 10), iNCD's distillation and replay, or rehearsal alone"
        )
        beta: float = Field(0.99, ge=0, le=1, description="weight of the weights before the stage, with ema")
        pseudo_labels: bool = Field(
            False, description="unlabelled samples that are not novel are trained on with the class they look like"
        )
        keep_known: float = Field(
            0.95,
            ge=0,
            le=1,
            description="share of known validation samples that novel rows may not win over; 0: plain argmax",
        )

    sends_embeddings = True
    composes = ("objective", "correction", "score", "estimator")
    parts = {"objective": {"name": "prototype-contrast", "balanced": True}}
    digits = {
        "data": {"novel": 4},
        "method": {"rounds": 20, "epochs": 3, "batch_size": 16, "novel_rounds": 5},
    }
    bias = False
    params: Params
    estimator: Estimator

    def check_network(self, network: Network) -> None:
        if self.objective.extra_outputs:
            raise UserError(
                f"objective.name = {self.objective.name!r} is not allowed here: its unknown output would be taken for "
                "a class; take prototype-contrast, ce or balanced."
            )

    def phases(self) -> Sequence[Phase]:
        phases = [Phase("known", self.params.rounds), Phase("describe", 1)]
        for stage in range(1, self.params.stages + 1):
            phases += [Phase(f"discover-{stage}", 1), Phase(f"novel-{stage}", self.params.novel_rounds)]
            phases += [Phase("describe", 1)]
        return phases

    def wants(self, server: Server) -> bool:
        """Learning is skipped where nothing was discovered."""
        learning = server.step.phase.startswith("novel-")
        return not learning or estimates(server)[server.step.stage - 1]["number"] > 0

    def participants(self, server: Server, present: Sequence[str], participation: float, rng: Rng) -> Sequence[str]:
        """Everybody has a say in what is known and what is new."""
        if trains(server.step):
            return super().participants(server, present, participation, rng)
        return present

    def expects(self, server: Server) -> dict[str, Mapping[str, Tensor]]:
        if trains(server.step):
            return super().expects(server)
        if server.step.phase == "describe":
            count = torch.zeros(BINS, device="meta")
            return {"cosines": {"known": count, "pool": count}}
        return {}

    def check(self, server: Server, reply: Payload) -> None:
        super().check(server, reply)
        width = server.state.group("model")["head.weight"].shape[1]
        if server.step.phase == "describe":
            check_clusters(reply.group("clusters"), width, self.most(server), reply.info["samples"], labelled(server))
            check_margins(reply.group("margins"), reply.info["samples"])
            check_cosines(reply.group("cosines"), reply.info["samples"])
        elif not trains(server.step):
            check_clusters(reply.group("clusters"), width, self.most(server), reply.info["samples"])

    def send(self, server: Server, client: str) -> Payload:
        model = server.state.group("model")
        payload = super().send(server, client) if trains(server.step) else Payload.of(model=model)
        payload.info = {"labelled": labelled(server), "novelty": server.state.info.get("novelty")}
        if server.step.phase.startswith("novel-"):
            payload.put("anchor", server.state.group("anchor"))
            payload.put("found", server.state.group("found"))
        return payload

    def local(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        if client.step.phase == "known":
            return super().local(payload, client, rng)
        if client.step.phase == "describe":
            return self.describe(payload, client, rng)
        if client.step.phase.startswith("discover-"):
            return self.discover(payload, client, rng)
        return self.learn(payload, client, rng)

    def merge(self, server: Server, replies: Replies) -> None:
        if server.step.phase == "describe":
            self.take_descriptions(server, replies)
        elif server.step.phase.startswith("discover-"):
            self.take_clusters(server, replies)
        else:
            super().merge(server, replies)

    # --- what known samples look like ---------------------------------------------------------------------

    def describe(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        """Histograms of cosines to the rows, clusters of validation samples, and how much novel rows win over them."""
        model = client.task.network(payload.group("model"), len(client.classes), self.bias)
        known, rows = payload.info["labelled"], model.head.weight.detach().cpu()
        z, y = embeddings(model, client.validation), client.validation.y
        pool = embeddings(model, client.unlabelled_in(client.step.round + 1))
        clusters, members = clusters_of(
            z.double().numpy(), self.pieces(len(rows)), rng.sklearn("known clusters"), self.params.min_known_count
        )
        labels = np.zeros((len(clusters), known), dtype=np.int64)
        np.add.at(labels, (members[members >= 0], y.numpy()[members >= 0]), 1)
        reply = Payload(info={"samples": len(z)})
        reply.put("cosines", {"known": histogram(likeness(z, rows)), "pool": histogram(likeness(pool, rows))})
        reply.put("clusters", tensors_of(centroids=clusters.centroids, counts=clusters.counts, labels=labels))
        if len(rows) > known:
            logits = z @ rows.T
            margins = logits[:, known:].amax(1) - logits[:, :known].amax(1)
            # Sorted, so that they tell nothing about the order of samples.
            reply.put("margins", {"novel": margins.sort().values})
        return reply

    def most(self, server: Server) -> int:
        """More clusters than these no client makes."""
        return self.pieces(len(server.classes))

    def pieces(self, classes: int) -> int:
        """How many clusters k-means makes of a client's samples."""
        return self.params.clusters or classes

    def take_descriptions(self, server: Server, replies: Replies) -> None:
        """Set the novelty threshold and the bias against novel rows, and keep the known clusters."""
        known, pool = np.zeros(BINS), np.zeros(BINS)
        parts: list[Clusters] = []
        # Nobody may be there, or have a validation sample.
        labels = [np.empty((0, labelled(server)), dtype=np.int64)]
        margins = [np.empty(0)]
        for reply in replies:
            cosines = reply.payload.group("cosines")
            known += cosines["known"].numpy()
            pool += cosines["pool"].numpy()
            parts.append(clusters_in(reply.payload))
            labels.append(reply.payload.group("clusters")["labels"].numpy().copy())
            margins += [m.double().numpy().copy() for m in reply.payload.group("margins").values()]
        joined = Clusters.joined(parts, server.state.group("model")["head.weight"].shape[1])
        server.state.put(
            "known_clusters",
            tensors_of(centroids=joined.centroids, counts=joined.counts, labels=np.concatenate(labels)),
        )
        info = server.state.info
        info["novelty"] = self.novelty_threshold(known, pool)
        info["bias"] = 0.0
        if sum(map(len, margins)) and self.params.keep_known:
            info["bias"] = max(0.0, threshold_at_acceptance(np.concatenate(margins), self.params.keep_known))
        if pool.sum():
            share = f", at most {100 * known_share(known, pool):.0f} % of them known" if known.sum() else ""
            server.note(f"novelty threshold {info['novelty']:.2f}: {int(pool.sum())} unlabelled samples{share}")

    def novelty_threshold(self, known: np.ndarray, pool: np.ndarray) -> float:
        """The cosine below which a sample is novel, from histograms of known samples and of this stage's pool."""
        if self.params.novelty == "fixed":
            return self.params.r
        if self.params.novelty == "accept":
            return accepting(known, self.params.accept)
        return separating(known, pool, self.params.accept)

    # --- what is new --------------------------------------------------------------------------------------

    def discover(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        """Clusters of the samples that look like no known class."""
        model = client.task.network(payload.group("model"), len(client.classes), self.bias)
        pool = client.unlabelled_in(client.step.stage)
        z = embeddings(model, pool)
        novel = likeness(z, model.head.weight.detach().cpu()) < payload.info["novelty"]
        found = z[novel].double().numpy()
        if not len(found):
            client.note("none of its unlabelled samples is novel" if len(pool) else "it has no unlabelled samples")
        clusters, _ = clusters_of(
            found, self.pieces(len(client.classes)), rng.sklearn("novel clusters"), self.params.min_count
        )
        reply = Payload(info={"samples": len(found), "pool": len(pool), "clusters": len(clusters)})
        reply.put("clusters", tensors_of(centroids=clusters.centroids, counts=clusters.counts))
        return reply

    def take_clusters(self, server: Server, replies: Replies) -> None:
        """Count the novel classes and grow the head by a row for each."""
        parts = {reply.client: clusters_in(reply.payload) for reply in replies}
        width = server.state.group("model")["head.weight"].shape[1]
        pool = Clusters.joined(list(parts.values()), width)
        owners = np.repeat(list(parts), [len(part) for part in parts.values()])
        # Shuffled, as in the paper: the estimate must not depend on whose cluster is whose.
        order = server.rng.numpy("shuffle").permutation(len(pool))
        estimate = self.estimator.estimate(pool.at(order), self.known_classes(server), server.rng)
        server.state.info.setdefault("estimates", []).append(estimate.to_json())
        server.state.put("anchor", dict(server.state.group("model")))
        if "origin" not in server.state:
            server.state.put("origin", dict(server.state.group("model")))
        if not estimate.number:
            server.note("nothing new: no client holds enough unlabelled samples that look like no known class")
            return
        names = self.register(server, estimate, owners[order], pool.at(order).counts)
        self.grow(server, estimate)
        server.state.info["bias"] = self.first_bias(server)
        server.note(
            f"{counted(estimate.number)} ({estimate.low} to {estimate.high}) in {pool.counts.sum()} samples: "
            f"{', '.join(names)}"
        )

    def first_bias(self, server: Server) -> float:
        """The bias against novel rows until clients describe their samples again: from what they said before."""
        known = server.state.group("known_clusters")
        if not len(known["counts"]) or not self.params.keep_known:
            return 0.0
        logits = known["centroids"] @ server.state.group("model")["head.weight"].T
        margins = logits[:, labelled(server) :].amax(1) - logits[:, : labelled(server)].amax(1)
        order = margins.argsort()
        below = known["counts"][order].double().cumsum(0) / known["counts"].double().sum()
        last = int((below < self.params.keep_known).sum().clamp(max=len(below) - 1))
        return max(0.0, float(margins[order][last]))

    def known_classes(self, server: Server) -> KnownClasses:
        """The labelled classes as estimators see them."""
        known = server.state.group("known_clusters")
        rows = server.state.group("model")["head.weight"].double().numpy()
        clusters = Clusters(known["centroids"].double().numpy(), known["counts"].numpy())
        return KnownClasses(rows, clusters, known["labels"].numpy())

    def register(self, server: Server, estimate: Estimate, owners: np.ndarray, counts: np.ndarray) -> list[str]:
        """Name the novel classes, and keep where they came from."""
        names = []
        for number in range(estimate.number):
            inside = estimate.members == number
            samples = {str(owner): int(counts[inside & (owners == owner)].sum()) for owner in np.unique(owners[inside])}
            names.append(server.classes.free_name(NOVEL))
            server.classes.add(names[-1], NOVEL, server.step.index, server.step.stage, samples)
        return names

    def grow(self, server: Server, estimate: Estimate) -> None:
        """A row of the head for every novel class."""
        weights = server.state.group("model")
        known = len(weights["head.weight"])
        model = server.task.network(weights, known, self.bias)
        prototypes = torch.as_tensor(estimate.prototypes).float()
        rows = prototypes
        if self.params.init == "random":
            rows = torch.randn(prototypes.shape, generator=server.rng.torch("novel rows"))
        if self.params.rows == "scaled" or self.params.init == "random":
            # Along a longer row every sample would seem to lie, whatever its direction.
            length = weights["head.weight"].norm(dim=1).mean()
            rows = rows * (length / rows.norm(dim=1, keepdim=True).clamp_min(1e-12))
        model.grow_head(known + estimate.number, rows)
        server.state.put("model", weights_of(model))
        stretch = prototypes.norm(dim=1) / rows.norm(dim=1).clamp_min(1e-12)
        server.state.put("found", {"prototypes": prototypes, "stretch": stretch})

    # --- learning it --------------------------------------------------------------------------------------

    def learn(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        """Train on the stage's samples. Without rehearsal known rows stay; with ema the extractor goes back again."""
        anchor, found = payload.group("anchor"), payload.group("found")
        known = len(anchor["head.weight"])
        before = client.task.network(anchor, known, self.bias, slot="before").eval()
        targets = NovelTargets(known, found["prototypes"], found["stretch"].to(client.task.device))
        samples = self.stage_samples(before, targets, client, payload.info["novelty"])
        model = client.task.network(payload.group("model"), len(client.classes), self.bias)
        steering = self.correction.at(client, model, payload)
        if not self.params.rehearse:
            steering = FrozenRows(steering, model, known)
        objective = self.novel_objective(targets, before)
        trained = train(model, samples, self.params, objective, steering, rng)
        sent_up = steering.up(trained.steps, self.params.lr)
        weights = client.task.weights(model)
        if self.params.against_forgetting == "ema":
            weights = moving_average(weights, anchor, self.params.beta)
        return Payload.of({"samples": len(samples), **trained.info()}, model=weights, **sent_up)

    def novel_objective(self, targets: NovelTargets, before: Network) -> Objective:
        """What is minimised in stage U."""
        kept = before if self.params.against_forgetting == "distillation" else None
        return NovelObjective(
            targets,
            self.objective if self.params.loss == "labels" else None,
            self.params.loss,
            self.params.prototypes == "frozen",
            self.params.temperature,
            self.params.normalised,
            kept,
        )

    def stage_samples(self, before: Network, targets: NovelTargets, client: Client, novelty: float) -> Samples:
        """What a client trains on in stage U: novel samples, and labelled or pseudo-labelled ones where asked for.

        Novel samples have the label -1, or with loss=labels the class of the nearest prototype.
        """
        pool = client.unlabelled_in(client.step.stage)
        z, rows = embeddings(before, pool), before.head.weight.detach().cpu()
        novel = likeness(z, rows) < novelty
        labels = torch.full_like(pool.y, -1)
        if self.params.loss == "labels":
            labels = targets.known + nearest(z, targets.prototypes)
        labels = torch.where(novel, labels, (z @ rows.T).argmax(1))
        samples = pool.labelled(labels)
        if not self.params.pseudo_labels:
            samples = samples.take(torch.nonzero(novel).flatten())
        return client.train.joined(samples) if self.params.rehearse else samples

    # --- answers and figures ------------------------------------------------------------------------------

    def predictor(self, server: Server, client: Client | None = None) -> Predictor:
        model, known = self.answering(server), labelled(server)
        before = None
        if "origin" in server.state:
            before = server.task.network(server.state.group("origin"), known, self.bias, slot="origin").eval()
        return NovelModel(model, len(server.classes), self.score, known, server.state.info.get("bias", 0.0), before)

    def truth(self, server: Server, outcome: Outcome) -> Tensor:
        return covered_truth(server, outcome)

    def weights(self, server: Server) -> dict[str, Tensor]:
        """The model, with what novel rows must win by as their bias."""
        weights, bias = dict(server.state.group("model")), server.state.info.get("bias", 0.0)
        if bias and "head.weight" in weights:
            weights["head.bias"] = torch.zeros(len(weights["head.weight"]))
            weights["head.bias"][labelled(server) :] = -bias
        return weights

    def measure(self, server: Server, outcome: Outcome) -> dict[str, float]:
        """GAL's figures on the known classes and on the novel classes of the stages so far."""
        stages = estimates(server)
        if not stages:
            return {}
        novel = [name for names in outcome.novel[: len(stages)] for name in names]
        known = labelled(server)
        ids = {name: i for i, name in enumerate((*server.classes.names[:known], *novel))}
        truth = torch.tensor([ids.get(name, -1) for name in outcome.true_names])
        rows = truth >= 0
        truth, logits = truth[rows], outcome.prediction.logits[rows]
        old = truth < known
        joint = gal_accuracy(logits.argmax(1), truth, range(known))
        # Without a test sample nobody was asked what the model before would have said.
        before = closed_accuracy(outcome.prediction.details.get("before", outcome.truth)[rows][old], truth[old])
        # Told which samples are known and which novel, as tables of novel class learning often are.
        apart = logits[~old, known:].argmax(1) if logits.shape[1] > known else truth[~old] * 0
        return {
            "known_accuracy": joint.old,
            "novel_accuracy": joint.new,
            "all_accuracy": joint.all,
            "forgetting": forgetting(before, joint.old),
            "number_found": float(sum(stage["number"] for stage in stages)),
            "number_true": float(len(novel)),
            "known_accuracy_told": closed_accuracy(logits[old, :known], truth[old]),
            "novel_accuracy_told": hungarian_accuracy(apart, truth[~old]),
            "novel_nmi": nmi(apart, truth[~old]),
            "novel_ari": ari(apart, truth[~old]),
        }


def changed(name: str, default: Any) -> Any:
    """A setting of GAL's with another default."""
    return with_default(GAL.Params, name, default)


@METHODS.add("gal-paper")
class GALPaper(GAL):
    """GAL as published: potential prototype merge, semantic-weighted loss, moving average, known data gone."""

    class Params(GAL.Params):
        rounds: int = changed("rounds", 30)
        epochs: int = changed("epochs", 10)
        batch_size: int = changed("batch_size", 256)
        lr: float = changed("lr", 0.05)
        momentum: float = changed("momentum", 0.0)
        novel_rounds: int = changed("novel_rounds", 30)
        min_count: int = changed("min_count", 1)
        novelty: Literal["separate", "accept", "fixed"] = changed("novelty", "accept")
        rows: Literal["scaled", "raw"] = changed("rows", "raw")
        loss: Literal["labels", "swl", "bce"] = changed("loss", "swl")
        rehearse: bool = changed("rehearse", False)
        against_forgetting: Literal["ema", "distillation", "nothing"] = changed("against_forgetting", "ema")
        keep_known: float = changed("keep_known", 0.0)

    parts = {"objective": {"name": "prototype-contrast"}, "estimator": {"name": "ppm"}}
    digits = {
        "data": {"novel": 4},
        "method": {"rounds": 20, "epochs": 3, "batch_size": 16, "momentum": 0.9, "novel_rounds": 5},
    }


class NovelModel(ScoredModel):
    """A scored network whose novel rows answer only where they win by more than a bias."""

    def __init__(
        self, model: Network, classes: int, score: Score, known: int, bias: float, before: Network | None
    ) -> None:
        super().__init__(model, classes, score)
        self.known, self.bias, self.before = known, bias, before

    @torch.inference_mode()
    def predict(self, x: Tensor) -> Prediction:
        outputs = self.model(x)
        outputs[:, self.known :] -= self.bias
        details = {} if self.before is None else {"before": self.before(x).argmax(1)}
        return Prediction(outputs[:, : self.classes], self.score.of(outputs, self.classes), details)


def counted(number: int) -> str:
    """'1 novel class', '2 novel classes'."""
    return f"{number} novel class{'' if number == 1 else 'es'}"


def trains(step: Step) -> bool:
    """Whether models are trained and averaged in this round."""
    return step.phase == "known" or step.phase.startswith("novel-")


def labelled(server: Server) -> int:
    """The number of classes that came with labels; their rows are the head's first ones."""
    return sum(entry.origin != NOVEL for entry in server.classes.entries)


def estimates(server: Server) -> list[dict[str, Any]]:
    """What was estimated in each stage so far."""
    found: list[dict[str, Any]] = server.state.info.get("estimates", [])
    return found
