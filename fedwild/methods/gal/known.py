"""Phase `known`: the labelled classes are learnt as in FedAvg, with cross-entropy and prototype contrast."""

from __future__ import annotations

from fedwild.contract import Payload, Server
from fedwild.methods.fedavg import AveragingRounds
from fedwild.methods.gal.stage import request_info


class Known(AveragingRounds):
    """Rounds of known-class learning (Eq. 4). The rows of the head without bias are the class prototypes."""

    def send(self, server: Server, client: str) -> Payload:
        payload = super().send(server, client)
        payload.info = request_info(server)
        return payload
