"""Phase `known`: the labelled classes are learnt as in FedAvg, with cross-entropy and prototype contrast."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedwild.contract import Server
from fedwild.core.payload import Payload
from fedwild.methods.fedavg import AveragingRounds
from fedwild.methods.gal.records import request_info

if TYPE_CHECKING:
    from fedwild.methods.gal.method import GAL


class Known(AveragingRounds):
    """Rounds of known-class learning (Eq. 4). The rows of the head without bias are the class prototypes."""

    def __init__(self, method: GAL) -> None:
        super().__init__("known", method.params.rounds, method)

    def send(self, server: Server, client: str) -> Payload:
        payload = super().send(server, client)
        payload.info = request_info(server)
        return payload
