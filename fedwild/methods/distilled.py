"""What distilled ensembles share: after the clients' one upload, the server distils them into a single network.

FedOV, section 4.4 and Appendix B.1: targets are the ensemble's normalised votes over the K classes on unlabelled public
data; the student has K outputs. The ensemble is then dropped, and the student is the run's global model, so that an
iterative method can start from it (`--start-from`; the paper's FedOV_FedProx).
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from fedwild.contract import Answering, Draw, Phase, Replies, Server, Settings, Traits, weights_of
from fedwild.contract.sums import Summable, Sums
from fedwild.methods.one_shot import OneShot
from fedwild.openset.predictors import ScoredModel
from fedwild.training.distillation import distil
from fedwild.training.loop import LocalTraining


class DistilledParams(Settings):
    """How the server distils."""

    distil_epochs: int = Field(100, ge=0, description="passes over the public data")
    distil_batch_size: int = Field(64, ge=1, description="public samples per step")
    distil_lr: float = Field(1e-3, gt=0, description="learning rate of Adam at the server")


class Distil(Summable, Phase):
    """One round in which only the server works: a student learns the ensemble's votes."""

    def __init__(self, method: Distilled) -> None:
        super().__init__("distil", 1)
        self.method = method

    def who(self, server: Server, present: Sequence[str], draw: Draw) -> Sequence[str]:
        return []

    def sums(self) -> Sums:
        return Sums()  # clients send nothing

    def merge(self, server: Server, replies: Replies) -> None:
        assert server.public is not None
        student = server.task.build(len(server.classes), server.rng)
        teacher = self.method.answers(server).predictor(None)
        trained = distil(teacher, student, server.public, self.training(), server.rng)
        loss = "" if trained.loss is None else f", last loss {trained.loss:.4f}"
        server.note(f"distilled {len(server.state.subgroups('models'))} models on {len(server.public)} samples{loss}")
        self.method.forget(server)
        server.state.put("model", weights_of(student))

    def training(self) -> LocalTraining:
        """Return the server's training settings."""
        p = self.method.params
        return LocalTraining(epochs=p.distil_epochs, batch_size=p.distil_batch_size, optimizer="adam", lr=p.distil_lr)


class Distilled(OneShot):
    """A one-shot ensemble, then a single network that has learnt its votes. Comes before the ensemble in the bases."""

    traits = Traits(public_data=True, unknown_output=False)
    parts = {"objective": {}, "score": {}}

    def phases(self) -> Sequence[Phase]:
        return [*super().phases(), Distil(self)]

    def answers(self, server: Server) -> Answering:
        """The ensemble answers until there is a student."""
        weights, classes = server.state.group("model"), len(server.classes)
        if not weights:
            return super().answers(server)  # type: ignore[safe-super]
        return Answering(
            lambda _: ScoredModel(server.task.network(weights, classes, slot="predictor"), classes, self.score),
            server.clients,
        )
