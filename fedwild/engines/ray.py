"""The Ray engine: clients run in Ray actors, on this machine or on a cluster.

Files stay on this machine. A payload is put into Ray's object store once, where all actors of a node read the same
memory; a client's durable state is sent with its job and returned if it changed. An actor runs a job exactly as a
worker of the local engine does, so results are bit-equal.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import time
import warnings
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedwild.contract import Payload, Task
from fedwild.contract.engine import Answer, Job
from fedwild.core.errors import BadReply, UserError
from fedwild.data import Dataset
from fedwild.engines.executor import Executor
from fedwild.engines.pool import Worker, WorkerDied, WorkerPool
from fedwild.engines.ray_cluster import connect, one_line, python_path
from fedwild.engines.threads import single_thread
from fedwild.runs.checkpoints import state_file

try:
    import ray
    from ray import cloudpickle
    from ray.exceptions import RayError
except ImportError:
    raise UserError("engine.name = 'ray' needs Ray: pip install 'fedwild[ray]'") from None

# An actor imports torch and fetches the data; on a busy cluster, it first waits for a core.
START_SECONDS = 120.0
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


@dataclass
class Call:
    """A job and the contents of its files."""

    job: Job
    payload: ray.ObjectRef
    state: np.ndarray | None
    secrets: bytes | None = None


@dataclass(frozen=True)
class Result:
    """The result of a job at an actor. Bytes are arrays here, since Ray shares arrays between processes."""

    seconds: float = 0.0
    reply: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint8))
    state: np.ndarray | None = None
    secrets: bytes | None = None
    notes: list[str] = field(default_factory=list)
    error: str | None = None
    traceback: str | None = None
    damaged: bool = False
    """Whether the actor could not read the job's payload or state, which is not the client's fault."""


class ClientActor:
    """An executor without files, in a Ray process."""

    def __init__(self, home: dict[str, Any]) -> None:
        single_thread()
        self._executor = unpack(home)
        self._payload: tuple[str, Payload] | None = None
        gc.freeze()

    def ready(self) -> None:
        """Return once the actor has started."""

    def answer(self, call: Call) -> Result:
        """Run a job. Its payload is a reference, fetched unless it is that of the previous job."""
        begin = time.perf_counter()
        job = call.job
        try:
            if self._payload is None or self._payload[0] != job.payload:
                self._payload = (job.payload, decode(ray.get(call.payload)))
            kept = None if call.state is None else decode(call.state, sealed=True)
        except BadReply as error:
            return Result(error=str(error), damaged=True)
        done = self._executor.answer(job, self._payload[1], kept, call.secrets)
        changed = None if done.state is None else np.frombuffer(done.state, np.uint8)
        seconds = time.perf_counter() - begin
        reply = np.frombuffer(done.reply, np.uint8)
        return Result(seconds, reply, changed, done.secrets, list(done.notes), done.error, done.traceback)


@dataclass(eq=False)
class ActorWorker(Worker):
    """An actor, and references to the answers of its pending jobs."""

    actor: Any
    answers: deque[ray.ObjectRef] = field(default_factory=deque)


class RayEngine(WorkerPool[ActorWorker]):
    """Runs clients in Ray actors: as many as `workers` and the cluster's cores allow, at least one."""

    def __init__(self, executor: Executor, workers: int, address: str | None) -> None:
        self._executor = executor
        self._where = "engine.name = 'ray'" if address is None else f"engine.address = {address!r}"
        self._payloads: dict[str, ray.ObjectRef] = {}
        size = sum(array.nbytes for array in tensors_of(executor.dataset).values())
        self._connection = connect(address, workers, size)
        super().__init__()
        try:
            count = max(1, min(workers, int(ray.cluster_resources().get("CPU", 1))))
            self._kind = actor_kind(executor.task.device, count)
            self._home = ray.put(pack(executor))
            self.workers = self._await_start([self._start() for _ in range(count)])
        except BaseException:
            self.close()
            raise

    def _start(self) -> ActorWorker:
        return ActorWorker(self._kind.remote(self._home))

    def _await_start(self, workers: list[ActorWorker]) -> list[ActorWorker]:
        """Return the workers that start in time. A cluster may have no room for the others."""
        waiting = {worker.actor.ready.remote(): worker for worker in workers}
        up, late = ray.wait(list(waiting), num_returns=len(waiting), timeout=START_SECONDS)
        try:
            ray.get(up)
        except RayError as error:
            reason = one_line(getattr(error, "cause", None) or error)
            raise UserError(
                f"{self._where}: a worker cannot start: {reason} "
                "(every node needs fedwild and your own modules that the run names)."
            ) from error
        for reference in late:
            ray.kill(waiting[reference].actor)
        if not up:
            raise UserError(f"{self._where}: Ray had no free core within {START_SECONDS:.0f} s; one is needed.")
        return [waiting[reference] for reference in up]

    def submit(self, worker: ActorWorker, job: Job) -> None:
        try:
            worker.answers.append(worker.actor.answer.remote(self._call(job)))
        except (OSError, RayError) as error:
            raise OSError(one_line(error)) from error

    def _call(self, job: Job) -> Call:
        """Return a job with the contents of its files. Each payload is put into the object store once."""
        if job.payload not in self._payloads:
            self._payloads = {path: ref for path, ref in self._payloads.items() if os.path.exists(path)}
            self._payloads[job.payload] = ray.put(np.fromfile(job.payload, np.uint8))
        state = None
        if job.state is not None:
            assert job.client is not None
            state = np.fromfile(state_file(self._executor.states, job.client, job.state), np.uint8)
        return Call(job, self._payloads[job.payload], state, self._executor.secrets_of(job))

    def wait(self, workers: Sequence[ActorWorker]) -> Sequence[ActorWorker]:
        # An actor answers in order.
        first = {worker.answers[0]: worker for worker in workers}
        ready, _ = ray.wait(list(first), num_returns=1)
        return [first[reference] for reference in ready]

    def receive(self, worker: ActorWorker, job: Job) -> Answer:
        try:
            return self._store(job, ray.get(worker.answers.popleft()))
        except RayError as error:
            with contextlib.suppress(RayError):
                ray.kill(worker.actor)
            raise WorkerDied(one_line(error)) from error

    def replace(self, worker: ActorWorker) -> ActorWorker:
        """Return a new worker or, if the cluster has no core left, the least busy of the others."""
        place = self.workers.index(worker)
        try:
            (self.workers[place],) = self._await_start([self._start()])
            return self.workers[place]
        except UserError:
            del self.workers[place]
            if not self.workers:
                raise
            return min(self.workers, key=lambda other: len(other.pending))

    def _store(self, job: Job, result: Result) -> Answer:
        """Write an actor's result where the local engine's workers write theirs."""
        if result.error is not None:
            return Answer(
                job, error=result.error, traceback=result.traceback, seconds=result.seconds, disk_failed=result.damaged
            )
        begin = time.perf_counter()
        try:
            self._executor.keep_secrets(result.secrets, job)
            version = job.state if result.state is None else self._executor.keep(result.state.tobytes(), job)
            with open(self._executor.spool / f"up-{job.step.index}-{job.kind}-ray", "ab") as file:
                offset = file.tell()
                file.write(result.reply.data)
        except OSError as error:
            return Answer(job, error=str(error), disk_failed=True)
        seconds = result.seconds + time.perf_counter() - begin
        return Answer(job, file.name, offset, len(result.reply), seconds, version, result.notes)

    def close(self) -> None:
        for worker in self.workers:
            with contextlib.suppress(RayError):
                ray.kill(worker.actor)
        self._payloads = {}
        self._connection.close()
        super().close()


def actor_kind(device: str, workers: int) -> Any:
    """Return the class of actors: one core, one thread, our modules, and a share of the GPUs if the run uses them."""
    gpus = ray.cluster_resources().get("GPU", 0.0) if torch.device(device).type == "cuda" else 0.0
    variables = {**ONE_THREAD, "PYTHONPATH": python_path() + os.pathsep + "${PYTHONPATH}"}
    make = ray.remote(num_cpus=1, num_gpus=min(1.0, gpus / workers), runtime_env={"env_vars": variables})
    return make(ClientActor)


def tensors_of(dataset: Dataset) -> dict[str, np.ndarray]:
    """Return the data set's tensors as arrays, by field."""
    fields = {f.name: getattr(dataset, f.name) for f in dataclasses.fields(dataset)}
    return {name: value.numpy() for name, value in fields.items() if isinstance(value, Tensor)}


def pack(executor: Executor) -> dict[str, Any]:
    """Return an executor for the object store: actors of a node share the arrays and rebuild the rest."""
    dataset, task = executor.dataset, executor.task
    arrays = tensors_of(dataset)
    about = {f.name: getattr(dataset, f.name) for f in dataclasses.fields(dataset) if f.name not in arrays}
    # Ray shows an actor only its own GPU.
    device = "cuda" if torch.device(task.device).type == "cuda" else task.device
    fresh = Task(task.input_shape, task.model, task.model_params, device)
    rest = (about, executor.split, executor.data, executor.method, fresh, executor.seed, executor.privacy)
    return {"arrays": arrays, "rest": cloudpickle.dumps(rest)}


def unpack(home: dict[str, Any]) -> Executor:
    """Return the executor in an actor."""
    about, split, data, method, task, seed, privacy = cloudpickle.loads(home["rest"])
    with warnings.catch_warnings():
        # The arrays are read-only, and nothing writes to them.
        warnings.filterwarnings("ignore", message=".*not writable.*")
        fields = about | {name: torch.from_numpy(array) for name, array in home["arrays"].items()}
    nowhere = Path(os.devnull)
    return Executor(Dataset(**fields), split, data, method, task, seed, nowhere, nowhere, privacy)


def decode(array: np.ndarray, sealed: bool = False) -> Payload:
    """Return the payload in an array, in memory that may be written to."""
    return Payload.decode(bytearray(array.data), sealed)
