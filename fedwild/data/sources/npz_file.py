"""A prepared data set or the user's own arrays in one .npz file.

Keys: x_train, y_train and optionally x_test, y_test (or x, y alone); classes; domains, domain_train, domain_test;
client_train, client_test.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedwild.core.errors import UserError
from fedwild.data.images import to_stored
from fedwild.data.npz import read_npz
from fedwild.data.sources.raw import Part, Raw

MAX_LABEL = 2**53
"""The largest number that is exact in every type of array."""


def load_npz(path: Path, domain: str, classes: tuple[str, ...] = ()) -> Raw:
    """Return the data of the file; `domain` and `classes` are the names that it does not give itself."""
    arrays = read_npz(path)
    keys = {"train": ("x_train", "y_train"), "test": ("x_test", "y_test")}
    if "x" in arrays and "x_train" not in arrays:
        keys["train"] = ("x", "y")
    for key in keys["train"]:
        if key not in arrays:
            raise UserError(
                f"{path} has no {key!r}: it must have x_train and y_train (or x and y); it has {sorted(arrays)}."
            )
    keys = {part: (x, y) for part, (x, y) in keys.items() if x in arrays}
    for x_key, y_key in keys.values():
        _check_rows(path, arrays, x_key, y_key)
    names, labels = _labels(path, arrays, [y_key for _, y_key in keys.values()], classes)
    sizes = {part: len(y) for part, y in zip(keys, labels, strict=True)}
    domains, domain_of = _named(path, arrays, "domain", sizes)
    owners, owner_of = _named(path, arrays, "client", sizes)
    made = {}
    for (part, (x_key, _)), y in zip(keys.items(), labels, strict=True):
        x = to_stored(arrays.pop(x_key), f"{x_key} in {path}")
        made[part] = Part(x, y, domain_of.get(part, np.zeros(len(y), dtype=np.int64)), owner_of.get(part))
    if "test" in made and made["test"].x.shape[1:] != made["train"].x.shape[1:]:
        shapes = [tuple(made[part].x.shape[1:]) for part in ("train", "test")]
        raise UserError(
            f"{path}: training samples have shape {shapes[0]} but test samples {shapes[1]}: they must be equal."
        )
    return Raw(made["train"], made.get("test"), names, domains or (domain,), owners)


def _check_rows(path: Path, arrays: dict[str, np.ndarray], x: str, y: str) -> None:
    if y not in arrays:
        raise UserError(f"{path} has {x!r} but no {y!r}: both are required.")
    if arrays[y].ndim == 2 and arrays[y].shape[1] == 1:
        arrays[y] = arrays[y][:, 0]
    if arrays[y].ndim != 1 or arrays[x].ndim < 1 or len(arrays[x]) != len(arrays[y]):
        raise UserError(
            f"{path}: {x} has shape {arrays[x].shape} and {y} {arrays[y].shape}: their numbers of rows must be equal."
        )
    if not len(arrays[y]):
        raise UserError(f"{path}: {x} has no samples.")


def _labels(
    path: Path, arrays: dict[str, np.ndarray], keys: list[str], given: tuple[str, ...]
) -> tuple[tuple[str, ...], list[np.ndarray]]:
    """Return class names and int64 labels; numbers are positions in `classes` or, without them, names."""
    if "classes" in arrays:
        if arrays["classes"].ndim != 1:
            raise UserError(f"{path}: classes has shape {arrays['classes'].shape}: it must be a list of names.")
        given = tuple(str(name) for name in arrays["classes"].tolist())
    values = [arrays[key] for key in keys]
    if len(set(given)) < len(given):
        raise UserError(f"{path}: a name occurs twice in classes.")
    if all(y.dtype.kind == "U" for y in values):
        return _index_names(path, values, given or _sorted_names(values))
    for key, y in zip(keys, values, strict=True):
        if y.dtype.kind in "uif" and not (np.abs(y.astype(np.float64)) <= MAX_LABEL).all():
            raise UserError(
                f"{path}: {key} has a label that is not finite or beyond 2**53: labels must be whole numbers or text."
            )
        if y.dtype.kind not in "ui" and not (y.dtype.kind == "f" and np.array_equal(y, np.round(y))):
            raise UserError(f"{path}: {key} has dtype {y.dtype}: labels must be whole numbers or text.")
        if given and (y.min() < 0 or y.max() >= len(given)):
            raise UserError(
                f"{path}: {key} has label {int(y.max() if y.min() >= 0 else y.min())}: labels must be 0 to "
                f"{len(given) - 1}, the positions in classes."
            )
    numbers = [y.astype(np.int64) for y in values]
    if given:
        return given, numbers
    found = np.unique(np.concatenate(numbers))
    return tuple(str(number) for number in found), [np.searchsorted(found, y).astype(np.int64) for y in numbers]


def _sorted_names(values: list[np.ndarray]) -> tuple[str, ...]:
    return tuple(str(name) for name in np.unique(np.concatenate(values)))


def _index_names(
    path: Path, values: list[np.ndarray], names: tuple[str, ...]
) -> tuple[tuple[str, ...], list[np.ndarray]]:
    place = {name: number for number, name in enumerate(names)}
    for name in _sorted_names(values):
        if name not in place:
            raise UserError(f"{path}: label {name!r} is not in classes ({', '.join(names)}).")
    return names, [np.array([place[str(name)] for name in y], dtype=np.int64) for y in values]


def _named(
    path: Path, arrays: dict[str, np.ndarray], what: str, sizes: dict[str, int]
) -> tuple[tuple[str, ...], dict[str, np.ndarray]]:
    """Return the names in `domain_*` or `client_*` arrays and the numbers of each part; empty if there are none."""
    columns = {part: arrays[f"{what}_{part}"] for part in sizes if f"{what}_{part}" in arrays}
    if "train" not in columns:
        return (), {}
    for part, column in columns.items():
        if column.shape != (sizes[part],) or column.dtype.kind not in "uiU":
            raise UserError(f"{path}: {what}_{part} must give the name or number of the {what} for each {part} sample.")
    if what == "domain" and "test" in sizes and "test" not in columns:
        raise UserError(f"{path} has 'domain_train' but no 'domain_test': both are required.")
    if what == "domain" and "domains" in arrays:
        names = tuple(str(name) for name in arrays["domains"].tolist())
        if all(c.dtype.kind in "ui" and c.min() >= 0 and c.max() < len(names) for c in columns.values()):
            return names, {part: c.astype(np.int64) for part, c in columns.items()}
        return names, dict(zip(columns, _index_names(path, list(columns.values()), names)[1], strict=True))
    found = np.unique(np.concatenate(list(columns.values())))
    numbers = {part: np.searchsorted(found, c).astype(np.int64) for part, c in columns.items()}
    return tuple(str(name) for name in found.tolist()), numbers
