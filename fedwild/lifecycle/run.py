"""A run on disk: its settings, history, figures and model."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedwild.contract import EVERYONE, Answering, Client, Outcome, Payload, Predictor, Record, Rng, Server, Task
from fedwild.contract.engine import Job
from fedwild.core.classes import ClassEntry
from fedwild.core.errors import BadReply, UserError, unknown_name
from fedwild.core.temporary import temporary_folder
from fedwild.core.toml import read_toml
from fedwild.core.trust import is_code_trusted
from fedwild.data import Samples, Split
from fedwild.engines.choice import worker_count
from fedwild.engines.executor import Executor
from fedwild.engines.local import LocalEngine
from fedwild.evaluation.examiner import Evaluation, Examiner
from fedwild.evaluation.inference import embed
from fedwild.evaluation.progress import OnProgress, ignore_progress, with_progress
from fedwild.lifecycle import name as naming
from fedwild.lifecycle.model import NO_REFERENCE, Answers, Model, move_thresholds
from fedwild.models import Network
from fedwild.openset import UNKNOWN
from fedwild.runs.at_sites import restore_sites
from fedwild.runs.checkpoints import read_state, states_of
from fedwild.runs.config import Config, changes, resolve
from fedwild.runs.experiment import Experiment, fingerprint, prepare, usable_device
from fedwild.runs.folder import RunFolder, state_files
from fedwild.runs.ownership import code_in, is_own, not_yours

UNFIT = (BadReply, KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError)
"""What a method or a network raises for a model that is not its own."""


class Run:
    """A run on disk: its settings, history, figures and model.

    Import paths in its settings run code. They are refused unless you made the run on this machine, or `trust_code`.
    """

    def __init__(self, path: str | Path, trust_code: bool = False) -> None:
        self.folder = RunFolder.open(Path(path))
        self.path = self.folder.path
        self.trust_code = self.folder.trusted = trust_code or is_code_trusted()

    @cached_property
    def config(self) -> Config:
        try:
            return self._resolve(read_toml(self.path / "config.toml"))
        except UserError as error:
            if not self.folder.config_is_edited:
                raise
            raise self._edited(" ".join(error.problems)) from None

    def _resolve(self, table: dict[str, Any]) -> Config:
        """Return validated settings of this run folder, whose code runs only if it may."""
        if self.trust_code:
            return resolve(table)
        with code_in(self.path, self.folder.facts(), self._cluster):
            return resolve(table)

    @property
    def _cluster(self) -> str | None:
        """The address of the Ray cluster in config.toml."""
        engine = read_toml(self.path / "config.toml").get("engine")
        return engine.get("address") if isinstance(engine, dict) else None

    def check_cluster(self) -> None:
        """Reject the Ray cluster of a run folder from elsewhere: it could run code here."""
        address = self.config.engine.address
        if address is not None and not self.trust_code and not is_own(self.folder.facts(), self._cluster):
            raise UserError(f"engine.address = {address!r} is a Ray cluster, {not_yours(self.path)}.")

    def _edited(self, how: str) -> UserError:
        """Return the error for a config.toml that is not the one that the run began with."""
        file = self.path / "config.toml"
        return UserError(
            f"{str(file)!r} has changed since the run began: {how} Undo the change to use this run, or start a new one "
            f"with the changed settings: `fedwild run {file}`."
        )

    @property
    def result(self) -> dict[str, Any]:
        result = self.folder.result()
        if result is None:
            raise UserError(f"run {str(self.path)!r} is unfinished: run `fedwild resume {self.path}` to continue it.")
        return result

    @property
    def metrics(self) -> dict[str, float]:
        """The final figures."""
        metrics: dict[str, float] = self.result["metrics"]
        return metrics

    def events(self) -> list[dict[str, Any]]:
        return self.folder.read_log()

    def findings(self, what: str | None = None) -> list[dict[str, Any]]:
        """Return figures that the method put into the log, such as the `discovery` of what a newcomer brings."""
        found = [event for event in self.events() if event["event"] == "finding"]
        return [event for event in found if what in (None, event["what"])]

    @cached_property
    def settings(self) -> Config:
        """The settings, checked to be those that the run began with."""
        # Settings that fedwild did not have then take their defaults.
        then = self._resolve(self.folder.facts().get("config") or {}).decisive()
        changed = changes(json.loads(json.dumps(then)), json.loads(json.dumps(self.config.decisive())))
        if changed:
            raise self._edited(f"{'; '.join(changed)}.")
        return self.config

    @cached_property
    def experiment(self) -> Experiment:
        """Data, split, method and task, as the run used them."""
        config, split = self.settings, self.folder.split()
        if config.data.at_sites:
            experiment = restore_sites(config, split, self.input_shape, self._input["dtype"])
        else:
            experiment = prepare(config, split)
        if fingerprint(experiment.dataset) != self.folder.facts().get("data"):
            raise UserError(
                f"data {self.config.data.name!r} is not what run {str(self.path)!r} began with: "
                "samples or labels have changed. Restore the old files, or start a new run."
            )
        return experiment

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self._input["shape"])

    @property
    def input_dtype(self) -> torch.dtype:
        """The type in which samples are stored: uint8 (0..255) or float32."""
        return torch.uint8 if self._input["dtype"] == "uint8" else torch.float32

    @property
    def _input(self) -> dict[str, Any]:
        """The shape and the type of a sample."""
        found: dict[str, Any] | None = self.folder.facts().get("input")
        if found is None:
            raise UserError(f"{str(self.path / 'run.json')!r} has no 'input': restore it from a copy.")
        return found

    @cached_property
    def task(self) -> Task:
        """Builds the run's networks; needs none of its data."""
        model = self.settings.model
        assert model is not None
        return Task(self.input_shape, model.name, model.params.model_dump(), usable_device(self.settings))

    def server(self) -> Server:
        """The final server, or that of the last checkpoint if the run is unfinished."""
        # Code that the settings name is refused before anything else.
        task = self.task
        with self._fitting():
            return Server.from_payload(self.folder.server(), task, Rng(self.config.seed))

    @contextlib.contextmanager
    def _fitting(self) -> Iterator[None]:
        """Turn the error of a model that does not fit the run's method and network into a sentence."""
        try:
            yield
        except UNFIT as error:
            reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
            raise UserError(
                f"the model of run {str(self.path)!r} does not fit its settings ({reason}): its files do not belong "
                "together; restore them from a copy."
            ) from error

    def novel_classes(self) -> list[ClassEntry]:
        """Return the classes that the run discovered, under their current names."""
        return naming.novel_classes(self)

    def name_class(self, old: str, new: str) -> ClassEntry:
        """Rename a class that the run discovered; predictions, figures and runs that start from it use the new name."""
        return naming.name_class(self, old, new)

    def predict(
        self,
        x: Tensor | np.ndarray,
        client: str | None = None,
        *,
        accept: float | None = None,
        threshold: float | None = None,
    ) -> Answers:
        """Return answers for inputs x (n, *input_shape): uint8 as the data set stores them, or float.

        `accept` is the share of known validation samples to accept, and `threshold` a limit for unknown scores; by
        default, the run's own threshold decides. This needs only the run folder, not the data it was trained on.
        """
        return self.model(client, accept=accept, threshold=threshold).answer(x)

    def model(self, client: str | None = None, *, accept: float | None = None, threshold: float | None = None) -> Model:
        """Load the run's model, or a client's own, to answer batch after batch; arguments as for `predict`."""
        server = self.server()
        answering, predictor = self._predictor(server, client)
        whose = client if answering.personal and client else EVERYONE
        move_thresholds(server, accept, threshold)
        limit = server.thresholds.get(whose, float("inf"))
        reference = server.references.get(whose, NO_REFERENCE)
        return Model(predictor, server.classes.names, limit, reference, self.samples, self.task.device)

    def embed(self, x: Tensor | np.ndarray, client: str | None = None) -> Tensor:
        """Return the embeddings (n, d) of inputs as for `predict`, for methods that answer with one network."""
        samples = self.samples(x)
        if not len(samples):
            raise UserError("No inputs: at least one is needed to compute embeddings.")
        _, predictor = self._predictor(self.server(), client)
        try:
            return embed(predictor, samples, self.task.device)
        except UserError as error:
            raise UserError(f"method {self.config.method.name!r} has no embeddings: {error}") from None

    def _predictor(self, server: Server, client: str | None) -> tuple[Answering, Predictor]:
        """Return who answers, and the predictor that all clients share or that of one client."""
        answering = self._answering(server)
        owner = self._owner(answering, server, client)
        with self._fitting():
            return answering, answering.predictor(owner)

    def member(self, name: str) -> Network:
        """Return the network of one client of an ensemble, in evaluation mode."""
        server, method = self.server(), self.config.method.name
        answering = self._answering(server)
        if answering.personal:
            raise UserError(f"member = {name!r} is not allowed: method {method!r} has a model per client; use client.")
        with self._fitting():
            members = answering.predictor(None).members
        if not members:
            raise UserError(f"member = {name!r} is not allowed: method {method!r} answers with one network.")
        if name not in members:
            raise unknown_name("member", name, members)
        return members[name]

    def _answering(self, server: Server) -> Answering:
        with self._fitting():
            return self.settings.make_method().answers(server)

    def record(self) -> Record:
        """Return what the method's exhibits are made from; clients' data only where it is on this machine."""
        first = int(self.folder.facts().get("first_index", 0))
        events = [event for event in self.events() if event.get("index", first) >= first]
        return Record(self.server(), events, None if self.settings.data.at_sites else self.client)

    def client(self, name: str) -> Client:
        """Return a client with its data and its durable state, as in the last round."""
        e, server = self.experiment, self.server()
        executor = Executor(e.dataset, e.split, e.config.data, e.method, e.task, e.config.seed, self.path, self.path)
        job = Job("local", server.step, "", name, server.classes.names)
        return executor.client(job, self.state_of(name))

    def samples(self, x: Tensor | np.ndarray) -> Samples:
        """Return inputs as the run's data set would hold them, without labels."""
        x = torch.as_tensor(x)
        if tuple(x.shape[1:]) != self.input_shape:
            wanted = f"(n, {', '.join(map(str, self.input_shape))})"
            raise UserError(f"inputs have shape {tuple(x.shape)}, this run expects {wanted}.")
        rows = torch.arange(len(x))
        stored = x if x.dtype == torch.uint8 else x.float()
        return Samples(stored, torch.full_like(rows, UNKNOWN), rows, self.config.data.mean, self.config.data.std)

    def _owner(self, answering: Answering, server: Server, name: str | None) -> Client | None:
        """Return the client whose predictor answers, with its durable state; None where all share one."""
        method = self.config.method.name
        if name is not None and name not in server.clients:
            names = ", ".join(server.clients)
            raise UserError(f"client = {name!r} is not one of this {method} run's clients: {names}.")
        if not answering.personal:
            return None
        if name is None or name not in answering.clients:
            names = ", ".join(answering.clients)
            raise UserError(f"client = {name!r}: method {method!r} has a model per client; choose one of {names}.")
        nothing = Samples(torch.empty(0, *self.input_shape), torch.empty(0).long(), torch.empty(0).long())
        return Client(name, self.task, server.step, server.classes.names, lambda part: nothing, {}, self.state_of(name))

    def state_of(self, client: str) -> Payload:
        """Return the durable state of a client; empty if it has none, or keeps it at its site."""
        version = self._versions().get(client)
        if version is None or not self.folder.keeps_states:
            return Payload()
        self.folder.check_signed(state_files({client: version}))
        return read_state(self.folder.clients, client, version)

    def evaluate(
        self,
        workers: int | None = None,
        on_progress: OnProgress = ignore_progress,
        *,
        accept: float | None = None,
        threshold: float | None = None,
    ) -> Evaluation:
        """Measure the run's model again, on its own test split; `accept` and `threshold` as for `predict`."""
        server = self.server()
        moved = move_thresholds(server, accept, threshold)
        with self._examining(server, self.experiment.split, workers, on_progress, moved) as (examiner, snapshot):
            return examiner.evaluate(server, snapshot, self._states())

    def outcome(
        self,
        client: str | None = None,
        rows: np.ndarray | None = None,
        workers: int | None = None,
        on_progress: OnProgress = ignore_progress,
        keep_thresholds: bool = False,
    ) -> Outcome:
        """Return the answers on `test_rows(client)`, or on some of them, decided as `evaluate` does.

        `keep_thresholds` uses the thresholds of the run's last evaluation instead of calibrating them again.
        """
        server, everything = self.server(), self.test_rows(client)
        rows = everything if rows is None else rows
        split = self.experiment.split
        clients = tuple(replace(c, test=rows) if c.name == client else c for c in split.clients)
        shown = replace(split, test=rows, clients=clients)
        with self._examining(server, shown, workers, on_progress, keep_thresholds) as (examiner, snapshot):
            if client is None:
                return examiner.common_outcome(server, snapshot, self._states())
            ((_, outcome),) = examiner.own_outcomes(server, snapshot, self._states(), [client])
            return outcome

    def test_rows(self, client: str | None = None) -> np.ndarray:
        """Return the rows of `x_test` that the run, or a client's own model, is measured on."""
        server = self.server()
        owner = self._owner(self._answering(server), server, client)
        if owner is None and client is not None:
            method = self.config.method.name
            raise UserError(f"client = {client!r} is not allowed: method {method!r} has one model for all clients.")
        split = self.experiment.split
        rows = split.test if owner is None else next(c.test for c in split.clients if c.name == owner.name)
        if not len(rows):
            self._reject_at_sites()
            whose = "" if owner is None else f" for {owner.name}"
            raise UserError(f"run {str(self.path)!r} has no test samples{whose}.")
        return rows

    @contextlib.contextmanager
    def _examining(
        self, server: Server, split: Split, workers: int | None, on_progress: OnProgress, keep_thresholds: bool = False
    ) -> Iterator[tuple[Examiner, str]]:
        """Yield an examiner with its own workers, and the file of the server's payload."""
        e = self.experiment
        if not len(split.test):
            self._reject_at_sites()
        with temporary_folder() as spool:
            snapshot = spool / "server.safetensors"
            server.to_payload().write(snapshot, durable=False)
            states = self.folder.clients
            executor = Executor(e.dataset, split, e.config.data, e.method, e.task, e.config.seed, states, spool)
            count = worker_count(e.config.with_engine(workers=workers).engine.workers)
            with contextlib.closing(LocalEngine(executor, count)) as engine:
                accept, keep = e.config.evaluation.accept, keep_thresholds or e.config.data.at_sites
                run = with_progress(engine.run, on_progress)
                try:
                    yield Examiner(e.method, e.dataset, split, accept, run, keep_thresholds=keep), str(snapshot)
                except OSError as error:
                    raise UserError(
                        f"a client's state of run {str(self.path)!r} cannot be used ({error.strerror or error}): "
                        "restore it from a copy, or delete model.safetensors and result.json, then run "
                        f"`fedwild resume {self.path}`."
                    ) from error

    def _reject_at_sites(self) -> None:
        """Raise an error if the data is at sites."""
        if self.settings.data.at_sites:
            raise UserError(
                f"run {str(self.path)!r} has its data at its sites, which measured it; see result.json for the figures."
            )

    def _states(self) -> dict[str, int]:
        """Return the versions of clients' states that belong to the server, after checking all of them."""
        versions = self._versions()
        if self.folder.keeps_states:
            self.folder.check_signed(state_files(versions))
        return versions

    def _versions(self) -> dict[str, int]:
        """Return the versions of clients' states that belong to the server."""
        checkpoint, result = self.folder.last_checkpoint(), self.folder.result()
        states = states_of(checkpoint)
        if states and checkpoint and result and checkpoint.info["ledger"]["next_index"] != result["rounds"]:
            raise UserError(
                f"the last checkpoint of run {str(self.path)!r} is damaged, and clients' states belong to it: delete "
                f"model.safetensors and result.json, then run `fedwild resume {self.path}`."
            )
        return states
