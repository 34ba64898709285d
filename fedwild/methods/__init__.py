"""One readable file per method; the large ones are packages whose files are their phases in the paper's order."""

# Each registers itself.
from fedwild.methods import (
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
from fedwild.methods.registry import METHODS, add_presets, demonstration

add_presets()

__all__ = ["METHODS", "demonstration"]
