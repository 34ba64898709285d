"""When things happen in a run: a method's rounds in order, and since when each client is present."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from fedwild.contract.halves import Step
from fedwild.contract.method import Method, Welcomes
from fedwild.contract.phase import Phase
from fedwild.core.errors import UserError, unknown_name

MAX_ROUNDS = 100_000
"""The maximum number of rounds of a plan, which is kept in memory."""


class PlannedRound(NamedTuple):
    """One round of a run and the phase that it belongs to."""

    step: Step
    phase: Phase


def plan_of(method: Method, first: int = 0) -> list[PlannedRound]:
    """Return a method's rounds in order, numbered from `first`, the number of rounds of the run that it continues.

    Phases that share a name continue its count, so that no two rounds draw the same random numbers.
    """
    counters: dict[str, int] = {}
    plan: list[PlannedRound] = []
    for phase in method.phases():
        if len(plan) + phase.rounds > MAX_ROUNDS:
            raise UserError(f"method {method.name!r} has more than {MAX_ROUNDS:,} rounds with these settings.")
        for _ in range(phase.rounds):
            number = counters.get(phase.name, 0)
            counters[phase.name] = number + 1
            plan.append(PlannedRound(Step(phase.name, number, first + len(plan)), phase))
    if not plan:
        raise UserError(f"method {method.name!r} has no rounds: its phases must have at least one in all.")
    return plan


def phase_lengths(steps: Sequence[Step]) -> list[tuple[str, int]]:
    """Return the phases of rounds in order, with the number of rounds of each."""
    return [(name, len(list(rounds))) for name, rounds in groupby(steps, key=lambda step: step.phase)]


def first_rounds(
    method: Method, newcomers: Sequence[str], chosen: Mapping[str, int | str], steps: Sequence[Step]
) -> dict[str, int]:
    """Return, by client, the index of the first round in which it is present, where that is not the first of all.

    `chosen` is what the user set (`federation.arrivals`); it overrides what the method sets for newcomers. A number
    counts this run's rounds from 0; a phase's name stands for its first round.
    """
    usual = method.arrivals(newcomers) if isinstance(method, Welcomes) else {}
    first = {step.phase: step.index for step in reversed(steps)}
    for client, when in chosen.items():
        if isinstance(when, str) and when not in first:
            raise unknown_name(f"federation.arrivals.{client}: phase", when, first)
    begin = steps[0].index
    arrivals = {**usual, **chosen}
    return {client: first[when] if isinstance(when, str) else begin + when for client, when in arrivals.items()}
