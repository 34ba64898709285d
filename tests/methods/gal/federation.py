"""Small federations for GAL: settings, data, complete runs, and a federation whose rounds a test runs one by one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedwild.contract import Phase, Replies, Server, Step
from fedwild.contract.engine import Job
from fedwild.contract.schedule import plan_of
from fedwild.core.classes import ClassRegistry
from fedwild.core.payload import Payload
from fedwild.core.rng import Rng
from fedwild.data import ClientSplit, Dataset, Split
from fedwild.data.samples import samples_of
from fedwild.engines.executor import Executor
from fedwild.methods.gal import GAL
from fedwild.runs.events import read_events
from tests.tiny import run_tiny, tiny_experiment

KNOWN, NOVEL, WIDTH = 3, 2, 8
SETTINGS: dict[str, Any] = {
    "rounds": 2,
    "epochs": 1,
    "batch_size": 8,
    "optimizer": "sgd",
    "lr": 0.05,
    "momentum": 0.5,
    "weight_decay": 0.0,
    "stages": 1,
    "novel_rounds": 2,
    "min_count": 1,
    "min_known_count": 1,
    # Every unlabelled sample is novel, whatever its embedding.
    "novelty": "fixed",
    "r": 1.0,
    "accept": 0.95,
    "init": "prototypes",
    "rows": "scaled",
    "loss": "swl",
    "rehearse": False,
    "prototypes": "frozen",
    "temperature": 0.07,
    "normalised": True,
    "against_forgetting": "ema",
    "beta": 0.5,
    "pseudo_labels": False,
    "keep_known": 0.0,
}
"""All settings of GAL, so that tests do not depend on its defaults. A test names those that it changes."""
PARTS: dict[str, Any] = {
    "model": {"name": "mlp", "hidden": [16, WIDTH]},
    "estimator": {"name": "given", "classes": 2},
    "objective": {"name": "prototype-contrast", "eta": 0.1, "temperature": 0.07, "balanced": True},
}
NORMS = {"model": {"name": "digit-cnn", "width": 0.1}}


def split_of(
    data: Dataset,
    clients: int = 3,
    stages: tuple[int, ...] = (),
    pools: list[list[int]] | None = None,
    validation: bool = True,
    novel: int = NOVEL,
) -> Split:
    """Return a split with known samples in order and, unless `pools` are given, all novel ones in turn."""
    y = data.y_train.numpy()
    rows = np.nonzero((y >= KNOWN) & (y < KNOWN + novel))[0]
    test = np.arange(len(data.y_test))
    found = []
    for i, mine in enumerate(np.array_split(np.nonzero(y < KNOWN)[0], clients)):
        held = mine[3::4] if validation else mine[:0]
        pool = np.array(pools[i] if pools is not None else rows[i::clients], dtype=np.int64)
        name = f"client-{i:02d}"
        found.append(ClientSplit(name, np.setdiff1d(mine, held), held, np.sort(pool), test, data.classes[:KNOWN]))
    roles = data.classes[:KNOWN], data.classes[KNOWN : KNOWN + novel], data.classes[KNOWN + novel :]
    return Split(tuple(found), *roles, test, np.zeros(0, dtype=np.int64), "train", stages)


def tables(parts: dict[str, Any] | None = None, **method: Any) -> dict[str, Any]:
    """Return all settings by section; `method` and `parts` replace some of them."""
    return {**PARTS, **(parts or {}), "method": {**SETTINGS, **method}}


def run(
    folder: Path, data: Dataset, split: Split | None = None, parts: dict[str, Any] | None = None, **method: Any
) -> Payload:
    """Run to the end and return the final server. No client may fail."""
    settings = tables(parts, **method)
    run_tiny(folder, "gal", data, split_of(data) if split is None else split, settings)
    assert not [event for event in read_events(folder / "events.jsonl") if event["event"] == "client-failed"]
    return final(folder)


def final(folder: Path) -> Payload:
    return Payload.read(folder / "model.safetensors")


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_events(folder / "events.jsonl") if event["event"] == kind]


def notes(folder: Path) -> list[str]:
    return [event["text"] for event in events(folder, "note")]


def predictor_of(folder: Path, data: Dataset, split: Split, **method: Any) -> Any:
    """Return the predictor of a finished run."""
    experiment = tiny_experiment("gal", data, split, tables(**method))
    return experiment.method.answers(Server.from_payload(final(folder), experiment.task, Rng(0))).predictor(None)


def extractor(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in weights.items() if not name.startswith("head.")}


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


class Federation:
    """A federation whose rounds are run one by one."""

    def __init__(self, data: Dataset, split: Split, folder: Path, settings: dict[str, Any]) -> None:
        experiment = tiny_experiment("gal", data, split, settings)
        assert isinstance(experiment.method, GAL)
        self.method: GAL = experiment.method
        self.phases = {(step.phase, step.round): phase for step, phase in plan_of(self.method)}
        self.names = [client.name for client in split.clients]
        registry = ClassRegistry.of(split.known)
        self.server = Server(experiment.task, registry, Step("known", 0, 0), Rng(0), tuple(self.names))
        self.method.start(self.server)
        self.executor = Executor(data, split, experiment.config.data, self.method, experiment.task, 0, folder, folder)
        self.index = 0

    @property
    def phase(self) -> Phase:
        """The phase of the current round."""
        return self.phases[self.server.step.phase, self.server.step.round]

    def client(self, name: str) -> Any:
        return self.executor.client(Job("local", self.server.step, "", name, self.server.classes.names))

    def at(self, phase: str, round_: int = 0) -> Federation:
        """Go to a round."""
        self.index += 1
        self.server.step = Step(phase, round_, self.index)
        self.server.rng = Rng(0).child(phase, round_, "server")
        return self

    def replies(self) -> dict[str, Payload]:
        """Return the checked replies of all clients."""
        found = {}
        for name in self.names:
            rng = Rng(0).child(self.server.step.phase, self.server.step.round, "client", name)
            reply = self.phase.local(self.phase.send(self.server, name), self.client(name), rng)
            found[name] = Payload.decode(reply.encode())
            self.phase.check(self.server, found[name])
        return found

    def merge(self, replies: dict[str, Payload] | None = None) -> None:
        made = self.replies() if replies is None else replies
        readers: dict[str, Callable[[], Payload]] = {
            name: partial(Payload.decode, reply.encode()) for name, reply in made.items()
        }
        self.phase.merge(self.server, Replies(readers))

    def embedded(self, name: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the embeddings of a client's unlabelled samples, and the rows of the head."""
        weights = self.server.state.group("model")
        model = self.server.task.network(weights, len(weights["head.weight"]), bias=False, slot="by hand").eval()
        split = next(client for client in self.executor.split.clients if client.name == name)
        with torch.no_grad():
            return model.embed(samples_of(self.executor.dataset, split.unlabelled).all()[0]), weights["head.weight"]


def described(data: Dataset, folder: Path, split: Split | None = None, **method: Any) -> Federation:
    """Return a federation after one round of known-class learning, at the first `describe`."""
    federation = Federation(data, split_of(data) if split is None else split, folder, tables(**method))
    federation.merge()
    return federation.at("describe")
