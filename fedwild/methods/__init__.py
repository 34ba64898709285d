"""One readable file per method."""

from fedwild.methods import close_set_voting, fedavg, fedma, fedov, fedpd, local_only  # noqa: F401  (each registers itself)
from fedwild.methods.base import METHODS

__all__ = ["METHODS"]
