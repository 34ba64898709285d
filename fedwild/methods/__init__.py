"""One readable file per method."""

from fedwild.methods import (  # noqa: F401  (each registers itself)
    close_set_voting,
    fedavg,
    fedma,
    fedoss,
    fedov,
    fedpd,
    gal,
    local_only,
)
from fedwild.methods.base import METHODS

__all__ = ["METHODS"]
