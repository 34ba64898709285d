"""When things happen in a run: a method's rounds in order, and since when each client is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from fedwild.errors import UserError, unknown_name
from fedwild.protocol import Method, Step


def steps_of(method: Method, first: int = 0) -> list[Step]:
    """A method's rounds in order, numbered from `first` on, which is where an earlier run that goes on here ended.

    Phases that share a name count on, so that no two rounds draw the same numbers.
    """
    counters: dict[str, int] = {}
    steps: list[Step] = []
    for phase in method.phases():
        for _ in range(phase.rounds):
            number = counters.get(phase.name, 0)
            counters[phase.name] = number + 1
            steps.append(Step(phase.name, number, first + len(steps)))
    if not steps:
        raise UserError(f"method {method.name!r} has no rounds: its phases must add up to at least one.")
    return steps


def phases_of(steps: Sequence[Step]) -> list[tuple[str, int]]:
    """The phases of rounds in their order, with the number of rounds of each."""
    return [(name, len(list(rounds))) for name, rounds in groupby(steps, key=lambda step: step.phase)]


def arrivals_of(arrivals: Mapping[str, int | str], steps: Sequence[Step]) -> dict[str, int]:
    """By client, the index of the first round in which it is there.

    A number counts this run's own rounds; a phase's name stands for its first round.
    """
    first = {step.phase: step.index for step in reversed(steps)}
    for client, when in arrivals.items():
        if isinstance(when, str) and when not in first:
            raise unknown_name(f"federation.arrivals.{client}: phase", when, first)
    begin = steps[0].index
    return {client: first[when] if isinstance(when, str) else begin + when for client, when in arrivals.items()}
