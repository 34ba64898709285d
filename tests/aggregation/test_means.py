"""Weighted and running means of replies."""

from __future__ import annotations

from functools import partial

import torch

from fedwild.aggregation.means import running_mean, weighted_mean
from fedwild.contract import Replies
from fedwild.core.payload import Payload


def replies(*clients: tuple[int, dict[str, torch.Tensor]]) -> Replies:
    payloads = [Payload.of(model=weights, info={"samples": samples}) for samples, weights in clients]
    return Replies({f"c{i}": partial(payloads.__getitem__, i) for i in range(len(payloads))})


def test_two_toy_clients_by_hand() -> None:
    mean = weighted_mean(replies((1, {"w": torch.tensor([1.0, 4.0])}), (3, {"w": torch.tensor([5.0, 0.0])})), "model")
    assert mean is not None
    assert mean["w"].tolist() == [4.0, 1.0]
    assert mean["w"].dtype == torch.float32


def test_the_mean_of_equal_replies_is_bit_equal_to_them() -> None:
    weights = {"w": torch.randn(1000, generator=torch.Generator().manual_seed(0)), "count": torch.tensor(5)}
    mean = weighted_mean(replies(*[(n, weights) for n in (3, 7, 11, 13)]), "model")
    assert mean is not None
    assert torch.equal(mean["w"], weights["w"])
    assert torch.equal(mean["count"], weights["count"])


def test_integer_tensors_are_copied_not_averaged() -> None:
    mean = weighted_mean(replies((1, {"n": torch.tensor([2])}), (1, {"n": torch.tensor([5])})), "model")
    assert mean is not None
    assert mean["n"].tolist() == [2]
    assert mean["n"].dtype == torch.int64


def test_clients_without_samples_have_no_weight() -> None:
    mean = weighted_mean(replies((0, {"w": torch.tensor([9.0])}), (2, {"w": torch.tensor([1.0])})), "model")
    assert mean is not None
    assert mean["w"].tolist() == [1.0]
    assert weighted_mean(replies((0, {"w": torch.tensor([9.0])})), "model") is None


def test_the_order_of_arrival_does_not_matter() -> None:
    generator = torch.Generator().manual_seed(1)
    payloads = {
        f"c{i}": Payload.of(model={"w": torch.randn(50, generator=generator)}, info={"samples": i + 1})
        for i in range(5)
    }
    forward = Replies({name: partial(payloads.__getitem__, name) for name in payloads})
    backward = Replies({name: partial(payloads.__getitem__, name) for name in reversed(payloads)})
    first, second = weighted_mean(forward, "model"), weighted_mean(backward, "model")
    assert first is not None and second is not None
    assert torch.equal(first["w"], second["w"])


def test_the_mean_equals_a_float64_computation() -> None:
    generator = torch.Generator().manual_seed(2)
    values = [torch.randn(40, generator=generator) for _ in range(6)]
    counts = [3, 1, 4, 1, 5, 9]
    expected = torch.zeros(40, dtype=torch.float64)
    for n, v in zip(counts, values, strict=True):
        expected += n * v.double()
    expected /= sum(counts)
    mean = weighted_mean(replies(*[(n, {"w": v}) for n, v in zip(counts, values, strict=True)]), "model")
    assert mean is not None
    assert torch.equal(mean["w"], expected.float())


def test_a_running_mean_is_the_mean_of_all_models_so_far() -> None:
    generator = torch.Generator().manual_seed(0)
    models = [{"w": torch.randn(50, generator=generator), "n": torch.tensor(i)} for i in range(5)]
    mean = models[0]
    for count, model in enumerate(models[1:], start=2):
        mean = running_mean(mean, model, count)
    expected = torch.stack([model["w"].double() for model in models]).mean(0)
    assert torch.allclose(mean["w"].double(), expected, atol=1e-6)
    assert mean["w"].dtype == torch.float32
    assert int(mean["n"]) == 4
