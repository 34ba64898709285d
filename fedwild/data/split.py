"""Who holds which samples: the open split of a data set over clients, and its file."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedwild.data.classes import ClassRoles, choose_classes
from fedwild.data.dataset import Dataset
from fedwild.data.npz import pack_json, read_npz, unpack_json, write_npz
from fedwild.data.partition import PARTITIONS, check_params, client_names, default_partition, parse_partition
from fedwild.data.settings import DataSettings
from fedwild.core.errors import UserError, unknown_name
from fedwild.core.settings import Settings

FORMAT = 1
_PARTS = ("train", "validation", "unlabelled", "test")


@dataclass(frozen=True)
class ClientSplit:
    """One client's rows, sorted int64: test indexes x_test, the others index x_train."""

    name: str
    train: np.ndarray
    validation: np.ndarray
    unlabelled: np.ndarray
    test: np.ndarray
    known: tuple[str, ...]


@dataclass(frozen=True)
class Split:
    """All clients' rows, the roles of the classes, and the rows that belong to nobody.

    test: rows of x_test whose class has a role; public: unlabelled rows of x_train or x_test (`public_from`).
    """

    clients: tuple[ClientSplit, ...]
    known: tuple[str, ...]
    novel: tuple[str, ...]
    unknown: tuple[str, ...]
    test: np.ndarray
    public: np.ndarray
    public_from: Literal["train", "test"]
    stages: tuple[int, ...] = ()
    """How many of the novel classes turn up in each stage, in order; nothing: all in the first."""
    newcomers: tuple[str, ...] = ()
    """The clients that are no members yet when the run begins, in the order in which they arrive."""

    @property
    def brought(self) -> dict[str, str]:
        """The classes that are not known but that newcomers have, and the first newcomer that has each."""
        held = {client.name: client.known for client in self.clients}
        pairs = [(label, name) for name in reversed(self.newcomers) for label in reversed(held[name])]
        return {label: name for label, name in reversed(dict(pairs).items()) if label not in self.known}

    @property
    def home_test(self) -> np.ndarray:
        """The rows of `test` that are not a newcomer's."""
        theirs = [client.test for client in self.clients if client.name in self.newcomers]
        return np.setdiff1d(self.test, np.concatenate(theirs)) if theirs else self.test

    @property
    def novel_by_stage(self) -> tuple[tuple[str, ...], ...]:
        """The novel classes that turn up in each stage."""
        ends = np.cumsum(self.stages or (len(self.novel),)).tolist()
        return tuple(self.novel[start:end] for start, end in zip([0, *ends], ends, strict=False))

    def unlabelled_in(self, client: ClientSplit, stage: int, dataset: Dataset) -> np.ndarray:
        """The client's unlabelled rows that turn up in a stage, counted from 1.

        Novel classes come stage by stage; samples of known classes are spread evenly over all stages.
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
        """One .npz: each part of all clients end to end, with lengths (clients, 4).

        Length -1 stands for the whole test, -2 for all of it that is not a newcomer's.
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
        """Read what `save` wrote."""
        arrays = read_npz(Path(path))
        try:
            about = unpack_json(arrays["about"])
            if about["format"] != FORMAT:
                raise UserError(f"{path} is a split of format {about['format']}, this version reads {FORMAT}.")
            test = arrays["all_test"]
            wholes = {-1: test, -2: arrays.get("home_test", test)}
            columns = [_cut(arrays[part], arrays["lengths"][:, i], wholes) for i, part in enumerate(_PARTS)]
            clients = tuple(
                ClientSplit(client["name"], train, validation, unlabelled, own_test, tuple(client["known"]))
                for client, train, validation, unlabelled, own_test in zip(about["clients"], *columns, strict=True)
            )
            roles = (tuple(about["known"]), tuple(about["novel"]), tuple(about["unknown"]))
            stages = tuple(int(count) for count in about.get("stages", ()))
            newcomers = tuple(about.get("newcomers", ()))
            return Split(clients, *roles, test, arrays["public"], about["public_from"], stages, newcomers)
        except (KeyError, ValueError, IndexError, TypeError) as problem:
            raise UserError(
                f"{path} is not a split written by fedwild ({type(problem).__name__}: {problem})."
            ) from None


def make_split(
    dataset: Dataset,
    data: DataSettings,
    partition_name: str | None = None,
    partition_params: dict[str, Any] | None = None,
    clients: int | None = None,
    seed: int = 0,
) -> Split:
    """Choose classes, set public data apart, deal known and novel samples, hide labels, keep validation.

    `partition_name` may be any text that `parse_partition` reads; None takes the data's natural partition.
    """
    roles = choose_classes(dataset.classes, dataset.name, data)
    name, params = chosen_partition(dataset, partition_name, partition_params or {})
    names = client_names(name, params, clients, dataset)
    visible = _visible_classes(data, names, roles.known)
    y_train, y_test = dataset.y_train.numpy(), dataset.y_test.numpy()

    known_rows = _rows_of(y_train, dataset.classes, roles.known)
    novel_rows = _rows_of(y_train, dataset.classes, roles.novel)
    _check_filled(dataset, roles.known + roles.novel)
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
        raise UserError(f"clients={len(names)} is more than the {len(known_rows)} known training samples: take fewer.")
    labelled = _deal(dataset, known_rows, name, params, len(names), _rng(seed, "deal"))
    pooled = _deal(dataset, novel_rows, name, params, len(names), _rng(seed, "novel"), loose=True)
    tests = _client_tests(dataset, name, labelled, test)
    return Split(
        tuple(
            _client(dataset, data, client, visible[client], mine, pool, own_test, _rng(seed, f"client {client}"))
            for client, mine, pool, own_test in zip(names, labelled, pooled, tests, strict=True)
        ),
        *roles,
        test,
        public,
        data.public_from,
        tuple(data.stages),
    )


def admitted(split: Split, dataset: Dataset, data: DataSettings, seed: int = 0) -> Split:
    """The split with the clients of data.newcomers that it does not have yet; everybody else's rows stay."""
    there = {client.name for client in split.clients}
    clients, test = list(split.clients), [split.test]
    for name in data.newcomers:
        if name in there:
            continue
        client = _newcomer(dataset, data, name, _rng(seed, f"client {name}"))
        clients.append(client)
        test.append(client.test)
    newcomers = tuple(name for name, settings in data.newcomers.items() if not settings.welcomed)
    return replace(split, clients=tuple(clients), test=np.sort(np.concatenate(test)), newcomers=newcomers)


def _newcomer(dataset: Dataset, data: DataSettings, name: str, rng: np.random.Generator) -> ClientSplit:
    """All of its rows are labelled; some are kept for validation."""
    # Newcomers are the last domains, in their order.
    number = len(dataset.domains) - len(data.newcomers) + list(data.newcomers).index(name)
    rows = np.nonzero(dataset.domain_train.numpy() == number)[0]
    return _all_labelled(dataset, rows, np.nonzero(dataset.domain_test.numpy() == number)[0], data, name, rng)


def _all_labelled(
    dataset: Dataset, rows: np.ndarray, test: np.ndarray, data: DataSettings, name: str, rng: np.random.Generator
) -> ClientSplit:
    """A client that has labels of all of its training rows."""
    order = rng.permutation(rows)
    validation, train = np.split(order, [_share(data.validation, len(order))])
    labels = np.unique(dataset.y_train.numpy()[rows])
    known = tuple(dataset.classes[label] for label in labels)
    return ClientSplit(name, np.sort(train), np.sort(validation), np.zeros(0, dtype=np.int64), test, known)


def site_split(
    dataset: Dataset, data: DataSettings, name: str, roles: ClassRoles, newcomer: bool = False, seed: int = 0
) -> Split:
    """The split of a site that has its own data and nobody else's: one client, with the rows that it would be dealt.

    Classes that the site does not have are no error: others have them. A newcomer's samples are all labelled.
    """
    here = ClassRoles(*(tuple(label for label in names if label in dataset.classes) for names in roles))
    known, novel, unknown = here
    rng = _rng(seed, f"client {name}")
    test = _rows_of(dataset.y_test.numpy(), dataset.classes, known + novel + unknown)
    if newcomer:
        client = _all_labelled(
            dataset, np.arange(len(dataset.y_train)), np.arange(len(dataset.y_test)), data, name, rng
        )
    else:
        visible = tuple(label for label in data.known_by_client.get(name, roles.known) if label in known)
        mine = _rows_of(dataset.y_train.numpy(), dataset.classes, known)
        pool = _rows_of(dataset.y_train.numpy(), dataset.classes, novel)
        client = _client(dataset, data, name, visible, mine, pool, test, rng)
    nobody = np.zeros(0, dtype=np.int64)
    newcomers = (name,) if newcomer else ()
    # Stages count the federation's novel classes, whichever of them are here.
    return Split(
        (client,), roles.known, roles.novel, roles.unknown, test, nobody, "train", tuple(data.stages), newcomers
    )


def chosen_partition(dataset: Dataset, text: str | None, params: dict[str, Any]) -> tuple[str, Settings]:
    name, parsed = parse_partition(text) if text else (default_partition(dataset), {})
    return name, check_params(name, {**parsed, **params})


def _visible_classes(data: DataSettings, names: tuple[str, ...], known: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Per client, the known classes whose labels it may see."""
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
    """Hide labels this client may not see, move its share to the pool, and set validation apart."""
    may_see = np.isin(dataset.y_train.numpy()[mine], _ids(dataset.classes, visible))
    order = rng.permutation(mine[may_see])
    unlabelled, order = np.split(order, [_share(data.unlabelled_known, len(order))])
    validation, train = np.split(order, [_share(data.validation, len(order))])
    unlabelled = np.concatenate([unlabelled, mine[~may_see], pool])
    return ClientSplit(name, np.sort(train), np.sort(validation), np.sort(unlabelled), test, visible)


def _deal(
    dataset: Dataset,
    rows: np.ndarray,
    name: str,
    params: Settings,
    clients: int,
    rng: np.random.Generator,
    loose: bool = False,
) -> list[np.ndarray]:
    """Rows of x_train per client."""
    if not len(rows):
        return [rows] * clients
    labels = dataset.y_train.numpy()[rows]
    entry = PARTITIONS[name]
    if loose:
        params = entry.loosen(params, len(np.unique(labels)), clients)
    owners = None if dataset.owner_train is None else dataset.owner_train.numpy()[rows]
    deals = entry.deal(labels, clients, params, rng, domains=dataset.domain_train.numpy()[rows], owners=owners)
    return [rows[positions] for positions in deals]


def _client_tests(dataset: Dataset, name: str, deals: list[np.ndarray], test: np.ndarray) -> list[np.ndarray]:
    """Test rows of each client's owner (if the data says so) or of the domains it trains on."""
    if name == "owner" and dataset.owner_test is not None:
        owner = dataset.owner_test.numpy()[test]
        return [test[owner == number] for number in range(len(deals))]
    if len(dataset.domains) == 1:
        return [test] * len(deals)
    train, held = dataset.domain_train.numpy(), dataset.domain_test.numpy()[test]
    return [test[np.isin(held, np.unique(train[rows]))] for rows in deals]


def _front_of_test(dataset: Dataset, share: float) -> np.ndarray:
    """The first `share` of each domain's test rows, or of each class's where a domain is sorted by class."""
    y, domain = dataset.y_test.numpy(), dataset.domain_test.numpy()
    pieces = []
    for number in range(len(dataset.domains)):
        rows = np.nonzero(domain == number)[0]
        grouped = bool(np.all(np.diff(y[rows]) >= 0))
        groups = [rows[y[rows] == label] for label in np.unique(y[rows])] if grouped else [rows]
        pieces += [group[: _share(share, len(group))] for group in groups]
    return np.sort(np.concatenate(pieces))


def _check_filled(dataset: Dataset, names: tuple[str, ...]) -> None:
    counts = np.bincount(dataset.y_train.numpy(), minlength=len(dataset.classes))
    for number in _ids(dataset.classes, names):
        if not counts[number]:
            raise UserError(
                f"class {dataset.classes[number]!r} has no training samples: leave it out of data.known and data.novel."
            )


def _ids(classes: tuple[str, ...], names: tuple[str, ...]) -> list[int]:
    return [classes.index(name) for name in names]


def _rows_of(y: np.ndarray, classes: tuple[str, ...], names: tuple[str, ...]) -> np.ndarray:
    """Rows whose class is one of `names`, sorted."""
    return np.nonzero(np.isin(y, _ids(classes, names)))[0].astype(np.int64)


def _stored_length(client: ClientSplit, part: str, wholes: dict[int, np.ndarray]) -> int:
    """How many of a client's rows are written out, or the sign of a whole that they are."""
    rows = getattr(client, part)
    signs = [sign for sign, whole in wholes.items() if part == "test" and np.array_equal(rows, whole)]
    return signs[0] if signs else len(rows)


def _cut(rows: np.ndarray, lengths: np.ndarray, wholes: dict[int, np.ndarray]) -> list[np.ndarray]:
    """Undo the concatenation; negative lengths stand for whole tests."""
    ends = np.cumsum(np.maximum(lengths, 0))
    if len(lengths) and ends[-1] != len(rows):
        raise ValueError("lengths and rows disagree")
    return [wholes[int(n)] if n < 0 else rows[end - n : end] for n, end in zip(lengths, ends, strict=True)]


def _share(fraction: float, count: int) -> int:
    """The floor of fraction * count, without 0.29 * 100 falling to 28."""
    return int(fraction * count + 1e-9)


def _rng(seed: int, purpose: str) -> np.random.Generator:
    """Independent streams per purpose, so that one more draw in one step changes no other."""
    return np.random.default_rng([seed, zlib.crc32(purpose.encode())])
