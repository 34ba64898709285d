"""Local-only training ("SOLO"): no federation at all, the floor that every federated method must beat.

Each client trains from its own initialisation on its own data. The server only keeps the models, one per
client, so that they can be evaluated and asked; nothing is ever merged.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from fedwild.errors import UserError
from fedwild.methods.base import METHODS
from fedwild.methods.one_shot import OneShot
from fedwild.predictors import ScoredModel
from fedwild.protocol import Client, Predictor, Server
from fedwild.training import LocalTraining


@METHODS.add("local-only")
class LocalOnly(OneShot):
    """Every client alone: one model each, trained on its own data only (SOLO)."""

    class Params(LocalTraining):
        epochs: int = Field(20, ge=0, description="passes over the client's own data")

    personal = True
    digits = {"method": {"epochs": 60, "batch_size": 16}}
    params: Params

    def owners(self, server: Server) -> Sequence[str]:
        return list(server.state.info.get("samples", {}))

    def predictor(self, server: Server, client: Client | None = None) -> Predictor:
        names = self.owners(server)
        if client is None or client.name not in names:
            raise UserError(f"local-only has one model per client: name one of {', '.join(names)}.")
        weights = server.state.group(f"models/{client.name}")
        model = server.task.network(weights, self.outputs(len(server.classes)), slot="predictor")
        return ScoredModel(model, len(server.classes), self.score)
