"""Who answers after the rounds so far, with what, and at which threshold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from fedwild.contract.halves import Client
from fedwild.contract.predictor import Outcome, Predictor


@dataclass(frozen=True)
class Answering:
    """The predictor that all clients share, or one predictor per client."""

    predictor: Callable[[Client | None], Predictor]
    """Builds the predictor. It gets the client if `personal`, else None."""
    clients: Sequence[str]
    """If `personal`, the clients that have a predictor by now. Otherwise the members of the federation, whose
    validation samples set the common threshold."""
    personal: bool = False
    """Whether each client has its own predictor."""
    threshold: float | None = None
    """A threshold that is part of the method, such as 0 for p_unknown - max p_known. With None, it is calibrated to
    accept the share `evaluation.accept` of known validation samples."""
    truth: Callable[[Outcome], Tensor] = lambda outcome: outcome.truth
    """The true ids (n,) for the common figures. Override it if some classes of the registry have no true name yet."""
