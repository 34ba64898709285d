"""Matching neurons of many clients: scores, assignments and atoms against plain loops and by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fedwild.methods.fedma import bayes
from fedwild.methods.fedma.bayes import (
    Matching,
    Pool,
    Prior,
    known_scores,
    match,
    mean_over_users,
    new_limit,
    new_scores,
    popularity,
    spread_columns,
)

Members = frozenset[tuple[str, int]]
UNEVEN = Prior(sigma=0.7, sigma0=1.9, gamma=3.0)


def draws(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def noise(rows: int, size: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(rows, size, generator=torch.Generator().manual_seed(seed)).double()


def naive_known(v: Tensor, s: Tensor, m: float, clients: int, prior: Prior) -> float:
    """The score of one neuron with one known atom, term by term."""
    s2, s02 = prior.sigma**2, prior.sigma0**2
    precision = 1 / s02 + m / s2
    joined = sum((float(a) / s2 + float(b)) ** 2 for a, b in zip(v, s, strict=True))
    before = sum(float(b) ** 2 for b in s)
    m = min(m, 10)
    return joined / (1 / s2 + precision) - before / precision + math.log(m / (clients - m))


def naive_new(v: Tensor, rank: int, clients: int, prior: Prior) -> float:
    s2, s02 = prior.sigma**2, prior.sigma0**2
    alone = sum((float(a) / s2) ** 2 for a in v) / (1 / s2 + 1 / s02)
    return alone + 2 * math.log(prior.gamma / clients) - 2 * math.log(rank)


@pytest.mark.parametrize("prior", [Prior(), UNEVEN])
def test_scores_of_known_atoms_are_those_of_a_plain_loop(prior: Prior) -> None:
    neurons, sums = noise(4, 6), noise(5, 6, seed=1, scale=3)
    users = torch.tensor([1.0, 2.0, 10.0, 11.0, 19.0]).double()
    scores = known_scores(neurons, sums, users, 20, prior)
    expected = [[naive_known(v, s, float(m), 20, prior) for s, m in zip(sums, users, strict=True)] for v in neurons]
    torch.testing.assert_close(scores, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("prior", [Prior(), UNEVEN])
def test_scores_of_new_atoms_are_those_of_a_plain_loop_and_fall_with_the_rank(prior: Prior) -> None:
    neurons = noise(4, 6)
    scores = new_scores(neurons, 3, 5, prior)
    expected = [[naive_new(v, rank, 5, prior) for rank in (1, 2, 3)] for v in neurons]
    torch.testing.assert_close(scores, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)


def test_popularity_is_finite_for_atoms_of_no_client_and_of_all_clients() -> None:
    scores = popularity(torch.tensor([0.0, 1.0, 3.0]), clients=3)
    assert torch.isfinite(scores).all()
    assert scores[0] < scores[1] < scores[2]
    assert scores[1] == pytest.approx(math.log(1 / 2))


@pytest.mark.parametrize("seed", range(5))
def test_no_assignment_has_a_larger_sum_of_scores(seed: int) -> None:
    pool = Pool.empty(UNEVEN, 4, 3)
    pool.add("a", noise(3, 3, seed=seed))
    pool.add("b", noise(3, 3, seed=seed + 100))
    neurons, known = noise(3, 3, seed=seed + 200), len(pool.sums)
    old = known_scores(neurons, pool.sums, pool.users, 4, UNEVEN)
    scores = torch.cat([old, new_scores(neurons, 3, 4, UNEVEN)], dim=1)
    chosen = pool.choose(neurons)
    best = max(
        sum(float(scores[j, i]) for j, i in enumerate(columns))
        for columns in itertools.permutations(range(known + 3), 3)
    )
    assert sum(float(scores[j, i]) for j, i in enumerate(chosen.tolist())) == pytest.approx(best, abs=1e-9)


@pytest.mark.parametrize("sweeps", [0, 3])
def test_permuted_copies_of_a_layer_find_their_permutations_and_posterior_means(sweeps: int) -> None:
    layer = noise(7, 5, scale=10)
    orders = {f"client-{k}": torch.from_numpy(draws(k).permutation(7)) for k in range(4)}
    matching = match({client: layer[order] for client, order in orders.items()}, Prior(), sweeps, draws())
    assert matching.atoms.shape == (7, 5)
    first = matching.atoms_of["client-0"]
    for client, order in orders.items():
        # Neuron j of a client is neuron order[j] of the layer, whatever the number of its atom.
        neuron_of_atom = torch.empty(7, dtype=torch.long)
        neuron_of_atom[first] = orders["client-0"]
        assert torch.equal(neuron_of_atom[matching.atoms_of[client]], order)
    torch.testing.assert_close(matching.atoms[first], 4 * layer[orders["client-0"]] / (4 + 1))


def test_sigma_and_sigma0_weigh_the_mean_against_zero() -> None:
    layer = noise(3, 5, scale=10)
    matching = match({"a": layer, "b": layer}, UNEVEN, 0, draws())
    wanted = (2 / 0.7**2) / (2 / 0.7**2 + 1 / 1.9**2) * layer
    torch.testing.assert_close(matching.atoms[matching.atoms_of["a"]], wanted)


@pytest.mark.parametrize(("gamma", "opened"), [(10.0, 1), (0.01, 0)])
def test_a_neuron_unlike_all_atoms_opens_one_if_gamma_is_large(gamma: float, opened: int) -> None:
    ours, theirs = 4 * torch.eye(5)[:3], 4 * torch.eye(5)[[0, 1, 4]]
    matching = match({"a": ours, "b": theirs}, Prior(gamma=gamma), 2, draws())
    assert len(matching.atoms) == 3 + opened
    a, b = matching.atoms_of["a"], matching.atoms_of["b"]
    assert torch.equal(a[:2], b[:2])
    assert (int(b[2]) == int(a[2])) is not bool(opened)


@pytest.mark.parametrize(("most", "opened"), [(3, 1), (4, 1), (6, 2), (100, 4)])
def test_the_number_of_new_atoms_is_limited(most: int, opened: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bayes, "MAX_ATOMS", most)
    every = torch.eye(8)
    matching = match({"a": every[:4], "b": every[4:]}, Prior(gamma=1e9), 0, draws())
    assert len(matching.atoms) == 4 + opened


def test_the_limit_is_seven_hundred_atoms_but_every_neuron_gets_one() -> None:
    assert new_limit(neurons=10, known=20) == 10
    assert new_limit(neurons=10, known=695) == 5
    assert new_limit(neurons=10, known=2000) == 1
    assert new_limit(neurons=2000, known=5) == 1995


def test_a_wide_client_is_matched_again_among_narrow_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bayes, "MAX_ATOMS", 2)
    matching = match({"narrow": noise(2, 4), "wide": noise(9, 4, seed=1)}, Prior(), 2, draws())
    assert len(matching.atoms_of["wide"].unique()) == 9


def test_the_widest_client_defines_the_first_atoms_and_among_equal_ones_the_first_by_name() -> None:
    neurons = {"c": noise(2, 4), "b": noise(5, 4, seed=1), "a": noise(5, 4, seed=2)}
    laid = match(neurons, Prior(), 0, draws()).atoms_of
    assert torch.equal(laid["a"], torch.arange(5))
    assert not torch.equal(laid["b"], torch.arange(5))
    del neurons["a"]
    assert torch.equal(match(neurons, Prior(), 0, draws()).atoms_of["b"], torch.arange(5))


def test_removing_a_client_removes_the_atoms_that_only_it_used() -> None:
    pool = Pool.empty(Prior(gamma=1e6), 2, 4)
    a, b = 4 * torch.eye(4)[:2], 4 * torch.eye(4)[2:]
    pool.add("a", a)
    pool.add("b", b)
    assert pool.users.tolist() == [1, 1, 1, 1]
    pool.remove("a", a)
    assert torch.equal(pool.sums, b.double())
    assert {name: atoms.tolist() for name, atoms in pool.atoms_of.items()} == {"b": [0, 1]}


@pytest.mark.parametrize("sweeps", [0, 1, 5])
def test_after_any_sweeps_atoms_are_the_posterior_means_of_the_neurons_they_have(sweeps: int) -> None:
    neurons = {f"client-{k}": noise(6 + k % 2, 5, seed=k).float() for k in range(5)}
    matching = match(neurons, UNEVEN, sweeps, draws())
    sums, users = torch.zeros_like(matching.atoms), torch.zeros(len(matching.atoms))
    for client, atoms in matching.atoms_of.items():
        assert len(atoms.unique()) == len(atoms) == len(neurons[client])
        for j, i in enumerate(atoms.tolist()):
            sums[i] += neurons[client][j].double() / 0.7**2
            users[i] += 1
    assert users.min() >= 1
    torch.testing.assert_close(matching.atoms, sums / (1 / 1.9**2 + users / 0.7**2)[:, None])


def test_the_same_draws_give_the_same_matching_and_the_order_of_the_mapping_does_not_matter() -> None:
    neurons = {f"client-{k}": noise(6, 5, seed=k) for k in range(4)}
    backwards = dict(reversed(neurons.items()))
    one, two = match(neurons, Prior(), 3, draws(1)), match(backwards, Prior(), 3, draws(1))
    assert torch.equal(one.atoms, two.atoms)
    assert all(torch.equal(one.atoms_of[client], two.atoms_of[client]) for client in neurons)


def naive_match(neurons: dict[str, Tensor], prior: Prior, sweeps: int, order: np.random.Generator) -> set[Members]:
    """Atoms as sets of (client, neuron), whose sums are computed from scratch every time."""
    atoms: list[set[tuple[str, int]]] = []

    def placed(client: str) -> None:
        s2, known = prior.sigma**2, len(atoms)
        count = len(neurons[client]) if known else 0
        scores = np.zeros((len(neurons[client]), known + count))
        for j, v in enumerate(neurons[client]):
            for i, members in enumerate(atoms):
                total = sum(neurons[name][n] / s2 for name, n in members)
                scores[j, i] = naive_known(v, torch.as_tensor(total), len(members), len(neurons), prior)
            for rank in range(1, count + 1):
                scores[j, known + rank - 1] = naive_new(v, rank, len(neurons), prior)
        columns = linear_sum_assignment(-scores)[1] if known else np.arange(len(neurons[client]))
        atoms.extend(set() for _ in range(max(columns) + 1 - known))
        for j, i in enumerate(columns):
            atoms[i].add((client, j))

    names = sorted(neurons)
    for client in names:
        placed(client)
    for _ in range(sweeps):
        for k in order.permutation(len(names)):
            atoms = [left for members in atoms if (left := {m for m in members if m[0] != names[k]})]
            placed(names[k])
    return {frozenset(members) for members in atoms}


@pytest.mark.parametrize("sweeps", [0, 1, 2])
def test_the_whole_matching_is_that_of_a_plain_loop(sweeps: int) -> None:
    neurons = {f"client-{k}": noise(6, 3, seed=k) for k in range(5)}
    matching = match(neurons, UNEVEN, sweeps, draws(3))
    found = {
        frozenset((name, j) for name, atoms in matching.atoms_of.items() for j in range(6) if atoms[j] == i)
        for i in range(len(matching.atoms))
    }
    assert found == naive_match(neurons, UNEVEN, sweeps, draws(3))
    # Each sweep has an effect here, so a missing one would show.
    assert not sweeps or found != naive_match(neurons, UNEVEN, sweeps - 1, draws(3))


def test_no_atom_is_left_without_neurons_whichever_new_ones_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def from_the_end(scores: np.ndarray, maximize: bool) -> tuple[np.ndarray, np.ndarray]:
        return np.arange(len(scores)), scores.shape[1] - 1 - 2 * np.arange(len(scores))

    monkeypatch.setattr(bayes, "linear_sum_assignment", from_the_end)
    matching = match({"a": noise(3, 5), "b": noise(3, 5, seed=1)}, Prior(), 0, draws())
    used = torch.cat(list(matching.atoms_of.values())).unique()
    assert torch.equal(used, torch.arange(len(matching.atoms)))


def test_huge_weights_give_finite_atoms() -> None:
    neurons = {f"client-{k}": noise(6, 5, seed=k, scale=1e38).float() for k in range(3)}
    assert torch.isfinite(match(neurons, Prior(), 2, draws()).atoms).all()


def test_values_per_neuron_are_averaged_over_the_clients_that_use_the_atom() -> None:
    matching = Matching(torch.zeros(3, 1), {"a": torch.tensor([2, 0]), "b": torch.tensor([0, 1])}, torch.ones(3))
    values = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([4.0, 8.0])}
    assert mean_over_users(values, matching).tolist() == [3.0, 8.0, 1.0]


def test_inputs_move_to_their_atoms_and_the_columns_of_others_are_zero() -> None:
    atoms = torch.tensor([3, 0])
    linear = spread_columns(torch.tensor([[1.0, 2.0]]), atoms, 4)
    assert linear.tolist() == [[2.0, 0.0, 0.0, 1.0]]
    folded = spread_columns(torch.tensor([[1.0, 10.0, 2.0, 20.0]]), atoms, 4)
    assert folded.tolist() == [[2.0, 20.0, 0.0, 0.0, 0.0, 0.0, 1.0, 10.0]]
    conv = spread_columns(torch.arange(16.0).reshape(2, 2, 2, 2), atoms, 4)
    assert conv.shape == (2, 4, 2, 2)
    assert torch.equal(conv[:, 3], torch.arange(16.0).reshape(2, 2, 2, 2)[:, 0])
    assert not conv[:, 1:3].any()
