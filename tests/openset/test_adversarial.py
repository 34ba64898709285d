"""Enhanced outliers x'': by hand, bounded, less unknown than x', and without any change of the model."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedwild.data.samples import Normalisation
from fedwild.models import Network, build
from fedwild.openset.adversarial import enhance
from tests.models.cases import stir_norms


def images(n: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(n, *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


def dense(dtype: torch.dtype = torch.float64) -> Network:
    torch.manual_seed(0)
    return build("mlp", (1, 3, 4), 4, params={"hidden": [5, 4]}).to(dtype)


def convolutional() -> Network:
    torch.manual_seed(0)
    return build("simple-cnn", (1, 12, 12), 4)


def normed() -> Network:
    """Return a network with batch-norm whose statistics differ from those of any batch."""
    torch.manual_seed(0)
    model = build("digit-cnn", (1, 4, 4), 4)
    stir_norms(model)
    return model


NETWORKS: list[Callable[[], Network]] = [dense, convolutional, normed]


def inputs_of(model: Network, n: int = 6) -> Tensor:
    return images(n, *model.input_shape, dtype=model.head.weight.dtype)


def unknown_losses(model: Network, x: Tensor) -> Tensor:
    """Return CE(f(x), K) of each sample in evaluation mode."""
    mode = model.training
    model.eval()
    with torch.no_grad():
        losses = -model(x).log_softmax(1)[:, -1]
    model.train(mode)
    return losses


def test_a_linear_network_by_hand() -> None:
    model = Network("linear", (2,), {"body": nn.Identity()}, 2, 3).double()
    weight = np.array([[1.0, -2.0], [0.5, 3.0], [-1.5, 0.25]])
    bias = np.array([0.1, -0.2, 0.3])
    with torch.no_grad():
        model.head.weight.copy_(torch.from_numpy(weight))
        model.head.bias.copy_(torch.from_numpy(bias))
    x = np.array([[0.2, 0.8], [0.5, 0.11], [-1.0, -1.0], [3.0, 0.4]])
    expected = x.copy()
    for _ in range(4):
        powers = np.exp(expected @ weight.T + bias)
        shares = powers / powers.sum(1, keepdims=True)
        expected += 0.3 * np.sign((shares - [0, 0, 1]) @ weight)
    moved = enhance(model, torch.from_numpy(x), steps=4, step_size=0.3)
    assert moved.numpy() == pytest.approx(expected, abs=1e-12)
    assert len(np.unique(np.sign(np.round(expected - x, 9)), axis=0)) > 1


def test_dropout_is_off_during_the_steps_and_on_afterwards() -> None:
    torch.manual_seed(0)
    stages = {"body": nn.Sequential(nn.Flatten(), nn.Linear(12, 64), nn.ReLU(), nn.Dropout(0.5))}
    model = Network("dropping", (1, 3, 4), stages, 64, 3).train()
    x = images(6, 1, 3, 4)
    assert torch.equal(enhance(model, x, 3, 0.05), enhance(model, x, 3, 0.05))
    assert all(part.training for part in model.modules())


def test_a_step_is_as_long_in_pixels_if_inputs_are_normalised() -> None:
    model = Network("linear", (3, 2, 2), {"body": nn.Flatten()}, 12, 3).double()
    normalisation = Normalisation(torch.tensor(0.4), torch.tensor([0.1, 0.2, 0.5]).view(1, 3, 1, 1))
    inputs = normalisation.to_inputs(images(5, 3, 2, 2, dtype=torch.float64))
    moved = enhance(model, inputs, 1, 0.01, normalisation)
    change = normalisation.to_pixels(moved) - normalisation.to_pixels(inputs)
    assert change.abs().numpy() == pytest.approx(0.01, abs=1e-9)


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_each_step_follows_the_sign_of_the_gradient_after_the_last_step(steps: int) -> None:
    model = dense()
    x = images(8, 1, 3, 4, dtype=torch.float64)
    expected = x
    for _ in range(steps):
        leaf = expected.clone().requires_grad_(True)
        losses = -model(leaf).log_softmax(1)[:, 3]
        expected = expected + 0.05 * torch.autograd.grad(losses.mean(), leaf)[0].sign()
    assert (enhance(model, x, steps, 0.05) - expected).abs().max() <= 1e-12
    assert (expected - x).abs().max() > 0


def test_outliers_move_away_from_the_last_output_for_any_number_of_classes() -> None:
    for outputs in (2, 3, 101):
        torch.manual_seed(0)
        model = build("mlp", (1, 3, 4), outputs, params={"hidden": [16]}).double()
        x = images(5, 1, 3, 4, dtype=torch.float64)
        moved = enhance(model, x, 1, 1e-3)
        assert model(moved).softmax(1)[:, -1].sum() < model(x).softmax(1)[:, -1].sum()


@pytest.mark.parametrize("make", NETWORKS)
def test_small_steps_make_every_outlier_less_unknown(make: Callable[[], Network]) -> None:
    model = make().double()
    x = inputs_of(model)
    gained = unknown_losses(model, enhance(model, x, 5, 0.002)) - unknown_losses(model, x)
    assert gained.min() > 1e-9


def unchanged(x: Tensor) -> Tensor:
    return x


def transposed(x: Tensor) -> Tensor:
    return x.transpose(-1, -2).contiguous().transpose(-1, -2)


def batch_innermost(x: Tensor) -> Tensor:
    return x.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2)


def strided(x: Tensor) -> Tensor:
    return x.repeat_interleave(2, dim=3)[..., ::2]


def expanded(x: Tensor) -> Tensor:
    return x[:1].expand_as(x)


@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("order", [unchanged, transposed, batch_innermost, strided, expanded])
@pytest.mark.parametrize("make", NETWORKS)
def test_the_given_outliers_do_not_change(
    make: Callable[[], Network], order: Callable[[Tensor], Tensor], steps: int
) -> None:
    model = make()
    x = order(inputs_of(model))
    before = x.clone()
    moved = enhance(model, x, steps, 0.1)
    moved.add_(1)
    assert torch.equal(x, before)
    assert not x.requires_grad
    assert x.grad is None


@pytest.mark.parametrize("order", [transposed, batch_innermost, strided])
def test_the_memory_order_of_outliers_does_not_matter(order: Callable[[Tensor], Tensor]) -> None:
    model = dense()
    x = inputs_of(model)
    assert torch.allclose(enhance(model, order(x), 3, 0.1), enhance(model, x, 3, 0.1), rtol=0, atol=1e-12)


def test_zero_steps_give_an_equal_copy() -> None:
    x = images(3, 1, 3, 4)
    moved = enhance(dense(torch.float32), x, 0, 0.1)
    assert torch.equal(moved, x)
    assert moved.data_ptr() != x.data_ptr()


@pytest.mark.parametrize("make", NETWORKS)
@pytest.mark.parametrize(("steps", "step_size"), [(1, 0.1), (5, 0.002), (3, 0.0)])
def test_values_move_by_at_most_the_sum_of_all_steps(make: Callable[[], Network], steps: int, step_size: float) -> None:
    model = make()
    x = inputs_of(model)
    furthest = (enhance(model, x, steps, step_size) - x).abs().max()
    assert furthest <= steps * step_size + 1e-6
    assert furthest >= steps * step_size - 1e-6


def test_the_result_has_no_graph_and_works_under_no_grad() -> None:
    model = dense()
    x = inputs_of(model)
    moved = enhance(model, x.requires_grad_(True), 2, 0.1)
    assert not moved.requires_grad
    with torch.no_grad():
        assert torch.equal(enhance(model, x, 2, 0.1), moved)
        assert not torch.is_grad_enabled()


def snapshot(model: Network) -> dict[str, object]:
    """Return the whole state of a model, for comparisons."""
    return {
        "state": {key: value.clone().numpy().tobytes() for key, value in model.state_dict().items()},
        "flags": [parameter.requires_grad for parameter in model.parameters()],
        "gradients": [None if p.grad is None else (id(p.grad), p.grad.tolist()) for p in model.parameters()],
        "modes": [part.training for part in model.modules()],
    }


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("make", NETWORKS)
def test_the_model_does_not_change(make: Callable[[], Network], training: bool) -> None:
    model = make().train(training)
    model.head.weight.grad = torch.ones_like(model.head.weight)
    for parameter in model.get_submodule(model.cuts[0]).parameters():
        parameter.requires_grad = False
    before = snapshot(model)
    enhance(model, inputs_of(model), 3, 0.01)
    assert snapshot(model) == before


@pytest.mark.parametrize("training", [True, False])
def test_a_layer_in_another_mode_keeps_its_mode_and_statistics(training: bool) -> None:
    model = normed().train(training)
    model.get_submodule("conv1.norm").train(not training)
    before = snapshot(model)
    enhance(model, inputs_of(model), 2, 0.01)
    assert snapshot(model) == before


def test_batch_norm_uses_its_running_statistics() -> None:
    model = normed()
    x = inputs_of(model)
    while_training = enhance(model.train(), x, 3, 0.01)
    assert torch.equal(while_training, enhance(model.eval(), x, 3, 0.01))


class Breaks(nn.Module):
    """Raises at the second batch."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == 2:
            raise ZeroDivisionError("second batch")
        return x


def test_the_model_does_not_change_after_an_error() -> None:
    stages = {"fc": nn.Linear(3, 2), "norm": nn.BatchNorm1d(2), "breaks": Breaks()}
    model = Network("broken", (3,), stages, 2, 3)
    model.head.bias.requires_grad = False
    before = snapshot(model)
    with pytest.raises(ZeroDivisionError, match="second batch"):
        enhance(model, torch.rand(4, 3), 3, 0.1)
    assert snapshot(model) == before


@pytest.mark.parametrize("make", NETWORKS)
def test_later_gradients_are_not_affected(make: Callable[[], Network]) -> None:
    touched, untouched = make(), make()
    x = inputs_of(touched)
    y = torch.tensor([0, 1, 2, 0, 1, 2])
    enhance(touched, x, 2, 0.01)
    for model in (touched, untouched):
        F.cross_entropy(model(x), y).backward()
    for one, other in zip(touched.parameters(), untouched.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.equal(one.grad, other.grad)
        assert one.grad.any()


class Sums(nn.Module):
    """A layer whose gradient is one value in memory for many pixels."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sum((2, 3))


def test_a_gradient_whose_elements_share_memory_works() -> None:
    torch.manual_seed(0)
    model = Network("sums", (2, 4, 4), {"sums": Sums()}, 2, 3)
    x = images(3, 2, 4, 4)
    moved = enhance(model, x, 2, 0.1)
    assert (moved - x).abs().flatten().tolist() == pytest.approx([0.2] * x.numel(), abs=1e-5)
