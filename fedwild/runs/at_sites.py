"""A federation whose clients have their data at real sites: what the coordinator has instead of the data.

The coordinator knows what every site reports about itself, and may have its own test data. It has no samples of any
client: the split of such a run has the clients' names, but no rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fedwild.contract import Welcomes
from fedwild.core.errors import UserError
from fedwild.data import SITES, ClassRoles, ClientSplit, Dataset, DataSettings, Split, choose_classes, load
from fedwild.data.partitions import POOL
from fedwild.data.settings import NewcomerSettings
from fedwild.methods import METHODS
from fedwild.runs.config import Config
from fedwild.runs.experiment import (
    NOTHING_UNKNOWN,
    Experiment,
    absolute_folder,
    absolute_paths,
    assembled,
    default_model,
    plan_privacy,
)

NEWCOMER_SITE = "site"
"""The value of `data.newcomers.NAME.name` for a newcomer that is a site."""
NO_ROWS = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class SiteFacts:
    """What a site reports about itself before a run."""

    name: str
    classes: tuple[str, ...]
    samples: int
    shape: tuple[int, ...]
    dtype: str
    """The type of the stored samples: uint8 or float32."""

    def to_json(self) -> dict[str, Any]:
        return vars(self)


def prepare_sites(config: Config, sites: Sequence[SiteFacts]) -> Experiment:
    """Return the checked experiment of a new run over these sites."""
    check_site_settings(config)
    newcomers = tuple(config.data.newcomers)
    dataset = coordinator_dataset(config.data, sites[0].shape, sites[0].dtype, config.seed)
    members = [site for site in sites if site.name not in newcomers]
    classes = joint_classes((site.classes for site in members), dataset.classes)
    roles = choose_classes(classes, SITES, config.data, config.seed)
    dataset = with_classes(dataset, roles)
    split = split_of_sites(config, dataset, roles, sites)
    model = default_model(dataset.input_shape)
    resolved = resolved_for_sites(config, roles, members, model)
    notes = [f"known classes: {', '.join(roles.known)}"]
    if not roles.unknown and not roles.novel:
        notes.append(NOTHING_UNKNOWN)
    return assembled(resolved, dataset, split, tuple(notes))


def resolved_for_sites(config: Config, roles: ClassRoles, members: Sequence[SiteFacts], model: str) -> Config:
    """Return the settings, completed with what the sites determine."""
    coordinator = config.data.coordinator
    return config.resolved(
        model=model,
        data={
            "name": SITES,
            "known": list(roles.known),
            "coordinator": None if coordinator is None else absolute_paths(coordinator),
        },
        partition={"name": "owner"},
        federation={"clients": len(members), "start_from": absolute_folder(config.federation.start_from)},
        # Sites declare their training samples before they keep some of them for validation.
        privacy=plan_privacy(config, [int(site.samples * (1 - config.data.validation)) for site in members]),
    )


def restore_sites(config: Config, split: Split, shape: tuple[int, ...], dtype: str) -> Experiment:
    """Return the experiment of an existing run over sites, without asking the sites."""
    roles = ClassRoles(split.known, split.novel, split.unknown)
    return assembled(config, with_classes(coordinator_dataset(config.data, shape, dtype, config.seed), roles), split)


def check_site_settings(config: Config) -> None:
    """Reject a partition, newcomers that are not sites, and newcomers that the method cannot welcome."""
    problems = []
    for section, name in (("partition", config.partition.name), (POOL, config.pool_partition.name)):
        if name is not None and (section, name) != ("partition", "owner"):
            problems.append(f"{section}.name = {name!r} is not allowed here: every site has its own data.")
    welcomes = issubclass(METHODS.get(config.method.name), Welcomes)
    for name, newcomer in config.data.newcomers.items():
        if newcomer.name != NEWCOMER_SITE:
            problems.append(
                f"data.newcomers.{name}.name = {newcomer.name!r} is not allowed here: newcomers are sites, "
                f"so write name = {NEWCOMER_SITE!r}."
            )
        elif not welcomes and not newcomer.welcomed:
            problems.append(
                f"data.newcomers.{name} is not allowed: method {config.method.name!r} cannot welcome newcomers; "
                "let the site join like any other."
            )
    if problems:
        raise UserError(*problems)


def coordinator_dataset(data: DataSettings, shape: tuple[int, ...], dtype: str, seed: int) -> Dataset:
    """Return the coordinator's own data, or an empty data set of this shape."""
    if data.coordinator is not None:
        dataset = load(data.model_copy(update={"name": data.coordinator, "newcomers": {}}), seed)
        if dataset.input_shape != shape:
            raise UserError(
                f"data.coordinator = {data.coordinator!r} has samples of shape {dataset.input_shape}, but those of the "
                f"sites have {shape}: set data.size and data.channels to give all images one shape."
            )
        return dataset
    x = torch.empty((0, *shape), dtype=torch.uint8 if dtype == "uint8" else torch.float32)
    y = torch.empty(0, dtype=torch.int64)
    return Dataset(SITES, x, y, x, y, (), (SITES,), y, y)


def with_classes(dataset: Dataset, roles: ClassRoles) -> Dataset:
    """Return the coordinator's data with all classes that have a role, even if it has no sample of them."""
    named = [name for names in roles for name in names]
    return replace(dataset, classes=(*dataset.classes, *(name for name in named if name not in dataset.classes)))


def joint_classes(held: Iterable[Sequence[str]], own: Sequence[str] = ()) -> tuple[str, ...]:
    """Return all classes of the sites in sorted order, then those that only the coordinator has."""
    names = {name for classes in held for name in classes}
    numbers = all(name.isdecimal() for name in names)
    ordered = sorted(names, key=lambda name: (int(name), name) if numbers else (0, name))
    return (*ordered, *(name for name in own if name not in names))


def split_of_sites(config: Config, dataset: Dataset, roles: ClassRoles, sites: Sequence[SiteFacts]) -> Split:
    """Return a split of clients without rows, with the coordinator's own test and public samples."""
    data = config.data
    ids = [dataset.classes.index(name) for names in roles for name in names]
    test = np.nonzero(np.isin(dataset.y_test.numpy(), ids))[0]
    public = NO_ROWS
    if data.public and data.public_from == "train":
        generator = np.random.default_rng([config.seed, 17])
        count = int(data.public * len(dataset.y_train) + 1e-9)
        public = np.sort(generator.permutation(len(dataset.y_train))[:count])
    held = {**dict.fromkeys(data.newcomers, ()), **{site.name: site.classes for site in sites}}
    clients = [client_of(name, classes, roles, data.newcomers) for name, classes in held.items()]
    waiting = tuple(name for name, settings in data.newcomers.items() if not settings.welcomed)
    return Split(tuple(clients), *roles, test, public, "train", tuple(data.stages), waiting)


def client_of(
    name: str, classes: tuple[str, ...], roles: ClassRoles, newcomers: Mapping[str, NewcomerSettings]
) -> ClientSplit:
    """Return a client without rows."""
    known = tuple(sorted(classes)) if name in newcomers else roles.known
    return ClientSplit(name, NO_ROWS, NO_ROWS, NO_ROWS, NO_ROWS, known)
