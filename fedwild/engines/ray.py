"""The Ray engine: clients live in Ray actors, on this machine or on a cluster.

Files stay here. A payload goes into Ray's object store once, where all actors of a node read the same memory; a
client's durable state travels with its job and comes back if it changed. What an actor does with a job is what a
worker of the local engine does, to the bit.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedwild.data import Dataset
from fedwild.contract.engine import Answer, Job
from fedwild.engines.local import SHORT_JOB_SECONDS
from fedwild.engines.ray_cluster import connect, one_line, python_path
from fedwild.engines.executor import Executor, state_file
from fedwild.core.errors import BadReply, UserError
from fedwild.core.payload import Payload
from fedwild.engines.threads import single_thread
from fedwild.contract.task import Task

try:
    import ray
    from ray import cloudpickle
    from ray.exceptions import RayError
except ImportError:
    raise UserError("engine.name = 'ray' needs Ray: pip install 'fedwild[ray]'") from None

# An actor imports torch and fetches the data; on a busy cluster it first waits for a core.
START_SECONDS = 120.0
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


@dataclass
class Call:
    """A job and what it needs, kept until it is answered, for an actor may die of it."""

    job: Job
    payload: ray.ObjectRef
    state: np.ndarray | None
    died: bool = False


@dataclass(frozen=True)
class Reply:
    """What came of a job at an actor. Bytes are arrays here, since Ray shares those between processes."""

    seconds: float = 0.0
    reply: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint8))
    state: np.ndarray | None = None
    notes: list[str] = field(default_factory=list)
    error: str | None = None
    traceback: str | None = None
    damaged: bool = False
    """Whether what came down cannot be read: not the client's fault."""


class ClientActor:
    """A executor without files, in a process of Ray's."""

    def __init__(self, home: dict[str, Any]) -> None:
        single_thread()
        self._executor = unpacked(home)
        self._payload: tuple[str, Payload] | None = None
        gc.freeze()

    def ready(self) -> None:
        """Answers when the actor is there."""

    def answer(self, call: Call) -> Reply:
        """The payload comes as a mere reference, and is fetched if it is not the one of the job before."""
        begin = time.perf_counter()
        job = call.job
        try:
            if self._payload is None or self._payload[0] != job.payload:
                self._payload = (job.payload, decoded(ray.get(call.payload)))
            kept = None if call.state is None else decoded(call.state)
        except BadReply as error:
            return Reply(error=str(error), damaged=True)
        done = self._executor.answer(job, self._payload[1], kept)
        changed = None if done.state is None else np.frombuffer(done.state, np.uint8)
        seconds = time.perf_counter() - begin
        return Reply(
            seconds, np.frombuffer(done.reply, np.uint8), changed, list(done.notes), done.error, done.traceback
        )


@dataclass
class Worker:
    """An actor, and the calls it was given and has not answered, each with where its answer will be."""

    actor: Any
    calls: deque[tuple[ray.ObjectRef, Call]] = field(default_factory=deque)
    room: int = 1

    def give(self, call: Call) -> None:
        self.calls.append((self.actor.answer.remote(call), call))


class RayEngine:
    """Runs clients in Ray actors, as many as workers are asked for and the cluster has cores, but at least one."""

    def __init__(self, executor: Executor, workers: int, address: str | None) -> None:
        self._executor = executor
        self._where = "engine.name = 'ray'" if address is None else f"engine.address = {address!r}"
        self._workers: list[Worker] = []
        self._payloads: dict[str, ray.ObjectRef] = {}
        self._connection = connect(address, workers, sum(array.nbytes for array in tensors_of(executor.dataset).values()))
        self._threads = torch.get_num_threads()
        single_thread()
        try:
            count = max(1, min(workers, int(ray.cluster_resources().get("CPU", 1))))
            self._kind = actor_kind(executor.task.device, count)
            self._home = ray.put(packed(executor))
            self._workers = self._arrived([self._start() for _ in range(count)])
        except BaseException:
            self.close()
            raise

    def _start(self) -> Worker:
        return Worker(self._kind.remote(self._home))

    def _arrived(self, workers: list[Worker]) -> list[Worker]:
        """Those of the workers that come up in time. A cluster may have no room for the others."""
        waiting = {worker.actor.ready.remote(): worker for worker in workers}
        up, late = ray.wait(list(waiting), num_returns=len(waiting), timeout=START_SECONDS)
        try:
            ray.get(up)
        except RayError as error:
            reason = one_line(getattr(error, "cause", None) or error)
            raise UserError(
                f"{self._where}: a worker cannot start: {reason} "
                "(every node needs fedwild, and the modules of your own that the run names)."
            ) from error
        for reference in late:
            ray.kill(waiting[reference].actor)
        if not up:
            raise UserError(f"{self._where}: Ray had no free core within {START_SECONDS:.0f} s; one is needed.")
        return [waiting[reference] for reference in up]

    def present(self) -> None:
        return None

    def run(self, jobs: Iterable[Job], started: Callable[[Job], None] = lambda job: None) -> Iterator[Answer]:
        queue = iter(jobs)
        busy: dict[ray.ObjectRef, Worker] = {}

        def fill(worker: Worker) -> Iterator[Answer]:
            """Hand a worker jobs until it has no more room, or there are none; those without files are answered."""
            while len(worker.calls) < worker.room and (job := next(queue, None)) is not None:
                started(job)
                try:
                    worker.give(self._call(job))
                except (OSError, RayError) as error:
                    yield Answer(job, error=one_line(error), disk_failed=True)
            if worker.calls:
                # An actor answers in order.
                busy[worker.calls[0][0]] = worker

        for worker in self._workers:
            yield from fill(worker)
        while busy:
            (ready,), _ = ray.wait(list(busy), num_returns=1)
            answer, worker = self._receive(busy.pop(ready))
            worker.room = 2 if answer is not None and answer.seconds < SHORT_JOB_SECONDS else 1
            # The worker goes on while the answer is being looked at.
            yield from fill(worker)
            if answer is not None:
                yield answer

    def _call(self, job: Job) -> Call:
        """A job with what lies in files here. Each payload is read and put into the object store once."""
        if job.payload not in self._payloads:
            self._payloads = {path: ref for path, ref in self._payloads.items() if os.path.exists(path)}
            self._payloads[job.payload] = ray.put(np.fromfile(job.payload, np.uint8))
        state = None
        if job.state is not None:
            assert job.client is not None
            state = np.fromfile(state_file(self._executor.states, job.client, job.state), np.uint8)
        return Call(job, self._payloads[job.payload], state)

    def _receive(self, worker: Worker) -> tuple[Answer | None, Worker]:
        """A worker's answer. A worker that died is replaced and its job given once more, for it may have been killed
        from outside; a job that a second worker dies of is the client's failure."""
        answer, call = worker.calls.popleft()
        try:
            return self._kept(call.job, ray.get(answer)), worker
        except RayError as error:
            with contextlib.suppress(RayError):
                ray.kill(worker.actor)
            fresh = self._replacement(worker)
            failed = Answer(call.job, error=f"the worker process died ({one_line(error)})") if call.died else None
            if failed is None:
                call.died = True
                fresh.give(call)
            for _, waiting in worker.calls:
                fresh.give(waiting)
            return failed, fresh

    def _replacement(self, dead: Worker) -> Worker:
        """A new worker, or where the cluster has no core left for one, the other that has least to do."""
        place = self._workers.index(dead)
        try:
            (self._workers[place],) = self._arrived([self._start()])
            return self._workers[place]
        except UserError:
            del self._workers[place]
            if not self._workers:
                raise
            return min(self._workers, key=lambda worker: len(worker.calls))

    def _kept(self, job: Job, reply: Reply) -> Answer:
        """An actor's reply, written where the local engine's workers write theirs."""
        if reply.error is not None:
            return Answer(
                job, error=reply.error, traceback=reply.traceback, seconds=reply.seconds, disk_failed=reply.damaged
            )
        begin = time.perf_counter()
        try:
            version = job.state if reply.state is None else self._executor.keep(reply.state.tobytes(), job)
            with open(self._executor.spool / f"up-{job.step.index}-{job.kind}-ray", "ab") as file:
                offset = file.tell()
                file.write(reply.reply.data)
        except OSError as error:
            return Answer(job, error=str(error), disk_failed=True)
        seconds = reply.seconds + time.perf_counter() - begin
        return Answer(job, file.name, offset, len(reply.reply), seconds, version, reply.notes)

    def close(self) -> None:
        for worker in self._workers:
            with contextlib.suppress(RayError):
                ray.kill(worker.actor)
        self._workers = []
        self._payloads = {}
        self._connection.close()
        gc.unfreeze()
        torch.set_num_threads(self._threads)
        torch.set_flush_denormal(False)


def actor_kind(device: str, workers: int) -> Any:
    """The class of actors: a core each, one thread, our modules, and a share of the cluster's GPUs if there is use."""
    gpus = ray.cluster_resources().get("GPU", 0.0) if torch.device(device).type == "cuda" else 0.0
    variables = {**ONE_THREAD, "PYTHONPATH": python_path() + os.pathsep + "${PYTHONPATH}"}
    make = ray.remote(num_cpus=1, num_gpus=min(1.0, gpus / workers), runtime_env={"env_vars": variables})
    return make(ClientActor)


def tensors_of(dataset: Dataset) -> dict[str, np.ndarray]:
    """The data set's tensors as arrays, by field."""
    fields = {f.name: getattr(dataset, f.name) for f in dataclasses.fields(dataset)}
    return {name: value.numpy() for name, value in fields.items() if isinstance(value, Tensor)}


def packed(executor: Executor) -> dict[str, Any]:
    """A executor for the object store: actors of a node share the arrays, and each makes the rest for itself."""
    arrays = tensors_of(executor.dataset)
    about = {f.name: getattr(executor.dataset, f.name) for f in dataclasses.fields(executor.dataset) if f.name not in arrays}
    task = executor.task
    # Ray shows an actor its own GPU alone.
    device = "cuda" if torch.device(task.device).type == "cuda" else task.device
    fresh = Task(task.input_shape, task.model, task.model_params, device)
    return {
        "arrays": arrays,
        "rest": cloudpickle.dumps((about, executor.split, executor.data, executor.method, fresh, executor.seed)),
    }


def unpacked(home: dict[str, Any]) -> Executor:
    """The executor in an actor."""
    about, split, data, method, task, seed = cloudpickle.loads(home["rest"])
    with warnings.catch_warnings():
        # The arrays cannot be written to, and nobody does.
        warnings.filterwarnings("ignore", message=".*not writable.*")
        fields = about | {name: torch.from_numpy(array) for name, array in home["arrays"].items()}
    nowhere = Path(os.devnull)
    return Executor(Dataset(**fields), split, data, method, task, seed, nowhere, nowhere)


def decoded(array: np.ndarray) -> Payload:
    """The payload in an array, on memory of its own that may be written to."""
    return Payload.decode(bytearray(array.data))
