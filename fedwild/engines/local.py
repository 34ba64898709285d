"""The local engine: one long-lived, single-threaded worker process per core.

Workers are forked after the data is loaded, so that all of them read the same memory. Jobs and answers are small
JSON messages over a pipe; payloads lie in files of the run's spool folder. With no workers, jobs run in this
process, which suits a debugger.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

import torch

from fedwild.contract.engine import Answer, Job
from fedwild.engines.executor import Executor
from fedwild.engines.threads import single_thread

# While a job this short is answered and looked at, its worker would stand idle: it gets the next one beforehand.
SHORT_JOB_SECONDS = 0.05


@dataclass
class Worker:
    """A process, our end of its pipe, and the jobs it was given and has not answered."""

    process: BaseProcess
    pipe: Connection
    jobs: deque[Job] = field(default_factory=deque)
    room: int = 1

    def give(self, job: Job) -> None:
        self.jobs.append(job)
        # A worker that died is noticed when its answer is awaited.
        with contextlib.suppress(BrokenPipeError):
            self.pipe.send_bytes(job.to_json())


class LocalEngine:
    """Runs clients on this machine's cores."""

    def __init__(self, executor: Executor, workers: int) -> None:
        self._executor = executor
        self._threads = torch.get_num_threads()
        single_thread()
        on_cpu = torch.device(executor.task.device).type == "cpu"
        # A forked process cannot use CUDA once its parent has; spawning costs an import but is safe.
        forks = on_cpu and "fork" in multiprocessing.get_all_start_methods()
        self._context = multiprocessing.get_context("fork" if forks else "spawn")
        if not forks:
            share(executor)
        # A million objects of imported libraries need not be looked through for garbage, here or in a worker.
        gc.freeze()
        self._died_once: list[Job] = []
        self._workers = [self._start() for _ in range(workers)]

    def _start(self) -> Worker:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(  # type: ignore[attr-defined]
            target=work, args=(self._executor, theirs, os.getpid()), daemon=True
        )
        process.start()
        theirs.close()
        return Worker(process, ours)

    def present(self) -> None:
        return None

    def run(self, jobs: Iterable[Job], started: Callable[[Job], None] = lambda job: None) -> Iterator[Answer]:
        queue = iter(jobs)
        if not self._workers:
            for job in queue:
                started(job)
                yield self._executor.execute(job)
            return
        busy: dict[Connection, Worker] = {}

        def fill(worker: Worker) -> None:
            """Hand a worker jobs until it has no more room, or there are none."""
            while len(worker.jobs) < worker.room and (job := next(queue, None)) is not None:
                started(job)
                worker.give(job)
            if worker.jobs:
                busy[worker.pipe] = worker

        for worker in self._workers:
            fill(worker)
        while busy:
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                answer, worker = self._receive(busy.pop(ready))
                worker.room = 2 if answer is not None and answer.seconds < SHORT_JOB_SECONDS else 1
                # The worker goes on while the answer is being looked at.
                fill(worker)
                if answer is not None:
                    yield answer

    def _receive(self, worker: Worker) -> tuple[Answer | None, Worker]:
        """A worker's answer. A worker that died is replaced and its job given once more, for it may have been killed
        from outside; a job that a second worker dies of is the client's failure."""
        job = worker.jobs.popleft()
        try:
            return Answer.from_json(worker.pipe.recv_bytes(), job), worker
        except (EOFError, OSError):
            worker.process.join()
            worker.pipe.close()
            fresh = self._start()
            self._workers[self._workers.index(worker)] = fresh
            waiting = list(worker.jobs)
            answer = None
            if job in self._died_once:
                self._died_once.remove(job)
                answer = Answer(job, error=f"the worker process died (exit code {worker.process.exitcode})")
            else:
                self._died_once.append(job)
                waiting.insert(0, job)
            for again in waiting:
                fresh.give(again)
            return answer, fresh

    def close(self) -> None:
        for worker in self._workers:
            worker.pipe.close()
            worker.process.terminate()
            worker.process.join()
        self._workers = []
        self._executor.close()
        gc.unfreeze()
        torch.set_num_threads(self._threads)
        torch.set_flush_denormal(False)


def work(executor: Executor, pipe: Connection, parent: int) -> None:
    """A worker's life: jobs in, answers out, until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    single_thread()
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            # Other workers hold copies of the pipe's far end, so a killed parent is noticed by its id.
            while not pipe.poll(1.0):
                if os.getppid() != parent:
                    return
            pipe.send_bytes(executor.execute(Job.from_json(pipe.recv_bytes())).to_json())


def die_with_parent() -> None:
    """On Linux, have the kernel end this process when its parent is killed."""
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


def share(executor: Executor) -> None:
    """Move the data into shared memory for processes that do not inherit ours."""
    data = executor.dataset
    for tensor in (data.x_train, data.y_train, data.x_test, data.y_test, data.domain_train, data.domain_test):
        tensor.share_memory_()
