"""The accountant of differential privacy: the epsilon of a sequence of sampled Gaussian mechanisms.

Renyi differential privacy of the sampled Gaussian mechanism: Mironov, Talwar, Zhang: Renyi differential privacy of the
sampled Gaussian mechanism. 2019. Conversion to (epsilon, delta): Balle et al.: Hypothesis testing interpretations and
Renyi differential privacy. AISTATS 2020, theorem 21.

fedwild has its own accountant because neither library installs cleanly beside it: opacus 1.6.0 puts packages called
`benchmarks` and `examples` into site-packages, and dp-accounting 0.6.0 requires attrs below 24.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

from fedwild.core.errors import UserError

ORDERS = np.array(
    [*(1 + k / 10 for k in range(1, 100)), *range(11, 65), 72, 80, 96, 128, 192, 256, 384, 512, 768, 1024], dtype=float
)
"""The Renyi orders among which the best is chosen. More orders cannot make epsilon larger."""
MIN_NOISE, MAX_NOISE = 0.1, 10_000.0
"""The range in which a noise multiplier is searched. Below 0.1, one step with all data costs more than epsilon 50."""


class Mechanism(NamedTuple):
    """A sampled Gaussian mechanism that is applied `times` times.

    Each unit (a client or a sample) is included independently with probability `rate`. The sum of the units' vectors,
    each of norm at most c, gets Gaussian noise of standard deviation `noise` * c.
    """

    rate: float
    noise: float
    times: int


@lru_cache(maxsize=4096)
def renyi_divergence(rate: float, noise: float) -> np.ndarray:
    """Return the Renyi divergence of one application at each of `ORDERS`.

    It is log(A) / (order - 1), where A is the mean of (1 - q + q exp((2 z - 1) / (2 s^2)))^order over z ~ N(0, s^2)
    (equation 3 of Mironov et al.), q being the rate and s the noise. A lattice sum of step s / 20 gives it to rounding:
    the integrand is analytic and vanishes like a Gaussian around 0 and around the order.
    """
    if rate == 0:
        return np.zeros_like(ORDERS)
    if noise == 0:
        return np.full_like(ORDERS, np.inf)
    if rate == 1:
        return ORDERS / (2 * noise**2)
    return np.array([_log_moment(rate, noise, order) / (order - 1) for order in ORDERS])


def _log_moment(rate: float, noise: float, order: float) -> float:
    """Return log(A) for one order."""
    step = noise / 20
    z = np.arange(-12 * noise, order + 12 * noise + step, step)
    ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + (2 * z - 1) / (2 * noise**2))
    density = -(z**2) / (2 * noise**2) - math.log(noise * math.sqrt(2 * math.pi))
    return max(0.0, float(logsumexp(density + order * ratio)) + math.log(step))


def epsilon_of(mechanisms: Iterable[Mechanism], delta: float) -> float:
    """Return the epsilon of all mechanisms together; infinite without noise, 0 if there is none."""
    spent = [m for m in mechanisms if m.times > 0 and m.rate > 0]
    if not spent:
        return 0.0
    total = np.sum([m.times * renyi_divergence(m.rate, m.noise) for m in spent], axis=0)
    epsilons = total + np.log1p(-1 / ORDERS) - (math.log(delta) + np.log(ORDERS)) / (ORDERS - 1)
    return max(0.0, float(np.min(epsilons)))


def largest_epsilon(mechanisms: Iterable[Mechanism], delta: float) -> float:
    """Return the largest of the mechanisms' epsilons: each concerns other units, such as the samples of one client.

    Thousands of clients need few computations: the largest rate with the largest number of times bounds a set of
    mechanisms, and a set whose bound is below the largest epsilon so far is skipped.
    """
    best = 0.0
    waiting = [sorted(set(mechanisms), reverse=True)]
    while waiting:
        some = waiting.pop()
        if not some:
            continue
        bound = Mechanism(some[0].rate, min(m.noise for m in some), max(m.times for m in some))
        cost = epsilon_of([bound], delta)
        if len(some) == 1:
            best = max(best, cost)
        elif cost > best:
            middle = len(some) // 2
            # The part with the larger rates comes first: it usually costs more.
            waiting += [some[middle:], some[:middle]]
    return best


def noise_for(epsilon: float, delta: float, plans: Sequence[tuple[float, int]]) -> float:
    """Return the smallest noise multiplier, in steps of 0.0001, that keeps every plan within `epsilon`.

    A plan is a sampling rate and a number of times. The plans concern different units, as in `largest_epsilon`.
    """

    def is_enough(noise: float) -> bool:
        return largest_epsilon((Mechanism(rate, noise, times) for rate, times in plans), delta) <= epsilon

    if not is_enough(MAX_NOISE):
        raise UserError(
            f"privacy.epsilon = {epsilon} cannot be reached with privacy.delta = {delta:g}: even noise = {MAX_NOISE:g} "
            "is too little. Choose a larger epsilon or delta, or fewer rounds."
        )
    low, high = round(MIN_NOISE * 10_000), round(MAX_NOISE * 10_000)
    while low < high:
        middle = (low + high) // 2
        if is_enough(middle / 10_000):
            high = middle
        else:
            low = middle + 1
    return high / 10_000
