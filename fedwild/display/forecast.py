"""Estimates of the time that is left, from the time that was needed so far."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean


@dataclass(frozen=True)
class RoundTime:
    """The duration of a round."""

    phase: str
    asking: float
    """Seconds until its last client replied."""
    rest: float
    """Seconds after that, for merging, measuring and saving."""


@dataclass(frozen=True)
class Underway:
    """The current round, as of its last reply."""

    phase: str
    share: float
    """The share of its clients that have replied, 0 to 1."""
    seconds: float
    """The time until the last reply."""

    @property
    def expected(self) -> RoundTime | None:
        """The duration of the whole round if all clients take equally long; None before the first reply."""
        return RoundTime(self.phase, self.seconds / self.share, 0.0) if self.share > 0 else None


def run_seconds_left(done: Sequence[RoundTime], now: Underway | None, ahead: Sequence[str]) -> float | None:
    """Return the seconds that a run still needs, or None before the first reply.

    `done` has the completed rounds, `now` is the current round, and `ahead` has the phases of the rounds after it.
    A round is expected to take as long as earlier rounds of its phase, or of all phases if it is the first.
    """
    typical = {phase: mean_of(r for r in done if r.phase == phase) for phase in {r.phase for r in done}}
    if now is not None and now.phase not in typical and now.expected is not None:
        typical[now.phase] = now.expected
    if not typical:
        return None
    others = mean_of(done) if done else next(iter(typical.values()))
    left = 0.0
    if now is not None:
        this = typical.get(now.phase, others)
        left = (1 - now.share) * this.asking + this.rest
    rounds = [typical.get(phase, others) for phase in ahead]
    return left + sum(r.asking + r.rest for r in rounds)


def mean_of(rounds: Iterable[RoundTime]) -> RoundTime:
    """Return a round of average duration."""
    several = list(rounds)
    return RoundTime(several[0].phase, fmean(r.asking for r in several), fmean(r.rest for r in several))


def seconds_left(seconds: float, done: float, total: float | None) -> float | None:
    """Return the time left for work at constant speed of which `done` took `seconds`; None if it is unknown."""
    if total is None or done <= 0:
        return None
    return seconds / done * max(0.0, total - done)


def clock(seconds: float) -> str:
    """Return seconds as 0:07, 12:34 or 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
