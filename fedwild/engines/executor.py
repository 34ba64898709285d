"""Runs the jobs of clients where their data is, for any engine."""

from __future__ import annotations

import copy
import io
import os
import secrets
import time
import traceback
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch

from fedwild.aggregation.private import clip_model, share_noise
from fedwild.contract import Client, Method, Phase, Predictor, Rng, Server, Step, Task
from fedwild.contract.engine import SECURE_KINDS, Answer, Job
from fedwild.contract.schedule import plan_of
from fedwild.core.errors import BadReply
from fedwild.core.payload import Payload
from fedwild.core.storage import make_folder
from fedwild.data import Dataset, DataSettings, Samples, Split, samples_of
from fedwild.engines.secret_files import read_secrets, write_secrets
from fedwild.evaluation.inference import predict
from fedwild.evaluation.outcomes import outcome_of, report_of
from fedwild.openset.sketch import sketch_answers, to_payload
from fedwild.runs.checkpoints import state_file
from fedwild.runs.settings import PrivacySettings
from fedwild.training.private import PrivateDescent, Protected


@dataclass(frozen=True)
class Done:
    """The result of a job, as bytes."""

    reply: bytes = b""
    state: bytes | None = None
    """The client's durable state, if the job changed it."""
    secrets: bytes | None = None
    """The client's secrets of a secure sum, if the job changed them; empty if they are to be deleted."""
    notes: list[str] = field(default_factory=list)
    error: str | None = None
    traceback: str | None = None


@dataclass
class Executor:
    """Runs the work of clients whose data is here: it has their data, the method and their durable state."""

    dataset: Dataset
    split: Split
    data: DataSettings
    method: Method
    task: Task
    seed: int
    states: Path
    """Folder with one folder per client, which holds its state by version."""
    spool: Path
    """Folder for replies until they are merged."""
    privacy: PrivacySettings = field(default_factory=PrivacySettings)
    min_count: int = 1
    """Nothing is reported about fewer validation samples, or about fewer test samples of a class."""
    _payload: tuple[str, Payload] | None = field(default=None, repr=False)
    _predictor: tuple[str, Predictor] | None = field(default=None, repr=False)
    _file: io.FileIO | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self._clients = {client.name: client for client in self.split.clients}
        self._phases = {(step.phase, step.round): phase for step, phase in plan_of(self.method)}
        if self.privacy.level == "sample":
            for phase in self._phases.values():
                if isinstance(phase, Protected):
                    phase.descent = PrivateDescent(self.privacy.clip, self.privacy.noise or 0.0)

    def execute(self, job: Job) -> Answer:
        """Do a job whose payload and state are in files. A client's failure becomes part of the answer."""
        begin = time.perf_counter()
        try:
            payload = self._read(job.payload)
            state = None if job.state is None else self.kept(job)
            kept = self.secrets_of(job)
        except (OSError, BadReply) as error:
            return Answer(job, error=str(error), disk_failed=True)
        done = self.answer(job, payload, state, kept)
        seconds = time.perf_counter() - begin
        if done.error is not None:
            return Answer(job, error=done.error, traceback=done.traceback, seconds=seconds)
        try:
            self.keep_secrets(done.secrets, job)
            version = job.state if done.state is None else self.keep(done.state, job)
            path, offset = self._post(done.reply, job)
        except OSError as error:
            return Answer(job, error=str(error), disk_failed=True)
        return Answer(job, path, offset, len(done.reply), time.perf_counter() - begin, version, done.notes)

    def answer(self, job: Job, payload: Payload, state: Payload | None, kept: bytes | None = None) -> Done:
        """Do a job on what it was given, without reading any file; `kept` are secrets of a secure sum."""
        try:
            client = self.client(job, state) if job.client is not None else None
            before = state_bytes(client)
            if job.kind in SECURE_KINDS:
                reply, kept = self._secure_step(job, payload, client, kept)
                # Notes could tell what the masks hide.
                notes: list[str] = []
            else:
                reply, kept = self._work(job, payload, client), None
                notes = client.notes if client else []
            data, after = reply.encode(), state_bytes(client)
        except Exception as error:
            return Done(error=f"{type(error).__name__}: {error}", traceback=traceback.format_exc())
        return Done(data, None if after == before else after, kept, notes)

    def _secure_step(
        self, job: Job, payload: Payload, client: Client | None, kept: bytes | None
    ) -> tuple[Payload, bytes]:
        """Return the reply to a step of a secure sum, and the secrets to keep."""
        # Only runs with secure sums need ciphers, which take time to import.
        from fedwild.engines.secure_jobs import take_step

        assert client is not None
        rng, phase = self._rng(job), self._phase(job.step)
        with rng.seeded("layers"):
            return take_step(job, payload, kept, phase, partial(self._summed, phase, client, rng))

    def _work(self, job: Job, payload: Payload, client: Client | None) -> Payload:
        """Return the reply to a job; it draws only from the random stream of the job."""
        rng = self._rng(job)
        with rng.seeded("layers"):
            if job.kind == "local":
                assert client is not None
                return self._local(self._phase(job.step), payload, client, rng)
            predictor = self._predictor_for(job, payload, client)
            if job.kind == "validate":
                assert client is not None
                return self._validate(predictor, client)
            if job.kind == "measure":
                return self._measure(job, payload, predictor)
            mine = self.split.test if job.client is None else self._clients[job.client].test
            rows = samples_of(self.dataset, mine[job.start : job.stop], "test", data=self.data)
            answers = predict(predictor, rows, self.task.device)
            reply = Payload({"logits": answers.logits, "unknown": answers.unknown})
            reply.add("details", answers.details)
            return reply

    def _rng(self, job: Job) -> Rng:
        """Return the random stream of a job."""
        trains = job.kind in ("local", "masked")
        seed = secrets.randbits(63) if self.privacy.seed == "secret" and trains else self.seed
        return Rng(seed).child(job.step.phase, job.step.round, "client", job.client or "")

    def _phase(self, step: Step) -> Phase:
        """Return the phase that a round belongs to."""
        return self._phases[step.phase, step.round]

    def _local(self, phase: Phase, payload: Payload, client: Client, rng: Rng) -> Payload:
        """Run the client half of a round. The next client of this worker gets the same tensors of the payload."""
        versions = [tensor._version for tensor in payload.tensors.values()]
        reply = phase.local(Payload(dict(payload.tensors), copy.deepcopy(payload.info)), client, rng)
        if versions != [tensor._version for tensor in payload.tensors.values()]:
            raise RuntimeError("local() changed a tensor of its payload in place: clone it first")
        if self.privacy.level == "client":
            reply.put("model", clip_model(payload.group("model"), reply.group("model"), self.privacy.clip))
        return reply

    def _validate(self, predictor: Predictor, client: Client) -> Payload:
        """Return a sketch of the answers for the client's validation samples; too few of them stay here."""
        samples = client.validation
        if len(samples) < self.min_count:
            samples = samples.take(torch.empty(0, dtype=torch.int64))
        answers = predict(predictor, samples, self.task.device)
        return to_payload(sketch_answers(answers.logits, answers.unknown, samples.y))

    def _summed(self, phase: Phase, client: Client, rng: Rng, payload: Payload, sharers: int) -> Payload:
        """Run the client half of a round whose replies are summed securely, over at least `sharers` clients."""
        reply = self._local(phase, payload, client, rng)
        if self.privacy.level != "client":
            return reply
        clip, noise = self.privacy.clip, self.privacy.noise or 0.0
        model = share_noise(reply.group("model"), clip, noise, sharers, rng.torch("privacy"))
        # All clients have equal weights, and the sum must not hold their losses.
        return Payload.of({"samples": 1}, model=model)

    def _measure(self, job: Job, payload: Payload, predictor: Predictor) -> Payload:
        """Return a report on the client's own test samples; the answers for them stay here."""
        assert job.client is not None
        rows = self._clients[job.client].test
        samples = samples_of(self.dataset, rows, "test", data=self.data)
        server = Server.from_payload(payload, self.task, Rng(self.seed))
        names = [self.dataset.classes[i] for i in samples.y.tolist()]
        answers = predict(predictor, samples, self.task.device)
        outcome = outcome_of(server, answers, job.threshold, names, self.split.novel_by_stage)
        return report_of(self.method, server, outcome, self.min_count)

    def _post(self, reply: bytes, job: Job) -> tuple[str, int]:
        """Append a reply to the file that this process has for the round, for all its clients."""
        path = str(self.spool / f"up-{job.step.index}-{job.kind}-{os.getpid()}")
        if self._file is None or self._file.name != path:
            self.close()
            self._file = open(path, "ab", buffering=0)  # noqa: SIM115  (open until the next round)
        offset = self._file.tell()
        rest = memoryview(reply)
        # A write may be partial: on a full disk, the next one fails instead of losing bytes silently.
        while rest:
            rest = rest[self._file.write(rest) :]
        return path, offset

    def close(self) -> None:
        """Close the round's file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def client(self, job: Job, state: Payload | None = None) -> Client:
        """Return the client of a job, with labels numbered as the server's classes."""
        assert job.client is not None
        split = self._clients[job.client]

        def view(part: str, stage: int | None = None, classes: tuple[str, ...] = job.classes) -> Samples:
            ids = {name: i for i, name in enumerate(classes)}
            rows = getattr(split, part) if stage is None else self.split.unlabelled_in(split, stage, self.dataset)
            samples = samples_of(self.dataset, rows, "train", {} if part == "unlabelled" else ids, self.data)
            if part == "unlabelled" or not len(rows) or int(samples.y.min()) >= 0:
                return samples
            return samples.take(torch.nonzero(samples.y >= 0).flatten())

        return Client(
            name=job.client,
            task=self.task,
            step=job.step,
            classes=job.classes,
            view=view,
            labels=self.labels_of(job.client),
            state=Payload() if state is None else state,
        )

    def labels_of(self, client: str) -> dict[str, int]:
        """Return the number of a client's labelled training samples by class name."""
        labels, classes = self.dataset.y_train.numpy()[self._clients[client].train], self.dataset.classes
        counts = np.bincount(labels, minlength=len(classes)).tolist()
        return {name: count for name, count in zip(classes, counts, strict=True) if count}

    @property
    def rounds(self) -> int:
        """The number of rounds of the method's plan."""
        return len(self._phases)

    def kept(self, job: Job) -> Payload:
        """Return the version of the client's state that a job starts from."""
        assert job.client is not None and job.state is not None
        return Payload.read(state_file(self.states, job.client, job.state))

    def keep(self, state: bytes, job: Job) -> int:
        """Write the client's state as a new version. Old versions stay until the round is in a checkpoint."""
        assert job.client is not None
        path = state_file(self.states, job.client, job.step.index)
        make_folder(path.parent)
        Payload.decode(state).write(path)
        return job.step.index

    def secrets_of(self, job: Job) -> bytes | None:
        """Return the client's secrets of a secure sum, if the job is a step of one."""
        is_step = job.kind in SECURE_KINDS and job.client is not None
        return read_secrets(self.spool, str(job.client)) if is_step else None

    def keep_secrets(self, changed: bytes | None, job: Job) -> None:
        """Write the client's secrets before its answer leaves; delete them if they are empty."""
        if changed is not None and job.client is not None:
            write_secrets(self.spool, job.client, changed)

    def _read(self, path: str) -> Payload:
        """Return the payload of a file. The last one is cached, since most clients of a round get the same."""
        if self._payload is None or self._payload[0] != path:
            self._payload = (path, Payload.read(Path(path), sealed=False))
        return self._payload[1]

    def _predictor_for(self, job: Job, payload: Payload, client: Client | None) -> Predictor:
        """Return the predictor of a server snapshot, built once unless each client has its own."""
        server = Server.from_payload(payload, self.task, Rng(self.seed))
        answering = self.method.answers(server)
        personal = client if answering.personal else None
        if personal is None and self._predictor is not None and self._predictor[0] == job.payload:
            return self._predictor[1]
        predictor = answering.predictor(personal)
        if personal is None:
            self._predictor = (job.payload, predictor)
        return predictor


def state_bytes(client: Client | None) -> bytes:
    """Return a client's durable state as it would be written; empty without state."""
    return client.state.encode() if client and (client.state.tensors or client.state.info) else b""
