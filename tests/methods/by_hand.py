"""Servers, clients and replies made by hand, to test a method's formulas."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from fedwild.contract import Client, Method, Phase, Replies, Server, Step
from fedwild.contract.engine import Job
from fedwild.contract.task import Task
from fedwild.core.classes import ClassRegistry
from fedwild.core.payload import Payload
from fedwild.core.rng import Rng
from fedwild.engines.executor import Executor
from fedwild.runs.checkpoints import state_file
from fedwild.runs.experiment import Experiment
from tests.tiny import even_shares, split_by, tiny_dataset, tiny_experiment

NORMED = Task((1, 8, 8), "digit-cnn", {"width": 0.04})
PLAIN = Task((1, 8, 8), "mlp", {"hidden": [8, 6]})
WITH_NORMS = {"model": {"name": "digit-cnn", "width": 0.04}}


def method_of(name: str, settings: Mapping[str, Any] | None = None, **tables: Any) -> Any:
    """Return the method with these settings and, by section, those of its parts."""
    data = tiny_dataset(classes=2)
    split = split_by(data, 2, even_shares(data, 2, 2))
    return tiny_experiment(name, data, split, {"method": dict(settings or {}), **tables}).method


def phase_of(method: str | Method, settings: Mapping[str, Any] | None = None) -> Any:
    """Return the first phase of a method, or of the named method with these settings."""
    phase: Phase = (method if isinstance(method, Method) else method_of(method, settings)).phases()[0]
    return phase


def executor_of(experiment: Experiment, folder: Path) -> Executor:
    """Return the executor of an experiment's clients; it writes below `folder`."""
    e = experiment
    return Executor(e.dataset, e.split, e.config.data, e.method, e.task, 0, folder, folder)


def client_of(
    experiment: Experiment, folder: Path, name: str = "client-00", index: int = 0, state: Payload | None = None
) -> Client:
    """Return a client of an experiment in a round, with this durable state."""
    job = Job("local", Step("train", index, index), "", name, experiment.split.known)
    return executor_of(experiment, folder).client(job, state)


def server_of(
    clients: tuple[str, ...] = (), index: int = 0, task: Task = PLAIN, **groups: Mapping[str, Tensor]
) -> Server:
    """Return a server with two classes in a round."""
    server = Server(task, ClassRegistry.of(("a", "b")), Step("train", index, index), Rng(0), clients)
    server.state = Payload.of(**groups)
    return server


def replies_of(**payloads: Payload) -> Replies:
    """Return replies that are decoded at every reading, like those of an engine."""
    codes = {name.replace("_", "-"): payload.encode() for name, payload in payloads.items()}
    return Replies({name: partial(Payload.decode, code) for name, code in codes.items()})


def final(folder: Path) -> Payload:
    """Return the final state of a run's server."""
    return Payload.read(folder / "model.safetensors")


def states(folder: Path) -> dict[str, Payload]:
    """Return the durable state of each client at the end of a run."""
    versions = Payload.read(sorted((folder / "checkpoints").iterdir())[-1]).info["ledger"]["states"]
    return {name: Payload.read(state_file(folder / "clients", name, version)) for name, version in versions.items()}
