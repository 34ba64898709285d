"""From settings to everything that a run needs: data, split, method and task."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from fedwild.contract import Initial, Method, Rng, Task
from fedwild.contract.schedule import first_rounds, plan_of
from fedwild.core.errors import UserError
from fedwild.core.layers import Table
from fedwild.core.names import Seen, check_name
from fedwild.core.settings import validate
from fedwild.data import (
    DATASETS,
    Dataset,
    DataSettings,
    Partition,
    Split,
    add_newcomers,
    choose_partition,
    load,
    make_split,
    samples_of,
    with_newcomers,
)
from fedwild.data.partitions import POOL, make_partition
from fedwild.methods import METHODS
from fedwild.models import Network
from fedwild.runs.config import Config
from fedwild.runs.earlier import earlier_members, earlier_model
from fedwild.runs.privacy import check_network, check_secure, planned_privacy

Download = Callable[[str, int, int | None], None]
"""Called during a download with the file, the bytes so far and, if known, the total."""
NOTHING_UNKNOWN = "no class is unknown, so AUROC and OSCR are undefined; set data.known=N for only N known classes"


@dataclass(frozen=True)
class Experiment:
    """A run before its first round."""

    config: Config
    dataset: Dataset
    split: Split
    method: Method
    task: Task
    notes: tuple[str, ...] = ()
    """Notes for the user, shown before the first round."""

    @cached_property
    def initial(self) -> Initial | None:
        """The earlier run's model to begin with. It is read on demand: a run that has begun does not need it."""
        path, model, score = self.config.federation.start_from, self.config.model, self.config.parts.get("score")
        return earlier_model(path, model, self.task, score) if path is not None and model is not None else None


def prepare(config: Config, split: Split | None = None, progress: Download | None = None) -> Experiment:
    """Load the data and build everything else. Bad input raises here, before any file is written.

    `split` is given when a run continues; newcomers that it does not have are added to it.
    """
    if config.engine.name == "flower":
        raise UserError(
            "engine.name = 'flower' is not allowed here: use `fedwild coordinate` for a run over real sites."
        )
    is_new = split is None
    dataset, split, partition = load_and_split(config, split, progress)
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
        partition={"name": partition.name, **partition.params.model_dump()},
        federation={
            "clients": len(split.clients) - len(config.data.newcomers),
            "start_from": absolute_folder(config.federation.start_from),
        },
        privacy=plan_privacy(config, [len(client.train) for client in split.clients]),
    )
    # Loading one sample reveals errors in normalisation or augmentation.
    samples_of(dataset, np.zeros(1, dtype=np.int64), data=config.data)
    notes = notes_on(config, dataset, split) + (notes_on_sizes(config, dataset, split) if is_new else ())
    return assembled(config, dataset, split, notes)


def with_earlier_members(config: Config) -> Config:
    """Return the config with the newcomers that joined the run to start from, if that run has the same data."""
    path = absolute_folder(config.federation.start_from)
    if path is None:
        return config
    members = earlier_members(path, config, absolute_paths(config.data.name))
    newcomers = {**members, **config.data.model_dump()["newcomers"]}
    return replace(config, data=validate(DataSettings, {**config.data.model_dump(), "newcomers": newcomers}, "data"))


def assembled(config: Config, dataset: Dataset, split: Split, notes: tuple[str, ...] = ()) -> Experiment:
    """Return the experiment of resolved settings and data, with its method, network and schedule checked."""
    assert config.model is not None
    check_clients(config, split)
    check_public(config, split)
    task = Task(dataset.input_shape, config.model.name, config.model.params.model_dump(), usable_device(config))
    network = built(task, max(2, len(split.known)))
    method = config.make_method()
    check_embedding(method, network, config.model.name)
    first_rounds(method, split.newcomers, config.federation.arrivals, [step for step, _ in plan_of(method)])
    method.check(network, config.federation.start_from)
    if "objective" in method.parts:
        method.objective.check(network)  # type: ignore[attr-defined]
    check_network(network, task, method, config.privacy.level)
    return Experiment(config, dataset, split, method, task, notes)


def plan_privacy(config: Config, sizes: Sequence[int]) -> Table:
    """Return noise and delta for clients with these numbers of samples; empty without privacy."""
    if config.privacy.level == "none":
        return {}
    participation = config.federation.participation
    if config.federation.secure != "no":
        check_secure(config.privacy, participation, len(sizes))
    return planned_privacy(config.privacy, config.make_method().phases(), participation, sizes)


def load_and_split(
    config: Config, split: Split | None = None, progress: Download | None = None
) -> tuple[Dataset, Split, Partition]:
    """Return the data with that of all newcomers, the split, and the partition."""
    dataset = load(config.data, config.seed, progress)
    partition = choose_partition(dataset, config.partition.name, config.partition.params)
    if split is None:
        pool, clients = config.pool_partition, config.federation.clients
        of_pool = make_partition(pool.name, pool.params, POOL) if pool.name else None
        split = make_split(dataset, config.data, partition, clients=clients, seed=config.seed, pool_partition=of_pool)
        check_newcomer_names(config.data.newcomers, [client.name for client in split.clients])
    dataset = with_newcomers(dataset, config.data, config.seed, progress)
    return dataset, add_newcomers(split, dataset, config.data, config.seed), partition


def notes_on(config: Config, dataset: Dataset, split: Split) -> tuple[str, ...]:
    """Return notes on the data."""
    notes = []
    if not split.unknown and not split.novel:
        notes.append(NOTHING_UNKNOWN)
    entry = DATASETS.get(config.data.name) if isinstance(config.data.name, str) else None
    domains = len(dataset.domains) - len(config.data.newcomers)
    here = (int((dataset.domain_train < domains).sum()), int((dataset.domain_test < domains).sum()))
    if entry and here != (entry.train, entry.test) and not (config.data.train_samples or config.data.test_samples):
        official = f"{entry.train} + {entry.test}"
        notes.append(f"{entry.name} has {here[0]} + {here[1]} samples here, the official set has {official}")
    return tuple(notes)


def notes_on_sizes(config: Config, dataset: Dataset, split: Split) -> tuple[str, ...]:
    """Return a note if there are too few samples for the partition's minimum."""
    ids = [dataset.classes.index(name) for name in split.known]
    known = np.isin(dataset.y_train.numpy(), ids)
    sizes = [
        len(client.train) + len(client.validation) + int(known[client.unlabelled].sum())
        for client in split.clients
        if client.name not in config.data.newcomers
    ]
    wanted = config.partition.params.get("min_samples", 0)
    if min(sizes, default=wanted) >= wanted:
        return ()
    return (
        f"partition.min_samples = {wanted} is not reached, because there are too few samples: one client has "
        f"{min(sizes)} of {sum(sizes)}",
    )


def absolute_paths(name: str | list[str]) -> str | list[str]:
    """Return the user's own files by their full path, so that the run works from any folder."""
    if isinstance(name, list):
        return [str(absolute_paths(one)) for one in name]
    return name if name in DATASETS or not Path(name).exists() else str(Path(name).resolve())


def absolute_folder(path: str | None) -> str | None:
    """Return the earlier run by its real path, since a link such as `latest` may change."""
    return None if path is None else os.path.realpath(path)


def default_model(input_shape: tuple[int, ...]) -> str:
    """Return the default network for vectors, images or volumes."""
    return {1: "mlp", 3: "simple-cnn", 4: "resnet-18-3d"}[len(input_shape)]


def built(task: Task, outputs: int) -> Network:
    """Build a network of the task, to find errors before anything is written."""
    try:
        return task.build(outputs, Rng(0))
    except (RuntimeError, MemoryError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"model.name = {task.model!r} with {task.model_params} cannot be built: {reason}") from None


def check_newcomer_names(newcomers: Iterable[str], there: Collection[str]) -> None:
    """Reject a newcomer whose name is already taken."""
    for name in newcomers:
        if name in there:
            raise UserError(f"newcomer {name!r}: a client already has this name; choose another with --name.")


def check_clients(config: Config, split: Split) -> None:
    """Check the names of clients, which become file names, and settings that refer to clients."""
    names = [client.name for client in split.clients]
    seen: Seen = {}
    for name in names:
        where = "data.newcomers" if name in config.data.newcomers else "the data"
        check_name(name, where, "client", seen)
    federation = config.federation
    strangers = sorted(set(federation.arrivals) - set(names))
    if strangers:
        some = ", ".join(names[:5]) + (" ..." if len(names) > 5 else "")
        raise UserError(f"federation.arrivals: {strangers[0]!r} is not a client; the clients are {some}.")
    if federation.min_clients > len(names):
        raise UserError(
            f"federation.min_clients = {federation.min_clients} is not allowed: there are {len(names)} clients."
        )


def check_public(config: Config, split: Split) -> None:
    """Check that the server has public data if the method needs it."""
    name = config.method.name
    if METHODS.get(name).traits.public_data and not len(split.public):
        raise UserError(
            f"method.name = {name!r} needs public unlabelled data: set data.public=0.1 for a tenth "
            "of the training samples, or data.public_from=test for half of the test samples."
        )


def check_embedding(method: Method, network: Network, name: str) -> None:
    """Reject a network whose embeddings are the samples themselves if clients would send them."""
    if method.traits.sends_embeddings and all(key.startswith("head.") for key, _ in network.named_parameters()):
        raise UserError(
            f"model.name = {name!r} is not allowed with method {method.name!r}: clients send embeddings, and without "
            "layers before the head these would be their samples."
        )


def usable_device(config: Config) -> str:
    """Return the requested device, if this machine has it."""
    name = config.engine.device
    try:
        torch.zeros(1, device=name).cpu()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"engine.device = {name!r} cannot be used here: {reason}") from None
    return name


def fingerprint(dataset: Dataset) -> str:
    """Return a digest of all labels and every 97th sample, to notice when a run's data has changed."""
    digest = hashlib.sha256(repr((dataset.classes, dataset.input_shape)).encode())
    for tensor in (dataset.y_train, dataset.y_test, dataset.x_train[::97], dataset.x_test[::97]):
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()
