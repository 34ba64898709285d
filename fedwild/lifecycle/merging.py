"""Guarded merges: replies are merged into a copy of the server, which replaces the server only if it is valid.

A merge that fails costs the reply that makes it fail, or the round, but not the run.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from fedwild.contract import EVERYONE, Payload, Phase, Replies, Server

MAX_SINGLE = 32
"""A failing merge is tried again without each of this many replies, those with the largest updates first."""

Readers = dict[str, Callable[[], Payload]]


@dataclass(frozen=True)
class Merged:
    """The result of a guarded merge."""

    server: Server
    rejected: tuple[str, ...] = ()
    """The clients whose replies make the merge fail."""
    problem: str | None = None
    """Why the merge of all replies failed, if it did."""
    failed: bool = False
    """Whether the server is unchanged because no merge was valid."""


def merge_replies(server: Server, phase: Phase, readers: Readers, by_size: Sequence[str]) -> Merged:
    """Merge replies into a copy of the server. `by_size`: the clients, those with the largest updates first.

    If the merge of all replies fails, it is tried without each single reply and then without more and more of the
    largest ones.
    """
    merged, problem = attempt(server, phase, Replies(readers))
    if merged is not None:
        return Merged(merged)
    for rejected in subsets(by_size):
        kept = {name: read for name, read in readers.items() if name not in rejected}
        merged, _ = attempt(server, phase, Replies(kept))
        if merged is not None:
            return Merged(merged, rejected, problem)
    return Merged(server, (), problem, failed=True)


def subsets(by_size: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield the replies to leave out: each single one, then the two largest, the four largest and so on."""
    if len(by_size) > 1:
        yield from ((name,) for name in by_size[:MAX_SINGLE])
    count = 2
    while count < len(by_size):
        yield tuple(by_size[:count])
        count *= 2


def merge_sum(server: Server, phase: Phase, combined: Payload, clients: Iterable[str], problem: str | None) -> Merged:
    """Merge the combined reply of a secure sum over these clients, unless there is a problem with it."""
    if problem is None:
        merged, problem = attempt(server, phase, Replies({EVERYONE: lambda: combined}, list(clients)))
        if merged is not None:
            return Merged(merged)
    return Merged(server, (), problem, failed=True)


def attempt(server: Server, phase: Phase, replies: Replies) -> tuple[Server | None, str | None]:
    """Return the server after merging these replies, or the reason why the merge is not valid."""
    changed = copy_server(server)
    try:
        phase.merge(changed, replies)
    except OSError:
        # The disk failed, not the merge.
        raise
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"
    problem = find_invalid(changed.state)
    return (changed, None) if problem is None else (None, problem)


def copy_server(server: Server) -> Server:
    """Return a server whose state, classes, notes and findings are independent of those of the given one."""
    return replace(
        server,
        state=Payload({name: t.clone() for name, t in server.state.tensors.items()}, copy.deepcopy(server.state.info)),
        classes=copy.deepcopy(server.classes),
        thresholds=dict(server.thresholds),
        notes=list(server.notes),
        findings=list(server.findings),
    )


def find_invalid(state: Payload) -> str | None:
    """Return what makes a state unusable for later rounds: the first NaN or infinite value."""
    for name, tensor in state.tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            return f"{name!r} would have NaN or infinite values"
    for key, value in state.info.items():
        # A record inside may have NaN where something is not defined.
        if isinstance(value, float) and not math.isfinite(value):
            return f"{key!r} would have NaN or infinite values"
    return None
