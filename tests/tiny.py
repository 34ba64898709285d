"""Small federations for tests: a few images, a few rounds, in this process unless workers are asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedwild.api import Run, configure
from fedwild.contract.task import Task
from fedwild.core.errors import RoundFailed
from fedwild.core.registry import Registry
from fedwild.data import ClientSplit, Dataset, Split
from fedwild.lifecycle import start as starting
from fedwild.lifecycle.rounds import Federation
from fedwild.methods import METHODS
from fedwild.runs.config import Config
from fedwild.runs.events import Listener
from fedwild.runs.experiment import Experiment, fingerprint
from fedwild.runs.folder import RunFolder


def tiny_dataset(classes: int, per_class: int = 12, seed: int = 0, unknown: int = 1) -> Dataset:
    """8x8 images whose classes are bright rows; the last `unknown` classes are meant to stay unknown."""
    generator = torch.Generator().manual_seed(seed)

    def part(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.arange(classes + unknown).repeat(count)
        x = torch.randint(0, 80, (len(y), 1, 8, 8), generator=generator, dtype=torch.uint8)
        for i, label in enumerate(y.tolist()):
            x[i, 0, label % 8] += 150
        return x, y

    (x_train, y_train), (x_test, y_test) = part(per_class), part(5)
    return Dataset(
        name="tiny",
        x_train=x_train,
        y_train=y_train,
        x_test=x_test,
        y_test=y_test,
        classes=tuple(f"class-{i}" for i in range(classes + unknown)),
        domains=("tiny",),
        domain_train=torch.zeros_like(y_train),
        domain_test=torch.zeros_like(y_test),
    )


def image_file(
    path: Path, classes: dict[str, int], per_class: int = 30, seed: int = 0, inverted: bool = False, side: int = 8
) -> Path:
    """An .npz of images: each class a name and its bright row, a quarter as many samples for testing."""
    rng = np.random.default_rng(seed)
    arrays: dict[str, Any] = {}
    for part, count in (("train", per_class), ("test", max(4, per_class // 4))):
        names = np.repeat(sorted(classes), count)
        x = rng.integers(0, 80, (len(names), side, side), dtype=np.uint8)
        for i, name in enumerate(names):
            x[i, classes[str(name)]] += 150
        arrays |= {f"x_{part}": 255 - x if inverted else x, f"y_{part}": names}
    np.savez(path, **arrays)
    return path


def split_by(dataset: Dataset, known: int, shares: list[list[int]], unlabelled: list[int] | None = None) -> Split:
    """A split with the given training rows per client; every fourth row of a share is for validation."""
    names = dataset.classes[:known]
    pool = np.array(unlabelled or [], dtype=np.int64)
    test = np.arange(len(dataset.y_test))
    clients = []
    for i, share in enumerate(shares):
        rows = np.array(sorted(share), dtype=np.int64)
        validation = rows[3::4]
        train = np.setdiff1d(rows, validation)
        clients.append(ClientSplit(f"client-{i:02d}", train, validation, pool, test, tuple(names)))
    public = np.arange(0, len(dataset.y_train), 5)
    return Split(tuple(clients), tuple(names), (), tuple(dataset.classes[known:]), test, public, "train")


def joined_by(split: Split, dataset: Dataset, rows: list[int], name: str = "newcomer") -> Split:
    """The split with a client that is no member yet, with these training rows; every fourth is for validation."""
    held = np.array(sorted(rows), dtype=np.int64)
    validation = held[3::4]
    labels = np.unique(dataset.y_train.numpy()[held])
    test = split.test[np.isin(dataset.y_test.numpy()[split.test], labels)]
    known = tuple(dataset.classes[label] for label in labels)
    client = ClientSplit(name, np.setdiff1d(held, validation), validation, held[:0], test, known)
    return replace(split, clients=(*split.clients, client), newcomers=(*split.newcomers, name))


def even_shares(dataset: Dataset, known: int, clients: int) -> list[list[int]]:
    """The rows of known classes, assigned in turn."""
    rows = [i for i, label in enumerate(dataset.y_train.tolist()) if label < known]
    return [rows[i::clients] for i in range(clients)]


def brief(method: str) -> dict[str, Any]:
    """Settings that make any method quick: two of every kind of round, one of every kind of epoch.

    Fixed limits are 0, so that a newcomer always brings something.
    """
    fields = METHODS.get(method).Params.model_fields
    sizes = {"rounds": 2, "epochs": 1, "batch_size": 4, "t_f": 0.0, "t_c": 0.0}
    return {name: value for name in fields for ending, value in sizes.items() if name.endswith(ending)}


def tiny_experiment(method: str, dataset: Dataset, split: Split, settings: dict[str, Any] | None = None) -> Experiment:
    """An experiment over given data; `settings` are tables that win over the brief ones."""
    base: dict[str, Any] = {
        "method": {"name": method, **brief(method)},
        "model": {"name": "mlp", "hidden": [8, 6]},
        "evaluation": {"every": 0},
    }
    config: Config = configure(base, data="tiny", settings=settings or {})
    assert config.model is not None
    task = Task(dataset.input_shape, config.model.name, config.model.params.model_dump())
    return Experiment(config, dataset, split, config.make_method(), task)


def run_tiny(
    folder: Path,
    method: str,
    dataset: Dataset,
    split: Split,
    settings: dict[str, Any] | None = None,
    workers: int = 0,
    listener: Listener = lambda event: None,
) -> dict[str, Any]:
    """Run to the end in `folder`; returns the result."""
    experiment = tiny_experiment(method, dataset, split, {"engine": {"workers": workers}, **(settings or {})})
    return run_experiment(folder, experiment, listener)


def run_experiment(folder: Path, experiment: Experiment, listener: Listener = lambda event: None) -> dict[str, Any]:
    run = RunFolder.create(
        folder, "tiny", experiment.config.to_toml(), experiment.split, {"data": fingerprint(experiment.dataset)}
    )
    return Federation(experiment, run, listener).run()


def own(registry: Registry[Any]) -> list[str]:
    """The names that come with fedwild; other tests may have registered more."""
    return [name for name in registry.names() if registry.get(name).__module__.startswith("fedwild.")]


def model_bytes(folder: Path) -> bytes:
    """The final model's file."""
    return (folder / "model.safetensors").read_bytes()


def opened(folder: Path) -> Run:
    return Run(folder)


def fail_for_seed_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have runs with seed 0 fail as if no client answered."""
    start = starting.start

    def failing(config: Config, *rest: Any) -> Run:
        if config.seed == 0:
            raise RoundFailed("no replies")
        return start(config, *rest)

    monkeypatch.setattr(starting, "start", failing)
