"""Servers and replies made by hand, for a method's formulas."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from fedwild.core.classes import ClassRegistry
from fedwild.engines.executor import state_file
from fedwild.core.payload import Payload
from fedwild.contract import Method, Replies, Server, Step
from fedwild.core.rng import Rng
from fedwild.contract.task import Task
from tests.tiny import even_shares, split_by, tiny_dataset, tiny_experiment

NORMED = Task((1, 8, 8), "digit-cnn", {"width": 0.04})
PLAIN = Task((1, 8, 8), "mlp", {"hidden": [8, 6]})
WITH_NORMS = {"model": {"name": "digit-cnn", "width": 0.04}}


def method_of(name: str, settings: Mapping[str, Any] | None = None, **tables: Any) -> Any:
    """The method with these settings and, by section, those of its parts."""
    data = tiny_dataset(classes=2)
    split = split_by(data, 2, even_shares(data, 2, 2))
    method: Method = tiny_experiment(name, data, split, {"method": dict(settings or {}), **tables}).method
    return method


def server_of(
    clients: tuple[str, ...] = (), index: int = 0, task: Task = PLAIN, **groups: Mapping[str, Tensor]
) -> Server:
    """A server of two classes in a round."""
    server = Server(task, ClassRegistry.of(("a", "b")), Step("train", index, index), Rng(0), clients)
    server.state = Payload.of(**groups)
    return server


def replies_of(**payloads: Payload) -> Replies:
    """Replies that are decoded anew at every reading, as those of an engine are."""
    codes = {name.replace("_", "-"): payload.encode() for name, payload in payloads.items()}
    return Replies({name: partial(Payload.decode, code) for name, code in codes.items()})


def final(folder: Path) -> Payload:
    return Payload.read(folder / "model.safetensors")


def states(folder: Path) -> dict[str, Payload]:
    """What each client has kept at the end of a run."""
    versions = Payload.read(sorted((folder / "checkpoints").iterdir())[-1]).info["ledger"]["states"]
    return {name: Payload.read(state_file(folder / "clients", name, version)) for name, version in versions.items()}
