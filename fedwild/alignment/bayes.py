"""Matching the neurons of one layer of many models at once, where the number of global neurons is not fixed.

Yurochkin, Agarwal, Ghosh, Greenewald, Hoang, Khazaeni: Bayesian nonparametric federated learning of neural networks.
ICML 2019; as FedMA uses it. Global neurons, called atoms, are N(0, sigma0^2), the clients' neurons are
N(atom, sigma^2), and which atoms a client uses is a Beta-Bernoulli process with mass gamma.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

MOST_USERS = 10
"""An atom of more clients than this counts as one of this many: no atom may draw in everything."""
MOST_ATOMS = 700
"""Beyond this many atoms a client may open only one more."""
LEAST_USERS = 1e-6
"""Stands for 0 in m / (J - m), so that an atom of nobody or of everybody still has a finite score."""


@dataclass(frozen=True)
class Prior:
    """What is assumed of neurons before they are seen."""

    sigma: float = 1.0
    """The deviation of a client's neuron from its atom."""
    sigma0: float = 1.0
    """The deviation of an atom from 0."""
    gamma: float = 7.0
    """How readily new atoms open."""

    @property
    def neuron_precision(self) -> float:
        """1 / sigma^2: what a neuron adds to the precision of its atom."""
        return self.sigma**-2

    def precisions(self, users: Tensor) -> Tensor:
        """P_i = 1 / sigma0^2 + m_i / sigma^2 of atoms used by m_i clients (atoms,)."""
        return self.sigma0**-2 + users * self.neuron_precision


class Matching(NamedTuple):
    """The atoms of a layer and who uses them."""

    atoms: Tensor
    """Posterior means S / P (atoms, d), float64."""
    atoms_of: dict[str, Tensor]
    """By client, the atom of each of its neurons (n,); no two neurons of a client share one."""
    shrinkage: Tensor
    """By how much an atom is smaller than the mean of its neurons (atoms,): (m / sigma^2) / P, float64."""


def match(neurons: Mapping[str, Tensor], prior: Prior, sweeps: int, draws: np.random.Generator) -> Matching:
    """Match the neurons (n_k, d) of each client k.

    The widest client comes first (of equal ones, by name) and its neurons are the first atoms. In each of the `sweeps`
    after that, every client in a drawn order is taken out and matched again to what the others have made.
    """
    order = sorted(neurons, key=lambda client: (-len(neurons[client]), client))
    pool = Pool.empty(prior, len(order), neurons[order[0]].shape[1])
    for client in order:
        pool.add(client, neurons[client])
    for _ in range(sweeps):
        for i in draws.permutation(len(order)):
            pool.remove(order[i], neurons[order[i]])
            pool.add(order[i], neurons[order[i]])
    return Matching(pool.means(), pool.atoms_of, pool.users * prior.neuron_precision / prior.precisions(pool.users))


@dataclass
class Pool:
    """Atoms in the making."""

    prior: Prior
    clients: int
    """J: how many clients there will be."""
    sums: Tensor
    """S (atoms, d): for each atom the sum of its neurons / sigma^2, float64."""
    users: Tensor
    """m (atoms,): how many clients use each atom, float64."""
    atoms_of: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def empty(cls, prior: Prior, clients: int, size: int) -> Pool:
        return cls(prior, clients, torch.zeros(0, size).double(), torch.zeros(0).double())

    def add(self, client: str, neurons: Tensor) -> None:
        """Give each of a client's neurons (n, d) the atom, known or new, that makes the sum of scores largest."""
        neurons = neurons.double()
        atoms = self.choose(neurons)
        new = max(0, int(atoms.max()) + 1 - len(self.sums))
        self.sums = torch.cat([self.sums, self.sums.new_zeros(new, self.sums.shape[1])])
        self.users = torch.cat([self.users, self.users.new_zeros(new)])
        self.sums.index_add_(0, atoms, neurons, alpha=self.prior.neuron_precision)
        self.users[atoms] += 1
        self.atoms_of[client] = atoms

    def remove(self, client: str, neurons: Tensor) -> None:
        """Take a client's neurons (n, d) out. Atoms that nobody uses any more vanish, and the others move up."""
        atoms = self.atoms_of.pop(client)
        self.sums.index_add_(0, atoms, neurons.double(), alpha=-self.prior.neuron_precision)
        self.users[atoms] -= 1
        used = self.users > 0
        self.sums, self.users = self.sums[used], self.users[used]
        places = used.cumsum(0) - 1
        self.atoms_of = {other: places[theirs] for other, theirs in self.atoms_of.items()}

    def choose(self, neurons: Tensor) -> Tensor:
        """The atoms (n,) of a client's neurons (n, d); numbers from `len(sums)` on are new atoms."""
        known = len(self.sums)
        if not known:
            return torch.arange(len(neurons))
        old = known_scores(neurons, self.sums, self.users, self.clients, self.prior)
        new = new_scores(neurons, new_limit(len(neurons), known), self.clients, self.prior)
        columns = linear_sum_assignment(torch.cat([old, new], dim=1).numpy(), maximize=True)[1]
        atoms = torch.from_numpy(columns).long()
        # Next to huge weights rounding hides the ranks, and the new atoms taken need not be the first ones.
        fresh = atoms >= known
        atoms[fresh] = known + atoms[fresh].unique(return_inverse=True)[1]
        return atoms

    def means(self) -> Tensor:
        """The atoms' posterior means S / P (atoms, d)."""
        return self.sums / self.prior.precisions(self.users)[:, None]


def known_scores(neurons: Tensor, sums: Tensor, users: Tensor, clients: int, prior: Prior) -> Tensor:
    """What each neuron v (n, d) gains with each known atom: (n, atoms).

    |v / sigma^2 + S|^2 / (1 / sigma^2 + P) - |S|^2 / P + log(m / (J - m))
    """
    precision, precisions = prior.neuron_precision, prior.precisions(users)
    before = sums.square().sum(dim=1)
    # |v / sigma^2 + S|^2 by one matrix product; all differences at once would be n * atoms * d numbers.
    joined = (neurons @ sums.T).mul_(2 * precision).add_(before)
    joined += precision**2 * neurons.square().sum(dim=1, keepdim=True)
    return joined.div_(precision + precisions).add_(popularity(users, clients) - before / precisions)


def new_scores(neurons: Tensor, count: int, clients: int, prior: Prior) -> Tensor:
    """What each neuron v (n, d) gains with a new atom of rank r = 1, ..., count: (n, count).

    |v / sigma^2|^2 / (1 / sigma^2 + 1 / sigma0^2) + 2 log(gamma / J) - 2 log r
    """
    precision = prior.neuron_precision
    alone = precision**2 * neurons.square().sum(dim=1) / (precision + prior.sigma0**-2)
    ranks = torch.arange(1, count + 1, dtype=torch.float64)
    return alone[:, None] + 2 * (np.log(prior.gamma / clients) - ranks.log())


def popularity(users: Tensor, clients: int) -> Tensor:
    """log(m / (J - m)) of atoms used by m of J clients (atoms,)."""
    m = users.clamp(max=MOST_USERS)
    return (m.clamp_min(LEAST_USERS) / (clients - m).clamp_min(LEAST_USERS)).log()


def new_limit(neurons: int, known: int) -> int:
    """How many new atoms a client may open: enough for each of its neurons to have one, at least."""
    return min(neurons, max(MOST_ATOMS - known, neurons - known, 1))


def mean_over_users(values: Mapping[str, Tensor], matching: Matching) -> Tensor:
    """Each atom's plain mean (atoms,) of what its users have for the neuron (n_k,), float64."""
    total = torch.zeros(len(matching.atoms)).double()
    users = torch.zeros_like(total)
    for client, value in values.items():
        total.index_add_(0, matching.atoms_of[client], value.double())
        users[matching.atoms_of[client]] += 1
    return total / users


def with_atoms(weight: Tensor, atoms: Tensor, count: int) -> Tensor:
    """A layer's weight (rows, inputs, ...) as it reads `count` atoms, input neuron j being atom `atoms[j]`.

    Columns of atoms that are none of its inputs are zero. After a flatten each neuron has several columns.
    """
    blocks = weight.reshape(len(weight), len(atoms), -1)
    spread = blocks.new_zeros(len(weight), count, blocks.shape[2])
    spread[:, atoms] = blocks
    return spread.reshape(len(weight), weight.shape[1] // len(atoms) * count, *weight.shape[2:])
