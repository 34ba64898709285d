"""Several runs in sequence: finished ones are kept, interrupted ones resumed, and a failure does not stop the rest."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedwild.core.errors import UserError
from fedwild.lifecycle import start as starting
from fedwild.lifecycle.run import Run
from fedwild.runs.config import Config
from fedwild.runs.events import Listener, ignore_event


@dataclass(frozen=True)
class Planned:
    """A run that the batch needs."""

    label: str
    config: Config
    folder: Path

    @property
    def is_done(self) -> bool:
        return (self.folder / "result.json").is_file()


@dataclass
class Progress:
    """The progress of a batch."""

    total: int
    kept: int = 0
    """Runs that were finished before it began."""
    seconds: list[float] = field(default_factory=list)
    """The durations of the runs that it finished."""
    failures: dict[str, UserError] = field(default_factory=dict)
    """The errors of failed runs, by label."""

    @property
    def done(self) -> int:
        return self.kept + len(self.seconds) + len(self.failures)

    def seconds_left(self, running_for: float = 0.0) -> float | None:
        """Return the expected time left from the mean duration so far; None before the first run is finished."""
        if not self.seconds:
            return None
        mean = sum(self.seconds) / len(self.seconds)
        return max(0.0, mean * (self.total - self.done) - min(running_for, mean))


class Watcher:
    """Follows a batch; the default ignores it."""

    def begin(self, progress: Progress) -> None:
        """Called before the first run."""

    def run(self, planned: Planned, progress: Progress) -> Listener:
        """Called before each run; return a listener for its events."""
        return ignore_event

    def ran(self, planned: Planned, progress: Progress, error: UserError | None) -> None:
        """Called after each run."""


def run_batch(
    planned: Sequence[Planned],
    watcher: Watcher,
    workers: int | None = None,
    clock: Callable[[], float] = time.monotonic,
    save: Callable[[Progress], None] = lambda progress: None,
) -> Progress:
    """Run everything that is not finished yet. `save` is called first, and after each run, even an interrupted one."""
    progress = Progress(len(planned), kept=sum(item.is_done for item in planned))
    save(progress)
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
            advice = f"try `fedwild resume {item.folder}`" if item.folder.exists() else "no run was started"
            problem = UserError(f"{type(error).__name__}: {error} ({advice})")
        finally:
            if problem is not None:
                progress.failures[item.label] = problem
            save(progress)
        watcher.ran(item, progress, problem)
    return progress


def _run(item: Planned, workers: int | None, listener: Listener) -> None:
    if item.folder.exists() and any(item.folder.iterdir()):
        starting.resume(Run(item.folder), listener, workers=workers)
    else:
        starting.start(item.config.with_engine(workers=workers), item.folder, listener)
