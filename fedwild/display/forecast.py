"""How long something will still take, judged by what it took so far."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean


@dataclass(frozen=True)
class RoundTime:
    """What a round took."""

    phase: str
    asking: float
    """Seconds until its last client had answered."""
    rest: float
    """Seconds after that: merging, measuring, saving."""


@dataclass(frozen=True)
class Underway:
    """A round that is not done yet, as of its last answer."""

    phase: str
    share: float
    """Of its clients, how many have answered, 0 to 1."""
    seconds: float
    """What that took."""

    @property
    def foreseen(self) -> list[RoundTime]:
        """The whole round, if the clients to come are like those that answered; empty before the first."""
        return [RoundTime(self.phase, self.seconds / self.share, 0.0)] if self.share > 0 else []


def run_seconds_left(done: Sequence[RoundTime], now: Underway | None, ahead: Sequence[str]) -> float | None:
    """The seconds that a run still takes, or None while nothing is known.

    `done` are its rounds so far, `now` is the round under way, and `ahead` has the phases of the rounds after that.
    Rounds of a phase take as long as those before them; a phase that is still to come is taken to be like all others.
    """
    typical = {phase: mean_of(r for r in done if r.phase == phase) for phase in {r.phase for r in done}}
    if now is not None and now.phase not in typical and now.foreseen:
        typical[now.phase] = now.foreseen[0]
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
    """A round of average length."""
    several = list(rounds)
    return RoundTime(several[0].phase, fmean(r.asking for r in several), fmean(r.rest for r in several))


def seconds_left(seconds: float, done: float, total: float | None) -> float | None:
    """What remains of even work of which `done` took so many seconds; None while nothing is known."""
    if total is None or done <= 0:
        return None
    return seconds / done * max(0.0, total - done)


def clock(seconds: float) -> str:
    """Seconds as 0:07, 12:34 or 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
