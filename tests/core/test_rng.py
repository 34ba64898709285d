"""Random streams depend only on their key."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
import torch

from fedwild.core.rng import Rng

KEYS = [
    (Rng(0).child("train", 0, "client-00"), "batches"),
    (Rng(0).child("train", 0, "client-00"), "objective"),
    (Rng(0).child("train", 0, "client-01"), "batches"),
    (Rng(0).child("train", 1, "client-00"), "batches"),
    (Rng(0).child("distil", 0, "client-00"), "batches"),
    (Rng(1).child("train", 0, "client-00"), "batches"),
    (Rng(0).child("train", 0), "client-00"),
    (Rng(0).child("train", 1, 0), "batches"),
    (Rng(0).child("train", 10), "batches"),
]


def test_the_same_key_gives_the_same_stream() -> None:
    one, other = Rng(7).child("train", 3, "a"), Rng(7).child("train").child(3).child("a")
    assert one == other
    assert torch.equal(torch.rand(50, generator=one.torch("x")), torch.rand(50, generator=other.torch("x")))
    assert np.array_equal(one.numpy("x").random(50), other.numpy("x").random(50))


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(range(len(KEYS)), 2)))
def test_different_keys_give_different_streams(one: int, other: int) -> None:
    (rng, purpose), (rng2, purpose2) = KEYS[one], KEYS[other]
    assert rng.number(purpose) != rng2.number(purpose2)
    a, b = torch.rand(20, generator=rng.torch(purpose)), torch.rand(20, generator=rng2.torch(purpose2))
    assert not torch.equal(a, b)


def test_streams_do_not_depend_on_the_order_of_draws() -> None:
    def draw(order: list[int]) -> dict[int, float]:
        root = Rng(3)
        return {
            i: float(torch.rand(1, generator=root.child("train", 0, f"client-{i}").torch("batches"))) for i in order
        }

    assert draw([0, 1, 2, 3]) == draw([3, 1, 0, 2])


def test_each_call_returns_a_new_generator_with_the_same_seed() -> None:
    rng = Rng(1)
    first = rng.torch("a")
    torch.rand(5, generator=first)
    rng.numpy("a").random(5)
    assert torch.rand(1, generator=rng.torch("a")) != torch.rand(1, generator=first)
    assert rng.torch("a").initial_seed() == rng.number("a")


def test_ten_thousand_keys_do_not_collide() -> None:
    keys = itertools.product(range(5), ("train", "distil"), range(20), range(25), ("batches", "layers"))
    numbers = [Rng(seed).child(phase, number, f"client-{c:02d}").number(p) for seed, phase, number, c, p in keys]
    assert len(set(numbers)) == len(numbers) == 10_000


def test_numbers_have_63_bits() -> None:
    numbers = [Rng(0).child(i).number("x") for i in range(200)]
    assert all(0 <= number < 2**63 for number in numbers)
    assert max(numbers) > 2**62


def test_large_seeds_give_different_streams() -> None:
    assert len({Rng(seed).number("x") for seed in (0, 1, 2**32, 2**62, 2**63 - 1)}) == 5


def test_a_seeded_block_seeds_the_global_generators_and_restores_them() -> None:
    def draws() -> list[float]:
        return [float(torch.rand(1)), float(np.random.rand()), random.random()]

    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    expected = draws()
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    rng = Rng(5).child("a")
    with rng.seeded("layers"):
        first = draws()
    with rng.seeded("layers"):
        assert draws() == first
        with rng.seeded("other"):
            inner = draws()
        assert inner != first
    assert draws() == expected


def test_numbers_for_scikit_learn_have_32_bits() -> None:
    numbers = [Rng(seed).sklearn("x") for seed in range(200)]
    assert all(0 <= number < 2**32 for number in numbers)
    assert len(set(numbers)) == 200


def test_generators_do_not_touch_the_global_one() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    Rng(0).torch("a").seed()
    Rng(0).numpy("a").random()
    assert torch.equal(torch.rand(3), expected)
