"""Close-set voting. Guha, Talwalkar, Smith: One-shot federated learning. 2019; as compared in FedOV (Table 1).

Each client trains a closed-set classifier over all K classes of the federation from its own random initialisation and
uploads it once. The server keeps them all; the answer is the mean of their probabilities.
"""

from __future__ import annotations

from fedwild.contract import Answering, Server
from fedwild.methods.distilled import Distilled, DistilledParams
from fedwild.methods.one_shot import OneShot, OneShotTraining
from fedwild.methods.registry import METHODS
from fedwild.openset.predictors import Vote


@METHODS.add("close-set-voting")
class CloseSetVoting(OneShot):
    """Averages the probabilities of models that clients train alone and upload once."""

    Params = OneShotTraining
    params: OneShotTraining

    def answers(self, server: Server) -> Answering:
        """The votes of all clients with training samples."""
        classes = len(server.classes)
        return Answering(lambda _: Vote(self.voters(server), classes, self.score), server.clients)


@METHODS.add("distilled-close-set")
class DistilledCloseSet(Distilled, CloseSetVoting):
    """Close-set voting, distilled into a single network on public unlabelled data."""

    class Params(OneShotTraining, DistilledParams):
        pass
