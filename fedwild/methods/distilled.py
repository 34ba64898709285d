"""What distilled ensembles share: after the clients' one upload the server teaches a single network.

FedOV, section 4.4 and Appendix B.1: targets are the ensemble's normalised votes over the K classes on unlabelled public
data; the student has K outputs. The ensemble is then dropped, and the student is the run's global model, so that an
iterative method can start from it (`--start-from`; the paper's FedOV_FedProx).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from fedwild.distillation import distil
from fedwild.hyper import Hyper
from fedwild.methods.one_shot import OneShot
from fedwild.predictors import ScoredModel
from fedwild.protocol import Client, Phase, Predictor, Replies, Server
from fedwild.rng import Rng
from fedwild.task import weights_of
from fedwild.training import LocalTraining

DISTIL = "distil"


class DistilledParams(Hyper):
    """How the server teaches."""

    distil_epochs: int = Field(100, ge=0, description="passes over the public data")
    distil_batch_size: int = Field(64, ge=1, description="public samples per step")
    distil_lr: float = Field(1e-3, gt=0, description="learning rate of Adam at the server")


class Distilled(OneShot):
    """A one-shot ensemble, then one network that learnt to vote as the ensemble did."""

    needs_public = True
    composes = ("objective", "score")

    @classmethod
    def scores_unknown_output(cls, parts: Mapping[str, Any]) -> bool:
        """The student has none."""
        return False

    def phases(self) -> Sequence[Phase]:
        return [*super().phases(), Phase(DISTIL, 1)]

    def participants(self, server: Server, present: Sequence[str], participation: float, rng: Rng) -> Sequence[str]:
        """Nobody while the server teaches."""
        return [] if server.step.phase == DISTIL else super().participants(server, present, participation, rng)

    def merge(self, server: Server, replies: Replies) -> None:
        if server.step.phase != DISTIL:
            super().merge(server, replies)
            return
        assert server.public is not None
        student = server.task.build(len(server.classes), server.rng)
        trained = distil(self.predictor(server), student, server.public, self.teaching(), server.rng)
        loss = "" if trained.loss is None else f", last loss {trained.loss:.4f}"
        server.note(f"distilled {len(server.state.members('models'))} models on {len(server.public)} samples{loss}")
        self.forget(server)
        server.state.put("model", weights_of(student))

    def teaching(self) -> LocalTraining:
        """The server's training settings."""
        p = self.params
        return LocalTraining(epochs=p.distil_epochs, batch_size=p.distil_batch_size, optimizer="adam", lr=p.distil_lr)

    def predictor(self, server: Server, client: Client | None = None) -> Predictor:
        """The ensemble until there is a student."""
        weights = server.state.group("model")
        if not weights:
            # The next class in line is the ensemble's.
            return super().predictor(server, client)  # type: ignore[safe-super]
        student = server.task.network(weights, len(server.classes), slot="predictor")
        return ScoredModel(student, len(server.classes), self.score)
