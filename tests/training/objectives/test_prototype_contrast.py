"""GAL's known-class loss: the contrast of Eq. 4 in plain numbers, and what eta, temperature and balanced do."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedwild.core.errors import UserError
from fedwild.core.settings import validate
from fedwild.data.samples import Samples
from fedwild.models import Network, build
from fedwild.training.objectives import OBJECTIVES
from fedwild.training.objectives.balanced import log_shares
from fedwild.training.objectives.prototype_contrast import PrototypeContrast, prototype_contrast

Vectors = list[list[float]]

Z: Vectors = [[3.0, 0.5, -1.0], [0.2, 2.0, 0.1], [-1.0, 1.5, 4.0]]
PROTOTYPES: Vectors = [[1.0, 0.3, 0.0], [-0.5, 2.0, 1.0]]
CASES = [[0, 1, 1], [0, 1, 0], [1, 1, 1], [0, 0, 1]]


def cosine(a: list[float], b: list[float]) -> float:
    return sum(u * v for u, v in zip(a, b, strict=True)) / (math.hypot(*a) * math.hypot(*b))


def by_terms(z: Vectors, prototypes: Vectors, y: list[int], temperature: float) -> float:
    """Return the mean of -log of the ratio in Eq. 4, term by term."""
    losses = []
    for i, label in enumerate(y):
        own = math.exp(cosine(z[i], prototypes[label]) / temperature)
        total = sum(math.exp(cosine(z[i], prototype) / temperature) for prototype in prototypes)
        total += sum(math.exp(cosine(z[i], z[j]) / temperature) for j in range(len(z)) if y[j] != label)
        losses.append(-math.log(own / total))
    return sum(losses) / len(losses)


def contrast(z: Vectors, prototypes: Vectors, y: list[int], temperature: float = 0.3) -> float:
    first, second = (torch.tensor(values, dtype=torch.float64) for values in (z, prototypes))
    return prototype_contrast(first, second, torch.tensor(y), temperature).item()


def network() -> Network:
    torch.manual_seed(0)
    return build("mlp", (4,), 3, bias=False, params={"hidden": [5]}).double()


def batch(n: int = 6) -> tuple[Tensor, Tensor]:
    return torch.rand(n, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64), torch.arange(n) % 3


def objective(**settings: Any) -> PrototypeContrast:
    return PrototypeContrast(PrototypeContrast.Params(**{"eta": 0.1, "temperature": 0.07, **settings}))


def loss_of(model: Network, **settings: Any) -> Tensor:
    return objective(**settings).loss(model, *batch(), torch.Generator())


# --- the contrast itself ------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.07, 0.5, 2.0])
@pytest.mark.parametrize("y", CASES)
def test_the_contrast_is_eq_4_with_its_logarithm(y: list[int], temperature: float) -> None:
    expected = by_terms(Z, PROTOTYPES, y, temperature)
    assert contrast(Z, PROTOTYPES, y, temperature) == pytest.approx(expected, rel=1e-12)


def test_one_sample_at_its_prototype_with_two_orthogonal_ones() -> None:
    # exp(1 / t) / (exp(1 / t) + exp(0))
    found = contrast([[5.0, 0.0]], [[0.1, 0.0], [0.0, 7.0]], [0], temperature=0.5)
    assert found == pytest.approx(math.log(1 + math.exp(-2)), rel=1e-12)


def test_the_own_prototype_of_a_class_is_in_the_denominator() -> None:
    # With one class and one sample there is nothing else, and the ratio is 1. Two equal classes halve it.
    assert contrast([[1.0, 2.0]], [[3.0, -1.0]], [0]) == 0.0
    assert contrast([[1.0, 2.0]], [[3.0, -1.0]] * 2, [0]) == pytest.approx(math.log(2), rel=1e-12)


def test_samples_of_the_same_class_are_not_negatives() -> None:
    alone = [contrast([z], PROTOTYPES, [1]) for z in Z]
    assert contrast(Z, PROTOTYPES, [1, 1, 1]) == pytest.approx(sum(alone) / 3, rel=1e-12)
    # And neither is a sample its own negative, while one of another label is.
    assert contrast(Z, PROTOTYPES, [1, 1, 0]) > (alone[0] + alone[1] + contrast([Z[2]], PROTOTYPES, [0])) / 3 + 0.01


def test_vectors_are_normalised() -> None:
    stretched = [[9.0 * v for v in row] for row in Z], [[0.2 * v for v in row] for row in PROTOTYPES]
    assert contrast(*stretched, [0, 1, 1]) == pytest.approx(contrast(Z, PROTOTYPES, [0, 1, 1]), rel=1e-12)


def test_the_temperature_of_the_paper_does_not_overflow_in_float32() -> None:
    z = torch.eye(4) * 1000
    loss = prototype_contrast(z, -z, torch.arange(4), 0.07)
    # Own prototype at -1, the three others at 0, three samples at 0.
    expected = math.log(1 + 6 * math.exp(1 / 0.07))
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_gradients_reach_embeddings_and_prototypes_and_are_those_of_the_formula() -> None:
    z, prototypes = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (Z, PROTOTYPES))
    y = torch.tensor([0, 1, 1])
    assert torch.autograd.gradcheck(lambda a, b: prototype_contrast(a, b, y, 0.3), (z, prototypes))
    gradients = torch.autograd.grad(prototype_contrast(z, prototypes, y, 0.3), (z, prototypes))
    assert all(bool((gradient.norm(dim=1) > 1e-3).all()) for gradient in gradients)


# --- the objective ------------------------------------------------------------------------------------------


def test_it_is_registered_and_adds_no_output() -> None:
    assert OBJECTIVES.get("prototype-contrast") is PrototypeContrast
    assert PrototypeContrast.extra_outputs == 0


def test_the_loss_is_cross_entropy_plus_eta_times_the_contrast() -> None:
    model, (x, y) = network(), batch()
    z, rows = model.embed(x).tolist(), model.head.weight.tolist()
    ce = F.cross_entropy(model(x), y).item()
    for eta, temperature in ((0.1, 0.07), (2.0, 0.07), (2.0, 0.9)):
        expected = ce + eta * by_terms(z, rows, y.tolist(), temperature)
        assert loss_of(model, eta=eta, temperature=temperature).item() == pytest.approx(expected, rel=1e-10)


def test_without_eta_it_is_cross_entropy_bit_for_bit() -> None:
    model, (x, y) = network(), batch()
    ours, plain = loss_of(model, eta=0.0), F.cross_entropy(model(x), y)
    assert torch.equal(ours, plain)
    gradients = (torch.autograd.grad(loss, list(model.parameters())) for loss in (ours, plain))
    for mine, theirs in zip(*gradients, strict=True):
        assert torch.equal(mine, theirs)


def test_gradients_reach_the_extractor_and_every_row_of_the_head() -> None:
    model = network()
    parameters = dict(model.named_parameters())
    with_it, without = (
        dict(zip(parameters, torch.autograd.grad(loss_of(model, eta=eta), list(parameters.values())), strict=True))
        for eta in (1.0, 0.0)
    )
    assert (with_it["head.weight"] - without["head.weight"]).norm(dim=1).min() > 1e-3
    body = [name for name in parameters if not name.startswith("head.")]
    assert body
    assert all((with_it[name] - without[name]).abs().max() > 1e-4 for name in body)


def test_balanced_changes_only_the_cross_entropy() -> None:
    model, (x, y) = network(), batch()
    shares = torch.tensor([0, 0, 0, 0, 1, 2])
    samples = Samples(x, shares, torch.arange(6))
    balanced = objective(balanced=True).on(samples, model).loss(model, x, y, torch.Generator())
    contrast_term = by_terms(model.embed(x).tolist(), model.head.weight.tolist(), y.tolist(), 0.07)
    expected = F.cross_entropy(model(x) + log_shares(shares, 3), y).item() + 0.1 * contrast_term
    assert balanced.item() == pytest.approx(expected, rel=1e-6)
    plain = objective(balanced=False).on(samples, model)
    assert torch.equal(plain.loss(model, x, y, torch.Generator()), loss_of(model))
    assert abs(balanced.item() - loss_of(model).item()) > 1e-3


@pytest.mark.parametrize(("key", "value"), [("eta", -0.1), ("temperature", 0.0), ("balanced", "some")])
def test_an_invalid_setting_is_rejected_by_name(key: str, value: Any) -> None:
    with pytest.raises(UserError, match=rf"objective\.{key} = "):
        validate(PrototypeContrast.Params, {key: value}, "objective")
