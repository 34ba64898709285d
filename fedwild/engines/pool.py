"""A pool of long-lived workers: hands out jobs, collects answers, replaces workers that die.

The local engine and the Ray engine are such pools; they differ in what a worker is.
"""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch

from fedwild.contract.engine import Answer, Job
from fedwild.engines.threads import single_thread

# A worker would be idle while the answer to such a short job is processed, so it gets the next job beforehand.
SHORT_JOB_SECONDS = 0.05


class WorkerDied(Exception):
    """A worker ended before it answered."""


@dataclass(eq=False)
class Worker:
    """The jobs that a worker was given and has not answered, in order."""

    pending: deque[Job] = field(default_factory=deque, kw_only=True)
    capacity: int = field(default=1, kw_only=True)


W = TypeVar("W", bound=Worker)


class WorkerPool(ABC, Generic[W]):
    """Runs jobs on workers. While it exists, this process uses one thread, so that bits agree with the workers'."""

    def __init__(self) -> None:
        self._threads = torch.get_num_threads()
        single_thread()
        # The garbage collector need not scan a million objects of imported libraries, here or in forked workers.
        gc.freeze()
        self.workers: list[W] = []
        self._died_once: list[Job] = []

    @abstractmethod
    def submit(self, worker: W, job: Job) -> None:
        """Send a job to a worker. Raise `OSError` if a file of the job cannot be read."""

    @abstractmethod
    def wait(self, workers: Sequence[W]) -> Sequence[W]:
        """Return those of the workers that have an answer, or have died; wait until there is one."""

    @abstractmethod
    def receive(self, worker: W, job: Job) -> Answer:
        """Return a worker's answer to its oldest job, or raise `WorkerDied`."""

    @abstractmethod
    def replace(self, worker: W) -> W:
        """Return the worker that takes over the jobs of one that died."""

    def present(self) -> None:
        """All clients are always present."""
        return

    def run(self, jobs: Iterable[Job], started: Callable[[Job], None] = lambda job: None) -> Iterator[Answer]:
        """Yield answers as they arrive; `started` is called when a job is sent."""
        queue = iter(jobs)
        busy: list[W] = []

        def fill(worker: W) -> Iterator[Answer]:
            """Give a worker jobs up to its capacity; yield an answer for each job whose files cannot be read."""
            while len(worker.pending) < worker.capacity and (job := next(queue, None)) is not None:
                started(job)
                try:
                    self._give(worker, job)
                except OSError as error:
                    yield Answer(job, error=str(error), disk_failed=True)
            if worker.pending and worker not in busy:
                busy.append(worker)

        for worker in list(self.workers):
            yield from fill(worker)
        while busy:
            for ready in self.wait(busy):
                busy.remove(ready)
                answer, worker = self._answer(ready)
                worker.capacity = 2 if answer is not None and answer.seconds < SHORT_JOB_SECONDS else 1
                # The worker works while its answer is processed.
                yield from fill(worker)
                if answer is not None:
                    yield answer

    def _give(self, worker: W, job: Job) -> None:
        self.submit(worker, job)
        worker.pending.append(job)

    def _answer(self, worker: W) -> tuple[Answer | None, W]:
        """Return a worker's answer, and the worker or its replacement.

        A job whose worker died is tried once more, since the worker may have been killed from outside. If a second
        worker dies of it, the client has failed.
        """
        job = worker.pending.popleft()
        try:
            return self.receive(worker, job), worker
        except WorkerDied as death:
            replacement = self.replace(worker)
            waiting, failed = list(worker.pending), None
            if job in self._died_once:
                self._died_once.remove(job)
                failed = Answer(job, error=f"the worker process died ({death})")
            else:
                self._died_once.append(job)
                waiting.insert(0, job)
            for again in waiting:
                self._give(replacement, again)
            return failed, replacement

    def close(self) -> None:
        """Restore the threads of this process."""
        self.workers = []
        gc.unfreeze()
        torch.set_num_threads(self._threads)
        torch.set_flush_denormal(False)
