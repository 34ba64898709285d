"""Partitions drawn at random: iid, label skew and quantity skew."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from pydantic import Field

from fedwild.core.errors import UserError
from fedwild.core.settings import Settings
from fedwild.core.text import count
from fedwild.data.partitions.base import PARTITIONS, Partition, Rows

MAX_DRAWS = 2000
"""A feasible Dirichlet draw succeeds within a few dozen attempts."""


@PARTITIONS.add("iid")
class Iid(Partition):
    """Shuffles all samples and cuts them into equal parts; sizes differ by at most one."""

    def assign(self, rows: Rows, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        return np.array_split(rng.permutation(len(rows.labels)), clients)


class QuantityParams(Settings):
    """Settings of `quantity`."""

    beta: float = Field(0.5, gt=0, description="Concentration of the Dirichlet distribution; smaller is more uneven.")
    min_samples: int = Field(10, ge=0, description="Redraw until every client has at least this many samples.")


class DirichletDraw(Partition):
    """A partition by Dirichlet draws, repeated until every client has enough samples."""

    Params = QuantityParams
    short_setting = "beta"

    def for_novel(self, classes: int, clients: int) -> Partition:
        """Drop the minimum number of samples, which is meant for the known classes."""
        return type(self)(self.params.model_copy(update={"min_samples": 0}))

    def redraw(self, draw: Callable[[], np.ndarray], samples: int, clients: int) -> np.ndarray:
        """Return the counts (rows, clients) of the first draw that gives every client `min_samples`.

        If there are too few samples for that, return the best of a hundred draws (largest minimum).
        """
        possible = samples >= clients * self.params.min_samples
        wanted = self.params.min_samples if possible else samples // clients
        best, largest = np.zeros((0, clients), dtype=np.int64), -1
        for _ in range(MAX_DRAWS if possible else 100):
            counts = draw()
            smallest = int(counts.sum(0).min())
            if smallest >= wanted:
                return counts
            if smallest > largest:
                best, largest = counts, smallest
        if possible:
            raise UserError(
                f"partition.min_samples = {self.params.min_samples} is not reached by {MAX_DRAWS} draws with "
                f"partition.beta = {self.params.beta} for {clients} clients and {samples} samples (best: {largest}); "
                "decrease min_samples, increase beta or use fewer clients."
            )
        return best


@PARTITIONS.add("quantity")
class Quantity(DirichletDraw):
    """Quantity skew: random samples, with client sizes from one Dirichlet(beta) draw."""

    def assign(self, rows: Rows, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        samples = len(rows.labels)

        def draw() -> np.ndarray:
            shares = rng.dirichlet(np.full(clients, self.params.beta))
            cuts = np.rint(np.cumsum(shares / shares.sum()) * samples).astype(np.int64)
            return np.diff(cuts, prepend=0)[None]

        counts = self.redraw(draw, samples, clients)[0]
        return np.split(rng.permutation(samples), np.cumsum(counts)[:-1])


class DirichletParams(QuantityParams):
    """Settings of `dirichlet`."""

    balance: bool = Field(True, description="Give no more samples to a client that has its fair share of all samples.")


@PARTITIONS.add("dirichlet")
class Dirichlet(DirichletDraw):
    """Label skew: divides each class by a Dirichlet(beta) draw, with balanced client sizes."""

    Params = DirichletParams

    def assign(self, rows: Rows, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        by_class = _by_class(rows.labels)
        sizes = [len(positions) for positions in by_class]

        def draw() -> np.ndarray:
            return balanced_counts(sizes, clients, self.params.beta, rng, self.params.balance)

        counts = self.redraw(draw, len(rows.labels), clients)
        parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
        for positions, row in zip(by_class, counts, strict=True):
            pieces = np.split(rng.permutation(positions), np.cumsum(row)[:-1])
            for part, piece in zip(parts, pieces, strict=True):
                part.append(piece)
        return [np.concatenate(part) for part in parts]


class ClassesParams(Settings):
    """Settings of `classes`, written #C=k in papers."""

    k: int = Field(2, ge=1, description="Number of classes per client.")


@PARTITIONS.add("classes")
class Classes(Partition):
    """Label skew #C=k: k classes per client.

    Client i has class i mod K and k-1 random others; each class is divided equally among its clients.
    """

    Params = ClassesParams
    short_setting = "k"

    def assign(self, rows: Rows, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        by_class = _by_class(rows.labels)
        parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
        chosen = _choose_classes(len(by_class), clients, self.params.k, rng)
        for number, positions in enumerate(by_class):
            holders = [client for client in range(clients) if number in chosen[client]]
            for holder, piece in zip(holders, np.array_split(rng.permutation(positions), len(holders)), strict=True):
                parts[holder].append(piece)
        return [np.concatenate(part) for part in parts]

    def for_novel(self, classes: int, clients: int) -> Partition:
        """Use the k closest to the setting with which every class has a client."""
        k = min(classes, max(self.params.k, -(-classes // clients)))
        return type(self)(self.params.model_copy(update={"k": k}))


class ShardsParams(Settings):
    """Settings of `shards`."""

    shards_per_client: int = Field(2, ge=1, le=10_000, description="Number of label-sorted shards per client.")


@PARTITIONS.add("shards")
class Shards(Partition):
    """Label skew: sorts samples by label, cuts them into equal shards and gives each client some at random."""

    Params = ShardsParams
    short_setting = "shards_per_client"

    def assign(self, rows: Rows, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        order = rng.permutation(len(rows.labels))
        order = order[np.argsort(rows.labels[order], kind="stable")]
        shards = np.array_split(order, clients * self.params.shards_per_client)
        chosen = rng.permutation(len(shards)).reshape(clients, self.params.shards_per_client)
        return [np.concatenate([shards[number] for number in numbers]) for numbers in chosen]


def balanced_counts(
    sizes: list[int], clients: int, beta: float, rng: np.random.Generator, balance: bool = True
) -> np.ndarray:
    """Return how many samples of each class each client gets: (classes, clients) int64, rows summing to `sizes`."""
    total = sum(sizes)
    held = np.zeros(clients, dtype=np.int64)
    counts = np.zeros((len(sizes), clients), dtype=np.int64)
    for row, size in enumerate(sizes):
        below_share = (held * clients < total) | (not balance)
        shares = rng.dirichlet(np.full(clients, beta)) * below_share
        if shares.sum() <= 0:  # a tiny beta may give everything to clients that already have their share
            shares = below_share.astype(float)
        # Rounding down instead would give the last client an extra sample of every class.
        cuts = np.rint(np.cumsum(shares / shares.sum()) * size).astype(np.int64)
        counts[row] = np.diff(cuts, prepend=0)
        held += counts[row]
    return counts


def _choose_classes(classes: int, clients: int, k: int, rng: np.random.Generator) -> list[set[int]]:
    """Return k class numbers per client; with fewer clients than classes, unassigned classes are given first."""
    if k > classes:
        raise UserError(f"partition.k = {k} is not allowed: there are {classes} classes, so choose 1 to {classes}.")
    if clients * k < classes:
        held = f"{count(clients, 'client')} with {count(k, 'class', 'classes')} each"
        raise UserError(
            f"partition.k = {k} is not allowed: {held} cannot hold {classes} classes; set k to at least "
            f"{-(-classes // clients)} or use at least {-(-classes // k)} clients."
        )
    chosen = [{client % classes} for client in range(clients)]
    for unassigned in rng.permutation(np.arange(min(clients, classes), classes)):
        free = [client for client in range(clients) if len(chosen[client]) < k]
        chosen[int(rng.choice(free))].add(int(unassigned))
    for own in chosen:
        others = [number for number in range(classes) if number not in own]
        own.update(int(number) for number in rng.choice(others, k - len(own), replace=False))
    return chosen


def _by_class(labels: np.ndarray) -> list[np.ndarray]:
    """Return the positions of each class that occurs, in the order of labels."""
    return [np.nonzero(labels == label)[0] for label in np.unique(labels)]
