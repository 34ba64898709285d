"""Local-only training ("SOLO"): no federation, the lower bound that every federated method must beat.

Each client trains from its own initialisation on its own data. The server keeps the models, one per client, so that
they can be evaluated and used; nothing is merged.
"""

from __future__ import annotations

from pydantic import Field

from fedwild.contract import Answering, Client, Predictor, Server, Traits
from fedwild.core.errors import UserError
from fedwild.methods.one_shot import OneShot
from fedwild.methods.registry import METHODS
from fedwild.openset.decisions import DecisionSettings
from fedwild.openset.predictors import ScoredModel
from fedwild.training.loop import LocalTraining


@METHODS.add("local-only")
class LocalOnly(OneShot):
    """Trains one model per client on its own data only (SOLO)."""

    class Params(DecisionSettings, LocalTraining):
        epochs: int = Field(20, ge=0, description="passes over the client's own data")

    traits = Traits(personal=True)
    params: Params

    def answers(self, server: Server) -> Answering:
        names = list(server.state.info.get("samples", {}))

        def predictor(client: Client | None) -> Predictor:
            if client is None or client.name not in names:
                raise UserError(f"local-only has one model per client: choose one of {', '.join(names)}.")
            weights = server.state.group(f"models/{client.name}")
            model = server.task.network(weights, self.outputs(len(server.classes)), slot="predictor")
            return ScoredModel(model, len(server.classes), self.score)

        return Answering(predictor, names, personal=True, threshold=self.params.threshold)
