"""What happens at a client, whichever engine brought the job there."""

from __future__ import annotations

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

    def __post_init__(self) -> None:
        self._clients = {client.name: client for client in self.split.clients}

    def execute(self, job: Job) -> Answer:
        """Do a job. Whatever goes wrong at the client becomes part of the answer."""
        begin = time.perf_counter()
        try:
            reply, state, notes = self._work(job)
            path = self.outbox / f"{job.kind}-{job.client or ''}-{job.start}.safetensors"
            size = reply.write(path, durable=False)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            return Answer(job, error=reason, traceback=traceback.format_exc(), seconds=time.perf_counter() - begin)
        return Answer(job, str(path), size, time.perf_counter() - begin, state, notes)

    def _work(self, job: Job) -> tuple[Payload, int | None, list[str]]:
        if job.kind == "local":
            client = self.client(job)
            before = client.state.encode()
            rng = Rng(self.seed).child(job.step.phase, job.step.round, client.name)
            rng.seed_torch("layers")
            reply = self.method.local(self._read(job.payload), client, rng)
            return reply, self._keep(client, before, job), client.notes
        if job.kind == "validate":
            client = self.client(job)
            predictor = self._predictor_for(job, client)
            answers = predict(predictor, client.validation, self.task.device)
            return Payload({"unknown": answers.unknown}, {"threshold": predictor.threshold}), None, []
        rows = self.split.test[job.start : job.stop]
        predictor = self._predictor_for(job, self.client(job) if job.client else None)
        answers = predict(predictor, samples_of(self.dataset, rows, "test", data=self.data), self.task.device)
        return Payload({"logits": answers.logits, "unknown": answers.unknown}), None, []

    def client(self, job: Job) -> Client:
        """The client of a job, its labels numbered as the server's classes are."""
        assert job.client is not None
        split = self._clients[job.client]
        ids = {name: i for i, name in enumerate(job.classes)}
        train, seen = self._labelled(split.train, ids)
        validation, _ = self._labelled(split.validation, ids)
        unlabelled = samples_of(self.dataset, split.unlabelled, "train", {}, self.data)
        state = self.state_file(job.client, job.state) if job.state is not None else None
        return Client(
            name=job.client,
            task=self.task,
            step=job.step,
            classes=job.classes,
            labels=seen,
            train=train,
            validation=validation,
            unlabelled=unlabelled,
            state=Payload.read(state) if state else Payload(),
        )

    def _labelled(self, index: np.ndarray, ids: dict[str, int]) -> tuple[Samples, tuple[str, ...]]:
        """The samples of classes the server knows, and the names of all classes among them."""
        present = torch.unique(self.dataset.y_train[torch.as_tensor(index, dtype=torch.int64)])
        names = tuple(self.dataset.classes[int(c)] for c in present)
        samples = samples_of(self.dataset, index, "train", ids, self.data)
        if all(name in ids for name in names):
            return samples, names
        return samples.take(torch.nonzero(samples.y >= 0).flatten()), names

    def state_file(self, client: str, version: int) -> Path:
        return self.states / client / f"{version:06d}.safetensors"

    def _keep(self, client: Client, before: bytearray, job: Job) -> int | None:
        """Write the client's state as a new version if the method changed it; old versions stay until committed."""
        if client.state.encode() == before:
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

