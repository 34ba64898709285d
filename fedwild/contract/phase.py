"""A phase: a named sequence of equal rounds, with the server half and the client half next to each other.

One round:

    names   = phase.who(server, present, draw)
    replies = [phase.local(phase.send(server, name), client(name), rng) for name in names]
    phase.merge(server, replies)            # replies in the order of the clients' names
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Protocol

from torch import Tensor

from fedwild.contract.halves import Client, Replies, Server
from fedwild.core.errors import BadReply
from fedwild.core.payload import Payload, check_like
from fedwild.core.rng import Rng

Tensors = Mapping[str, Tensor]
"""Named tensors, such as the weights of a model."""
Groups = Mapping[str, Tensors]
"""Named groups of named tensors."""
Draw = Callable[[Sequence[str]], Sequence[str]]
"""Draws a random share of some clients, at least one of them; `federation.participation` is the share."""


class Phase:
    """A named sequence of equal rounds. The name keys randomness and checkpoints, so it must never change."""

    requires_replies: ClassVar[bool] = True
    """Whether a round fails when fewer than `federation.min_clients` reply."""

    def __init__(self, name: str, rounds: int) -> None:
        self.name = name
        self.rounds = rounds

    def wants(self, server: Server) -> bool:
        """Return whether the round `server.step` takes place. Return False to skip it, as after convergence."""
        return True

    def who(self, server: Server, present: Sequence[str], draw: Draw) -> Sequence[str]:
        """Return the clients that take part in this round: by default a random share of those present."""
        return draw(present)

    def send(self, server: Server, client: str) -> Payload:
        """Return the request to one client. Payloads made of the same tensor objects are encoded once for all."""
        return Payload()

    def local(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        """Do the client's work where its data is. The reply's info must hold "samples"."""
        return Payload(info={"samples": 0})

    def expects(self, server: Server) -> Groups:
        """Return the groups that a reply must have, with the names, shapes and types of their tensors."""
        return {}

    def check(self, server: Server, reply: Payload) -> None:
        """Reject an invalid reply by raising `BadReply`. All its tensors are finite already."""
        samples = reply.info.get("samples")
        if not isinstance(samples, int) or isinstance(samples, bool) or not 0 <= samples <= 2**53:
            raise BadReply(f"info 'samples' is {str(samples)[:40]}, expected a whole number from 0 to 2**53")
        for group, spec in self.expects(server).items():
            check_like(reply.group(group), spec, group)

    def merge(self, server: Server, replies: Replies) -> None:
        """Merge the replies into `server.state`."""


class Halves(Protocol):
    """The two halves of a round as methods of one class."""

    def send(self, server: Server, client: str) -> Payload: ...

    def local(self, payload: Payload, client: Client, rng: Rng) -> Payload: ...

    def merge(self, server: Server, replies: Replies) -> None: ...


class Rounds(Phase):
    """Rounds whose halves are `send`, `local` and `merge` of a method that has one kind of round."""

    def __init__(self, name: str, rounds: int, halves: Halves) -> None:
        super().__init__(name, rounds)
        self._halves = halves

    def send(self, server: Server, client: str) -> Payload:
        return self._halves.send(server, client)

    def local(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        return self._halves.local(payload, client, rng)

    def merge(self, server: Server, replies: Replies) -> None:
        self._halves.merge(server, replies)
