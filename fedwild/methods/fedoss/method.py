"""FedOSS. Zhu, Liao, Liu, Yuan: FedOSS: federated open set recognition via inter-client discrepancy and
collaboration. IEEE Transactions on Medical Imaging 43(1), 2024.

The network has one output more than there are known classes: unknown. Each client also trains a personal head, which is
never averaged. After pre-training, clients synthesise virtual unknown samples in feature space and train with them:

- DUSS pushes samples on which the personal heads disagree across their decision boundary.
- FOSS merges statistics of the pushed samples into one Gaussian per class, and draws more samples where it is unlikely.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedwild.aggregation import Aggregation
from fedwild.contract import Answering, Exhibit, Method, Outcome, Phase, Record, Server, Traits, initial_weights
from fedwild.methods.fedoss.exhibits import boundary_exhibits
from fedwild.methods.fedoss.finetune import Finetune
from fedwild.methods.fedoss.heads import Layouts, choose_cut
from fedwild.methods.fedoss.pretrain import Pretrain, with_neutral_unknown
from fedwild.methods.fedoss.settings import FedOSSParams
from fedwild.methods.registry import METHODS
from fedwild.models import Network
from fedwild.openset import Score, ScoredModel
from fedwild.training import Correction


@METHODS.add("fedoss")
class FedOSS(Method):
    """Trains an unknown output with samples synthesised where clients disagree, and shares them as Gaussians."""

    Params = FedOSSParams
    parts = {"correction": {}, "aggregation": {}, "score": {"name": "proser", "temperature": 1.0}}
    traits = Traits(starts_from=True, sends_embeddings=True, unknown_output=True)
    correction: Correction
    aggregation: Aggregation
    score: Score
    params: FedOSSParams

    def __init__(self, params: FedOSSParams, **parts: Any) -> None:
        super().__init__(params, **parts)
        self.layouts = Layouts(params)

    def check(self, network: Network | None, start_from: str | None) -> None:
        if network is not None:
            choose_cut(network, self.params.cut)

    def phases(self) -> Sequence[Phase]:
        p, parts = self.params, (self.params, self.correction, self.aggregation, self.layouts)
        return [Pretrain("pretrain", p.rounds, *parts), Finetune("finetune", p.finetune_rounds, *parts)]

    def start(self, server: Server) -> None:
        weights = initial_weights(server, len(server.classes) + 1)
        earlier = server.initial
        # An unknown output that an earlier run has trained is kept.
        is_trained = earlier is not None and len(earlier.weights["head.weight"]) > len(earlier.classes)
        is_pretrained = self.params.pretrain_outputs == "all"
        server.state.info["unknown_trained"] = is_trained or is_pretrained
        is_kept = is_trained or (is_pretrained and earlier is None)
        server.state.put("model", weights if is_kept else with_neutral_unknown(weights))

    def answers(self, server: Server) -> Answering:
        weights, classes = server.state.group("model"), len(server.classes)
        return Answering(
            lambda _: ScoredModel(server.task.network(weights, classes + 1, slot="predictor"), classes, self.score),
            server.clients,
            threshold=self.params.threshold,
        )

    def measure(self, server: Server, outcome: Outcome) -> dict[str, float]:
        """Return the share of boundary samples in the last round, and how far they were pushed."""
        return dict(server.state.info.get("synthesis", {}))

    def exhibits(self, record: Record) -> Sequence[Exhibit]:
        return boundary_exhibits(record, self.params, self.layouts)
