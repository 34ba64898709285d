"""Newcomers: clients with their own data and their own names for classes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from shlex import quote

import numpy as np
import torch
from torch import Tensor

from fedwild.core.errors import UserError, unknown_name
from fedwild.core.names import check_name, plain_name, seen_names
from fedwild.data.dataset import Dataset
from fedwild.data.images import grey, resize
from fedwild.data.settings import DataSettings, NewcomerSettings
from fedwild.data.sources.download import Progress
from fedwild.data.sources.load import load_one, only_domains, rename_classes, subsample
from fedwild.data.sources.raw import Part, Raw, with_test


def with_newcomers(dataset: Dataset, data: DataSettings, seed: int = 0, progress: Progress | None = None) -> Dataset:
    """Return the data set followed by the data of all newcomers; rows keep their numbers, classes merge by name.

    Each newcomer is a separate domain with the name of the client.
    """
    for name, settings in data.newcomers.items():
        check_name(name, "data.newcomers", "client")
        raw = load_newcomer(name, settings, data, dataset, seed, progress)
        check_names(name, raw.classes, dataset.classes)
        dataset = _append(dataset, name, raw)
    return dataset


def load_newcomer(
    name: str, settings: NewcomerSettings, data: DataSettings, like: Dataset, seed: int, progress: Progress | None
) -> Raw:
    """Return the samples of a newcomer in the shape of `like`, with its classes renamed by `labels`."""
    where = f"data.newcomers.{name}"
    asked = data.model_copy(update={"name": settings.name})
    raw = with_test(_load(name, asked, progress), data.test_fraction, settings.name)
    raw = _only_classes(only_domains(raw, settings.domains, where), settings.classes, where)
    limits = data.model_copy(update={"train_samples": settings.train_samples, "test_samples": settings.test_samples})
    # A newcomer is one client: one domain, without owners.
    raw = raw.map(lambda part: replace(part, domain=np.zeros_like(part.domain), owner=None), domains=(name,), owners=())
    raw = subsample(raw, limits, np.random.default_rng([seed, 13, *name.encode()]))
    if not len(raw.train.y):
        raise UserError(f"{where} has no training samples.")
    classes = rename_classes(raw.classes, settings.labels, f"{where}.labels")
    return raw.map(
        lambda part: replace(part, x=_fit(part.x, like.input_shape, settings.resize, where)), classes=classes
    )


def _load(name: str, asked: DataSettings, progress: Progress | None) -> Raw:
    """Return the data of a newcomer; errors name the newcomer."""
    try:
        return load_one(asked.names[0], asked, progress)
    except UserError as error:
        where = f"newcomer {name!r} (--client, data.newcomers.{name}.name)"
        raise UserError(*(f"{where}: {problem.removeprefix('data.name = ')}" for problem in error.problems)) from error


def check_names(newcomer: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Reject invalid class names, and names that differ only by case or spaces."""
    federation = seen_names(known, "the federation")
    seen = dict(federation)
    for name in names:
        other = federation.get(plain_name(name))
        if other is None:
            advice = "Both are in its own data: merge or rename them there."
        else:
            advice = f"If they are the same class, use --label {quote(f'{name}={other.name}')}; otherwise rename it."
        check_name(name, f"newcomer {newcomer!r}", "class", seen, advice)


def _only_classes(raw: Raw, names: list[str] | None, where: str) -> Raw:
    """Return the samples of these classes, or all; classes without samples are dropped."""
    for name in names or ():
        if name not in raw.classes:
            raise unknown_name(f"{where}.classes: class", name, raw.classes)
    assert raw.test is not None
    wanted = [i for i, name in enumerate(raw.classes) if names is None or name in names]
    used = np.unique(np.concatenate([raw.train.y, raw.test.y]))
    kept = [i for i in wanted if i in used]
    place = np.full(len(raw.classes), -1, dtype=np.int64)
    place[kept] = np.arange(len(kept))

    def select(part: Part) -> Part:
        part = part.rows(np.nonzero(place[part.y] >= 0)[0])
        return replace(part, y=place[part.y])

    return raw.map(select, classes=tuple(raw.classes[i] for i in kept))


def _fit(x: Tensor, shape: tuple[int, ...], may_resize: bool, where: str) -> Tensor:
    """Return samples in `shape` (C, ...); if their shape differs, convert them if allowed."""
    own = tuple(x.shape[1:])
    if own == shape:
        return x
    if len(own) != len(shape) or len(own) == 1:
        raise UserError(
            f"{where}: its samples have shape {own}, but the federation requires {shape}; they cannot be converted."
        )
    if not may_resize:
        raise UserError(
            f"{where}: its images have shape {own}, but the federation requires {shape}: use --resize "
            f"({where}.resize = true) to convert them."
        )
    if own[0] != shape[0]:
        x = grey(x) if shape[0] == 1 else x.expand(-1, shape[0], *([-1] * (len(own) - 1)))
    return (resize(x, shape[1:]) if own[1:] != shape[1:] else x).contiguous()


def _append(dataset: Dataset, name: str, raw: Raw) -> Dataset:
    """Return the data set with the newcomer as its last domain."""
    assert raw.test is not None
    classes = (*dataset.classes, *(label for label in raw.classes if label not in dataset.classes))
    table = np.array([classes.index(label) for label in raw.classes], dtype=np.int64)
    domain = name if name not in dataset.domains else f"{name} (newcomer)"
    columns: dict[str, Tensor | None] = {}
    for part, samples in (("train", raw.train), ("test", raw.test)):
        before, rows = getattr(dataset, f"x_{part}"), len(samples.y)
        columns[f"x_{part}"] = torch.cat(_same_dtype(before, samples.x))
        columns[f"y_{part}"] = torch.cat([getattr(dataset, f"y_{part}"), torch.from_numpy(table[samples.y])])
        for kind, number in (("domain", len(dataset.domains)), ("owner", len(dataset.owners))):
            column = getattr(dataset, f"{kind}_{part}")
            mine = torch.full((rows,), number, dtype=torch.int64)
            columns[f"{kind}_{part}"] = None if column is None else torch.cat([column, mine])
    owners = (*dataset.owners, name) if dataset.owner_train is not None else ()
    return replace(dataset, classes=classes, domains=(*dataset.domains, domain), owners=owners, **columns)  # type: ignore[arg-type]


def _same_dtype(first: Tensor, second: Tensor) -> list[Tensor]:
    """Return both tensors unchanged if their types agree, else both as float inputs."""
    if first.dtype == second.dtype:
        return [first, second]
    return [x.float().div_(255) if x.dtype == torch.uint8 and x.dim() > 2 else x.float() for x in (first, second)]
