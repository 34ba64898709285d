"""Probes: class moments compared with NumPy over all samples, and draws from them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedwild.contract import Server, Step
from fedwild.core.classes import ClassRegistry
from fedwild.core.errors import BadReply
from fedwild.core.rng import Rng
from fedwild.data import samples_of
from fedwild.data.samples import Samples
from fedwild.methods.gains.probes import (
    NOISE,
    check_moments,
    class_moments,
    draw_probes,
    merge_moments,
    probe_samples,
)
from tests.methods.by_hand import PLAIN
from tests.tiny import tiny_dataset

SHAPE = (1, 3, 2)


def some(seed: int, count: int, classes: int = 3) -> Samples:
    """Return samples with pixels as bytes, to test that moments are those of the networks' inputs."""
    rng = np.random.default_rng(seed)
    x = torch.as_tensor(rng.integers(0, 256, (count, *SHAPE)), dtype=torch.uint8)
    return Samples(x, torch.as_tensor(rng.integers(0, classes, count)), torch.arange(count))


def inputs(samples: Samples) -> tuple[np.ndarray, np.ndarray]:
    return samples.x.numpy().astype(float) / 255, samples.y.numpy()


def test_a_client_s_moments_are_means_of_inputs_and_of_their_squares() -> None:
    own = some(0, 50)
    x, y = inputs(own)
    found = class_moments(own, 4, at_least=1)
    check_moments(found, 4, SHAPE, 50)
    assert found["count"].tolist() == np.bincount(y, minlength=4).tolist()
    for c in range(3):
        assert found["mean"][c].numpy() == pytest.approx(x[y == c].mean(0), abs=1e-6)
        assert found["square"][c].numpy() == pytest.approx((x[y == c] ** 2).mean(0), abs=1e-6)
    assert not found["mean"][3].any()


def test_classes_with_too_few_samples_are_zero() -> None:
    own = some(0, 20)
    own.y[:] = torch.tensor([0] * 10 + [1] * 9 + [2])
    found = class_moments(own, 3, at_least=10)
    assert found["count"].tolist() == [10, 0, 0]
    assert not found["mean"][1:].any()
    assert not found["square"][1:].any()
    assert found["mean"][0].any()


def test_merged_moments_are_those_of_all_samples_pooled() -> None:
    clients = [some(seed, count) for seed, count in enumerate((30, 55, 80))]
    clients[2].y.clamp_(max=1)
    found = merge_moments(class_moments(client, 5, at_least=1) for client in clients)
    x, y = (np.concatenate(column) for column in zip(*map(inputs, clients), strict=True))
    # Classes 3 and 4, which no client has, are omitted.
    assert found["mean"].shape == (3, *SHAPE)
    for c in range(3):
        assert found["mean"][c].numpy() == pytest.approx(x[y == c].mean(0), abs=1e-6)
        assert found["deviation"][c].numpy() == pytest.approx(x[y == c].std(0), abs=1e-5)


def test_without_any_moments_there_are_none_to_merge() -> None:
    assert merge_moments([]) == {}
    assert merge_moments([class_moments(some(0, 5), 3, at_least=10)] * 2) == {}


def test_equal_samples_have_a_deviation_of_zero_despite_rounding() -> None:
    x = torch.full((12, *SHAPE), 0.1)
    own = Samples(x, torch.zeros(12, dtype=torch.int64), torch.arange(12))
    found = merge_moments([class_moments(own, 1, 1)])
    assert float(found["deviation"].abs().max()) < 1e-3
    assert torch.isfinite(found["deviation"]).all()


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_drawn_probes_have_the_shape_of_samples_and_depend_on_the_seed() -> None:
    moments = merge_moments([class_moments(some(0, 60), 3, 1)])
    first, again = draw_probes(moments, 17, generator()), draw_probes(moments, 17, generator())
    assert first.shape == (17, *SHAPE)
    assert torch.equal(first, again)
    assert not torch.equal(first, draw_probes(moments, 17, generator(1)))


def test_drawn_probes_lie_between_class_means_with_a_share_of_their_deviation() -> None:
    moments = {"mean": torch.tensor([[0.0], [10.0]]), "deviation": torch.tensor([[2.0], [2.0]])}
    found = draw_probes(moments, 40_000, generator()).double()
    # Half of the mixtures are of a class with itself; the others are uniform between both.
    spread = 0.5 * (10**2 / 4) + 0.5 * (10**2 / 12)
    assert float(found.mean()) == pytest.approx(5.0, abs=0.1)
    assert float(found.var()) == pytest.approx(spread + (NOISE * 2.0) ** 2, rel=0.03)
    still = draw_probes({**moments, "deviation": torch.zeros(2, 1)}, 1000, generator())
    assert float(still.min()) >= 0
    assert float(still.max()) <= 10


def test_public_probes_are_public_samples_each_at_most_once() -> None:
    server = Server(PLAIN, ClassRegistry.of(("a", "b")), Step("discover-1", 0, 3), Rng(0))
    server.public = some(0, 40).take(torch.arange(5, 25))
    allowed = {x.numpy().tobytes() for x in server.public.all()[0]}
    found = probe_samples(server, 1, 12)
    assert found.shape == (12, *SHAPE)
    drawn = {x.numpy().tobytes() for x in found}
    assert len(drawn) == 12
    assert drawn <= allowed
    assert torch.equal(found, probe_samples(server, 1, 12))
    assert not torch.equal(found, probe_samples(server, 2, 12))
    assert torch.equal(probe_samples(server, 1, 100), server.public.all()[0])


@pytest.mark.parametrize("counts", [[-1, 3], [5, 6], [0, 11]])
def test_impossible_counts_are_rejected(counts: list[int]) -> None:
    with pytest.raises(BadReply, match="do not fit 10 samples"):
        check_moments(moments_of(count=torch.tensor(counts)), 2, (3,), 10)
    check_moments(moments_of(), 2, (3,), 10)


def moments_of(**changes: torch.Tensor) -> dict[str, torch.Tensor]:
    moments = {"count": torch.tensor([5, 5]), "mean": torch.full((2, 3), 0.5), "square": torch.full((2, 3), 0.25)}
    return {**moments, **changes}


@pytest.mark.parametrize(("classes", "shape"), [(3, (3,)), (2, (4,)), (2, (3, 1))])
def test_moments_of_other_classes_or_shapes_are_rejected(classes: int, shape: tuple[int, ...]) -> None:
    with pytest.raises(BadReply, match="moments"):
        check_moments(moments_of(), classes, shape, 10)


def test_impossible_moments_are_rejected() -> None:
    with pytest.raises(BadReply, match="a mean square is less than the square of its mean"):
        check_moments(moments_of(square=torch.full((2, 3), 0.2)), 2, (3,), 10)
    with pytest.raises(BadReply, match="a mean square is less"):
        check_moments(moments_of(square=torch.full((2, 3), -1.0), mean=torch.zeros(2, 3)), 2, (3,), 10)


def test_moments_of_real_samples_are_accepted() -> None:
    # Without any spread, rounding decides which of the two is larger.
    flat = Samples(torch.full((30, *SHAPE), 0.7), torch.zeros(30, dtype=torch.int64), torch.arange(30))
    for own in (flat, some(0, 500)):
        check_moments(class_moments(own, 3, 1), 3, SHAPE, len(own))


# --- probes of a stage ----------------------------------------------------------------------------------------


def test_the_probes_of_a_stage_are_the_same_in_every_round() -> None:
    server = Server(PLAIN, ClassRegistry.of(("a", "b")), Step("discover-1", 0, 3), Rng(0))
    server.state.put("moments", {"mean": torch.rand(2, 1, 8, 8), "deviation": torch.rand(2, 1, 8, 8)})
    first = probe_samples(server, 1, 7)
    assert first.shape == (7, 1, 8, 8)
    server.step, server.rng = Step("adapt-1", 1, 5), Rng(0).child("adapt-1", 1, "server")
    assert torch.equal(probe_samples(server, 1, 7), first)
    assert not torch.equal(probe_samples(server, 2, 7), first)


def test_public_samples_are_preferred_and_noise_is_the_last_resort() -> None:
    server = Server(PLAIN, ClassRegistry.of(("a", "b")), Step("discover-1", 0, 3), Rng(0))
    noise = probe_samples(server, 1, 7)
    assert noise.shape == (7, 1, 8, 8)
    assert 0 <= float(noise.min()) < float(noise.max()) < 1
    server.state.put("moments", {"mean": torch.rand(2, 1, 8, 8), "deviation": torch.rand(2, 1, 8, 8)})
    server.public = samples_of(tiny_dataset(classes=2), np.arange(20))
    public = {x.numpy().tobytes() for x in server.public.all()[0]}
    found = probe_samples(server, 1, 7)
    assert len(found) == 7
    assert {x.numpy().tobytes() for x in found} <= public
