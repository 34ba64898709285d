"""Loading the data that the settings name into memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedwild.core.errors import UserError, unknown_name
from fedwild.core.names import Seen, check_name
from fedwild.data.dataset import Dataset
from fedwild.data.images import convert
from fedwild.data.settings import SITES, DataSettings
from fedwild.data.sources.builtin import is_synthetic, load_digits, load_synthetic
from fedwild.data.sources.catalogue import DATASETS
from fedwild.data.sources.download import Progress
from fedwild.data.sources.image_files import load_csv, load_folder
from fedwild.data.sources.npz_file import load_npz
from fedwild.data.sources.prepare import find_prepared, prepare
from fedwild.data.sources.raw import Part, Raw, with_test

MAX_CLASSES = 10_000
COMMON_SIZE = 32
"""Pixels per side to which images of different data sets are resized."""


def load(
    settings: DataSettings,
    seed: int = 0,
    progress: Progress | None = None,
    labels: Mapping[str, str] | None = None,
) -> Dataset:
    """Return the data that `settings` name; `seed` only chooses the train_samples and test_samples.

    `labels` maps own names of classes to those of the federation.
    """
    names = settings.names
    raws: list[Raw] = []
    seen: Seen = {}
    for number, name in enumerate(names):
        raw = load_one(name, settings, progress)
        raw = replace(raw, classes=rename_classes(raw.classes, labels or {}, "--label"))
        if len(raw.classes) > MAX_CLASSES:
            raise UserError(f"{name} has {len(raw.classes):,} classes: at most {MAX_CLASSES:,} are allowed.")
        for label in raw.classes:
            check_name(label, name, "class", seen, "Merge or rename them.")
        raw = with_test(raw, settings.test_fraction, name)
        raws.append(subsample(raw, settings, np.random.default_rng([seed, 11, number])))
    raws = _select_domains(raws, settings.domains)
    stems = [name if name in DATASETS or is_synthetic(name) else Path(name).stem for name in names]
    return _merge(names[0] if len(names) == 1 else "+".join(stems), _convert(raws, names, settings))


def load_one(name: str, settings: DataSettings, progress: Progress | None) -> Raw:
    """Return one named data set or the user's own files."""
    if name == SITES:
        raise UserError(f"data.name = {name!r} is not allowed here: use `fedwild coordinate` for data at real sites.")
    if is_synthetic(name):
        return load_synthetic(name)
    if name == "digits":
        return load_digits()
    if name in DATASETS:
        path = find_prepared(name) or prepare(name, progress)
        return load_npz(path, name, DATASETS[name].classes)
    path = Path(name).expanduser()
    ending = path.suffix.lower()
    if path.is_dir():
        return load_folder(path, settings.size, settings.channels)
    if path.is_file() and ending == ".npz":
        return load_npz(path, path.stem)
    if path.is_file() and ending == ".csv":
        return load_csv(path, settings.size, settings.channels)
    if path.is_file():
        raise UserError(f"data.name = {name!r} cannot be read: use an image folder, a .npz or a .csv file.")
    if ending in (".npz", ".csv") or "/" in name or "\\" in name or name.startswith((".", "~")):
        raise UserError(f"data.name = {name!r} does not exist.")
    raise unknown_name("data.name =", name, DATASETS)


def rename_classes(classes: tuple[str, ...], labels: Mapping[str, str], where: str) -> tuple[str, ...]:
    """Return the classes under the federation's names; two classes must not get the same name."""
    for own in labels:
        if own not in classes:
            raise unknown_name(f"{where}: class", own, classes)
    names = tuple(labels.get(name, name) for name in classes)
    (name, times), *_ = Counter(names).most_common(1) or [("", 0)]
    if times > 1:
        raise UserError(f"{where} is not allowed: two classes would both be called {name!r}.")
    return names


def only_domains(raw: Raw, names: list[str] | None, where: str) -> Raw:
    """Return the samples of these domains, or all of them."""
    if names is None:
        return raw
    for name in names:
        if name not in raw.domains:
            raise unknown_name(f"{where}.domains: domain", name, raw.domains)
    kept = [i for i, name in enumerate(raw.domains) if name in names]
    place = np.full(len(raw.domains), -1, dtype=np.int64)
    place[kept] = np.arange(len(kept))

    def select(part: Part) -> Part:
        part = part.rows(np.nonzero(place[part.domain] >= 0)[0])
        return replace(part, domain=place[part.domain])

    return raw.map(select, domains=tuple(raw.domains[i] for i in kept))


def _select_domains(raws: list[Raw], names: list[str] | None) -> list[Raw]:
    """Return the sources that have some of these domains, reduced to these domains."""
    if names is None:
        return raws
    there = [domain for raw in raws for domain in raw.domains]
    for name in names:
        if name not in there:
            raise unknown_name("data.domains: domain", name, there)
    wanted = [[name for name in raw.domains if name in names] for raw in raws]
    return [only_domains(raw, some, "data") for raw, some in zip(raws, wanted, strict=True) if some]


def subsample(raw: Raw, settings: DataSettings, rng: np.random.Generator) -> Raw:
    """Return at most train_samples and test_samples of each domain."""
    train = _at_most(raw.train, settings.train_samples, rng)
    test = None if raw.test is None else _at_most(raw.test, settings.test_samples, rng)
    return replace(raw, train=train, test=test)


def _at_most(part: Part, limit: int | None, rng: np.random.Generator) -> Part:
    """Return at most `limit` random samples of each domain, in their order."""
    if limit is None:
        return part
    groups = [np.nonzero(part.domain == number)[0] for number in np.unique(part.domain)]
    if all(len(rows) <= limit for rows in groups):
        return part
    return part.rows(np.sort(np.concatenate([rng.permutation(rows)[:limit] for rows in groups])))


def _convert(raws: list[Raw], names: list[str], settings: DataSettings) -> list[Raw]:
    """Return all sources with one shape and one dtype."""
    shapes = [tuple(raw.train.x.shape[1:]) for raw in raws]
    size, channels = settings.size, settings.channels
    if len({len(shape) for shape in shapes}) > 1 or (len(shapes[0]) == 1 and len(set(shapes)) > 1):
        listed = ", ".join(f"{name} {shape}" for name, shape in zip(names, shapes, strict=True))
        raise UserError(f"data.name = {names} is not allowed: the samples have different shapes ({listed}).")
    if len(raws) > 1 and len(shapes[0]) > 1:
        if size is None and len({shape[1:] for shape in shapes}) > 1:
            size = COMMON_SIZE
        if channels is None and len({shape[0] for shape in shapes}) > 1:
            channels = 3
    floats = any(raw.train.x.dtype == torch.float32 for raw in raws)

    def convert_part(part: Part) -> Part:
        x = convert(part.x, size, channels)
        if floats and x.dtype == torch.uint8:
            x = x.float() if x.dim() == 2 else x.float().div_(255)
        return replace(part, x=x)

    return [raw.map(convert_part) for raw in raws]


def _merge(label: str, raws: list[Raw]) -> Dataset:
    """Return one data set, with classes merged by name and all domains and owners."""
    classes = tuple(dict.fromkeys(name for raw in raws for name in raw.classes))
    domains, owners = _unique_names([raw.domains for raw in raws]), _unique_names([raw.owners for raw in raws])
    columns: dict[str, list[Tensor]] = {
        f"{kind}_{part}": [] for kind in ("x", "y", "domain", "owner") for part in ("train", "test")
    }
    first_domain = first_owner = 0
    for raw in raws:
        table = np.array([classes.index(name) for name in raw.classes], dtype=np.int64)
        for part, samples in (("train", raw.train), ("test", raw.test)):
            if samples is None:
                raise ValueError("a source without test data")
            columns[f"x_{part}"].append(samples.x)
            columns[f"y_{part}"].append(torch.from_numpy(table[samples.y]))
            columns[f"domain_{part}"].append(torch.from_numpy(samples.domain + first_domain))
            if samples.owner is not None:
                columns[f"owner_{part}"].append(torch.from_numpy(samples.owner + first_owner))
        first_domain, first_owner = first_domain + len(raw.domains), first_owner + len(raw.owners)
    if owners and len(columns["owner_train"]) < len(raws):
        raise UserError(f"data.name = {label} is not allowed: only some of these data sets name the owners of samples.")
    # A single piece is not copied.
    joined = {key: torch.cat(own) if own[1:] else own[0].contiguous() for key, own in columns.items() if own}
    if len(columns["owner_test"]) < len(raws):
        joined.pop("owner_test", None)
    return Dataset(name=label, classes=classes, domains=domains, owners=owners, **joined)


def _unique_names(groups: list[tuple[str, ...]]) -> tuple[str, ...]:
    """Return all names; if some occur in several groups, all get the number of their group."""
    names = [name for group in groups for name in group]
    if len(set(names)) == len(names):
        return tuple(names)
    return tuple(f"{name}@{number}" for number, group in enumerate(groups) for name in group)
