"""From settings to everything a federation needs: data loaded, samples dealt, method and task made."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from fedwild.config import Config
from fedwild.data import (
    DATASETS,
    Dataset,
    Split,
    admitted,
    load,
    make_split,
    samples_of,
    with_newcomers,
)
from fedwild.data.split import chosen_partition
from fedwild.errors import UserError
from fedwild.hyper import Hyper
from fedwild.initial import Initial
from fedwild.methods import METHODS
from fedwild.models import Network
from fedwild.protocol import EVERYONE, Method
from fedwild.rng import Rng
from fedwild.runs.earlier import earlier_model
from fedwild.schedule import arrivals_of, steps_of
from fedwild.task import Task

Download = Callable[[str, int, int | None], None]
"""Told of a download: the file, the bytes so far and, if known, the bytes in all."""
NOTHING_UNKNOWN = "no class is unknown, so AUROC and OSCR are not defined: data.known=N makes only N classes known"


@dataclass(frozen=True)
class Experiment:
    """A run before its first round."""

    config: Config
    dataset: Dataset
    split: Split
    method: Method
    task: Task
    notes: tuple[str, ...] = ()
    """What the user should know before the first round."""

    @cached_property
    def initial(self) -> Initial | None:
        """The earlier run's model to begin with. Read when asked for: once begun, a run does not need the other."""
        path, model = self.config.federation.start_from, self.config.model
        return earlier_model(path, model, self.task) if path is not None and model is not None else None


def prepare(config: Config, split: Split | None = None, progress: Download | None = None) -> Experiment:
    """Load the data and build the parts; `split` is given when a run goes on. Bad input ends here, before any file.

    Newcomers that a given split does not have are added to it.
    """
    if config.engine.name == "flower":
        raise UserError("engine.name = 'flower' is not allowed here: `fedwild coordinate` brings real sites together.")
    dataset, split, (name, params) = load_and_deal(config, split, progress)
    config = config.resolved(
        model=default_model(dataset.input_shape),
        data={
            "name": absolute_paths(config.data.name),
            "known": list(split.known),
            "newcomers": {
                name: {**settings.model_dump(), "name": absolute_paths(settings.name)}
                for name, settings in config.data.newcomers.items()
            },
        },
        partition={"name": name, **params.model_dump()},
        federation={
            "clients": len(split.clients) - len(config.data.newcomers),
            "start_from": absolute_folder(config.federation.start_from),
        },
    )
    # One sample shows what is wrong with normalisation or augmentation.
    samples_of(dataset, np.zeros(1, dtype=np.int64), data=config.data)
    return assembled(config, dataset, split, notes_on(config, dataset, split))


def assembled(config: Config, dataset: Dataset, split: Split, notes: tuple[str, ...] = ()) -> Experiment:
    """The experiment of resolved settings and data: method, network and schedule are made and checked."""
    assert config.model is not None
    check_clients(config, split)
    check_public(config, split)
    task = Task(dataset.input_shape, config.model.name, config.model.params.model_dump(), usable_device(config))
    network = built(task, max(2, len(split.known)))
    method = config.make_method()
    check_embedding(method, network, config.model.name)
    arrivals_of({**method.arrivals(split.newcomers), **config.federation.arrivals}, steps_of(method))
    method.check_network(network)
    if "objective" in method.composes:
        method.objective.check(network)  # type: ignore[attr-defined]
    return Experiment(config, dataset, split, method, task, notes)


def load_and_deal(
    config: Config, split: Split | None = None, progress: Download | None = None
) -> tuple[Dataset, Split, tuple[str, Hyper]]:
    """The data with all newcomers' own, who holds what of it, and the partition with its settings."""
    dataset = load(config.data, config.seed, progress)
    name, params = chosen_partition(dataset, config.partition.name, config.partition.params)
    if split is None:
        given = params.model_dump()
        split = make_split(dataset, config.data, name, given, config.federation.clients, config.seed)
        check_newcomer_names(config.data.newcomers, [client.name for client in split.clients])
    dataset = with_newcomers(dataset, config.data, config.seed, progress)
    return dataset, admitted(split, dataset, config.data, config.seed), (name, params)


def notes_on(config: Config, dataset: Dataset, split: Split) -> tuple[str, ...]:
    """What is worth saying about the data."""
    notes = []
    if not split.unknown and not split.novel:
        notes.append(NOTHING_UNKNOWN)
    entry = DATASETS.get(config.data.name) if isinstance(config.data.name, str) else None
    dealt = len(dataset.domains) - len(config.data.newcomers)
    here = (int((dataset.domain_train < dealt).sum()), int((dataset.domain_test < dealt).sum()))
    if entry and here != (entry.train, entry.test) and not (config.data.train_samples or config.data.test_samples):
        official = f"{entry.train} + {entry.test}"
        notes.append(f"{entry.name} has {here[0]} + {here[1]} samples here, the official set has {official}")
    return tuple(notes)


def absolute_paths(name: str | list[str]) -> str | list[str]:
    """The user's own files by their full path, so that a run can be asked from any folder."""
    if isinstance(name, list):
        return [str(absolute_paths(one)) for one in name]
    return name if name in DATASETS or not Path(name).exists() else str(Path(name).resolve())


def absolute_folder(path: str | None) -> str | None:
    """The earlier run by its full path, also where a link such as `latest` may soon lead elsewhere."""
    return None if path is None else os.path.realpath(path)


def default_model(input_shape: tuple[int, ...]) -> str:
    """A network for vectors, images or volumes."""
    return {1: "mlp", 3: "simple-cnn", 4: "resnet-18-3d"}[len(input_shape)]


def built(task: Task, outputs: int) -> Network:
    """A network of the task: building once shows what is wrong with it before anything is written."""
    try:
        return task.build(outputs, Rng(0))
    except (RuntimeError, MemoryError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"model.name = {task.model!r} with {task.model_params} cannot be built: {reason}") from None


def check_newcomer_names(newcomers: Iterable[str], there: Collection[str]) -> None:
    """Refuse a newcomer that is called as a client is who is there already."""
    for name in newcomers:
        if name in there:
            raise UserError(f"newcomer {name!r}: a client of the federation has this name; give it another (--name).")


def check_clients(config: Config, split: Split) -> None:
    """Names become file names; arrivals and the minimum must be possible."""
    names = [client.name for client in split.clients]
    for name in names:
        if name in {"", ".", "..", EVERYONE} or "/" in name or "\0" in name:
            raise UserError(f"client name {name!r} is not allowed: it must not hold '/' and not be '.', '..' or '*'.")
    federation = config.federation
    strangers = sorted(set(federation.arrivals) - set(names))
    if strangers:
        raise UserError(
            f"federation.arrivals names {strangers[0]!r}, who is no client: the clients are {', '.join(names[:5])}..."
        )
    if federation.min_clients > len(names):
        raise UserError(
            f"federation.min_clients = {federation.min_clients} is not allowed: there are {len(names)} clients."
        )


def check_public(config: Config, split: Split) -> None:
    """Some methods need data at the server."""
    name = config.method.name
    if METHODS.get(name).needs_public and not len(split.public):
        raise UserError(
            f"method.name = {name!r} needs public unlabelled data, and there is none: set data.public=0.1 for a tenth "
            "of the training samples, or data.public_from=test for half of the test samples."
        )


def check_embedding(method: Method, network: Network, name: str) -> None:
    """Refuse a network whose embeddings are the samples themselves where clients would send them."""
    if method.sends_embeddings and all(key.startswith("head.") for key, _ in network.named_parameters()):
        raise UserError(
            f"model.name = {name!r} is not allowed with method {method.name!r}: clients send embeddings, and without "
            "layers before the head these are their samples."
        )


def usable_device(config: Config) -> str:
    """The device asked for, if this machine has it."""
    name = config.engine.device
    try:
        torch.zeros(1, device=name).cpu()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"engine.device = {name!r} cannot be used here: {reason}") from None
    return name


def fingerprint(dataset: Dataset) -> str:
    """Tells whether a run goes on with the data it began with: all labels and every 97th sample."""
    digest = hashlib.sha256(repr((dataset.classes, dataset.input_shape)).encode())
    for tensor in (dataset.y_train, dataset.y_test, dataset.x_train[::97], dataset.x_test[::97]):
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()
