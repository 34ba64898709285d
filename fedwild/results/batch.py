"""Several runs one after the other: what is done is kept, what was cut short goes on, and a failure stops no other."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedwild import api
from fedwild.runs.config import Config
from fedwild.core.errors import UserError
from fedwild.lifecycle.rounds import Listener


@dataclass(frozen=True)
class Planned:
    """A run to be done."""

    label: str
    config: Config
    folder: Path

    @property
    def is_done(self) -> bool:
        return (self.folder / "result.json").is_file()


@dataclass
class Progress:
    """How far a batch is."""

    total: int
    kept: int = 0
    """Runs that were done before it began."""
    seconds: list[float] = field(default_factory=list)
    """Of the runs that it has done itself."""
    failures: dict[str, UserError] = field(default_factory=dict)
    """What ended runs, by label."""

    @property
    def done(self) -> int:
        return self.kept + len(self.seconds) + len(self.failures)

    def seconds_left(self, running_for: float = 0.0) -> float | None:
        """If the runs to come take as long as those that were done, on average; None before the first is."""
        if not self.seconds:
            return None
        mean = sum(self.seconds) / len(self.seconds)
        return max(0.0, mean * (self.total - self.done) - min(running_for, mean))


class Watcher:
    """Sees a batch go by; the default looks away."""

    def begin(self, progress: Progress) -> None:
        """Before the first run."""

    def run(self, planned: Planned, progress: Progress) -> Listener:
        """Before each run; what is returned hears of its events."""
        return lambda event: None

    def ran(self, planned: Planned, progress: Progress, error: UserError | None) -> None:
        """After it."""


def carry_out(
    planned: Sequence[Planned],
    watcher: Watcher,
    workers: int | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Progress:
    """Do those of the runs that are not done yet."""
    progress = Progress(len(planned), kept=sum(item.is_done for item in planned))
    watcher.begin(progress)
    for item in planned:
        if item.is_done:
            continue
        listener, began = watcher.run(item, progress), clock()
        problem: UserError | None = None
        try:
            _run(item, workers, listener)
            progress.seconds.append(clock() - began)
        except UserError as error:
            problem = error
        except Exception as error:
            whole = f"`fedwild resume {item.folder}` shows all of it" if item.folder.exists() else "no run had begun"
            problem = UserError(f"{type(error).__name__}: {error} ({whole})")
        if problem is not None:
            progress.failures[item.label] = problem
        watcher.ran(item, progress, problem)
    return progress


def _run(item: Planned, workers: int | None, listener: Listener) -> None:
    if item.folder.exists() and any(item.folder.iterdir()):
        api.resume(item.folder, workers, listener)
    else:
        api.start(item.config.with_engine(workers=workers), item.folder, listener)
