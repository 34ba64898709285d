"""Limits on replies: how far a client may move what the server has, compared with the other clients."""

from __future__ import annotations

import math
import statistics
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


def exceeds_limit(name: str, updates: Mapping[str, Mapping[str, Update]], max_update: float) -> str | None:
    """Return why a client's updates are too large, or None. `updates` are those of all clients, by group."""
    for group, update in updates[name].items():
        others = [mine[group].norm for other, mine in updates.items() if other != name and group in mine]
        # What the server has no counterpart for is often a sum of squares, such as moments of features.
        factor = max_update if update.reference else max_update**2
        limit = update_limit(others, update.reference, factor)
        if not update.norm <= limit:
            return (
                f"the norm of its update of {group!r} is {update.norm:.3g}, the limit is {limit:.3g} "
                f"(federation.max_update = {max_update:g})"
            )
    return None


def update_limit(others: Sequence[float], reference: float, factor: float) -> float:
    """Return the largest norm that an update may have.

    It is `factor` times the median of the other clients' norms, or times the norm of what the server has if that is
    larger, or at least `MIN_SCALE`. Norms of 0 do not count: clients without samples change nothing.
    """
    moved = [norm for norm in others if norm > 0]
    return factor * max(statistics.median_low(moved) if moved else 0.0, reference, MIN_SCALE)


def _norm(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor, dtype=torch.float64))
