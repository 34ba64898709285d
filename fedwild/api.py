"""The Python API: what the command line does, in a few lines.

import fedwild

run = fedwild.run(method="fedavg", data="digits", clients=10, rounds=5)
print(run.metrics["auroc"], run.predict(images))
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedwild import naming
from fedwild.classes import UNKNOWN_NAME, ClassEntry
from fedwild.config import Config, changes, read_toml, resolve, setting_layers
from fedwild.data import Samples, Split
from fedwild.engines.choice import Connect, engine_of
from fedwild.engines.local import LocalEngine
from fedwild.engines.site import Site, embed, predict, state_file
from fedwild.errors import UserError
from fedwild.evaluation import Evaluation, Examiner
from fedwild.experiment import Experiment, fingerprint, prepare, usable_device
from fedwild.federation import Federation, Listener
from fedwild.openset import UNKNOWN, decide
from fedwild.payload import Payload
from fedwild.protocol import EVERYONE, Client, Method, Outcome, Server
from fedwild.rng import Rng
from fedwild.runs.events import read_events
from fedwild.runs.folder import RunFolder
from fedwild.task import Task
from fedwild.temporary import temporary_folder
from fedwild.watching import Tell, nobody, watched
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

    def findings(self, what: str | None = None) -> list[dict[str, Any]]:
        """Figures that the method put into the log, such as the `discovery` of what a newcomer brings."""
        found = [event for event in self.events() if event["event"] == "finding"]
        return [event for event in found if what in (None, event["what"])]

    @cached_property
    def settings(self) -> Config:
        """The settings, if they are still those that the run began with."""
        # Settings that were added to fedwild since then have their defaults.
        then = resolve(self.folder.facts().get("config") or {}).decisive()
        changed = changes(json.loads(json.dumps(then)), json.loads(json.dumps(self.config.decisive())))
        if changed:
            raise UserError(
                f"{str(self.path / 'config.toml')!r} was changed since the run began: {'; '.join(changed)}. "
                "Put it back, or start a new run."
            )
        return self.config

    @cached_property
    def experiment(self) -> Experiment:
        """Data, split, method and task, as the run used them."""
        experiment = self._experiment_at_sites() if self.settings.data.at_sites else self._experiment_here()
        if fingerprint(experiment.dataset) != self.folder.facts().get("data"):
            raise UserError(
                f"data {self.config.data.name!r} is not what run {str(self.path)!r} began with: "
                "samples or labels have changed. Put the old files back, or start a new run."
            )
        return experiment

    def _experiment_here(self) -> Experiment:
        return prepare(self.settings, self.folder.split())

    def _experiment_at_sites(self) -> Experiment:
        from fedwild.sites import revived_sites

        return revived_sites(
            self.settings, self.folder.split(), self.input_shape, self.folder.facts()["input"]["dtype"]
        )

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.folder.facts()["input"]["shape"])

    @property
    def input_dtype(self) -> torch.dtype:
        """How samples are stored: uint8 (0..255) or float32."""
        return torch.uint8 if self.folder.facts()["input"]["dtype"] == "uint8" else torch.float32

    @cached_property
    def task(self) -> Task:
        """Builds the run's networks; needs none of its data."""
        model = self.settings.model
        assert model is not None
        return Task(self.input_shape, model.name, model.params.model_dump(), usable_device(self.settings))

    def server(self) -> Server:
        """The final server, or that of the last checkpoint if the run is unfinished."""
        return Server.from_payload(self.folder.server(), self.task, Rng(self.config.seed))

    def novel_classes(self) -> list[ClassEntry]:
        """The classes that the run discovered, under the names that they have now."""
        return naming.novel_classes(self)

    def name_class(self, old: str, new: str) -> ClassEntry:
        """Name a class that the run discovered; predictions, figures and runs that start from it use the new name."""
        return naming.name_class(self, old, new)

    def predict(self, x: Tensor | np.ndarray, client: str | None = None) -> Answers:
        """Answers for inputs x (n, *input_shape): uint8 as the data set stores them, or float.

        Needs the run folder only, not the data it was trained on.
        """
        samples = self._samples(x)
        method, server = self.settings.make_method(), self.server()
        predictor = method.predictor(server, self._owner(method, server, client))
        threshold = server.thresholds.get(client if method.is_personal(server) and client else EVERYONE, float("inf"))
        classes = server.classes.names
        if not len(samples):
            return Answers([], torch.empty(0), threshold, torch.empty(0, len(classes)), classes)
        prediction = predict(predictor, samples, self.task.device)
        ids = decide(prediction.logits, prediction.unknown, threshold).tolist()
        labels = [UNKNOWN_NAME if i == UNKNOWN else classes[i] for i in ids]
        return Answers(labels, prediction.unknown, threshold, prediction.logits, classes)

    def embed(self, x: Tensor | np.ndarray, client: str | None = None) -> Tensor:
        """The embeddings (n, d) of inputs as `predict` takes them, for methods that answer with one network."""
        samples = self._samples(x)
        if not len(samples):
            raise UserError("inputs are none: embeddings need at least one.")
        method, server = self.settings.make_method(), self.server()
        predictor = method.predictor(server, self._owner(method, server, client))
        try:
            return embed(predictor, samples, self.task.device)
        except UserError as error:
            raise UserError(f"method {method.name!r} has no embeddings: {error}") from None

    def _samples(self, x: Tensor | np.ndarray) -> Samples:
        """Inputs as the run's data set would hold them, without labels."""
        x = torch.as_tensor(x)
        if tuple(x.shape[1:]) != self.input_shape:
            wanted = f"(n, {', '.join(map(str, self.input_shape))})"
            raise UserError(f"inputs have shape {tuple(x.shape)}, this run takes {wanted}.")
        rows = torch.arange(len(x))
        stored = x if x.dtype == torch.uint8 else x.float()
        return Samples(stored, torch.full_like(rows, UNKNOWN), rows, self.config.data.mean, self.config.data.std)

    def _owner(self, method: Method, server: Server, name: str | None) -> Client | None:
        """The client whose predictor is asked, with its durable state; None where all share one."""
        if name is not None and name not in server.clients:
            names = ", ".join(server.clients)
            raise UserError(f"client = {name!r} is not one of this {method.name} run's clients: {names}.")
        if not method.is_personal(server):
            return None
        if name is None or name not in method.owners(server):
            whose = ", ".join(method.owners(server))
            raise UserError(f"client = {name!r}: method {method.name!r} has a model per client, say whose: {whose}.")
        nothing = Samples(torch.empty(0, *self.input_shape), torch.empty(0).long(), torch.empty(0).long())
        return Client(name, self.task, server.step, server.classes.names, lambda part: nothing, {}, self.state_of(name))

    def state_of(self, client: str) -> Payload:
        """What a client keeps from round to round; empty if it keeps nothing, or keeps it at its site."""
        version = self._states().get(client)
        path = None if version is None else state_file(self.folder.clients, client, version)
        return Payload.read(path) if path is not None and path.exists() else Payload()

    def evaluate(self, workers: int | None = None, tell: Tell = nobody) -> Evaluation:
        """Measure the run's model again, on the run's own test split."""
        server = self.server()
        with self._examining(server, self.experiment.split, workers, tell) as (examiner, snapshot):
            return examiner.evaluate(server, snapshot, self._states())

    def outcome(
        self,
        client: str | None = None,
        rows: np.ndarray | None = None,
        workers: int | None = None,
        tell: Tell = nobody,
        keep_thresholds: bool = False,
    ) -> Outcome:
        """The answers on `test_rows(client)`, or on some of them, decided as `evaluate` does.

        `keep_thresholds` takes those of the run's last evaluation, which are not set anew then.
        """
        server, everything = self.server(), self.test_rows(client)
        rows = everything if rows is None else rows
        split = self.experiment.split
        clients = tuple(replace(c, test=rows) if c.name == client else c for c in split.clients)
        shown = replace(split, test=rows, clients=clients)
        with self._examining(server, shown, workers, tell, keep_thresholds) as (examiner, snapshot):
            if client is None:
                return examiner.common_outcome(server, snapshot, self._states())
            ((_, outcome),) = examiner.own_outcomes(server, snapshot, self._states(), [client])
            return outcome

    def test_rows(self, client: str | None = None) -> np.ndarray:
        """The rows of `x_test` that the run is measured on; where each client has a model of its own, that client's."""
        method, server = self.settings.make_method(), self.server()
        owner = self._owner(method, server, client)
        if owner is None and client is not None:
            raise UserError(f"client = {client!r} is not allowed: method {method.name!r} has one model for everyone.")
        split = self.experiment.split
        rows = split.test if owner is None else next(c.test for c in split.clients if c.name == owner.name)
        if not len(rows):
            self._refuse_elsewhere()
            whose = "" if owner is None else f" for {owner.name}"
            raise UserError(f"run {str(self.path)!r} has no test samples{whose}.")
        return rows

    @contextlib.contextmanager
    def _examining(
        self, server: Server, split: Split, workers: int | None, tell: Tell, keep_thresholds: bool = False
    ) -> Iterator[tuple[Examiner, str]]:
        """An examiner with workers of its own, and the file of the server's payload."""
        e = self.experiment
        if not len(split.test):
            self._refuse_elsewhere()
        with temporary_folder() as spool:
            snapshot = spool / "server.safetensors"
            server.to_payload().write(snapshot, durable=False)
            site = Site(e.dataset, split, e.config.data, e.method, e.task, e.config.seed, self.folder.clients, spool)
            count = worker_count(e.config.with_engine(workers=workers).engine.workers)
            with contextlib.closing(LocalEngine(site, count)) as engine:
                accept, keep = e.config.evaluation.accept, keep_thresholds or e.config.data.at_sites
                run = watched(engine.run, tell)
                yield Examiner(e.method, e.dataset, split, accept, run, keep_thresholds=keep), str(snapshot)

    def _refuse_elsewhere(self) -> None:
        """Say where the data is, if it is not here."""
        if self.settings.data.at_sites:
            raise UserError(
                f"run {str(self.path)!r} was measured at its sites, which have the data: result.json has the figures."
            )

    def _states(self) -> dict[str, int]:
        checkpoint = self.folder.last_checkpoint()
        states: dict[str, int] = checkpoint.info["ledger"]["states"] if checkpoint else {}
        return states


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
    engine: str | None = None,
    start_from: str | Path | None = None,
    out: str | Path | None = None,
    settings: Sequence[str] | Mapping[str, Any] = (),
    listener: Listener = lambda event: None,
) -> Run:
    """Run a federation to its end and return the run.

    `start_from` is a finished run's folder, whose global model this run begins with.
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
        engine=engine,
        start_from=start_from,
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
    return resolve(file, flag_layer(**flags), *setting_layers(settings))


def flag_layer(
    method: str | None = None,
    data: str | Sequence[str] | None = None,
    partition: str | None = None,
    model: str | None = None,
    clients: int | None = None,
    rounds: int | None = None,
    seed: int | None = None,
    workers: int | None = None,
    engine: str | None = None,
    start_from: str | Path | None = None,
) -> dict[str, Any]:
    """The tables that the short flags stand for."""
    if data is not None and not isinstance(data, str):
        data = data[0] if len(data) == 1 else list(data)
    tables: dict[str, dict[str, Any]] = {
        "method": {"name": method, "rounds": rounds},
        "data": {"name": data},
        "partition": {"name": partition},
        "model": {"name": model},
        "federation": {"clients": clients, "start_from": None if start_from is None else str(start_from)},
        "engine": {"workers": workers, "name": engine},
    }
    given = {section: {k: v for k, v in table.items() if v is not None} for section, table in tables.items()}
    layer: dict[str, Any] = {section: table for section, table in given.items() if table}
    return layer if seed is None else {**layer, "seed": seed}


def start(config: Config, out: Path | None, listener: Listener) -> Run:
    """Make a run folder and run in it. Whatever is wrong with the input shows before the folder exists."""

    def downloading(file: str, done: int, total: int | None) -> None:
        listener({"event": "download", "file": file, "done": done, "total": total})

    return begin(prepare(config, progress=downloading), out, listener)


def begin(
    experiment: Experiment,
    out: Path | None,
    listener: Listener,
    history: Mapping[str, Any] | None = None,
    events: bytes = b"",
    connect: Connect | None = None,
) -> Run:
    """Make an experiment's run folder and run in it.

    `history` are facts about the run that it goes on from, and `events` that run's log. `connect` makes another engine
    than the settings name.
    """
    config = experiment.config
    connect = connect or engine_of(config.engine)
    names = "+".join(Path(name).stem for name in config.data.names)
    stem = re.sub(r"[^\w.+-]+", "_", f"{config.method.name}-{names}")
    facts = {
        "data": fingerprint(experiment.dataset),
        "input": {
            "shape": list(experiment.dataset.input_shape),
            "dtype": str(experiment.dataset.x_train.dtype).removeprefix("torch."),
        },
        "config": config.decisive(),
        **({"start_from": experiment.initial.fingerprint} if experiment.initial else {}),
        **(history or {}),
    }
    try:
        folder = RunFolder.create(out, stem, config.to_toml(), experiment.split, facts, events)
    except OSError as error:
        where = out if out is not None else Path("runs")
        raise UserError(f"--out {str(where)!r}: the run folder cannot be made: {error.strerror or error}.") from error
    listener({"event": "folder", "path": str(folder.path)})
    Federation(experiment, folder, listener, connect).run()
    return Run(folder.path)


def resume(path: str | Path, workers: int | None = None, listener: Listener = lambda event: None, **engine: Any) -> Run:
    """Go on with a run from its last finished round. A finished run is returned as it is.

    `engine` are settings of the engine that change: `name="ray"`, `listen="0.0.0.0:8443"` ...
    """
    run = Run(path)
    if run.folder.result() is not None:
        return run
    run.config = run.config.with_engine(workers=workers, **engine)
    if run.settings.data.at_sites:
        from fedwild.flower.coordinator import resume_sites

        if run.config.engine.name != "flower":
            raise UserError(f"engine.name = {run.config.engine.name!r} is not allowed: the data is at the run's sites.")
        resume_sites(run, listener)
    else:
        Federation(run.experiment, run.folder, listener).run()
    return run
