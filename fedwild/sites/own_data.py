"""The data of a site as a run sees it: the classes that may leave, and the roles of all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from fedwild.core.errors import UserError
from fedwild.data import ClassRoles, Dataset, DataSettings
from fedwild.sites.policy import allows


def with_remaining_unknown(roles: ClassRoles, classes: tuple[str, ...], data: DataSettings) -> ClassRoles:
    """Return the roles, with all other classes of this site as unknown unless `data.unknown` lists them."""
    if data.unknown != "rest":
        return roles
    given = {name for names in roles for name in names}
    return roles._replace(unknown=(*roles.unknown, *(name for name in classes if name not in given)))


def only_classes(dataset: Dataset, names: list[str]) -> Dataset:
    """Return the samples of these classes; the others take no part."""
    kept = [i for i, name in enumerate(dataset.classes) if allows(names, name)]
    if len(kept) == len(dataset.classes):
        return dataset
    if not kept:
        raise UserError(f"class_names of the policy has no class of this site: {', '.join(dataset.classes)}.")
    ids = torch.full((len(dataset.classes),), -1).index_put((torch.tensor(kept),), torch.arange(len(kept)))
    fields: dict[str, Any] = {"classes": tuple(dataset.classes[i] for i in kept)}
    for part in ("train", "test"):
        rows = torch.nonzero(ids[getattr(dataset, f"y_{part}")] >= 0).flatten()
        for column in ("x", "y", "domain", "owner"):
            values = getattr(dataset, f"{column}_{part}")
            fields[f"{column}_{part}"] = None if values is None else values[rows]
        fields[f"y_{part}"] = ids[fields[f"y_{part}"]]
    return replace(dataset, **fields)
