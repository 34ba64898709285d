"""What happens at a client, whichever engine brought the job there."""

from __future__ import annotations

import io
import os
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedwild.data import Dataset, DataSettings, Samples, Split, samples_of
from fedwild.engines.base import Answer, Job
from fedwild.payload import Payload
from fedwild.protocol import Client, Method, Prediction, Predictor, Server
from fedwild.rng import Rng
from fedwild.task import Task

PREDICTION_BATCH = 256


@dataclass
class Site:
    """The data, the method and the durable state of the clients that live here."""

    dataset: Dataset
    split: Split
    data: DataSettings
    method: Method
    task: Task
    seed: int
    states: Path
    """Folder with one folder per client, holding its state by version."""
    outbox: Path
    _payload: tuple[str, Payload] | None = field(default=None, repr=False)
    _predictor: tuple[str, Predictor] | None = field(default=None, repr=False)
    _file: io.FileIO | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self._clients = {client.name: client for client in self.split.clients}

    def execute(self, job: Job) -> Answer:
        """Do a job. Whatever goes wrong at the client becomes part of the answer."""
        begin = time.perf_counter()
        client: Client | None = None
        try:
            client = self.client(job) if job.client is not None else None
            before = client.state.encode() if client and job.state is not None else b""
            reply = self._work(job, client)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            return Answer(job, error=reason, traceback=traceback.format_exc(), seconds=time.perf_counter() - begin)
        try:
            state = self._keep(client, before, job) if client and job.kind == "local" else job.state
            path, offset, size = self._post(reply, job)
        except OSError as error:
            return Answer(job, error=error.strerror or str(error), disk_failed=True)
        notes = client.notes if client else []
        return Answer(job, path, offset, size, time.perf_counter() - begin, state, notes)

    def _work(self, job: Job, client: Client | None) -> Payload:
        if job.kind == "local":
            assert client is not None
            rng = Rng(self.seed).child(job.step.phase, job.step.round, "client", client.name)
            rng.seed_torch("layers")
            return self.method.local(self._read(job.payload), client, rng)
        predictor = self._predictor_for(job, client)
        if job.kind == "validate":
            assert client is not None
            answers = predict(predictor, client.validation, self.task.device)
            return Payload({"unknown": answers.unknown}, {"threshold": predictor.threshold})
        rows = self.split.test[job.start : job.stop]
        answers = predict(predictor, samples_of(self.dataset, rows, "test", data=self.data), self.task.device)
        return Payload({"logits": answers.logits, "unknown": answers.unknown})

    def _post(self, reply: Payload, job: Job) -> tuple[str, int, int]:
        """Append a reply to this process's file of the round: one file, however many clients."""
        path = str(self.outbox / f"up-{job.step.index}-{job.kind}-{os.getpid()}")
        if self._file is None or self._file.name != path:
            self.close()
            self._file = open(path, "ab", buffering=0)  # noqa: SIM115  (open until the next round)
        data = memoryview(reply.encode())
        offset = self._file.tell()
        # A write may take only a part; on a full disk the next one then fails, instead of nobody noticing.
        while data:
            data = data[self._file.write(data) :]
        return path, offset, self._file.tell() - offset

    def close(self) -> None:
        """Let go of the round's file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def client(self, job: Job) -> Client:
        """The client of a job, its labels numbered as the server's classes are."""
        assert job.client is not None
        split = self._clients[job.client]
        ids = {name: i for i, name in enumerate(job.classes)}

        def view(part: str) -> Samples:
            rows = getattr(split, part)
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
            labels=self._label_names(split.train),
            state=Payload() if job.state is None else Payload.read(self.state_file(job.client, job.state)),
        )

    def _label_names(self, rows: np.ndarray) -> tuple[str, ...]:
        """The names of the classes among these training rows."""
        counts = np.bincount(self.dataset.y_train.numpy()[rows], minlength=len(self.dataset.classes))
        return tuple(name for name, count in zip(self.dataset.classes, counts, strict=True) if count)

    def state_file(self, client: str, version: int) -> Path:
        return self.states / client / f"{version:06d}.safetensors"

    def _keep(self, client: Client, before: bytes, job: Job) -> int | None:
        """Write the client's state as a new version if the method changed it; old versions stay until committed."""
        if not (client.state.tensors or client.state.info or before) or client.state.encode() == before:
            return job.state
        path = self.state_file(client.name, job.step.index)
        path.parent.mkdir(parents=True, exist_ok=True)
        client.state.write(path)
        return job.step.index

    def _read(self, path: str) -> Payload:
        """The payload of a file; the last one is kept, since most clients of a round get the same."""
        if self._payload is None or self._payload[0] != path:
            self._payload = (path, Payload.read(Path(path)))
        kept = self._payload[1]
        return Payload(dict(kept.tensors), dict(kept.info))

    def _predictor_for(self, job: Job, client: Client | None) -> Predictor:
        """The predictor of a server snapshot, built once unless it is a client's own."""
        personal = client if self.method.personal else None
        if personal is None and self._predictor is not None and self._predictor[0] == job.payload:
            return self._predictor[1]
        server = Server.from_payload(self._read(job.payload), self.task, job.step, Rng(self.seed))
        predictor = self.method.predictor(server, personal)
        if personal is None:
            self._predictor = (job.payload, predictor)
        return predictor


def predict(predictor: Predictor, samples: Samples, device: str) -> Prediction:
    """A predictor's answers for all samples, in order, on the CPU. No samples give empty answers."""
    logits: list[Tensor] = []
    unknown: list[Tensor] = []
    for x, _ in samples.batches(PREDICTION_BATCH):
        answer = predictor.predict(x.to(device))
        logits.append(answer.logits.cpu())
        unknown.append(answer.unknown.cpu())
    if not unknown:
        return Prediction(torch.empty(0, 0), torch.empty(0, dtype=torch.float64))
    return Prediction(torch.cat(logits), torch.cat(unknown))
