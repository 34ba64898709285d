from __future__ import annotations

import importlib.util
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fedwild.core.errors import UserError
from fedwild.methods.fedpd import solvers
from fedwild.methods.fedpd.solvers import sinkhorn, sinkhorn_solver, solve_assignment

SQUARES = st.integers(1, 6).map(lambda n: (n, n))


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def distances(n: int, width: int = 20, seed: int = 0) -> Tensor:
    """Squared distances between two clouds of n points: costs similar to those of neurons."""
    return torch.cdist(randn(n, width, seed=seed), randn(n, width, seed=seed + 1)).square()


def total(costs: Tensor, order: Tensor) -> float:
    return float(costs.double()[torch.arange(len(costs)), order].sum())


def every_order(n: int) -> Tensor:
    """All permutations (n!, n)."""
    return torch.tensor(list(permutations(range(n))))


def totals(costs: Tensor, orders: Tensor) -> Tensor:
    return costs.double()[torch.arange(len(costs)), orders].sum(dim=1)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(arrays.arrays(np.int64, SQUARES, elements=st.integers(-3, 9)))
def test_of_all_permutations_it_is_the_cheapest_one_that_moves_the_fewest_neurons(values: np.ndarray) -> None:
    costs = torch.from_numpy(values)
    places, orders = torch.arange(len(costs)), every_order(len(costs))
    every, found = totals(costs, orders), solve_assignment(costs)
    stay = (orders == places).sum(dim=1)[every == every.min()].max()
    assert total(costs, found) == every.min()
    assert (found == places).sum() == stay


@settings(max_examples=100, deadline=None, derandomize=True)
@given(arrays.arrays(np.float32, SQUARES, elements=st.floats(0, 100, width=32)))
def test_with_real_costs_no_permutation_is_cheaper(values: np.ndarray) -> None:
    costs = torch.from_numpy(values)
    found = solve_assignment(costs)
    assert torch.equal(found.sort().values, torch.arange(len(costs)))
    least = float(totals(costs, every_order(len(costs))).min())
    assert total(costs, found) == pytest.approx(least, rel=1e-7, abs=1e-6)


@pytest.mark.parametrize("n", [7, 40, 150, 400])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_for_many_neurons_the_total_cost_is_that_of_scipy(n: int, dtype: torch.dtype) -> None:
    for costs in (distances(n).to(dtype), randn(n, n).to(dtype), torch.rand(n, n, dtype=dtype) ** 3):
        places, neurons = linear_sum_assignment(costs.double().numpy())
        found = solve_assignment(costs)
        assert torch.equal(found.sort().values, torch.arange(n))
        assert total(costs, found) == pytest.approx(float(costs.double()[places, neurons].sum()), rel=1e-8)


@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1e6, 1e30])
def test_the_scale_of_the_costs_does_not_matter(scale: float) -> None:
    costs = distances(60)
    assert torch.equal(solve_assignment(scale * costs), solve_assignment(costs))


@pytest.mark.parametrize("n", [1, 2, 5, 64])
def test_neurons_keep_their_places_if_all_cost_the_same(n: int) -> None:
    for value in (0.0, 3.7):
        assert torch.equal(solve_assignment(torch.full((n, n), value)), torch.arange(n))


def test_neurons_keep_their_places_if_costs_are_sums_of_a_place_and_a_neuron_term() -> None:
    """Every permutation costs the same, although all places have the same cheapest neuron."""
    costs = torch.arange(8.0)[:, None] + torch.arange(8.0).flip(0)[None]
    assert torch.equal(solve_assignment(costs), torch.arange(8))


def test_neurons_without_a_weight_stay_while_others_move() -> None:
    ours, theirs = randn(30, 9, seed=1), randn(30, 9, seed=2)
    dead = torch.arange(30) % 3 == 0
    ours[dead] = theirs[dead] = 0
    found = solve_assignment(torch.cdist(theirs, ours).square())
    assert torch.equal(found[dead], torch.arange(30)[dead])
    assert int((found != torch.arange(30)).sum()) > 10


def test_nothing_is_searched_if_every_place_can_have_its_cheapest_neuron(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solvers, "linear_sum_assignment", None)
    order = torch.randperm(50, generator=torch.Generator().manual_seed(0))
    costs = 1 + torch.rand(50, 50, generator=torch.Generator().manual_seed(1))
    costs[torch.arange(50), order] = 0.5
    assert torch.equal(solve_assignment(costs), order)
    assert torch.equal(solve_assignment(torch.ones(50, 50)), torch.arange(50))


def test_a_neuron_that_is_cheapest_for_many_places_goes_where_the_sum_is_least() -> None:
    costs = torch.tensor([[0.0, 1.0, 5.0], [0.0, 4.0, 5.0], [0.0, 4.0, 2.0]])
    assert solve_assignment(costs).tolist() == [1, 0, 2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_assignment_is_repeatable_and_does_not_change_its_costs(dtype: torch.dtype) -> None:
    costs = distances(120).to(dtype)
    before = costs.clone()
    first = solve_assignment(costs)
    assert first.dtype == torch.long
    assert all(torch.equal(solve_assignment(costs.clone()), first) for _ in range(3))
    assert torch.equal(costs, before)


def test_assignment_is_exact_optimal_transport_with_equal_masses() -> None:
    ot = pytest.importorskip("ot")
    for seed in range(3):
        costs = distances(40, seed=seed)
        masses = np.full(40, 1 / 40)
        plan = torch.from_numpy(ot.emd(masses, masses, costs.double().numpy()))
        found = solve_assignment(costs)
        torch.testing.assert_close(plan * 40, torch.eye(40, dtype=torch.float64)[found])


@pytest.mark.parametrize("entropy", [0.02, 0.1, 1.0])
def test_a_sinkhorn_plan_has_rows_and_columns_that_add_up_to_one(entropy: float) -> None:
    pytest.importorskip("ot")
    plan = sinkhorn(distances(25), entropy)
    assert plan.shape == (25, 25) and bool((plan >= 0).all())
    ones = torch.ones(25, dtype=torch.float64)
    torch.testing.assert_close(plan.sum(dim=1), ones, rtol=0, atol=1e-12)
    torch.testing.assert_close(plan.sum(dim=0), ones, rtol=0, atol=1e-4)


def test_rows_add_up_to_one_even_if_sinkhorn_has_not_converged() -> None:
    pytest.importorskip("ot")
    plan = sinkhorn(distances(25), 0.001)
    assert float((plan.sum(dim=0) - 1).abs().max()) > 1e-3
    torch.testing.assert_close(plan.sum(dim=1), torch.ones(25, dtype=torch.float64), rtol=0, atol=1e-12)


def test_a_sinkhorn_plan_is_that_of_pot_for_costs_relative_to_the_largest() -> None:
    ot = pytest.importorskip("ot")
    costs = distances(25)
    masses = np.full(25, 1 / 25)
    relative = costs.double().numpy() / float(costs.max())
    direct = 25 * ot.sinkhorn(masses, masses, relative, reg=0.05, stopThr=1e-12, numItermax=10000)
    torch.testing.assert_close(sinkhorn(costs, 0.05), torch.from_numpy(direct), rtol=0, atol=1e-6)
    torch.testing.assert_close(sinkhorn(1000 * costs, 0.05), sinkhorn(costs, 0.05), rtol=0, atol=1e-6)


def test_sinkhorn_approaches_the_permutation_as_entropy_vanishes_and_the_mean_as_it_grows() -> None:
    pytest.importorskip("ot")
    neurons, order = randn(12, 20), torch.randperm(12, generator=torch.Generator().manual_seed(0))
    costs = torch.cdist(neurons[order] + 0.5 * randn(12, 20, seed=1), neurons).square()
    exact = torch.eye(12, dtype=torch.float64)[order]
    gaps = [float((sinkhorn(costs, entropy) - exact).abs().max()) for entropy in (0.3, 0.1, 0.01)]
    assert gaps[0] > gaps[1] > gaps[2] and gaps[2] < 1e-4
    torch.testing.assert_close(sinkhorn(costs, 1e4), torch.full_like(exact, 1 / 12), rtol=0, atol=1e-4)


def test_sinkhorn_without_any_cost_spreads_every_neuron_evenly() -> None:
    pytest.importorskip("ot")
    torch.testing.assert_close(sinkhorn(torch.zeros(4, 4), 0.1), torch.full((4, 4), 0.25, dtype=torch.float64))


def test_a_sinkhorn_solver_is_sinkhorn_with_that_entropy() -> None:
    pytest.importorskip("ot")
    assert torch.equal(sinkhorn_solver(0.2)(distances(9)), sinkhorn(distances(9), 0.2))
    assert not torch.equal(sinkhorn_solver(0.2)(distances(9)), sinkhorn(distances(9), 0.1))


def test_without_pot_the_error_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: asked.append(name))
    with pytest.raises(UserError, match=r"method.align = 0\.05 \(Sinkhorn\) needs POT: pip install 'fedwild\[ot\]'\."):
        sinkhorn_solver(0.05)
    assert asked == ["ot"]
