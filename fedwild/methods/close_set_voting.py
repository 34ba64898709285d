"""Close-set voting. Guha, Talwalkar, Smith: One-shot federated learning. 2019; as compared in FedOV (Table 1).

Each client trains a closed-set classifier over all K classes of the federation from its own random
initialisation and uploads it once. The server keeps them all; the answer is the mean of their probabilities.
"""

from __future__ import annotations

from fedwild.methods.base import METHODS
from fedwild.methods.distilled import Distilled, DistilledParams
from fedwild.methods.one_shot import OneShot, OneShotTraining
from fedwild.predictors import Vote
from fedwild.protocol import Client, Predictor, Server


@METHODS.add("close-set-voting")
class CloseSetVoting(OneShot):
    """One shot: every client trains alone and uploads once; the ensemble's mean probability decides."""

    Params = OneShotTraining
    digits = {"method": {"epochs": 40}}
    params: OneShotTraining

    def predictor(self, server: Server, client: Client | None = None) -> Predictor:
        """The vote of every client that had something to learn from."""
        return Vote(list(self.voters(server).values()), len(server.classes), self.score)


@METHODS.add("distilled-close-set")
class DistilledCloseSet(Distilled, CloseSetVoting):
    """Close-set voting taught to a single network on public unlabelled data."""

    class Params(OneShotTraining, DistilledParams):
        pass

    digits = {"method": {"epochs": 40}, "data": {"public": 0.2}}
