"""A federation whose clients have their data at sites of their own: what the coordinator has instead of it.

The coordinator knows what every site says of itself, and may have test data of its own. It holds no client's sample:
the split of such a run has the clients' names and no rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fedwild.config import Config
from fedwild.data import SITES, ClassRoles, ClientSplit, Dataset, DataSettings, Split, choose_classes, load
from fedwild.data.settings import NewcomerSettings
from fedwild.errors import UserError
from fedwild.experiment import Experiment, absolute_folder, absolute_paths, assembled, default_model
from fedwild.methods import METHODS

A_SITE = "site"
"""What `data.newcomers.NAME.name` says of a newcomer that is a site."""
NOBODY = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class SiteFacts:
    """What a site says of itself before a run begins."""

    name: str
    classes: tuple[str, ...]
    samples: int
    shape: tuple[int, ...]
    dtype: str
    """How samples are stored: uint8 or float32."""

    def to_json(self) -> dict[str, Any]:
        return vars(self)


def prepare_sites(config: Config, sites: Sequence[SiteFacts]) -> Experiment:
    """Everything that a run over these sites needs, checked."""
    check_site_settings(config)
    newcomers = tuple(config.data.newcomers)
    own = coordinator_dataset(config.data, sites[0].shape, sites[0].dtype, config.seed)
    members = [site for site in sites if site.name not in newcomers]
    classes = joint_classes((site.classes for site in members), own.classes)
    roles = choose_classes(classes, SITES, config.data)
    own = with_classes(own, roles)
    split = split_of_sites(config, own, roles, sites)
    model = default_model(own.input_shape)
    return assembled(resolved_for_sites(config, roles, len(members), model), own, split, notes_on_sites(roles))


def resolved_for_sites(config: Config, roles: ClassRoles, clients: int, model: str) -> Config:
    """The settings with everything filled in that the sites decide."""
    coordinator = config.data.coordinator
    return config.resolved(
        model=model,
        data={
            "name": SITES,
            "known": list(roles.known),
            "coordinator": None if coordinator is None else absolute_paths(coordinator),
        },
        partition={"name": "owner"},
        federation={"clients": clients, "start_from": absolute_folder(config.federation.start_from)},
    )


def revived_sites(config: Config, split: Split, shape: tuple[int, ...], dtype: str) -> Experiment:
    """The experiment of a run over sites that goes on, without asking them."""
    roles = ClassRoles(split.known, split.novel, split.unknown)
    own = with_classes(coordinator_dataset(config.data, shape, dtype, config.seed), roles)
    return assembled(config, own, split)


def check_site_settings(config: Config) -> None:
    """Refuse settings that say where data is, or how to deal it."""
    wrong = []
    if config.partition.name not in (None, "owner"):
        wrong.append(f"partition.name = {config.partition.name!r} is not allowed here: every site has its own data.")
    grows = METHODS.get(config.method.name).grows
    for name, newcomer in config.data.newcomers.items():
        if newcomer.name != A_SITE:
            wrong.append(
                f"data.newcomers.{name}.name = {newcomer.name!r} is not allowed here: newcomers are sites, "
                f"name = {A_SITE!r}."
            )
        elif not grows and not newcomer.welcomed:
            wrong.append(
                f"data.newcomers.{name} is not allowed: method {config.method.name!r} takes in no newcomers; "
                "let the site join as any other."
            )
    if wrong:
        raise UserError(*wrong)


def coordinator_dataset(data: DataSettings, shape: tuple[int, ...], dtype: str, seed: int) -> Dataset:
    """The coordinator's own data, or a data set of this shape without a sample."""
    if data.coordinator is not None:
        own = load(data.model_copy(update={"name": data.coordinator, "newcomers": {}}), seed)
        if own.input_shape != shape:
            raise UserError(
                f"data.coordinator = {data.coordinator!r} has samples of shape {own.input_shape}, the sites' have "
                f"{shape}: data.size and data.channels bring all to one shape."
            )
        return own
    x = torch.empty((0, *shape), dtype=torch.uint8 if dtype == "uint8" else torch.float32)
    y = torch.empty(0, dtype=torch.int64)
    return Dataset(SITES, x, y, x, y, (), (SITES,), y, y)


def with_classes(own: Dataset, roles: ClassRoles) -> Dataset:
    """The coordinator's data, which knows of all classes that have a role even if it has no sample of them."""
    named = [name for names in roles for name in names]
    return replace(own, classes=(*own.classes, *(name for name in named if name not in own.classes)))


def joint_classes(held: Iterable[Sequence[str]], own: Sequence[str] = ()) -> tuple[str, ...]:
    """All classes that sites have, in an order that does not depend on theirs; then those only the coordinator has."""
    names = {name for classes in held for name in classes}
    numbers = all(name.isdecimal() for name in names)
    ordered = sorted(names, key=lambda name: (int(name), name) if numbers else (0, name))
    return (*ordered, *(name for name in own if name not in names))


def split_of_sites(config: Config, own: Dataset, roles: ClassRoles, sites: Sequence[SiteFacts]) -> Split:
    """Clients without rows, beside the coordinator's own test data and public samples."""
    data = config.data
    ids = [own.classes.index(name) for names in roles for name in names]
    test = np.nonzero(np.isin(own.y_test.numpy(), ids))[0]
    public = NOBODY
    if data.public and data.public_from == "train":
        generator = np.random.default_rng([config.seed, 17])
        count = int(data.public * len(own.y_train) + 1e-9)
        public = np.sort(generator.permutation(len(own.y_train))[:count])
    held = {**dict.fromkeys(data.newcomers, ()), **{site.name: site.classes for site in sites}}
    clients = [client_of(name, classes, roles, data.newcomers) for name, classes in held.items()]
    waiting = tuple(name for name, settings in data.newcomers.items() if not settings.welcomed)
    return Split(tuple(clients), *roles, test, public, "train", tuple(data.stages), waiting)


def client_of(
    name: str, classes: tuple[str, ...], roles: ClassRoles, newcomers: Mapping[str, NewcomerSettings]
) -> ClientSplit:
    """A client whose rows are elsewhere."""
    known = tuple(sorted(classes)) if name in newcomers else roles.known
    return ClientSplit(name, NOBODY, NOBODY, NOBODY, NOBODY, known)


def notes_on_sites(roles: ClassRoles) -> tuple[str, ...]:
    """What is worth saying about the classes."""
    known = f"known classes: {', '.join(roles.known)}"
    if not roles.unknown and not roles.novel:
        return (
            known,
            "no class is unknown, so AUROC and OSCR are not defined: data.known=N makes only N classes known",
        )
    return (known,)
