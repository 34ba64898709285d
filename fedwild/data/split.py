"""The open split of a data set over clients: the rows of each client, and the file that stores them."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedwild.core.errors import UserError, unknown_name
from fedwild.data.classes import ClassRoles, choose_classes
from fedwild.data.dataset import Dataset
from fedwild.data.npz import pack_json, read_npz, unpack_json, write_npz
from fedwild.data.partitions import Owner, Partition, Rows, choose_partition
from fedwild.data.settings import DataSettings

FORMAT = 1
_PARTS = ("train", "validation", "unlabelled", "test")


@dataclass(frozen=True)
class ClientSplit:
    """The rows of one client, sorted int64: `test` indexes x_test, the others index x_train."""

    name: str
    train: np.ndarray
    validation: np.ndarray
    unlabelled: np.ndarray
    test: np.ndarray
    known: tuple[str, ...]


@dataclass(frozen=True)
class Split:
    """The rows of all clients, the roles of the classes, and the rows of no client.

    `test` are the rows of x_test whose class has a role; `public` are unlabelled rows of x_train or x_test
    (`public_from`).
    """

    clients: tuple[ClientSplit, ...]
    known: tuple[str, ...]
    novel: tuple[str, ...]
    unknown: tuple[str, ...]
    test: np.ndarray
    public: np.ndarray
    public_from: Literal["train", "test"]
    stages: tuple[int, ...] = ()
    """The number of novel classes that appear in each stage, in order; empty if all appear in the first."""
    newcomers: tuple[str, ...] = ()
    """The clients that are not members yet when the run starts, in the order in which they are welcomed."""

    @property
    def newcomer_classes(self) -> dict[str, str]:
        """The classes that only newcomers have, with the first newcomer that has each."""
        held = {client.name: client.known for client in self.clients}
        pairs = [(label, name) for name in reversed(self.newcomers) for label in reversed(held[name])]
        return {label: name for label, name in reversed(dict(pairs).items()) if label not in self.known}

    @property
    def home_test(self) -> np.ndarray:
        """The rows of `test` that belong to no newcomer."""
        theirs = [client.test for client in self.clients if client.name in self.newcomers]
        return np.setdiff1d(self.test, np.concatenate(theirs)) if theirs else self.test

    @property
    def novel_by_stage(self) -> tuple[tuple[str, ...], ...]:
        """The novel classes that appear in each stage."""
        ends = np.cumsum(self.stages or (len(self.novel),)).tolist()
        return tuple(self.novel[start:end] for start, end in zip([0, *ends], ends, strict=False))

    def unlabelled_in(self, client: ClientSplit, stage: int, dataset: Dataset) -> np.ndarray:
        """Return the client's unlabelled rows that appear in a stage, counted from 1.

        Novel classes appear stage by stage; samples of known classes are spread evenly over all stages.
        """
        labels = dataset.y_train.numpy()[client.unlabelled]
        turn = np.zeros(len(labels), dtype=np.int64)
        for number, classes in enumerate(self.novel_by_stage, start=1):
            here = tuple(name for name in classes if name in dataset.classes)
            turn[np.isin(labels, _ids(dataset.classes, here))] = number
        known = turn == 0
        turn[known] = 1 + np.arange(known.sum()) % len(self.novel_by_stage)
        return client.unlabelled[turn == stage]

    def save(self, path: str | Path) -> None:
        """Write a .npz file: each part of all clients, concatenated, with lengths (clients, 4).

        Length -1 stands for the whole test set, -2 for all of it except the rows of newcomers.
        """
        wholes = {-1: self.test, -2: self.home_test}
        lengths = np.array([[_stored_length(c, part, wholes) for part in _PARTS] for c in self.clients], dtype=np.int64)
        arrays = {
            "about": pack_json(
                {
                    "format": FORMAT,
                    "clients": [{"name": c.name, "known": c.known} for c in self.clients],
                    "known": self.known,
                    "novel": self.novel,
                    "unknown": self.unknown,
                    "public_from": self.public_from,
                    "stages": self.stages,
                    "newcomers": self.newcomers,
                }
            ),
            "lengths": lengths.reshape(len(self.clients), len(_PARTS)),
            "all_test": self.test,
            "home_test": self.home_test,
            "public": self.public,
        }
        for column, part in enumerate(_PARTS):
            pieces = [getattr(c, part) for c, row in zip(self.clients, lengths, strict=True) if row[column] >= 0]
            arrays[part] = np.concatenate([np.zeros(0, dtype=np.int64), *pieces])
        write_npz(Path(path), arrays)

    @staticmethod
    def load(path: str | Path) -> Split:
        """Return the split of a file written by `save`."""
        arrays = read_npz(Path(path))
        try:
            about = unpack_json(arrays["about"])
            if about["format"] != FORMAT:
                raise UserError(f"{path} has split format {about['format']}; this version reads format {FORMAT}.")
            test = arrays["all_test"]
            wholes = {-1: test, -2: arrays.get("home_test", test)}
            columns = [_separate(arrays[part], arrays["lengths"][:, i], wholes) for i, part in enumerate(_PARTS)]
            clients = tuple(
                ClientSplit(client["name"], train, validation, unlabelled, own_test, tuple(client["known"]))
                for client, train, validation, unlabelled, own_test in zip(about["clients"], *columns, strict=True)
            )
            roles = (tuple(about["known"]), tuple(about["novel"]), tuple(about["unknown"]))
            stages = tuple(int(count) for count in about.get("stages", ()))
            newcomers = tuple(about.get("newcomers", ()))
            return Split(clients, *roles, test, arrays["public"], about["public_from"], stages, newcomers)
        except (KeyError, ValueError, IndexError, TypeError) as problem:
            raise UserError(f"{path} is not a split file of fedwild ({type(problem).__name__}: {problem}).") from None


def make_split(
    dataset: Dataset,
    data: DataSettings,
    partition: Partition | str | None = None,
    params: Mapping[str, Any] | None = None,
    clients: int | None = None,
    seed: int = 0,
    pool_partition: Partition | None = None,
) -> Split:
    """Return a split: choose classes, separate public data, assign known and novel samples, hide labels.

    `partition` is a partition or a text such as "dirichlet:0.1"; None chooses the default of the data set.
    `pool_partition` divides the novel samples; None uses `partition`.
    """
    counts = np.bincount(dataset.y_train.numpy(), minlength=len(dataset.classes)).tolist()
    roles = choose_classes(dataset.classes, dataset.name, data, seed, dict(zip(dataset.classes, counts, strict=True)))
    if not isinstance(partition, Partition):
        partition = choose_partition(dataset, partition, params or {})
    names = partition.client_names(dataset, clients)
    visible = _visible_classes(data, names, roles.known)
    y_train, y_test = dataset.y_train.numpy(), dataset.y_test.numpy()

    known_rows = _rows_of(y_train, dataset.classes, roles.known)
    novel_rows = _rows_of(y_train, dataset.classes, roles.novel)
    for name in roles.known + roles.novel:
        if not np.any(y_train == dataset.classes.index(name)):
            raise UserError(f"class {name!r} has no training samples: remove it from data.known and data.novel.")
    test = _rows_of(y_test, dataset.classes, roles.known + roles.novel + roles.unknown)
    public = np.zeros(0, dtype=np.int64)
    if data.public_from == "test":
        front = _front_of_test(dataset, data.public or 0.5)
        public = np.intersect1d(front, _rows_of(y_test, dataset.classes, roles.known + roles.novel))
        test = np.setdiff1d(test, front)
    elif data.public:
        pool = np.union1d(known_rows, novel_rows)
        public = np.sort(_rng(seed, "public").permutation(pool)[: _share(data.public, len(pool))])
        known_rows, novel_rows = np.setdiff1d(known_rows, public), np.setdiff1d(novel_rows, public)

    if len(known_rows) < len(names):
        raise UserError(
            f"federation.clients = {len(names)} is not allowed: there are {len(known_rows)} known training samples."
        )
    labelled = _assign(dataset, known_rows, partition, len(names), _rng(seed, "deal"))
    novel_classes = len(np.unique(y_train[novel_rows]))
    for_novel = pool_partition or partition
    for_novel = for_novel.for_novel(novel_classes, len(names)) if novel_classes else for_novel
    unlabelled = _assign(dataset, novel_rows, for_novel, len(names), _rng(seed, "novel"))
    tests = _client_tests(dataset, partition, labelled, test)
    return Split(
        tuple(
            _client(dataset, data, client, visible[client], mine, pool, own_test, _rng(seed, f"client {client}"))
            for client, mine, pool, own_test in zip(names, labelled, unlabelled, tests, strict=True)
        ),
        *roles,
        test,
        public,
        data.public_from,
        tuple(data.stages),
    )


def add_newcomers(split: Split, dataset: Dataset, data: DataSettings, seed: int = 0) -> Split:
    """Return the split with the missing clients of data.newcomers; the rows of all others stay."""
    there = {client.name for client in split.clients}
    added = []
    # Newcomers are the last domains, in the order of the settings.
    for number, name in enumerate(data.newcomers, start=len(dataset.domains) - len(data.newcomers)):
        if name not in there:
            rows = np.nonzero(dataset.domain_train.numpy() == number)[0]
            test = np.nonzero(dataset.domain_test.numpy() == number)[0]
            added.append(_all_labelled(dataset, rows, test, data, name, _rng(seed, f"client {name}")))
    newcomers = tuple(name for name, settings in data.newcomers.items() if not settings.welcomed)
    tests = np.sort(np.concatenate([split.test, *(client.test for client in added)]))
    return replace(split, clients=(*split.clients, *added), test=tests, newcomers=newcomers)


def _all_labelled(
    dataset: Dataset, rows: np.ndarray, test: np.ndarray, data: DataSettings, name: str, rng: np.random.Generator
) -> ClientSplit:
    """Return a client with labels for all of its training rows."""
    order = rng.permutation(rows)
    validation, train = np.split(order, [_share(data.validation, len(order))])
    known = tuple(dataset.classes[label] for label in np.unique(dataset.y_train.numpy()[rows]))
    return ClientSplit(name, np.sort(train), np.sort(validation), np.zeros(0, dtype=np.int64), test, known)


def site_split(
    dataset: Dataset, data: DataSettings, name: str, roles: ClassRoles, newcomer: bool = False, seed: int = 0
) -> Split:
    """Return the split of a site, which has one client and only its own data.

    Classes that the site does not have are allowed: other sites have them. A newcomer's samples are all labelled.
    """
    here = ClassRoles(*(tuple(label for label in names if label in dataset.classes) for names in roles))
    known, novel, unknown = here
    rng = _rng(seed, f"client {name}")
    test = _rows_of(dataset.y_test.numpy(), dataset.classes, known + novel + unknown)
    if newcomer:
        rows, tests = np.arange(len(dataset.y_train)), np.arange(len(dataset.y_test))
        client = _all_labelled(dataset, rows, tests, data, name, rng)
    else:
        visible = tuple(label for label in data.known_by_client.get(name, roles.known) if label in known)
        mine = _rows_of(dataset.y_train.numpy(), dataset.classes, known)
        pool = _rows_of(dataset.y_train.numpy(), dataset.classes, novel)
        client = _client(dataset, data, name, visible, mine, pool, test, rng)
    public = np.zeros(0, dtype=np.int64)
    # Stages count the novel classes of the federation, including those that this site does not have.
    return Split((client,), *roles, test, public, "train", tuple(data.stages), (name,) if newcomer else ())


def _visible_classes(data: DataSettings, names: tuple[str, ...], known: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Return the known classes whose labels each client may see."""
    for client, classes in data.known_by_client.items():
        if client not in names:
            raise unknown_name("data.known_by_client: client", client, names)
        for label in classes:
            if label not in known:
                raise unknown_name(f"data.known_by_client.{client}: known class", label, known)
    return {name: tuple(data.known_by_client.get(name, known)) for name in names}


def _client(
    dataset: Dataset,
    data: DataSettings,
    name: str,
    visible: tuple[str, ...],
    mine: np.ndarray,
    pool: np.ndarray,
    test: np.ndarray,
    rng: np.random.Generator,
) -> ClientSplit:
    """Return a client: hide the labels that it may not see, move a share to its pool, separate validation rows."""
    may_see = np.isin(dataset.y_train.numpy()[mine], _ids(dataset.classes, visible))
    order = rng.permutation(mine[may_see])
    unlabelled, order = np.split(order, [_share(data.unlabelled_known, len(order))])
    validation, train = np.split(order, [_share(data.validation, len(order))])
    unlabelled = np.concatenate([unlabelled, mine[~may_see], pool])
    return ClientSplit(name, np.sort(train), np.sort(validation), np.sort(unlabelled), test, visible)


def _assign(
    dataset: Dataset, rows: np.ndarray, partition: Partition, clients: int, rng: np.random.Generator
) -> list[np.ndarray]:
    """Return the rows of x_train that each client gets."""
    if not len(rows):
        return [rows] * clients
    owners = None if dataset.owner_train is None else dataset.owner_train.numpy()[rows]
    available = Rows(dataset.y_train.numpy()[rows], dataset.domain_train.numpy()[rows], owners)
    parts = partition.assign(available, clients, rng)
    if len(parts) != clients or not np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(rows))):
        raise UserError(
            f"partition {partition.name!r} must return one array of positions per client, with each of the "
            f"{len(rows)} positions exactly once."
        )
    return [rows[positions] for positions in parts]


def _client_tests(
    dataset: Dataset, partition: Partition, assigned: list[np.ndarray], test: np.ndarray
) -> list[np.ndarray]:
    """Return the test rows of each client: those of its owner, if the data names owners, or of its domains."""
    if isinstance(partition, Owner) and dataset.owner_test is not None:
        owner = dataset.owner_test.numpy()[test]
        return [test[owner == number] for number in range(len(assigned))]
    if len(dataset.domains) == 1:
        return [test] * len(assigned)
    train, held = dataset.domain_train.numpy(), dataset.domain_test.numpy()[test]
    return [test[np.isin(held, np.unique(train[rows]))] for rows in assigned]


def _front_of_test(dataset: Dataset, share: float) -> np.ndarray:
    """Return the first `share` of each domain's test rows; of each class's rows if a domain is sorted by class."""
    y, domain = dataset.y_test.numpy(), dataset.domain_test.numpy()
    pieces = []
    for number in range(len(dataset.domains)):
        rows = np.nonzero(domain == number)[0]
        grouped = bool(np.all(np.diff(y[rows]) >= 0))
        groups = [rows[y[rows] == label] for label in np.unique(y[rows])] if grouped else [rows]
        pieces += [group[: _share(share, len(group))] for group in groups]
    return np.sort(np.concatenate(pieces))


def _ids(classes: tuple[str, ...], names: tuple[str, ...]) -> list[int]:
    return [classes.index(name) for name in names]


def _rows_of(y: np.ndarray, classes: tuple[str, ...], names: tuple[str, ...]) -> np.ndarray:
    """Return the sorted rows whose class is one of `names`."""
    return np.nonzero(np.isin(y, _ids(classes, names)))[0].astype(np.int64)


def _stored_length(client: ClientSplit, part: str, wholes: dict[int, np.ndarray]) -> int:
    """Return how many rows of a client are stored, or the negative mark of the whole set that they equal."""
    rows = getattr(client, part)
    marks = [mark for mark, whole in wholes.items() if part == "test" and np.array_equal(rows, whole)]
    return marks[0] if marks else len(rows)


def _separate(rows: np.ndarray, lengths: np.ndarray, wholes: dict[int, np.ndarray]) -> list[np.ndarray]:
    """Return the rows of each client; negative lengths stand for whole test sets."""
    ends = np.cumsum(np.maximum(lengths, 0))
    if len(lengths) and ends[-1] != len(rows):
        raise ValueError("lengths and rows disagree")
    return [wholes[int(n)] if n < 0 else rows[end - n : end] for n, end in zip(lengths, ends, strict=True)]


def _share(fraction: float, count: int) -> int:
    """Return floor(fraction * count), where 0.29 * 100 gives 29 despite rounding errors."""
    return int(fraction * count + 1e-9)


def _rng(seed: int, purpose: str) -> np.random.Generator:
    """Return an independent generator per purpose, so that an extra draw in one step changes no other step."""
    return np.random.default_rng([seed, zlib.crc32(purpose.encode())])
