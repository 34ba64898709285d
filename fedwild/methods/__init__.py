"""One readable file per method."""

from fedwild.methods import (  # noqa: F401  (each registers itself)
    afl,
    close_set_voting,
    fedavg,
    fedbn,
    fedheal,
    fedma,
    fedoss,
    fedov,
    fedpd,
    fedproto,
    gains,
    gal,
    local_only,
    qffl,
)
from fedwild.methods.base import METHODS

__all__ = ["METHODS"]
