"""Phases whose merge depends on replies only through sums over clients, which secure sums can protect.

The client half does not change. Where sums are secure, the server gets the sums of what the clients would have sent,
and merges one reply: means in place of averaged groups, totals in place of added ones, and the number of all samples.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedwild.contract.halves import Reply, Server
from fedwild.contract.phase import Groups, Phase
from fedwild.core.payload import Payload


class NotSummable(Exception):
    """A phase needs the replies of single clients. The message says what for."""


@dataclass(frozen=True)
class Sums:
    """The groups of a reply that the server needs, and how it combines them over clients."""

    means: tuple[str, ...] = ()
    """Averaged, weighted by `Summable.weigh`."""
    plain_means: tuple[str, ...] = ()
    """Averaged over all clients that reply, with equal weights."""
    totals: tuple[str, ...] = ()
    """Added."""

    def __add__(self, other: Sums) -> Sums:
        return Sums(self.means + other.means, self.plain_means + other.plain_means, self.totals + other.totals)

    @property
    def groups(self) -> tuple[str, ...]:
        return self.means + self.plain_means + self.totals


class Summable:
    """A mix-in for such phases. A phase that overrides `merge` must also override `sums`."""

    def sums(self) -> Sums:
        """Return what is summed. Raise `NotSummable` if the settings require single replies."""
        raise NotSummable("it does not declare what it adds")

    def weigh(self, reply: Reply) -> float:
        """Return a client's weight in `Sums.means`: by default n_k. It is above 0 only with samples."""
        return float(reply.samples)

    def summands(self, reply: Payload) -> Payload:
        """Return what a client adds, computed there from its reply: by default the reply."""
        return reply

    def summed_groups(self, server: Server) -> Groups:
        """Return names, shapes and types of the groups that are summed: by default those of a reply."""
        return self.expects(server) if isinstance(self, Phase) else {}

    def from_sums(self, combined: Payload) -> Payload:
        """Return the reply that `merge` gets, from the means and totals: by default these."""
        return combined


def sums_of(phase: Phase) -> Sums:
    """Return what a phase sums. Raise `NotSummable` if its merge needs single replies."""
    order = type(phase).__mro__
    declares = next((i for i, cls in enumerate(order) if "sums" in vars(cls)), len(order))
    merges = next(i for i, cls in enumerate(order) if "merge" in vars(cls))
    if not isinstance(phase, Summable) or merges < declares:
        # A subclass with its own merge does not inherit the declaration of another merge.
        raise NotSummable("its merge needs the replies of single clients")
    return phase.sums()
