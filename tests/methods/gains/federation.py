"""A federation of four members with three classes, newcomers with more, and its log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedwild.contract import Client, Phase, Server, Step
from fedwild.contract.task import weights_of
from fedwild.core.classes import ClassRegistry
from fedwild.core.payload import Payload
from fedwild.core.rng import Rng
from fedwild.data import Dataset, Samples, Split
from fedwild.methods.gains.adapt import Adapt
from fedwild.methods.gains.declare import Declare
from fedwild.methods.gains.discover import Discover
from fedwild.methods.gains.judge import Judge
from fedwild.methods.gains.stage import Arrival, Status
from fedwild.runs.events import read_events
from tests.methods.by_hand import PLAIN, final, method_of
from tests.tiny import joined_by, run_tiny, split_by

KNOWN, ROUNDS = 3, 5
SETTINGS: dict[str, Any] = {
    "rounds": ROUNDS,
    "epochs": 2,
    "batch_size": 8,
    "optimizer": "sgd",
    "lr": 0.1,
    "momentum": 0.5,
    "weight_decay": 0.0,
    "stages": 1,
    "adapt_rounds": 4,
    "discover_epochs": 3,
    "rule": "federation",
    "decide": "once",
    "difference": "mean",
    "inclusive": False,
    "yardstick": "within",
    "least_shift": 0.1,
    "times": 2.0,
    "t_f": 0.0,
    "t_c": 0.0,
    "probes": 32,
    "min_count": 5,
    "synonym": 0.05,
    "sources": "samples",
    "scale": "none",
    "new_rows": "both",
    "target_weight": "share",
    "extra_epochs": 0,
    "keep": 0.001,
    "anchor": "received",
    "tail": "mean",
    "calibrate": True,
}
"""All settings, so that defaults may change. Tests name those that differ."""
MODEL = {"name": "mlp", "hidden": [16, 8]}
FORGETFUL: dict[str, Any] = {"adapt_rounds": 0, "discover_epochs": 9, "new_rows": "newcomer", "calibrate": False}
"""Only the newcomer trains, for many epochs, and its rows are not averaged."""
PHASES: dict[str, type[Phase]] = {"declare": Declare, "discover": Discover, "adapt": Adapt, "judge": Judge}
Change = Callable[[Payload], Payload]


# --- data ----------------------------------------------------------------------------------------------------


def rows_of(data: Dataset, *classes: int) -> list[int]:
    return [i for i, label in enumerate(data.y_train.tolist()) if label in classes]


def split_of(data: Dataset, public: bool = False, clients: int = 4, **newcomers: list[int]) -> Split:
    """Return most samples of known classes at the members, and newcomers with the given rows."""
    rows = rows_of(data, *range(KNOWN))[:160]
    split = split_by(data, KNOWN, [rows[i::clients] for i in range(clients)])
    if not public:
        split = replace(split, public=split.public[:0])
    for name, own in newcomers.items():
        split = joined_by(split, data, own, name)
    return split


def held_out(data: Dataset) -> list[int]:
    return rows_of(data, *range(KNOWN))[160:]


def domain_of(data: Dataset) -> Dataset:
    """Return the data with the samples of class-5, dark on bright, labelled class-1."""
    return replace(data, y_train=data.y_train.where(data.y_train != 5, 1))


# --- runs ----------------------------------------------------------------------------------------------------


def run(
    folder: Path, data: Dataset, split: Split, method: str = "gains", parts: dict[str, Any] | None = None, **given: Any
) -> Payload:
    """Run to the end and return the final server."""
    run_tiny(folder, method, data, split, {"model": MODEL, **(parts or {}), "method": {**SETTINGS, **given}})
    return final(folder)


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_events(folder / "events.jsonl") if event["event"] == kind]


def findings(folder: Path, what: str) -> list[dict[str, Any]]:
    return [event for event in events(folder, "finding") if event["what"] == what]


def notes(folder: Path) -> str:
    return "\n".join(event["text"] for event in events(folder, "note"))


def phases(folder: Path) -> list[str]:
    """Return the phases with rounds that took place, once each, in order."""
    return list(dict.fromkeys(event["phase"] for event in events(folder, "round")))


def names(server: Payload) -> list[str]:
    return [entry["name"] for entry in server.info["classes"]]


def failing(monkeypatch: pytest.MonkeyPatch, phase: str, change: Change, who: str = "ann", rounds: int = 99) -> None:
    """Change a client's replies in the first rounds of a phase."""
    kind = PHASES[phase.partition("-")[0]]
    local = kind.local

    def changed(self: Phase, payload: Payload, client: Client, rng: Rng) -> Payload:
        reply = local(self, payload, client, rng)
        if (client.step.phase, client.name) == (phase, who) and client.step.round < rounds:
            return change(reply)
        return reply

    monkeypatch.setattr(kind, "local", changed)


def lost(reply: Payload) -> Payload:
    raise OSError("connection lost")


def with_info(**info: Any) -> Change:
    """Return a change of a reply's JSON part."""

    def change(reply: Payload) -> Payload:
        reply.info.update(info)
        return reply

    return change


def with_tensors(group: str, **tensors: torch.Tensor) -> Change:
    """Return a change of a reply's tensors."""

    def change(reply: Payload) -> Payload:
        reply.add(group, tensors)
        return reply

    return change


# --- by hand -------------------------------------------------------------------------------------------------


def phase_of(name: str, settings: dict[str, Any] | None = None, **tables: Any) -> Any:
    """Return a phase of Gains with these settings."""
    phases = method_of("gains", {"stages": 2, **(settings or {})}, **tables).phases()
    return next(phase for phase in phases if phase.name == name)


def heads(seed: int, samples: dict[str, int], rows: int = 3) -> dict[str, Payload]:
    """Return replies with different networks."""
    found = {}
    for number, (name, count) in enumerate(samples.items()):
        model = weights_of(PLAIN.build(rows, Rng(seed + number)))
        found[name] = Payload.of({"samples": count}, model=model)
    return found


def adapting(kind: Status, **groups: Any) -> Server:
    """Return a server in the stage of ann: two classes before, and a third one if she brings classes."""
    before = ClassRegistry.of(("a", "b"))
    server = Server(PLAIN, ClassRegistry.of(("a", "b")), Step("adapt-1", 0, 4), Rng(0), ("bob", "cyd", "ann"))
    server.newcomers = ("ann",)
    declared = ("c",) if kind == "classes" else ()
    for name in declared:
        server.classes.add(name, "ann", 3)
    server.state = Payload.of(**groups)
    Arrival(kind, tuple(before.entries), declared=declared, samples=9).store(server)
    return server


def client_of(name: str, step: Step, state: Payload | None = None, y: list[int] | None = None) -> Client:
    """Return a client of three classes whose samples are all equal."""
    labels = torch.tensor(y or [], dtype=torch.int64)
    samples = Samples(torch.rand(1, 1, 8, 8).expand(len(labels), -1, -1, -1), labels, torch.arange(len(labels)))
    return Client(name, PLAIN, step, ("a", "b", "c"), lambda part: samples, {}, state or Payload())
