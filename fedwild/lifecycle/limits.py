"""Limits on replies: how far a client may move the server's state, compared with the other clients."""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedwild.contract import Server
from fedwild.core.payload import Payload
from fedwild.models.norms import comparable

MIN_SCALE = 1.0
"""Norms up to `max_update` times this are never too large, since small figures may well differ by large factors."""


@dataclass(frozen=True)
class Update:
    """The size of one group of a reply."""

    norm: float
    """The norm of the group minus the server's tensors of the same names and shapes."""
    reference: float
    """The norm of these tensors at the server; 0 if it has none of them."""


def measure_updates(server: Server, reply: Payload) -> dict[str, Update]:
    """Return the size of each group of a reply, over its floating-point tensors."""
    squares: dict[str, list[float]] = {}
    for name, tensor in reply.tensors.items():
        if not tensor.is_floating_point():
            continue
        sums = squares.setdefault(name.partition("/")[0], [0.0, 0.0])
        change, before = comparable(name, tensor), server.state.tensors.get(name)
        if before is not None and before.shape == tensor.shape:
            before = comparable(name, before)
            sums[1] += _norm(before) ** 2
            change = change - before
        sums[0] += _norm(change) ** 2
    return {group: Update(math.sqrt(new), math.sqrt(old)) for group, (new, old) in squares.items()}


def find_excessive(updates: Mapping[str, Mapping[str, Update]], max_update: float) -> dict[str, str]:
    """Return the clients whose updates are too large, sorted, with the reason. `updates`: by client and group."""
    rising: dict[str, list[float]] = {}
    for groups in updates.values():
        for group, update in groups.items():
            # Clients without samples change nothing and are not typical.
            if update.norm > 0:
                rising.setdefault(group, []).append(update.norm)
    for norms in rising.values():
        norms.sort()
    reasons: dict[str, str] = {}
    for name in sorted(updates):
        for group, update in updates[name].items():
            limit = update_limit(update, rising.get(group, []), max_update)
            if not update.norm <= limit:
                reasons[name] = (
                    f"the norm of its update of {group!r} is {update.norm:.3g}, the limit is {limit:.3g} "
                    f"(federation.max_update = {max_update:g})"
                )
    return reasons


def update_limit(update: Update, rising: Sequence[float], max_update: float) -> float:
    """Return the largest norm that an update may have. `rising`: the sorted norms of all clients, without zeros.

    It is `max_update` times the median of the other clients' norms, or times the norm of the server's tensors if that
    is larger, or at least `MIN_SCALE`. What the server has no counterpart for is often a sum of squares, such as
    moments of features: there the factor is the square of `max_update`.
    """
    # A product overflows to infinity, a power raises.
    factor = max_update if update.reference else max_update * max_update
    return factor * max(median_without(rising, update.norm), update.reference, MIN_SCALE)


def median_without(rising: Sequence[float], own: float) -> float:
    """Return the lower median of sorted norms without one that equals `own`; 0 if none is left."""
    place = bisect.bisect_left(rising, own) if own > 0 else len(rising)
    count = len(rising) - (place < len(rising))
    if not count:
        return 0.0
    middle = (count - 1) // 2
    return rising[middle if middle < place else middle + 1]


def _norm(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor, dtype=torch.float64))
