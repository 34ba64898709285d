"""The local engine: one long-lived, single-threaded worker process per core.

Workers are forked after the data is loaded, so that all of them read the same memory. Jobs and answers are small JSON
messages over a pipe; payloads are in files of the run's spool folder. With no workers, jobs run in this process, which
suits a debugger.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

import torch

from fedwild.contract.engine import Answer, Job
from fedwild.engines.executor import Executor
from fedwild.engines.pool import Worker, WorkerDied, WorkerPool
from fedwild.engines.threads import single_thread


@dataclass(eq=False)
class ProcessWorker(Worker):
    """A process and this end of its pipe."""

    process: BaseProcess
    pipe: Connection


class LocalEngine(WorkerPool[ProcessWorker]):
    """Runs clients on this machine's cores."""

    def __init__(self, executor: Executor, workers: int) -> None:
        super().__init__()
        self._executor = executor
        on_cpu = torch.device(executor.task.device).type == "cpu"
        # A forked process cannot use CUDA once its parent has; spawning costs an import but is safe.
        forks = on_cpu and "fork" in multiprocessing.get_all_start_methods()
        self._context = multiprocessing.get_context("fork" if forks else "spawn")
        if not forks:
            # Spawned processes do not inherit the data.
            data = executor.dataset
            for t in (data.x_train, data.y_train, data.x_test, data.y_test, data.domain_train, data.domain_test):
                t.share_memory_()
        self.workers = [self._start() for _ in range(workers)]

    def _start(self) -> ProcessWorker:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(  # type: ignore[attr-defined]
            target=work, args=(self._executor, theirs, os.getpid()), daemon=True
        )
        process.start()
        theirs.close()
        return ProcessWorker(process, ours)

    def run(self, jobs: Iterable[Job], started: Callable[[Job], None] = lambda job: None) -> Iterator[Answer]:
        if self.workers:
            yield from super().run(jobs, started)
            return
        for job in jobs:
            started(job)
            yield self._executor.execute(job)

    def submit(self, worker: ProcessWorker, job: Job) -> None:
        # A worker that died is noticed when its answer is awaited.
        with contextlib.suppress(BrokenPipeError):
            worker.pipe.send_bytes(job.to_json())

    def wait(self, workers: Sequence[ProcessWorker]) -> Sequence[ProcessWorker]:
        ready = wait([worker.pipe for worker in workers])
        return [worker for worker in workers if worker.pipe in ready]

    def receive(self, worker: ProcessWorker, job: Job) -> Answer:
        try:
            return Answer.from_json(worker.pipe.recv_bytes(), job)
        except (EOFError, OSError):
            worker.process.join()
            raise WorkerDied(f"exit code {worker.process.exitcode}") from None

    def replace(self, worker: ProcessWorker) -> ProcessWorker:
        worker.pipe.close()
        fresh = self._start()
        self.workers[self.workers.index(worker)] = fresh
        return fresh

    def close(self) -> None:
        for worker in self.workers:
            worker.pipe.close()
            worker.process.terminate()
            worker.process.join()
        self._executor.close()
        super().close()


def work(executor: Executor, pipe: Connection, parent: int) -> None:
    """Answer jobs until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        # The kernel ends this process when its parent is killed.
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
    single_thread()
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            # Other workers hold copies of the pipe's other end, so only the parent's id shows that it was killed.
            while not pipe.poll(1.0):
                if os.getppid() != parent:
                    return
            pipe.send_bytes(executor.execute(Job.from_json(pipe.recv_bytes())).to_json())
