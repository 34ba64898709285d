"""Newcomers: clients with data of their own, under their own names for classes, beside the data that is dealt."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from shlex import quote

import numpy as np
import torch
from torch import Tensor

from fedwild.core.classes import MAX_CHARACTERS, UNKNOWN_NAME
from fedwild.data.dataset import Dataset
from fedwild.data.images import grey, resize
from fedwild.data.settings import DataSettings, NewcomerSettings
from fedwild.data.sources.download import Progress
from fedwild.data.sources.load import load_one, only_domains, subsample
from fedwild.data.sources.raw import Raw, with_test
from fedwild.core.errors import UserError, unknown_name


def with_newcomers(dataset: Dataset, data: DataSettings, seed: int = 0, progress: Progress | None = None) -> Dataset:
    """The data set followed by every newcomer's own: rows keep their numbers, classes meet by name.

    Each newcomer is a domain of its own, called as the client is.
    """
    for name, settings in data.newcomers.items():
        raw = load_newcomer(name, settings, data, dataset, seed, progress)
        check_names(name, raw.classes, dataset.classes)
        dataset = _appended(dataset, name, raw)
    return dataset


def load_newcomer(
    name: str,
    settings: NewcomerSettings,
    data: DataSettings,
    like: Dataset,
    seed: int = 0,
    progress: Progress | None = None,
) -> Raw:
    """One newcomer's samples with the shape of `like`'s, its classes under the federation's names where it says so."""
    where = f"data.newcomers.{name}"
    asked = data.model_copy(update={"name": settings.name})
    raw = with_test(_loaded(name, asked, progress), data.test_fraction, settings.name)
    raw = _only_classes(only_domains(raw, settings.domains, where), settings.classes, where)
    limits = data.model_copy(update={"train_samples": settings.train_samples, "test_samples": settings.test_samples})
    raw = subsample(_one_domain(raw, name), limits, np.random.default_rng([seed, 13, *name.encode()]))
    assert raw.test is not None
    if not len(raw.train.y):
        raise UserError(f"{where}: it has no training samples.")
    classes = renamed(raw.classes, settings.labels, where)
    train = replace(raw.train, x=_fitted(raw.train.x, like.input_shape, settings.resize, where))
    test = replace(raw.test, x=_fitted(raw.test.x, like.input_shape, settings.resize, where))
    return replace(raw, train=train, test=test, classes=classes)


def _loaded(name: str, asked: DataSettings, progress: Progress | None) -> Raw:
    """A newcomer's files; what is wrong with them is said of the newcomer."""
    try:
        return load_one(asked.names[0], asked, progress)
    except UserError as error:
        where = f"newcomer {name!r} (--client, data.newcomers.{name}.name)"
        raise UserError(*(f"{where}: {problem.removeprefix('data.name: ')}" for problem in error.problems)) from error


def check_names(newcomer: str, brought: Iterable[str], there: Iterable[str]) -> None:
    """Refuse names that no class can have, and those that differ from one another only by case."""
    known = {name.strip().casefold(): name for name in there}
    seen = dict(known)
    for name in brought:
        if not name.strip() or not name.isprintable() or len(name) > MAX_CHARACTERS:
            raise UserError(
                f"newcomer {newcomer!r}: class name {name[:MAX_CHARACTERS]!r} is not allowed: it must be one line of "
                f"at most {MAX_CHARACTERS} printable characters."
            )
        plain = name.strip().casefold()
        if plain == UNKNOWN_NAME:
            raise UserError(
                f"newcomer {newcomer!r}: class {name!r} is not allowed, since it is the answer for what belongs to no "
                "class: name these samples, or leave them out (data.newcomers classes)."
            )
        other = seen.setdefault(plain, name)
        if other != name:
            advice = f"If they are one class, say --label {quote(f'{name}={other}')}; if not, give it another name."
            if plain not in known:
                advice = "Both are its own: make them one in its data, or give one of them another name."
            raise UserError(
                f"newcomer {newcomer!r}: class {name!r} differs from {other!r} only by case or spaces. {advice}"
            )


def _only_classes(raw: Raw, names: list[str] | None, where: str) -> Raw:
    """The samples of these classes, or all; classes without a sample are dropped."""
    for name in names or ():
        if name not in raw.classes:
            raise unknown_name(f"{where}.classes: class", name, raw.classes)
    assert raw.test is not None
    wanted = [i for i, name in enumerate(raw.classes) if names is None or name in names]
    used = np.unique(np.concatenate([raw.train.y, raw.test.y]))
    kept = [i for i in wanted if i in used]
    place = np.full(len(raw.classes), -1, dtype=np.int64)
    place[kept] = np.arange(len(kept))
    parts = [part.rows(np.nonzero(place[part.y] >= 0)[0]) for part in (raw.train, raw.test)]
    train, test = (replace(part, y=place[part.y]) for part in parts)
    return replace(raw, train=train, test=test, classes=tuple(raw.classes[i] for i in kept))


def _one_domain(raw: Raw, name: str) -> Raw:
    """Whatever domains and owners the files tell apart, it is one client."""
    assert raw.test is not None
    parts = [replace(part, domain=np.zeros_like(part.domain), owner=None) for part in (raw.train, raw.test)]
    return replace(raw, train=parts[0], test=parts[1], domains=(name,), owners=())


def renamed(classes: tuple[str, ...], labels: dict[str, str], where: str) -> tuple[str, ...]:
    """The classes under the federation's names; two of them may not become one by accident."""
    for own in labels:
        if own not in classes:
            raise unknown_name(f"{where}.labels: class", own, classes)
    names = tuple(labels.get(name, name) for name in classes)
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"{where}.labels: two classes would be called {twice!r}; they must stay apart.")
    return names


def _fitted(x: Tensor, shape: tuple[int, ...], may_resize: bool, where: str) -> Tensor:
    """Samples of another size or number of channels brought to `shape` (C, ...), if that was asked for."""
    own = tuple(x.shape[1:])
    if own == shape:
        return x
    if len(own) != len(shape) or len(own) == 1:
        raise UserError(
            f"{where}: its samples have shape {own}, and this federation takes {shape}: they must be made in the same "
            "way."
        )
    if not may_resize:
        raise UserError(
            f"{where}: its images have shape {own}, and this federation takes {shape}: --resize "
            f"({where}.resize = true) converts them."
        )
    if own[0] != shape[0]:
        x = grey(x) if shape[0] == 1 else x.expand(-1, shape[0], *([-1] * (len(own) - 1)))
    return (resize(x, shape[1:]) if own[1:] != shape[1:] else x).contiguous()


def _appended(dataset: Dataset, name: str, raw: Raw) -> Dataset:
    """The data set with one more domain at its end."""
    assert raw.test is not None
    classes = (*dataset.classes, *(label for label in raw.classes if label not in dataset.classes))
    table = np.array([classes.index(label) for label in raw.classes], dtype=np.int64)
    domain = name if name not in dataset.domains else f"{name} (newcomer)"
    columns: dict[str, Tensor | None] = {}
    for part, samples in (("train", raw.train), ("test", raw.test)):
        before, rows = getattr(dataset, f"x_{part}"), len(samples.y)
        columns[f"x_{part}"] = torch.cat(_of_one_type(before, samples.x))
        columns[f"y_{part}"] = torch.cat([getattr(dataset, f"y_{part}"), torch.from_numpy(table[samples.y])])
        for kind, number in (("domain", len(dataset.domains)), ("owner", len(dataset.owners))):
            column = getattr(dataset, f"{kind}_{part}")
            mine = torch.full((rows,), number, dtype=torch.int64)
            columns[f"{kind}_{part}"] = None if column is None else torch.cat([column, mine])
    owners = (*dataset.owners, name) if dataset.owner_train is not None else ()
    return replace(dataset, classes=classes, domains=(*dataset.domains, domain), owners=owners, **columns)  # type: ignore[arg-type]


def _of_one_type(first: Tensor, second: Tensor) -> list[Tensor]:
    """Both as they are, or both as the floats that a network gets."""
    if first.dtype == second.dtype:
        return [first, second]
    return [x.float().div_(255) if x.dtype == torch.uint8 and x.dim() > 2 else x.float() for x in (first, second)]
