"""Dealing training samples to clients: iid, label skew, quantity skew, one client per domain or owner.

A deal takes labels (n,) and returns one array of positions 0..n-1 per client, each position exactly once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from pydantic import Field

from fedwild.data.dataset import Dataset
from fedwild.core.errors import UserError, unknown_name
from fedwild.core.settings import Settings, validated

REDRAWS = 2000  # a feasible Dirichlet draw comes within a few dozen; more only delays the error
DEFAULT_CLIENTS = 10


class NoParams(Settings):
    """A partition without settings."""


class QuantityParams(Settings):
    """Settings of `quantity`."""

    beta: float = Field(0.5, gt=0, description="Concentration: smaller is more uneven.")
    min_samples: int = Field(10, ge=0, description="Redraw until every client has at least this many samples.")


class DirichletParams(QuantityParams):
    """Settings of `dirichlet`."""

    balance: bool = Field(True, description="A client that has its fair share of all samples gets no more.")


class ClassesParams(Settings):
    """Settings of `classes`, the papers' #C=k."""

    k: int = Field(2, ge=1, description="How many classes each client has.")


class ShardsParams(Settings):
    """Settings of `shards`."""

    shards_per_client: int = Field(2, ge=1, description="Label-sorted shards that each client gets.")


class DomainParams(Settings):
    """Settings of `domain`."""

    clients_per_domain: int = Field(1, ge=1, description="Clients that share one domain's samples (at random).")


class Deal(Protocol):
    """Labels (n,), and where known domain and owner numbers (n,), to positions per client."""

    def __call__(
        self,
        labels: np.ndarray,
        clients: int,
        params: Any,
        rng: np.random.Generator,
        domains: np.ndarray | None = None,
        owners: np.ndarray | None = None,
    ) -> list[np.ndarray]: ...


@dataclass(frozen=True)
class PartitionEntry:
    """One way to deal. `loosen` adapts its settings to a side pool of fewer classes (the novel ones)."""

    name: str
    summary: str
    Params: type[Settings]
    deal: Deal
    loosen: Callable[[Any, int, int], Settings] = lambda params, classes, clients: params


def deal_iid(
    labels: np.ndarray,
    clients: int,
    params: NoParams,
    rng: np.random.Generator,
    domains: np.ndarray | None = None,
    owners: np.ndarray | None = None,
) -> list[np.ndarray]:
    """Shuffled and cut into equal parts (sizes differ by at most one)."""
    return np.array_split(rng.permutation(len(labels)), clients)


def deal_dirichlet(
    labels: np.ndarray,
    clients: int,
    params: DirichletParams,
    rng: np.random.Generator,
    domains: np.ndarray | None = None,
    owners: np.ndarray | None = None,
) -> list[np.ndarray]:
    """Each class by its own Dirichlet(beta) draw; a client with its fair share already gets no more."""
    members = _by_class(labels)
    sizes = [len(rows) for rows in members]

    def draw() -> np.ndarray:
        return balanced_counts(sizes, clients, params.beta, rng, params.balance)

    counts = _redraw(draw, len(labels), clients, params)
    hands: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for rows, row_counts in zip(members, counts, strict=True):
        pieces = np.split(rng.permutation(rows), np.cumsum(row_counts)[:-1])
        for hand, piece in zip(hands, pieces, strict=True):
            hand.append(piece)
    return [np.concatenate(hand) for hand in hands]


def balanced_counts(
    sizes: list[int], clients: int, beta: float, rng: np.random.Generator, balance: bool = True
) -> np.ndarray:
    """How many of each class each client gets: (classes, clients) int64, rows summing to `sizes`."""
    total = sum(sizes)
    held = np.zeros(clients, dtype=np.int64)
    counts = np.zeros((len(sizes), clients), dtype=np.int64)
    for row, size in enumerate(sizes):
        hungry = (held * clients < total) | (not balance)
        shares = rng.dirichlet(np.full(clients, beta)) * hungry
        if shares.sum() <= 0:  # a tiny beta can give everything to clients that may take no more
            shares = hungry.astype(float)
        # rounded to nearest: cutting down would hand the last client one sample of every class
        cuts = np.rint(np.cumsum(shares / shares.sum()) * size).astype(np.int64)
        counts[row] = np.diff(cuts, prepend=0)
        held += counts[row]
    return counts


def deal_classes(
    labels: np.ndarray,
    clients: int,
    params: ClassesParams,
    rng: np.random.Generator,
    domains: np.ndarray | None = None,
    owners: np.ndarray | None = None,
) -> list[np.ndarray]:
    """#C=k: client i has class i mod K and k-1 random others; each class is cut equally among its clients."""
    members = _by_class(labels)
    hands: list[list[np.ndarray]] = [[] for _ in range(clients)]
    chosen = _choose_classes(len(members), clients, params.k, rng)
    for number, rows in enumerate(members):
        holders = [client for client in range(clients) if number in chosen[client]]
        for holder, piece in zip(holders, np.array_split(rng.permutation(rows), len(holders)), strict=True):
            hands[holder].append(piece)
    return [np.concatenate(hand) for hand in hands]


def _choose_classes(classes: int, clients: int, k: int, rng: np.random.Generator) -> list[set[int]]:
    """k class numbers per client; with fewer clients than classes, those nobody has are given out first."""
    if k > classes:
        raise UserError(f"partition.k={k} is more than the {classes} classes there are: choose 1 to {classes}.")
    if clients * k < classes:
        raise UserError(
            f"partition.k={k}: {clients} clients with {k} classes each leave some of {classes} to nobody; "
            f"take k of at least {-(-classes // clients)} or at least {-(-classes // k)} clients."
        )
    chosen = [{client % classes} for client in range(clients)]
    for orphan in rng.permutation(np.arange(min(clients, classes), classes)):
        free = [client for client in range(clients) if len(chosen[client]) < k]
        chosen[int(rng.choice(free))].add(int(orphan))
    for own in chosen:
        others = [number for number in range(classes) if number not in own]
        own.update(int(number) for number in rng.choice(others, k - len(own), replace=False))
    return chosen


def deal_shards(
    labels: np.ndarray,
    clients: int,
    params: ShardsParams,
    rng: np.random.Generator,
    domains: np.ndarray | None = None,
    owners: np.ndarray | None = None,
) -> list[np.ndarray]:
    """Sorted by label, cut into equal shards, so many shards per client at random."""
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    shards = np.array_split(order, clients * params.shards_per_client)
    hands = rng.permutation(len(shards)).reshape(clients, params.shards_per_client)
    return [np.concatenate([shards[number] for number in hand]) for hand in hands]


def deal_quantity(
    labels: np.ndarray,
    clients: int,
    params: QuantityParams,
    rng: np.random.Generator,
    domains: np.ndarray | None = None,
    owners: np.ndarray | None = None,
) -> list[np.ndarray]:
    """Random samples, with client sizes from one Dirichlet(beta) draw."""

    def draw() -> np.ndarray:
        shares = rng.dirichlet(np.full(clients, params.beta))
        cuts = np.rint(np.cumsum(shares / shares.sum()) * len(labels)).astype(np.int64)
        return np.diff(cuts, prepend=0)[None]

    counts = _redraw(draw, len(labels), clients, params)[0]
    return np.split(rng.permutation(len(labels)), np.cumsum(counts)[:-1])


def deal_domain(
    labels: np.ndarray,
    clients: int,
    params: DomainParams,
    rng: np.random.Generator,
    domains: np.ndarray | None = None,
    owners: np.ndarray | None = None,
) -> list[np.ndarray]:
    """A domain's samples to its client, or at random to its `clients_per_domain` clients."""
    if domains is None:
        domains = np.zeros(len(labels), dtype=np.int64)
    if clients % params.clients_per_domain:
        raise UserError(f"partition.clients_per_domain={params.clients_per_domain} does not divide {clients} clients.")
    deals: list[np.ndarray] = []
    for domain in range(clients // params.clients_per_domain):
        rows = rng.permutation(np.nonzero(domains == domain)[0])
        deals += np.array_split(rows, params.clients_per_domain)
    return deals


def deal_owner(
    labels: np.ndarray,
    clients: int,
    params: NoParams,
    rng: np.random.Generator,
    domains: np.ndarray | None = None,
    owners: np.ndarray | None = None,
) -> list[np.ndarray]:
    """Each owner's samples to the client of that number."""
    if owners is None:
        raise UserError("partition.name='owner': the data does not say who owns a sample; choose another partition.")
    return [np.nonzero(owners == client)[0] for client in range(clients)]


def _by_class(labels: np.ndarray) -> list[np.ndarray]:
    """Positions of each class that occurs, in label order."""
    return [np.nonzero(labels == label)[0] for label in np.unique(labels)]


def _redraw(draw: Callable[[], np.ndarray], samples: int, clients: int, params: QuantityParams) -> np.ndarray:
    """Counts (rows, clients) of the first draw that gives every client `min_samples`.

    Where there are too few samples for that, the best of a hundred draws (largest minimum) is taken.
    """
    possible = samples >= clients * params.min_samples
    wanted = params.min_samples if possible else samples // clients
    best, most = np.zeros((0, clients), dtype=np.int64), -1
    for _ in range(REDRAWS if possible else 100):
        counts = draw()
        least = int(counts.sum(0).min())
        if least >= wanted:
            return counts
        if least > most:
            best, most = counts, least
    if possible:
        raise UserError(
            f"partition.min_samples={params.min_samples}: {REDRAWS} draws with partition.beta={params.beta} "
            f"never gave each of {clients} clients that many of the {samples} samples (best: {most}); "
            "take a smaller min_samples, a larger beta or fewer clients."
        )
    return best


def _loose_minimum(params: QuantityParams, classes: int, clients: int) -> QuantityParams:
    return params.model_copy(update={"min_samples": 0})


def _loose_k(params: ClassesParams, classes: int, clients: int) -> ClassesParams:
    """As near to k as deals every class out."""
    return params.model_copy(update={"k": min(classes, max(params.k, -(-classes // clients)))})


PARTITIONS: dict[str, PartitionEntry] = {
    entry.name: entry
    for entry in (
        PartitionEntry("iid", "Shuffled and cut into equal parts.", NoParams, deal_iid),
        PartitionEntry(
            "dirichlet",
            "Label skew: each class by a Dirichlet(beta) draw, with balanced client sizes.",
            DirichletParams,
            deal_dirichlet,
            _loose_minimum,
        ),
        PartitionEntry("classes", "Label skew #C=k: k classes per client.", ClassesParams, deal_classes, _loose_k),
        PartitionEntry("shards", "Label-sorted shards dealt at random.", ShardsParams, deal_shards),
        PartitionEntry(
            "quantity",
            "Client sizes by a Dirichlet(beta) draw.",
            QuantityParams,
            deal_quantity,
            _loose_minimum,
        ),
        PartitionEntry("domain", "A client is a domain.", DomainParams, deal_domain),
        PartitionEntry("owner", "A client is an owner named in your files.", NoParams, deal_owner),
    )
}

# What the number in 'dirichlet:0.1' means.
_MAIN_PARAM: dict[str, str] = {
    "dirichlet": "beta",
    "quantity": "beta",
    "classes": "k",
    "shards": "shards_per_client",
    "domain": "clients_per_domain",
}
_SHORT = (
    (re.compile(r"#?c=?(\d+)", re.IGNORECASE), "classes", "k"),
    (re.compile(r"dir(?:ichlet)?=?(\d*\.?\d+)", re.IGNORECASE), "dirichlet", "beta"),
)


def parse_partition(text: str) -> tuple[str, dict[str, Any]]:
    """Name and settings out of 'dirichlet', 'dirichlet:0.1', 'dir0.5', 'classes:2', '#C=2' or 'c2'."""
    text = text.strip()
    for pattern, name, key in _SHORT:
        match = pattern.fullmatch(text)
        if match:
            return name, {key: _number(match[1])}
    name, colon, value = text.partition(":")
    if name not in PARTITIONS:
        raise unknown_name("partition", text, PARTITIONS)
    if not colon:
        return name, {}
    key = _MAIN_PARAM.get(name, "")
    if not key:
        raise UserError(f"partition.name={text!r}: {name} takes no number; write {name!r}.")
    try:
        return name, {key: _number(value)}
    except ValueError:
        raise UserError(f"partition.name={text!r}: {value!r} is not a number; write for example {name}:1.") from None


def check_params(name: str, params: dict[str, Any]) -> Settings:
    """The settings of this partition, validated; each problem names its key."""
    if name not in PARTITIONS:
        raise unknown_name("partition", name, PARTITIONS)
    own = PARTITIONS[name].Params
    strange = [key for key in params if key not in own.model_fields]
    if strange:
        allowed = ", ".join(own.model_fields) or "none"
        raise UserError(
            *(
                f"partition.{key}={params[key]!r} is not a setting of {name!r}; its settings: {allowed}."
                for key in strange
            )
        )
    return validated(own, params, "partition")


def default_partition(dataset: Dataset) -> str:
    """'owner' if the data names owners, 'domain' if it has several domains, else 'dirichlet'."""
    if dataset.owners:
        return "owner"
    return "domain" if len(dataset.domains) > 1 else "dirichlet"


def client_names(name: str, params: Settings, clients: int | None, dataset: Dataset) -> tuple[str, ...]:
    """The clients' names, in order; `clients` may be left out where the data decides it."""
    if name == "owner":
        return _given_by_data("owners", dataset.owners, clients)
    if isinstance(params, DomainParams):
        each = params.clients_per_domain
        names = [
            domain if each == 1 else f"{domain}-{number:0{len(str(each - 1))}d}"
            for domain in dataset.domains
            for number in range(each)
        ]
        return _given_by_data("domain clients", tuple(names), clients)
    count = DEFAULT_CLIENTS if clients is None else clients
    if count < 1:
        raise UserError(f"clients={count}: there must be at least one client.")
    width = max(2, len(str(count - 1)))
    return tuple(f"client-{number:0{width}d}" for number in range(count))


def _given_by_data(what: str, names: tuple[str, ...], clients: int | None) -> tuple[str, ...]:
    if not names:
        raise UserError("partition.name='owner': the data does not say who owns a sample; choose another partition.")
    for client in names:
        if not client.strip() or client.startswith(".") or set(client) & set("/\\"):
            raise UserError(f"client name {client!r}: names become folders, so leave out slashes and leading dots.")
    if clients is not None and clients != len(names):
        raise UserError(
            f"clients={clients}, but the data has {len(names)} {what}: leave clients out or say {len(names)}."
        )
    return names


def _number(text: str) -> int | float:
    return int(text) if text.strip().isdigit() else float(text)
