"""Phase `known`: the labelled classes are learnt as in FedAvg, with cross-entropy and prototype contrast."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedwild.methods.fedavg import AveragingRounds

if TYPE_CHECKING:
    from fedwild.methods.gal.method import GAL


class Known(AveragingRounds):
    """Rounds of known-class learning (Eq. 4). The rows of the head without bias are the class prototypes."""

    def __init__(self, method: GAL) -> None:
        super().__init__("known", method.params.rounds, method)
