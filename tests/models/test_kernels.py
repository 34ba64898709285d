"""The fast layers against PyTorch's operations: results, gradients, ties, memory orders, skipped gradients."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import NoReturn

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedwild.models import build, kernels
from fedwild.models.kernels import ConvPoolReLU, MaxPool2x2, plain
from tests.models.cases import inputs, make

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
IMAGES = [(1, 28, 28), (3, 32, 32), (1, 8, 8), (2, 29, 31), (3, 9, 11)]
KERNELS = [(3, 0), (3, 1), (5, 0), (5, 2)]

Shape = tuple[int, int, int]


def contiguous(x: Tensor) -> Tensor:
    return x.contiguous()


def batch_innermost(x: Tensor) -> Tensor:
    return x.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2)


def channels_innermost(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def every_second_of_a_larger(x: Tensor) -> Tensor:
    return x.repeat_interleave(2, dim=3)[..., ::2]


ORDERS = [contiguous, batch_innermost, channels_innermost, every_second_of_a_larger]


def random(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def whole(low: int, high: int, *shape: int, seed: int = 1) -> Tensor:
    """Return whole numbers as float64, so that sums of products are exact in any order."""
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed)).double()


def convolution(channels: int, kernel: int, padding: int = 0, dtype: torch.dtype = torch.float64) -> ConvPoolReLU:
    torch.manual_seed(0)
    return ConvPoolReLU(channels, 4, kernel, padding).to(dtype)


def whole_convolution(channels: int, kernel: int, padding: int = 0) -> ConvPoolReLU:
    layer = convolution(channels, kernel, padding)
    with torch.no_grad():
        layer.conv.weight.copy_(whole(-1, 2, *layer.conv.weight.shape, seed=3))
        layer.conv.bias.copy_(whole(-1, 3, 4, seed=4))  # type: ignore[union-attr]
    return layer


def results(layer: nn.Module, x: Tensor, weights: Tensor) -> list[Tensor]:
    """Return the output and the gradients of (output * weights).sum() for the input and each parameter."""
    leaf = x.detach().requires_grad_(True)
    output = layer(leaf)
    return [output.detach(), *torch.autograd.grad(output, [leaf, *layer.parameters()], weights)]


def plain_results(layer: nn.Module, x: Tensor, weights: Tensor) -> list[Tensor]:
    with plain():
        return results(layer, x, weights)


def clear_weights(before_pool: Tensor) -> Tensor:
    """Return random weights for a pooled output, 0 where rounding could change the winner or the sign."""
    windows = F.unfold(before_pool.flatten(0, 1).unsqueeze(1), 2, stride=2)
    first, second = windows.topk(2, dim=1).values.unbind(1)
    clear = ((first - second) > 1e-3) & (first.abs() > 1e-3)
    n, c, h, w = before_pool.shape
    shape = (n, c, h // 2, w // 2)
    return random(*shape, seed=2) * clear.view(shape)


def assert_same(fast: list[Tensor], slow: list[Tensor], tolerance: float) -> None:
    assert len(fast) == len(slow)
    for one, other in zip(fast, slow, strict=True):
        assert one.shape == other.shape
        assert one.dtype == other.dtype
        assert other.abs().max() > 0
        assert (one - other).abs().max() <= tolerance * other.abs().max()


def check_convolution(layer: ConvPoolReLU, x: Tensor) -> None:
    """Compare with the plain form in double precision, since PyTorch's own float32 sums are less exact."""
    exact = deepcopy(layer).double()
    weights = clear_weights(exact.conv(x.double()).detach())
    expected = [tensor.to(x.dtype) for tensor in plain_results(exact, x.double(), weights.to(x.dtype).double())]
    assert_same(results(layer, x, weights.to(x.dtype)), expected, TOLERANCE[x.dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("n", [1, 64])
@pytest.mark.parametrize(("kernel", "padding"), KERNELS)
@pytest.mark.parametrize("shape", IMAGES)
def test_convolution_and_gradients_equal_pytorchs(
    shape: Shape, kernel: int, padding: int, n: int, dtype: torch.dtype
) -> None:
    check_convolution(convolution(shape[0], kernel, padding, dtype), random(n, *shape, dtype=dtype))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("padding", [0, 2])
@pytest.mark.parametrize("n", [1, 7])
def test_convolution_accepts_any_memory_order(order: Callable[[Tensor], Tensor], padding: int, n: int) -> None:
    layer = convolution(3, 5, padding)
    x = random(n, 3, 9, 12)
    ordered = order(x)
    weights = random(*layer(x).shape, seed=2)
    assert torch.equal(ordered, x)
    assert_same(results(layer, ordered, weights), plain_results(layer, x, weights), 1e-10)


def test_consecutive_layers_have_pytorchs_gradients() -> None:
    layers = nn.Sequential(convolution(1, 5, 2), convolution(4, 3), MaxPool2x2())
    x = random(6, 1, 28, 28)
    weights = random(6, 4, 3, 3, seed=2)
    assert_same(results(layers, x, weights), plain_results(layers, x, weights), 1e-10)


@pytest.mark.parametrize("n", [4, 5, 8, 11])
def test_batches_above_the_maximum_are_computed_in_parts(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "MAX_BATCH", 4)
    sizes: list[int] = []
    strips = kernels.cut_strips

    def watched(x: Tensor, size: int) -> Tensor:
        sizes.append(x.shape[-1])
        return strips(x, size)

    monkeypatch.setattr(kernels, "cut_strips", watched)
    layer = convolution(2, 3, 1)
    layer(random(n, 2, 8, 9))
    assert max(sizes) <= 4
    assert sum(sizes) == n
    for order in (contiguous, batch_innermost):
        check_convolution(layer, order(random(n, 2, 8, 9)))


@pytest.mark.parametrize("kernel", [1, 3])
def test_convolution_has_the_numerical_gradient(kernel: int) -> None:
    layer = convolution(2, kernel)

    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.func.functional_call(layer, {"conv.weight": weight, "conv.bias": bias}, (x,))

    parameters = [parameter.detach().clone().requires_grad_(True) for parameter in layer.parameters()]
    assert torch.autograd.gradcheck(function, (random(2, 2, 6, 7).requires_grad_(True), *parameters))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("n", [1, 64])
@pytest.mark.parametrize("shape", [*IMAGES, (2, 2, 2), (1, 3, 2)])
def test_pooling_and_its_gradient_equal_pytorchs_exactly(
    shape: Shape, n: int, order: Callable[[Tensor], Tensor], dtype: torch.dtype
) -> None:
    x = order(random(n, *shape, dtype=dtype))
    weights = random(n, shape[0], shape[1] // 2, shape[2] // 2, dtype=dtype, seed=2)
    fast, slow = results(MaxPool2x2(), x, weights), plain_results(MaxPool2x2(), x, weights)
    assert all(map(torch.equal, fast, slow))


def test_pooling_has_the_numerical_gradient() -> None:
    assert torch.autograd.gradcheck(MaxPool2x2(), random(2, 2, 5, 6).requires_grad_(True))


def with_flat_regions(n: int, channels: int, height: int, width: int) -> Tensor:
    """Return images of 0 and 1 with a constant half; the first is all 0, the second all 1."""
    x = whole(0, 2, n, channels, height, width)
    x[:, :, : height // 2] = 1
    x[0], x[1] = 0, 1
    return x


@pytest.mark.parametrize("order", [contiguous, batch_innermost])
@pytest.mark.parametrize("sides", [(8, 8), (9, 11), (28, 28)])
@pytest.mark.parametrize(("kernel", "padding"), KERNELS)
def test_ties_in_a_convolution_are_resolved_as_in_pytorch(
    kernel: int, padding: int, sides: tuple[int, int], order: Callable[[Tensor], Tensor]
) -> None:
    layer = whole_convolution(2, kernel, padding)
    x = order(with_flat_regions(6, 2, *sides))
    weights = whole(1, 9, *layer(x).shape, seed=2)
    fast, slow = results(layer, x, weights), plain_results(layer, x, weights)
    assert all(map(torch.equal, fast, slow))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("sides", [(8, 8), (9, 11)])
def test_ties_in_pooling_are_resolved_as_in_pytorch(sides: tuple[int, int], order: Callable[[Tensor], Tensor]) -> None:
    x = order(with_flat_regions(6, 2, *sides))
    weights = whole(1, 9, 6, 2, sides[0] // 2, sides[1] // 2, seed=2)
    fast, slow = results(MaxPool2x2(), x, weights), plain_results(MaxPool2x2(), x, weights)
    assert all(map(torch.equal, fast, slow))


WINDOWS = [
    ([[1.0, 1.0], [1.0, 1.0]], [[1.0, 0.0], [0.0, 0.0]]),
    ([[0.0, 1.0], [1.0, 1.0]], [[0.0, 1.0], [0.0, 0.0]]),
    ([[0.0, 0.0], [1.0, 1.0]], [[0.0, 0.0], [1.0, 0.0]]),
    ([[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 0.0]]),
    ([[0.0, 1.0], [1.0, 0.0]], [[0.0, 1.0], [0.0, 0.0]]),
    ([[0.0, 0.0], [0.0, 1.0]], [[0.0, 0.0], [0.0, 1.0]]),
]


@pytest.mark.parametrize(("window", "expected"), WINDOWS)
def test_a_tie_goes_to_the_first_pixel_in_reading_order(window: list[list[float]], expected: list[list[float]]) -> None:
    identity = ConvPoolReLU(1, 1, 1)
    nn.init.ones_(identity.conv.weight)
    nn.init.ones_(identity.conv.bias)  # type: ignore[arg-type]
    for layer in (identity, MaxPool2x2()):
        x = torch.tensor([[window]], requires_grad=True)
        layer(x).sum().backward()
        assert x.grad is not None
        assert x.grad[0, 0].tolist() == expected


def test_relu_passes_nothing_at_zero() -> None:
    layer = whole_convolution(1, 3)
    nn.init.zeros_(layer.conv.bias)  # type: ignore[arg-type]
    x = torch.zeros(2, 1, 8, 8, dtype=torch.float64, requires_grad=True)
    layer(x).sum().backward()
    for tensor in (x, *layer.parameters()):
        assert tensor.grad is not None
        assert not tensor.grad.any()


def fail(*args: object) -> NoReturn:
    raise AssertionError("this gradient must not be computed")


def test_with_frozen_weights_only_the_input_gradient_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = convolution(2, 5), random(3, 2, 12, 12)
    weights = random(3, 4, 4, 4, seed=2)
    expected = results(layer, x, weights)[1]
    monkeypatch.setattr(kernels, "unshift_kernels", fail)
    layer.requires_grad_(False)
    x.requires_grad_(True)
    layer(x).backward(weights)
    assert x.grad is not None
    assert torch.equal(x.grad, expected)
    assert all(parameter.grad is None for parameter in layer.parameters())


def test_for_data_only_parameter_gradients_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = convolution(2, 5), random(3, 2, 12, 12)
    weights = random(3, 4, 4, 4, seed=2)
    expected = results(layer, x, weights)[2:]
    monkeypatch.setattr(kernels, "input_gradient", fail)
    layer(x).backward(weights)
    assert x.grad is None
    for parameter, gradient in zip(layer.parameters(), expected, strict=True):
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, gradient)


@pytest.mark.parametrize("name", ["conv.weight", "conv.bias"])
def test_a_single_parameter_gets_its_gradient(name: str) -> None:
    layer, x = convolution(2, 3), random(3, 2, 8, 8)
    weights = random(3, 4, 3, 3, seed=2)
    names = [each for each, _ in layer.named_parameters()]
    expected = results(layer, x, weights)[2 + names.index(name)]
    layer.requires_grad_(False)
    parameter = layer.get_parameter(name).requires_grad_(True)
    layer(x).backward(weights)
    assert parameter.grad is not None
    assert torch.equal(parameter.grad, expected)


def test_a_retained_graph_can_be_used_twice() -> None:
    layer, x = convolution(2, 3), random(3, 2, 8, 8).requires_grad_(True)
    value = layer(x).sum()
    first = torch.autograd.grad(value, [x, *layer.parameters()], retain_graph=True)
    second = torch.autograd.grad(value, [x, *layer.parameters()])
    assert all(map(torch.equal, first, second))


def test_inputs_and_weights_are_not_changed() -> None:
    layer, x = convolution(2, 5, 2), random(3, 2, 9, 9)
    before = [x.clone(), *(parameter.detach().clone() for parameter in layer.parameters())]
    layer(x.requires_grad_(True)).sum().backward()
    assert all(map(torch.equal, before, [x.detach(), *layer.parameters()]))


def second_derivative(layer: nn.Module) -> Tensor:
    """Return the gradient, for the input, of the squared norm of the input gradient."""
    x = random(2, 2, 8, 8).requires_grad_(True)
    (first,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
    return torch.autograd.grad(first.square().sum(), x)[0]


def is_plain() -> bool:
    """Return whether second derivatives are defined, for both layers."""
    defined: list[bool] = []
    for layer in (convolution(2, 3), MaxPool2x2()):
        try:
            second_derivative(layer)
            defined.append(True)
        except RuntimeError:
            defined.append(False)
    assert defined[0] == defined[1]
    return defined[0]


@pytest.mark.parametrize("layer", [convolution(2, 3), MaxPool2x2()], ids=["convolution", "pooling"])
def test_second_derivatives_are_rejected_unless_plain(layer: nn.Module) -> None:
    with pytest.raises(RuntimeError, match=r"kernels\.plain"):
        second_derivative(layer)
    with plain():
        assert second_derivative(layer).abs().max() > 0


def test_a_term_with_a_second_derivative_is_never_dropped_silently() -> None:
    layer, x = convolution(2, 3), random(2, 2, 8, 8).requires_grad_(True)

    def gradient() -> Tensor:
        loss = layer(x).square().sum()
        (first,) = torch.autograd.grad(loss, x, create_graph=True)
        return torch.autograd.grad(loss + first.square().sum(), layer.conv.weight)[0]

    with pytest.raises(RuntimeError, match=r"kernels\.plain"):
        gradient()
    with plain():
        assert gradient().isfinite().all()


def test_plain_ends_with_its_block_also_when_nested() -> None:
    assert not is_plain()
    with plain():
        assert is_plain()
        with plain():
            assert is_plain()
        assert is_plain()
    assert not is_plain()


def test_plain_ends_with_its_block_after_an_exception() -> None:
    with pytest.raises(KeyError), plain():
        with pytest.raises(ValueError), plain():
            raise ValueError
        assert is_plain()
        raise KeyError
    assert not is_plain()


@pytest.mark.parametrize("kernel", [2, 4])
def test_even_kernels_are_rejected(kernel: int) -> None:
    with pytest.raises(ValueError, match=f"odd kernel size, not {kernel}"):
        ConvPoolReLU(1, 2, kernel)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
@pytest.mark.parametrize("layer", [convolution(2, 5, 2), MaxPool2x2()], ids=["convolution", "pooling"])
def test_layers_work_without_gradients(layer: nn.Module, mode: type[torch.no_grad]) -> None:
    x = random(3, 2, 9, 8)
    expected = layer(x).detach()
    with mode():
        output = layer(x)
        again = layer(x + 0)
    assert not output.requires_grad
    assert torch.equal(output, expected)
    assert torch.equal(again, expected)


@pytest.mark.parametrize("padding", [0, 2])
def test_an_empty_batch_gives_an_empty_result_and_zero_gradients(padding: int) -> None:
    for layer in (convolution(2, 5, padding), MaxPool2x2()):
        x = torch.zeros(0, 2, 8, 8, dtype=torch.float64)
        weights = torch.zeros_like(layer(x))
        fast, slow = results(layer, x, weights), plain_results(layer, x, weights)
        assert fast[0].shape[0] == 0
        assert all(map(torch.equal, fast, slow))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["simple-cnn", "digit-cnn", "vgg-9"])
def test_networks_give_the_same_logits_and_gradients_in_both_forms(name: str, training: bool) -> None:
    network = make(name).double().train(training)
    x = inputs(network, 4).double()
    weights = random(4, 5, seed=2)
    assert_same(results(network, x, weights), plain_results(network, x, weights), 1e-8)


@pytest.mark.parametrize("name", ["simple-cnn", "digit-cnn", "vgg-9"])
def test_networks_in_single_precision_give_the_same_logits_in_both_forms(name: str) -> None:
    network = make(name).eval()
    x = inputs(network, 4)
    with torch.no_grad():
        fast = network(x)
        with plain():
            slow = network(x)
    assert (fast - slow).abs().max() <= 1e-5 * slow.abs().max()


def test_the_parameter_names_of_simple_cnn_do_not_change() -> None:
    assert list(build("simple-cnn", (1, 8, 8), 3).state_dict()) == [
        "conv1.conv.weight",
        "conv1.conv.bias",
        "conv2.conv.weight",
        "conv2.conv.bias",
        "fc1.fc.weight",
        "fc1.fc.bias",
        "fc2.fc.weight",
        "fc2.fc.bias",
        "head.weight",
        "head.bias",
    ]
