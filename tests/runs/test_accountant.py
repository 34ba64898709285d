"""The accountant against published values, closed forms and numerical integration."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.stats import norm

from fedwild.core.errors import UserError
from fedwild.runs.accountant import ORDERS, Mechanism, epsilon_of, noise_for, renyi_divergence


def exact_gaussian_epsilon(noise: float, delta: float) -> float:
    """Epsilon of one Gaussian mechanism, exactly: Balle and Wang 2018, theorem 8."""

    def delta_of(epsilon: float) -> float:
        a, b = 1 / (2 * noise), epsilon * noise
        return float(norm.cdf(a - b) - math.exp(epsilon) * norm.cdf(-a - b))

    return float(brentq(lambda epsilon: delta_of(epsilon) - delta, 0, 200))


def integer_divergence(rate: float, noise: float, order: int) -> float:
    """Mironov, Talwar, Zhang 2019, section 3.3: A = sum_k C(order, k) (1-q)^(order-k) q^k exp((k^2 - k) / (2 s^2))."""
    terms = [
        math.comb(order, k) * (1 - rate) ** (order - k) * rate**k * math.exp((k * k - k) / (2 * noise**2))
        for k in range(order + 1)
    ]
    return math.log(math.fsum(terms)) / (order - 1)


@pytest.mark.parametrize(("rate", "noise"), [(0.01, 4.0), (0.1, 1.0), (0.5, 2.0), (0.9, 0.7), (0.001, 0.6)])
def test_integer_orders_equal_the_binomial_sum(rate: float, noise: float) -> None:
    ours = dict(zip(ORDERS, renyi_divergence(rate, noise), strict=True))
    for order in (2, 3, 5, 10, 16):
        assert ours[float(order)] == pytest.approx(integer_divergence(rate, noise, order), rel=1e-9, abs=1e-13)


@pytest.mark.parametrize("order", [1.1, 1.5, 2.7, 7.3])
def test_fractional_orders_equal_numerical_integration(order: float) -> None:
    rate, noise = 0.1, 1.3

    def integrand(z: float) -> float:
        mixture = (1 - rate) * norm.pdf(z, 0, noise) + rate * norm.pdf(z, 1, noise)
        return float(norm.pdf(z, 0, noise) * (mixture / norm.pdf(z, 0, noise)) ** order)

    moment, _ = quad(integrand, -15, 30, limit=500, epsabs=1e-13, epsrel=1e-12, points=[0.0, 1.0, order])
    index = int(np.argmin(np.abs(ORDERS - order)))
    assert renyi_divergence(rate, noise)[index] == pytest.approx(math.log(moment) / (order - 1), rel=1e-6)


def test_abadi_2016_section_3_2_moments_accountant() -> None:
    """q = 0.01, sigma = 4, delta = 1e-5, T = 10000: 1.26 with the conversion of that paper; the newer one is lower."""
    spent = 10_000 * renyi_divergence(0.01, 4.0)
    as_published = float(np.min(spent + math.log(1e5) / (ORDERS - 1)))
    assert as_published == pytest.approx(1.26, abs=0.005)
    # The value that opacus 1.6.0 and dp-accounting's formula give with the same conversion.
    assert epsilon_of([Mechanism(0.01, 4.0, 10_000)], 1e-5) == pytest.approx(1.03549, abs=1e-5)


def test_the_documented_example_of_opacus() -> None:
    """opacus, accountants.analysis.rdp: (1e-5, 1.0) 10 times and (1e-4, 3.0) 4 times at delta 1e-5 give 0.336."""
    mechanisms = [Mechanism(1e-5, 1.0, 10), Mechanism(1e-4, 3.0, 4)]
    assert epsilon_of(mechanisms, 1e-5) <= 0.336 + 5e-4
    total = 10 * renyi_divergence(1e-5, 1.0) + 4 * renyi_divergence(1e-4, 3.0)
    to_32 = [k for k, order in enumerate(ORDERS) if order == int(order) and order <= 32]
    converted = total + np.log1p(-1 / ORDERS) - (math.log(1e-5) + np.log(ORDERS)) / (ORDERS - 1)
    assert min(converted[to_32]) == pytest.approx(0.336, abs=5e-4)


@pytest.mark.parametrize("noise", [0.8, 2.0, 5.0, 20.0])
@pytest.mark.parametrize("times", [1, 30])
def test_the_full_gaussian_mechanism_costs_at_least_the_exact_epsilon_and_little_more(noise: float, times: int) -> None:
    """Without sampling, `times` mechanisms are one with noise / sqrt(times)."""
    exact = exact_gaussian_epsilon(noise / math.sqrt(times), 1e-5)
    ours = epsilon_of([Mechanism(1.0, noise, times)], 1e-5)
    assert exact <= ours <= 1.25 * exact


def test_epsilon_grows_with_times_and_rate_and_falls_with_noise_and_delta() -> None:
    def cost(rate: float = 0.1, noise: float = 1.0, times: int = 10, delta: float = 1e-5) -> float:
        return epsilon_of([Mechanism(rate, noise, times)], delta)

    assert 0 < cost() < cost(times=11) < cost(times=100)
    assert cost() < cost(rate=0.2) < cost(rate=1.0)
    assert cost(noise=1.1) < cost() < cost(noise=0.9)
    assert cost(delta=1e-4) < cost()
    assert cost(noise=0.0) == math.inf
    assert cost(times=0) == cost(rate=0.0) == epsilon_of([], 1e-5) == 0.0


def test_mechanisms_add_up() -> None:
    together = epsilon_of([Mechanism(0.1, 1.0, 7), Mechanism(0.1, 1.0, 3)], 1e-5)
    assert together == pytest.approx(epsilon_of([Mechanism(0.1, 1.0, 10)], 1e-5), rel=1e-12)
    assert epsilon_of([Mechanism(0.1, 1.0, 7), Mechanism(0.2, 2.0, 3)], 1e-5) > epsilon_of(
        [Mechanism(0.1, 1.0, 7)], 1e-5
    )


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0, 8.0])
def test_the_noise_for_an_epsilon_is_the_smallest_that_keeps_it(epsilon: float) -> None:
    plans = [(0.1, 50), (0.02, 400)]
    noise = noise_for(epsilon, 1e-5, plans)

    def cost(noise: float) -> float:
        return max(epsilon_of([Mechanism(rate, noise, times)], 1e-5) for rate, times in plans)

    assert cost(noise) <= epsilon < cost(noise - 2e-4)


def test_an_epsilon_that_no_noise_reaches_is_refused() -> None:
    with pytest.raises(UserError, match=r"privacy.epsilon = 1e-06 cannot be reached with privacy.delta = 1e-05"):
        noise_for(1e-6, 1e-5, [(1.0, 1000)])
