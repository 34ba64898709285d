"""Client-level privacy: clipping by hand in float64, the sensitivity of the mean, and the variance of its noise."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fedwild.aggregation.private import (
    clip_model,
    clip_update,
    norm_of,
    private_mean,
    rescale_mean,
    share_noise,
    update_of,
)
from fedwild.contract import Payload, Reply

SENT = {
    "a": torch.tensor([1.0, 2.0], dtype=torch.float64),
    "b": torch.tensor([[3.0]], dtype=torch.float64),
    "steps": torch.tensor(7),
}


def model(a: list[float], b: float, steps: int = 9) -> dict[str, Tensor]:
    return {
        "a": torch.tensor(a, dtype=torch.float64),
        "b": torch.tensor([[b]], dtype=torch.float64),
        "steps": torch.tensor(steps),
    }


def reply(name: str, weights: dict[str, Tensor], samples: int = 5) -> Reply:
    return Reply(name, Payload.of(model=weights, info={"samples": samples}))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_an_update_is_scaled_to_the_norm_over_all_tensors() -> None:
    """The update (3, 0, 4) has norm 5; clipped to 2 it is (1.2, 0, 1.6)."""
    update = update_of(SENT, model([4.0, 2.0], 7.0))
    clipped = clip_update(update, 2.0)
    assert clipped["a"].tolist() == pytest.approx([1.2, 0.0], abs=1e-15)
    assert clipped["b"].item() == pytest.approx(1.6, abs=1e-15)
    assert norm_of(clipped) == pytest.approx(2.0, rel=1e-15)


def test_an_update_within_the_norm_does_not_change() -> None:
    update = update_of(SENT, model([4.0, 2.0], 7.0))
    assert clip_update(update, 5.0) is update


def test_a_clipped_model_keeps_types_and_the_integers_that_were_sent() -> None:
    sent = {name: t.float() if t.is_floating_point() else t for name, t in SENT.items()}
    trained = {name: t.float() if t.is_floating_point() else t for name, t in model([4.0, 2.0], 7.0).items()}
    clipped = clip_model(sent, trained, 2.0)
    assert {name: t.dtype for name, t in clipped.items()} == {name: t.dtype for name, t in sent.items()}
    assert clipped["steps"].item() == 7
    assert clipped["a"].tolist() == pytest.approx([2.2, 2.0])
    assert clipped["b"].item() == pytest.approx(4.6)


def test_the_mean_has_equal_weights_and_a_fixed_denominator() -> None:
    """Updates (3, 0, 4) clipped to (1.2, 0, 1.6) and (0, 1, 0): their sum divided by 4, whatever the sample counts."""
    replies = [reply("x", model([4.0, 2.0], 7.0), samples=1), reply("y", model([1.0, 3.0], 3.0), samples=1000)]
    mean = private_mean(SENT, replies, clip=2.0, noise=0.0, expected=4.0, generator=generator())
    assert mean["a"].tolist() == pytest.approx([1 + 1.2 / 4, 2 + 1 / 4], abs=1e-15)
    assert mean["b"].item() == pytest.approx(3 + 1.6 / 4, abs=1e-15)
    assert mean["steps"].item() == 7


def test_no_reply_gives_the_model_that_was_sent_plus_noise() -> None:
    still = private_mean(SENT, [], 2.0, 0.0, 4.0, generator())
    assert torch.equal(still["a"], SENT["a"])
    assert not torch.equal(private_mean(SENT, [], 2.0, 1.0, 4.0, generator())["a"], SENT["a"])


@pytest.mark.parametrize("length", [0.1, 1.0, 1e6])
def test_adding_a_client_moves_the_mean_by_at_most_the_bound(length: float) -> None:
    draw = generator(3)
    clip, expected = 0.7, 5.0
    others = [reply(f"c{k}", model((10 * torch.randn(2, generator=draw)).tolist(), float(k))) for k in range(6)]
    direction = torch.randn(3, generator=draw, dtype=torch.float64)
    far = direction / direction.norm() * length
    extra = reply("extra", model((SENT["a"] + far[:2]).tolist(), 3.0 + float(far[2])))
    without = private_mean(SENT, others, clip, 0.0, expected, generator())
    having = private_mean(SENT, [*others, extra], clip, 0.0, expected, generator())
    moved = norm_of(update_of(without, having))
    assert moved <= clip / expected * (1 + 1e-12)
    assert moved == pytest.approx(min(length, clip) / expected, rel=1e-9)


def test_noise_has_the_stated_variance_and_is_independent_between_tensors() -> None:
    """200,000 draws: the sample standard deviation is within 1 % (six standard errors) of noise * clip / expected."""
    sent = {"a": torch.zeros(100_000), "b": torch.zeros(100_000)}
    noisy = private_mean(sent, [], clip=0.5, noise=3.0, expected=10.0, generator=generator(1))
    deviation = 3.0 * 0.5 / 10.0
    assert float(torch.cat([noisy["a"], noisy["b"]]).std()) == pytest.approx(deviation, rel=0.01)
    assert abs(float((noisy["a"] * noisy["b"]).mean())) < 6 * deviation**2 / math.sqrt(100_000)
    assert abs(float(noisy["a"].mean())) < 6 * deviation / math.sqrt(100_000)
    again = private_mean(sent, [], 0.5, 3.0, 10.0, generator(1))
    assert torch.equal(noisy["a"], again["a"])


def test_shares_of_noise_add_up_to_the_noise_of_the_server() -> None:
    """Nine shares for at least nine clients: within 1 % (six standard errors) of noise * clip; twelve have more."""
    model = {"a": torch.zeros(200_000), "steps": torch.tensor(3)}

    def deviation(clients: int) -> float:
        shares = [share_noise(model, 0.5, 3.0, 9, generator(k)) for k in range(clients)]
        assert all(share["steps"].item() == 3 for share in shares)
        return float(sum(share["a"].double() for share in shares).std())  # type: ignore[union-attr]

    assert deviation(9) == pytest.approx(1.5, rel=0.01)
    assert deviation(12) == pytest.approx(1.5 * math.sqrt(12 / 9), rel=0.01)


def test_a_mean_over_repliers_becomes_one_with_the_fixed_denominator() -> None:
    replies = [reply("x", model([1.3, 2.0], 3.1)), reply("y", model([1.0, 2.2], 3.0))]
    direct = private_mean(SENT, replies, clip=9.0, noise=0.0, expected=4.0, generator=generator())
    models = [r.payload.group("model") for r in replies]
    mean = {name: torch.stack([weights[name] for weights in models]).double().mean(0) for name in ("a", "b")}
    rescaled = rescale_mean(SENT, {**SENT, **mean}, clients=2, expected=4.0)
    for name in ("a", "b"):
        assert torch.allclose(rescaled[name], direct[name], rtol=0, atol=1e-14)
    assert rescaled["steps"].item() == 7
