"""Reporting the progress of an engine's jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from fedwild.contract.engine import Answer, Job
from fedwild.evaluation.calibration import RunJobs

OnProgress = Callable[[str, int, "int | None"], None]
"""Called with what is being done, how much of it is done, and the total if it is known."""

WORDS = {
    "validate": "scoring validation samples",
    "test": "answering test samples",
}


def ignore_progress(what: str, done: int, total: int | None) -> None:
    """Report nothing."""


def with_progress(run: RunJobs, on_progress: OnProgress) -> RunJobs:
    """Return an engine's `run` that reports how many of its jobs are done."""

    def run_jobs(jobs: Iterable[Job]) -> Iterator[Answer]:
        todo = list(jobs)
        if not todo:
            return
        what = WORDS.get(todo[0].kind, "working")
        on_progress(what, 0, len(todo))
        for done, answer in enumerate(run(todo), start=1):
            on_progress(what, done, len(todo))
            yield answer

    return run_jobs
