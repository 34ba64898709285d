"""Batch-norm tensors by name, and statistics measured again and pooled, against NumPy."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedwild.models import Network
from fedwild.models.norms import (
    frozen_statistics,
    measure_statistics,
    norm_keys,
    norm_layers,
    pool_statistics,
    statistics_keys,
)
from tests.models.cases import inputs, make, stir_norms

Real = NDArray[np.float64]


def two_layers() -> nn.Sequential:
    """Return a float64 network 4 - 3 - 2 with a norm of unusual statistics and momentum after each layer."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 3),
        nn.BatchNorm1d(3, momentum=0.3),
        nn.ReLU(),
        nn.Linear(3, 2),
        nn.BatchNorm1d(2, momentum=None),
    )
    stir_norms(model)
    return model.double()


def batches(*sizes: int) -> list[Tensor]:
    """Return random batches (n, 4) with different means and spreads."""
    generator = torch.Generator().manual_seed(1)
    return [
        i + (1 + i) * torch.randn(size, 4, generator=generator, dtype=torch.float64) for i, size in enumerate(sizes)
    ]


def by_hand(model: nn.Sequential, x: Tensor) -> dict[str, Real]:
    """Return the statistics that one batch gives both norms: means, and variances with n - 1."""
    state = {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
    hidden = x.numpy() @ state["0.weight"].T + state["0.bias"]
    normal = (hidden - hidden.mean(0)) / np.sqrt(hidden.var(0) + 1e-5)
    second = np.maximum(normal * state["1.weight"] + state["1.bias"], 0) @ state["3.weight"].T + state["3.bias"]
    return {
        "1.running_mean": hidden.mean(0),
        "1.running_var": hidden.var(0, ddof=1),
        "4.running_mean": second.mean(0),
        "4.running_var": second.var(0, ddof=1),
    }


def values(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


# --- names -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "layers"), [("digit-cnn", 5), ("resnet-18", 20), ("mlp", 0)])
def test_norm_keys_are_all_tensors_of_batch_norms_and_no_others(name: str, layers: int) -> None:
    model: Network = make(name)
    norms = {path: module for path, module in model.named_modules() if isinstance(module, _BatchNorm)}
    assert len(norms) == layers
    assert norm_layers(model) == norms
    keys = norm_keys(model.state_dict())
    assert keys == [f"{path}.{key}" for path, norm in norms.items() for key in norm.state_dict()]
    assert len(keys) == 5 * layers
    of_both = [key for path in norms for key in (f"{path}.running_mean", f"{path}.running_var")]
    assert statistics_keys(model.state_dict()) == of_both


def test_keys_need_only_the_names() -> None:
    names = ["conv.weight", "conv.norm.weight", "conv.norm.running_mean", "conv.norm.running_var", "running_mean.bias"]
    assert norm_keys(iter(names)) == names[1:4]
    assert statistics_keys(iter(names)) == names[2:4]


# --- measure_statistics ---------------------------------------------------------------------------------------


def test_statistics_are_means_over_batches_weighted_by_size() -> None:
    model = two_layers()
    given_batches = batches(8, 5, 2)
    each = [by_hand(model, x) for x in given_batches]
    assert measure_statistics(model, iter(given_batches)) is True
    found = model.state_dict()
    for name in each[0]:
        assert found[name].numpy() == pytest.approx(
            np.average([one[name] for one in each], axis=0, weights=[8, 5, 2]), abs=1e-12
        ), name


def test_a_second_measurement_replaces_the_first() -> None:
    once, twice = two_layers(), two_layers()
    measure_statistics(twice, batches(9, 3))
    for model in (once, twice):
        measure_statistics(model, batches(4))
    for name in statistics_keys(once.state_dict()):
        assert torch.allclose(once.state_dict()[name], twice.state_dict()[name], atol=1e-12), name


def test_weights_momenta_and_gradients_do_not_change() -> None:
    model = two_layers()
    before = values(model)
    measure_statistics(model, batches(8, 5))
    statistics = set(norm_keys(before)) - {"1.weight", "1.bias", "4.weight", "4.bias"}
    assert all(torch.equal(model.state_dict()[name], before[name]) for name in before if name not in statistics)
    assert [norm.momentum for norm in norm_layers(model).values()] == [0.3, None]
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_model_in_evaluation_mode_can_be_measured() -> None:
    training, evaluating = two_layers(), two_layers().eval()
    for model in (training, evaluating):
        measure_statistics(model, batches(8))
    assert all(map(torch.equal, training.state_dict().values(), evaluating.state_dict().values()))


def test_batches_of_one_are_skipped() -> None:
    with_ones, without = two_layers(), two_layers()
    first, one, second, last = batches(6, 1, 4, 1)
    assert measure_statistics(with_ones, [one, first, last, second, one])
    assert measure_statistics(without, [first, second])
    assert all(map(torch.equal, with_ones.state_dict().values(), without.state_dict().values()))


@pytest.mark.parametrize("sizes", [(), (1,), (1, 1)])
def test_without_a_batch_nothing_changes_and_false_is_returned(sizes: tuple[int, ...]) -> None:
    model = two_layers()
    before = values(model)
    assert measure_statistics(model, batches(*sizes)) is False
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert [norm.momentum for norm in norm_layers(model).values()] == [0.3, None]


@pytest.mark.parametrize("name", ["digit-cnn", "resnet-18"])
def test_evaluation_afterwards_nearly_equals_training(name: str) -> None:
    """With the statistics of one batch, both modes normalise it alike, except for n instead of n - 1."""
    model = make(name)
    stir_norms(model)
    x = inputs(model, 32)
    with torch.no_grad():
        stale = deepcopy(model).eval()(x)
        expected = deepcopy(model).train()(x)
        measure_statistics(model, [x])
        found = model.eval()(x)
    spread = float(expected.std())
    assert float((found - expected).abs().mean()) < 0.1 * spread
    assert float((stale - expected).abs().mean()) > 0.3 * spread


# --- pool_statistics ----------------------------------------------------------------------------------------


def statistics_of(x: Real) -> dict[str, Tensor]:
    """Return means and biased variances in two layers whose activations are x and -2x: (n, 3)."""
    layers = {"a": x, "b": -2 * x}
    means = {f"{layer}.running_mean": torch.from_numpy(values.mean(0)) for layer, values in layers.items()}
    return means | {f"{layer}.running_var": torch.from_numpy(values.var(0)) for layer, values in layers.items()}


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=6),
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.0, 0.1, 10.0]),
)
def test_pooled_statistics_equal_those_of_all_samples(sizes: list[int], seed: int, apart: float) -> None:
    rng = np.random.default_rng(seed)
    groups = [rng.normal(rng.normal(0, apart, 3), rng.uniform(0.1, 2), (size, 3)) for size in sizes]
    found = pool_statistics((float(len(group)), statistics_of(group)) for group in groups)
    expected = statistics_of(np.concatenate(groups))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == torch.float32
        # float32 has 24 bits: 6e-8 of a value.
        assert found[name].double().numpy() == pytest.approx(value.numpy(), rel=2e-7, abs=1e-12), name


def test_a_large_mean_keeps_a_small_variance() -> None:
    groups = [np.full((4, 3), 1000.0) + np.array([[0.01], [-0.01], [0.01], [-0.01]])] * 2
    found = pool_statistics((4.0, statistics_of(group)) for group in groups)
    assert found["a.running_var"].numpy() == pytest.approx(1e-4, rel=1e-4)


def test_equal_constants_have_no_negative_variance() -> None:
    groups: list[Any] = [np.full((1, 3), value) for value in (0.1, 0.1, 0.1)]
    found = pool_statistics((3.0, statistics_of(group)) for group in groups)
    assert (found["a.running_var"] >= 0).all()
    assert found["a.running_var"].numpy() == pytest.approx(0, abs=1e-12)


def test_other_tensors_are_skipped_and_no_groups_give_an_empty_result() -> None:
    group = {**statistics_of(np.ones((2, 3))), "a.weight": torch.ones(3), "a.num_batches_tracked": torch.tensor(3)}
    assert pool_statistics([(2.0, group)]).keys() == statistics_of(np.ones((2, 3))).keys()
    assert pool_statistics([]) == {}


def test_frozen_statistics_give_the_outputs_and_gradients_of_training() -> None:
    network = make("digit-cnn")
    x = inputs(network, 6)
    before = {name: buffer.clone() for name, buffer in network.named_buffers()}
    with frozen_statistics(list(norm_layers(network).values())):
        inside = network.embed(x)
    assert all(torch.equal(buffer, before[name]) for name, buffer in network.named_buffers())
    inside.square().sum().backward()
    gradients = [p.grad.clone() for p in network.parameters() if p.grad is not None]
    network.zero_grad()
    outside = network.embed(x)
    outside.square().sum().backward()
    assert torch.equal(inside, outside)
    again = [p.grad for p in network.parameters() if p.grad is not None]
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(gradients, again, strict=True))
    assert not torch.allclose(outside, network.eval().embed(x))


def test_statistics_are_tracked_again_after_an_error() -> None:
    layers = [nn.BatchNorm1d(2)]
    with pytest.raises(RuntimeError), frozen_statistics(layers):
        assert not layers[0].track_running_stats
        raise RuntimeError
    assert layers[0].track_running_stats
