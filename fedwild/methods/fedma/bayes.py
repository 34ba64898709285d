"""Matching the neurons of one layer of many models at once, with a variable number of global neurons.

Yurochkin, Agarwal, Ghosh, Greenewald, Hoang, Khazaeni: Bayesian nonparametric federated learning of neural networks.
ICML 2019; as FedMA uses it. Global neurons, called atoms, are N(0, sigma0^2), the clients' neurons are
N(atom, sigma^2), and a Beta-Bernoulli process with mass gamma selects the atoms that a client uses.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fedwild.contract import Tensors

MAX_USERS = 10
"""The number of users of an atom is limited to this in its score, so that no atom attracts every neuron."""
MAX_ATOMS = 700
"""Beyond this many atoms, a client may open only one more."""
MIN_USERS = 1e-6
"""Replaces 0 in m / (J - m), so that an atom used by no client or by all clients has a finite score."""


@dataclass(frozen=True)
class Prior:
    """The prior distribution of neurons."""

    sigma: float = 1.0
    """Standard deviation of a client's neuron from its atom."""
    sigma0: float = 1.0
    """Standard deviation of an atom from 0."""
    gamma: float = 7.0
    """Tendency to open new atoms."""

    @property
    def neuron_precision(self) -> float:
        """1 / sigma^2, which each neuron adds to the precision of its atom."""
        return self.sigma**-2

    def precisions(self, users: Tensor) -> Tensor:
        """Return P_i = 1 / sigma0^2 + m_i / sigma^2 (atoms,) of atoms used by m_i clients."""
        return self.sigma0**-2 + users * self.neuron_precision


class Matching(NamedTuple):
    """The atoms of a layer and the clients that use them."""

    atoms: Tensor
    """Posterior means S / P (atoms, d), float64."""
    atoms_of: dict[str, Tensor]
    """By client, the atom of each of its neurons (n,). No two neurons of a client share an atom."""
    shrinkage: Tensor
    """Ratio of each atom to the mean of its neurons (atoms,): (m / sigma^2) / P, float64."""


def match(neurons: Tensors, prior: Prior, sweeps: int, draws: np.random.Generator) -> Matching:
    """Match the neurons (n_k, d) of all clients k.

    The widest client comes first (by name among equal ones) and its neurons are the first atoms. In each of the
    `sweeps` that follow, every client is removed and matched again to the atoms of the others, in random order.
    """
    order = sorted(neurons, key=lambda client: (-len(neurons[client]), client))
    pool = Pool.empty(prior, len(order), neurons[order[0]].shape[1])
    for client in order:
        pool.add(client, neurons[client])
    for _ in range(sweeps):
        for i in draws.permutation(len(order)):
            pool.remove(order[i], neurons[order[i]])
            pool.add(order[i], neurons[order[i]])
    precisions = prior.precisions(pool.users)
    shrinkage = pool.users * prior.neuron_precision / precisions
    return Matching(pool.sums / precisions[:, None], pool.atoms_of, shrinkage)


@dataclass
class Pool:
    """The atoms while clients are added and removed."""

    prior: Prior
    clients: int
    """J, the number of clients in total."""
    sums: Tensor
    """S (atoms, d): the sum of each atom's neurons / sigma^2, float64."""
    users: Tensor
    """m (atoms,): the number of clients that use each atom, float64."""
    atoms_of: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def empty(cls, prior: Prior, clients: int, size: int) -> Pool:
        return cls(prior, clients, torch.zeros(0, size).double(), torch.zeros(0).double())

    def add(self, client: str, neurons: Tensor) -> None:
        """Assign the client's neurons (n, d) to existing or new atoms such that the sum of scores is largest."""
        neurons = neurons.double()
        atoms = self.choose(neurons)
        new = max(0, int(atoms.max()) + 1 - len(self.sums))
        self.sums = torch.cat([self.sums, self.sums.new_zeros(new, self.sums.shape[1])])
        self.users = torch.cat([self.users, self.users.new_zeros(new)])
        self.sums.index_add_(0, atoms, neurons, alpha=self.prior.neuron_precision)
        self.users[atoms] += 1
        self.atoms_of[client] = atoms

    def remove(self, client: str, neurons: Tensor) -> None:
        """Remove a client's neurons (n, d) and the atoms that no other client uses. The rest are renumbered."""
        atoms = self.atoms_of.pop(client)
        self.sums.index_add_(0, atoms, neurons.double(), alpha=-self.prior.neuron_precision)
        self.users[atoms] -= 1
        used = self.users > 0
        self.sums, self.users = self.sums[used], self.users[used]
        places = used.cumsum(0) - 1
        self.atoms_of = {other: places[theirs] for other, theirs in self.atoms_of.items()}

    def choose(self, neurons: Tensor) -> Tensor:
        """Return the atoms (n,) of a client's neurons (n, d). Numbers from `len(sums)` on are new atoms."""
        known = len(self.sums)
        if not known:
            return torch.arange(len(neurons))
        old = known_scores(neurons, self.sums, self.users, self.clients, self.prior)
        new = new_scores(neurons, new_limit(len(neurons), known), self.clients, self.prior)
        columns = linear_sum_assignment(torch.cat([old, new], dim=1).numpy(), maximize=True)[1]
        atoms = torch.from_numpy(columns).long()
        # With huge weights, rounding hides the ranks, and the new atoms chosen may not be the first ones.
        fresh = atoms >= known
        atoms[fresh] = known + atoms[fresh].unique(return_inverse=True)[1]
        return atoms


def known_scores(neurons: Tensor, sums: Tensor, users: Tensor, clients: int, prior: Prior) -> Tensor:
    """Return the score of each neuron v (n, d) with each existing atom: (n, atoms).

    |v / sigma^2 + S|^2 / (1 / sigma^2 + P) - |S|^2 / P + log(m / (J - m))
    """
    precision, precisions = prior.neuron_precision, prior.precisions(users)
    before = sums.square().sum(dim=1)
    # |v / sigma^2 + S|^2 by one matrix product: all differences would need n * atoms * d numbers.
    joined = (neurons @ sums.T).mul_(2 * precision).add_(before)
    joined += precision**2 * neurons.square().sum(dim=1, keepdim=True)
    return joined.div_(precision + precisions).add_(popularity(users, clients) - before / precisions)


def new_scores(neurons: Tensor, count: int, clients: int, prior: Prior) -> Tensor:
    """Return the score of each neuron v (n, d) with a new atom of rank r = 1, ..., count: (n, count).

    |v / sigma^2|^2 / (1 / sigma^2 + 1 / sigma0^2) + 2 log(gamma / J) - 2 log r
    """
    precision = prior.neuron_precision
    alone = precision**2 * neurons.square().sum(dim=1) / (precision + prior.sigma0**-2)
    ranks = torch.arange(1, count + 1, dtype=torch.float64)
    return alone[:, None] + 2 * (np.log(prior.gamma / clients) - ranks.log())


def popularity(users: Tensor, clients: int) -> Tensor:
    """Return log(m / (J - m)) (atoms,) of atoms used by m of J clients."""
    m = users.clamp(max=MAX_USERS)
    return (m.clamp_min(MIN_USERS) / (clients - m).clamp_min(MIN_USERS)).log()


def new_limit(neurons: int, known: int) -> int:
    """Return how many new atoms a client may open. Every one of its neurons gets an atom."""
    return min(neurons, max(MAX_ATOMS - known, neurons - known, 1))


def mean_over_users(values: Tensors, matching: Matching) -> Tensor:
    """Return the plain mean (atoms,), over the users of each atom, of a value per neuron (n_k,), float64."""
    total = torch.zeros(len(matching.atoms)).double()
    users = torch.zeros_like(total)
    for client, value in values.items():
        total.index_add_(0, matching.atoms_of[client], value.double())
        users[matching.atoms_of[client]] += 1
    return total / users


def spread_columns(weight: Tensor, atoms: Tensor, count: int) -> Tensor:
    """Return a layer's weight (rows, inputs, ...) for `count` atoms as inputs, where neuron j is atom `atoms[j]`.

    The columns of other atoms are zero. After a flatten, each neuron has several columns.
    """
    blocks = weight.reshape(len(weight), len(atoms), -1)
    spread = blocks.new_zeros(len(weight), count, blocks.shape[2])
    spread[:, atoms] = blocks
    return spread.reshape(len(weight), weight.shape[1] // len(atoms) * count, *weight.shape[2:])
