"""Partitions that the data gives: one client per domain or per owner."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from fedwild.core.errors import UserError
from fedwild.core.names import Seen, check_name
from fedwild.core.settings import Settings
from fedwild.data.dataset import Dataset
from fedwild.data.partitions.base import PARTITIONS, Partition, Rows

NO_OWNERS = "partition.name = 'owner' is not allowed: the data does not name the owners of samples."


class DomainParams(Settings):
    """Settings of `domain`."""

    clients_per_domain: int = Field(1, ge=1, description="Number of clients that share the samples of a domain.")


@PARTITIONS.add("domain")
class Domain(Partition):
    """One client per domain, or several that share its samples at random."""

    Params = DomainParams
    short_setting = "clients_per_domain"

    def assign(self, rows: Rows, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        each = self.params.clients_per_domain
        domains = np.zeros(len(rows.labels), dtype=np.int64) if rows.domains is None else rows.domains
        if clients % each:
            raise UserError(
                f"partition.clients_per_domain = {each} is not allowed: it does not divide {clients} clients."
            )
        parts: list[np.ndarray] = []
        for domain in range(clients // each):
            parts += np.array_split(rng.permutation(np.nonzero(domains == domain)[0]), each)
        return parts

    def client_names(self, dataset: Dataset, clients: int | None) -> tuple[str, ...]:
        each = self.params.clients_per_domain
        names = [
            domain if each == 1 else f"{domain}-{number:0{len(str(each - 1))}d}"
            for domain in dataset.domains
            for number in range(each)
        ]
        return _checked_names(dataset.name, "domain clients", tuple(names), clients)


@PARTITIONS.add("owner")
class Owner(Partition):
    """One client per owner that your files name."""

    def assign(self, rows: Rows, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        if rows.owners is None:
            raise UserError(NO_OWNERS)
        return [np.nonzero(rows.owners == client)[0] for client in range(clients)]

    def client_names(self, dataset: Dataset, clients: int | None) -> tuple[str, ...]:
        if not dataset.owners:
            raise UserError(NO_OWNERS)
        return _checked_names(dataset.name, "owners", dataset.owners, clients)


def _checked_names(data: str, what: str, names: tuple[str, ...], clients: int | None) -> tuple[str, ...]:
    """Return the names after checking that they are valid and that their number is the one asked for."""
    seen: Seen = {}
    for name in names:
        check_name(name, data, "client", seen)
    if clients is not None and clients != len(names):
        raise UserError(
            f"federation.clients = {clients} is not allowed: the data has {len(names)} {what}; omit it or set it to "
            f"{len(names)}."
        )
    return names
