"""Probes: class moments against numpy over all samples together, and what is drawn from them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedwild.methods.gains.probes import (
    NOISE,
    check_moments,
    class_moments,
    drawn_probes,
    merged_moments,
    moments_spec,
    public_probes,
)
from fedwild.data.samples import Samples
from fedwild.core.errors import BadReply
from fedwild.core.payload import check_like

SHAPE = (1, 3, 2)


def some(seed: int, count: int, classes: int = 3) -> Samples:
    """Pixels as bytes, so that what clients send are inputs as networks see them."""
    rng = np.random.default_rng(seed)
    x = torch.as_tensor(rng.integers(0, 256, (count, *SHAPE)), dtype=torch.uint8)
    return Samples(x, torch.as_tensor(rng.integers(0, classes, count)), torch.arange(count))


def inputs(samples: Samples) -> tuple[np.ndarray, np.ndarray]:
    return samples.x.numpy().astype(float) / 255, samples.y.numpy()


def test_a_client_s_moments_are_means_of_inputs_and_of_their_squares() -> None:
    own = some(0, 50)
    x, y = inputs(own)
    found = class_moments(own, 4, at_least=1)
    check_like(found, moments_spec(4, SHAPE), "moments")
    assert found["count"].tolist() == np.bincount(y, minlength=4).tolist()
    for c in range(3):
        assert found["mean"][c].numpy() == pytest.approx(x[y == c].mean(0), abs=1e-6)
        assert found["square"][c].numpy() == pytest.approx((x[y == c] ** 2).mean(0), abs=1e-6)
    assert not found["mean"][3].any()


def test_classes_with_fewer_samples_than_asked_leave_no_trace() -> None:
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
    found = merged_moments(class_moments(client, 5, at_least=1) for client in clients)
    x, y = (np.concatenate(column) for column in zip(*map(inputs, clients), strict=True))
    # Classes 3 and 4, which nobody has, are left out.
    assert found["mean"].shape == (3, *SHAPE)
    for c in range(3):
        assert found["mean"][c].numpy() == pytest.approx(x[y == c].mean(0), abs=1e-6)
        assert found["deviation"][c].numpy() == pytest.approx(x[y == c].std(0), abs=1e-5)


def test_nothing_offered_gives_nothing() -> None:
    assert merged_moments([]) == {}
    assert merged_moments([class_moments(some(0, 5), 3, at_least=10)] * 2) == {}


def test_equal_samples_have_a_deviation_of_zero_not_of_rounding_errors() -> None:
    x = torch.full((12, *SHAPE), 0.1)
    own = Samples(x, torch.zeros(12, dtype=torch.int64), torch.arange(12))
    found = merged_moments([class_moments(own, 1, 1)])
    assert float(found["deviation"].abs().max()) < 1e-3
    assert torch.isfinite(found["deviation"]).all()


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_drawn_probes_have_the_samples_shape_and_are_the_same_for_the_same_seed() -> None:
    moments = merged_moments([class_moments(some(0, 60), 3, 1)])
    first, again = drawn_probes(moments, 17, generator()), drawn_probes(moments, 17, generator())
    assert first.shape == (17, *SHAPE)
    assert torch.equal(first, again)
    assert not torch.equal(first, drawn_probes(moments, 17, generator(1)))


def test_drawn_probes_lie_between_class_means_with_a_part_of_their_deviation() -> None:
    moments = {"mean": torch.tensor([[0.0], [10.0]]), "deviation": torch.tensor([[2.0], [2.0]])}
    found = drawn_probes(moments, 40_000, generator()).double()
    # Half of the mixtures are of one class with itself, the others uniform between both.
    spread = 0.5 * (10**2 / 4) + 0.5 * (10**2 / 12)
    assert float(found.mean()) == pytest.approx(5.0, abs=0.1)
    assert float(found.var()) == pytest.approx(spread + (NOISE * 2.0) ** 2, rel=0.03)
    still = drawn_probes({**moments, "deviation": torch.zeros(2, 1)}, 1000, generator())
    assert float(still.min()) >= 0
    assert float(still.max()) <= 10


def test_public_probes_are_public_samples_each_at_most_once() -> None:
    everything = some(0, 40)
    public = everything.take(torch.arange(5, 25))
    allowed = {x.numpy().tobytes() for x in public.all()[0]}
    found = public_probes(public, 12, generator())
    assert found.shape == (12, *SHAPE)
    drawn = {x.numpy().tobytes() for x in found}
    assert len(drawn) == 12
    assert drawn <= allowed
    assert torch.equal(found, public_probes(public, 12, generator()))
    assert not torch.equal(found, public_probes(public, 12, generator(1)))
    assert torch.equal(public_probes(public, 100, generator()), public.all()[0])


@pytest.mark.parametrize("counts", [[-1, 3], [5, 6], [0, 11]])
def test_counts_that_cannot_be_are_refused(counts: list[int]) -> None:
    with pytest.raises(BadReply, match="do not fit 10 samples"):
        check_moments(offered(count=torch.tensor(counts)), 10)
    check_moments(offered(), 10)


def offered(**changes: torch.Tensor) -> dict[str, torch.Tensor]:
    moments = {"count": torch.tensor([5, 5]), "mean": torch.full((2, 3), 0.5), "square": torch.full((2, 3), 0.25)}
    return {**moments, **changes}


def test_moments_that_no_samples_have_are_refused() -> None:
    with pytest.raises(BadReply, match="a mean square is below the square of its mean"):
        check_moments(offered(square=torch.full((2, 3), 0.2)), 10)
    with pytest.raises(BadReply, match="a mean square is below"):
        check_moments(offered(square=torch.full((2, 3), -1.0), mean=torch.zeros(2, 3)), 10)


def test_what_honest_clients_offer_is_accepted() -> None:
    # Without any spread, where rounding decides which of the two is larger.
    flat = Samples(torch.full((30, *SHAPE), 0.7), torch.zeros(30, dtype=torch.int64), torch.arange(30))
    for own in (flat, some(0, 500)):
        check_moments(class_moments(own, 3, 1), len(own))
