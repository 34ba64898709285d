"""The Python API: what the command line does, in a few lines.

import fedwild

run = fedwild.run(method="fedavg", data="digits", clients=10, rounds=5)
print(run.metrics["auroc"], run.predict(images))
"""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedwild.config import Config, changes, parse_setting, read_toml, resolve
from fedwild.data import Samples
from fedwild.engines.base import Job
from fedwild.engines.local import LocalEngine
from fedwild.engines.site import Site, predict
from fedwild.errors import UserError
from fedwild.evaluation import Evaluation, Examiner
from fedwild.experiment import Experiment, fingerprint, prepare
from fedwild.federation import Federation, Listener
from fedwild.openset import UNKNOWN, decide
from fedwild.protocol import EVERYONE, Server
from fedwild.rng import Rng
from fedwild.runs.events import read_events
from fedwild.runs.folder import RunFolder
from fedwild.workers import worker_count


@dataclass(frozen=True)
class Answers:
    """A predictor's answers for a batch."""

    labels: list[str]
    """Class names, or "unknown"."""
    unknown: Tensor
    """Unknown scores (n,), larger = more unknown."""
    threshold: float
    """Above it, the answer is "unknown"."""
    logits: Tensor
    """Over the known classes (n, K)."""
    classes: tuple[str, ...]


class Run:
    """A run on disk: its settings, history, figures and model."""

    def __init__(self, path: str | Path) -> None:
        self.folder = RunFolder.open(Path(path))
        self.path = self.folder.path

    @cached_property
    def config(self) -> Config:
        return resolve(read_toml(self.path / "config.toml"))

    @property
    def result(self) -> dict[str, Any]:
        result = self.folder.result()
        if result is None:
            raise UserError(f"run {str(self.path)!r} is unfinished: `fedwild resume {self.path}` goes on.")
        return result

    @property
    def metrics(self) -> dict[str, float]:
        """The final figures."""
        metrics: dict[str, float] = self.result["metrics"]
        return metrics

    def events(self) -> list[dict[str, Any]]:
        return read_events(self.folder.events)

    @cached_property
    def experiment(self) -> Experiment:
        """Data, split, method and task, as the run used them."""
        facts = self.folder.facts()
        changed = changes(facts.get("config") or {}, json.loads(json.dumps(self.config.decisive())))
        if changed:
            raise UserError(
                f"{str(self.path / 'config.toml')!r} was changed since the run began: {'; '.join(changed)}. "
                "Put it back, or start a new run."
            )
        experiment = prepare(self.config, self.folder.split())
        if fingerprint(experiment.dataset) != facts.get("data"):
            raise UserError(
                f"data {self.config.data.name!r} is not what run {str(self.path)!r} began with: "
                "samples or labels have changed. Put the old files back, or start a new run."
            )
        return experiment

    def predict(self, x: Tensor, client: str | None = None) -> Answers:
        """Answers for inputs x (n, *input_shape), uint8 or float, as the data set stores them."""
        server = self._server()
        site = self._site(self.path)
        method = self.experiment.method
        if client is not None and client not in server.clients:
            names = ", ".join(server.clients)
            raise UserError(f"client = {client!r} is not one of this {method.name} run's clients: {names}.")
        if method.personal and client not in method.owners(server):
            whose = ", ".join(method.owners(server))
            raise UserError(f"client = {client!r}: method {method.name!r} has a model per client, say whose: {whose}.")
        states = self._states()
        owner = (
            site.client(Job("test", server.step, "", client, server.classes.names, states.get(client)))
            if (method.personal and client)
            else None
        )
        predictor = method.predictor(server, owner)
        data = self.config.data
        rows = torch.arange(len(x))
        samples = Samples(x, torch.full_like(rows, UNKNOWN), rows, data.mean, data.std)
        prediction = predict(predictor, samples, self.experiment.task.device)
        threshold = server.thresholds.get(client if method.personal and client else EVERYONE, float("inf"))
        ids = decide(prediction.logits, prediction.unknown, threshold).tolist()
        classes = server.classes.names
        labels = ["unknown" if i == UNKNOWN else classes[i] for i in ids]
        return Answers(labels, prediction.unknown, threshold, prediction.logits, classes)

    def evaluate(self, workers: int | None = None) -> Evaluation:
        """Measure the run's model again, on the run's own test split."""
        server = self._server()
        with tempfile.TemporaryDirectory(prefix="fedwild-") as name:
            spool = Path(name)
            snapshot = spool / "server.safetensors"
            server.to_payload().write(snapshot, durable=False)
            e = self.experiment
            count = worker_count(e.config.with_engine(workers=workers).engine.workers)
            with contextlib.closing(LocalEngine(self._site(spool), count)) as engine:
                examiner = Examiner(e.method, e.dataset, e.split, e.config.evaluation.accept, engine.run)
                return examiner.evaluate(server, str(snapshot), self._states())

    def _server(self) -> Server:
        return Server.from_payload(self.folder.server(), self.experiment.task, Rng(self.config.seed))

    def _states(self) -> dict[str, int]:
        checkpoint = self.folder.last_checkpoint()
        states: dict[str, int] = checkpoint.info["ledger"]["states"] if checkpoint else {}
        return states

    def _site(self, outbox: Path) -> Site:
        e = self.experiment
        return Site(e.dataset, e.split, e.config.data, e.method, e.task, e.config.seed, self.folder.clients, outbox)


def run(
    config: str | Path | Mapping[str, Any] | None = None,
    *,
    method: str | None = None,
    data: str | Sequence[str] | None = None,
    partition: str | None = None,
    model: str | None = None,
    clients: int | None = None,
    rounds: int | None = None,
    seed: int | None = None,
    workers: int | None = None,
    out: str | Path | None = None,
    settings: Sequence[str] | Mapping[str, Any] = (),
    listener: Listener = lambda event: None,
) -> Run:
    """Run a federation to its end and return the run.

    `config` is a TOML file or nested tables; the named arguments win over it, and `settings`
    (`["method.lr=0.1"]`, or tables) over both.
    """
    resolved = configure(
        config,
        method=method,
        data=data,
        partition=partition,
        model=model,
        clients=clients,
        rounds=rounds,
        seed=seed,
        workers=workers,
        settings=settings,
    )
    return start(resolved, Path(out) if out is not None else None, listener)


def configure(
    config: str | Path | Mapping[str, Any] | None = None,
    *,
    settings: Sequence[str] | Mapping[str, Any] = (),
    **flags: Any,
) -> Config:
    """The validated settings that a file, flags and `section.key=value` settings give together."""
    file = read_toml(Path(config)) if isinstance(config, (str, Path)) else dict(config or {})
    extra = [settings] if isinstance(settings, Mapping) else [parse_setting(text) for text in settings]
    return resolve(file, flag_layer(**flags), *extra)


def flag_layer(
    method: str | None = None,
    data: str | Sequence[str] | None = None,
    partition: str | None = None,
    model: str | None = None,
    clients: int | None = None,
    rounds: int | None = None,
    seed: int | None = None,
    workers: int | None = None,
) -> dict[str, Any]:
    """The tables that the short flags stand for."""
    if data is not None and not isinstance(data, str):
        data = data[0] if len(data) == 1 else list(data)
    tables: dict[str, dict[str, Any]] = {
        "method": {"name": method, "rounds": rounds},
        "data": {"name": data},
        "partition": {"name": partition},
        "model": {"name": model},
        "federation": {"clients": clients},
        "engine": {"workers": workers},
    }
    given = {section: {k: v for k, v in table.items() if v is not None} for section, table in tables.items()}
    layer: dict[str, Any] = {section: table for section, table in given.items() if table}
    return layer if seed is None else {**layer, "seed": seed}


def start(config: Config, out: Path | None, listener: Listener) -> Run:
    """Make a run folder and run in it. Whatever is wrong with the input shows before the folder exists."""

    def downloading(file: str, done: int, total: int | None) -> None:
        listener({"event": "download", "file": file, "done": done, "total": total})

    experiment = prepare(config, progress=downloading)
    names = "+".join(Path(name).stem for name in config.data.names)
    stem = re.sub(r"[^\w.+-]+", "_", f"{config.method.name}-{names}")
    facts = {"data": fingerprint(experiment.dataset), "config": experiment.config.decisive()}
    try:
        folder = RunFolder.create(out, stem, experiment.config.to_toml(), experiment.split, facts)
    except OSError as error:
        where = out if out is not None else Path("runs")
        raise UserError(f"--out {str(where)!r}: the run folder cannot be made: {error.strerror or error}.") from error
    listener({"event": "folder", "path": str(folder.path)})
    Federation(experiment, folder, listener).run()
    return Run(folder.path)


def resume(path: str | Path, workers: int | None = None, listener: Listener = lambda event: None) -> Run:
    """Go on with a run from its last finished round. A finished run is returned as it is."""
    run = Run(path)
    if run.folder.result() is None:
        run.config = run.config.with_engine(workers=workers)
        Federation(run.experiment, run.folder, listener).run()
    return run
