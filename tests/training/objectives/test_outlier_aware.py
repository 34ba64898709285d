"""FedOV's local loss: PROSER's terms and those of x' and x'', each by hand, each switched off by its option."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, get_args

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedwild.core.errors import UserError
from fedwild.core.settings import validate
from fedwild.data.samples import Samples
from fedwild.models import Network, build
from fedwild.openset.adversarial import enhance
from fedwild.openset.outliers import OUTLIERS
from fedwild.training.objectives import OBJECTIVES, OutlierAware, Proser
from fedwild.training.objectives.outlier_aware import Generator
from tests.models.cases import make
from tests.training.objectives import by_hand
from tests.training.objectives.by_hand import dense, draw, images, labels, seeded


def aware(**settings: Any) -> OutlierAware:
    return OutlierAware(OutlierAware.Params(**settings))


def expected_parts(
    model: Network, x: Tensor, y: Tensor, generator: torch.Generator, steps: int = 5, step_size: float = 0.002
) -> dict[str, float]:
    """Return PROSER's part, CE(f(x'), K) and CE(f(x''), K) by hand: x' is drawn first, then the mixtures."""
    destroyed = OUTLIERS["destruction"](x, generator)
    enhanced = destroyed
    for _ in range(steps):
        leaf = enhanced.clone().requires_grad_(True)
        losses = -model(leaf).log_softmax(1)[:, -1]
        enhanced = enhanced + step_size * torch.autograd.grad(losses.mean(), leaf)[0].sign()
    mixing = draw(y, generator)
    return {
        "proser": by_hand.known_term(model, x, y)
        + by_hand.dummy_term(model, x, y)
        + 0.01 * by_hand.mix_term(model, x, mixing),
        "destroyed": by_hand.outlier_term(model, destroyed),
        "enhanced": by_hand.outlier_term(model, enhanced),
    }


def gradients(value: Tensor, model: Network) -> list[Tensor]:
    return list(torch.autograd.grad(value, list(model.parameters())))


def test_outlier_aware_is_registered_and_adds_one_output() -> None:
    assert OBJECTIVES.get("outlier-aware") is OutlierAware
    assert OutlierAware.name == "outlier-aware"
    assert OutlierAware.extra_outputs == 1


def test_defaults_are_those_of_the_paper() -> None:
    params = OutlierAware.Params()
    assert (params.dummy_weight, params.mix_weight) == (1.0, 0.01)
    assert (params.outliers, params.destroyed, params.enhanced) == ("destruction", True, True)
    assert (params.steps, params.step_size) == (5, 0.002)


@pytest.mark.parametrize("seed", range(4))
def test_the_loss_is_that_of_proser_and_of_both_kinds_of_outliers(seed: int) -> None:
    model, x, y = dense(), images(), labels()
    expected = expected_parts(model, x, y, seeded(seed))
    loss = aware().loss(model, x, y, seeded(seed))
    assert loss.shape == ()
    assert loss.item() == pytest.approx(sum(expected.values()), abs=1e-11)
    assert expected["enhanced"] > expected["destroyed"] > 0


@pytest.mark.parametrize(("steps", "step_size"), [(0, 0.1), (1, 0.1), (3, 0.05), (3, 0.0)])
def test_steps_and_step_size_take_effect(steps: int, step_size: float) -> None:
    model, x, y = dense(), images(), labels()
    expected = expected_parts(model, x, y, seeded(), steps, step_size)
    loss = aware(steps=steps, step_size=step_size).loss(model, x, y, seeded())
    assert loss.item() == pytest.approx(sum(expected.values()), abs=1e-11)
    assert (expected["enhanced"] == expected["destroyed"]) == (steps * step_size == 0)


def test_without_destroyed_the_enhanced_samples_still_start_from_them() -> None:
    model, x, y = dense(), images(), labels()
    expected = expected_parts(model, x, y, seeded())
    loss = aware(destroyed=False).loss(model, x, y, seeded())
    assert loss.item() == pytest.approx(expected["proser"] + expected["enhanced"], abs=1e-11)
    moved = by_hand.outlier_term(model, enhance(model, x, 5, 0.002))
    assert abs(moved - expected["enhanced"]) > 1e-6


def test_without_enhanced_only_destroyed_samples_count() -> None:
    model, x, y = dense(), images(), labels()
    expected = expected_parts(model, x, y, seeded())
    loss = aware(enhanced=False).loss(model, x, y, seeded())
    assert loss.item() == pytest.approx(expected["proser"] + expected["destroyed"], abs=1e-11)


def test_without_outliers_it_is_proser_bit_for_bit() -> None:
    model, x, y = dense(), images(), labels()
    generators = [seeded(), seeded()]
    ours = aware(destroyed=False, enhanced=False).loss(model, x, y, generators[0])
    prosers = Proser(Proser.Params()).loss(model, x, y, generators[1])
    assert torch.equal(ours, prosers)
    assert all(map(torch.equal, gradients(ours, model), gradients(prosers, model)))
    assert torch.equal(generators[0].get_state(), generators[1].get_state())


def test_the_weights_and_the_stage_of_proser_take_effect() -> None:
    model, x, y = dense(), images(), labels()
    settings: list[dict[str, Any]] = [{}, {"dummy_weight": 0.5}, {"mix_weight": 1.0}, {"mix_after": "fc2"}]
    losses = {aware(**each).loss(model, x, y, seeded()).item() for each in settings}
    assert len(losses) == 4


def test_the_gradient_does_not_flow_through_outliers() -> None:
    model, x, y = dense(), images(), labels()
    generator = seeded()
    destroyed = OUTLIERS["destruction"](x, generator)
    enhanced = enhance(deepcopy(model), destroyed, 5, 0.002)
    proser = Proser(Proser.Params())
    expected = proser.total(proser.terms(model, x, y, [destroyed, enhanced], generator))
    loss = aware().loss(model, x, y, seeded())
    assert torch.equal(loss, expected)
    assert all(map(torch.equal, gradients(loss, model), gradients(expected, model)))


def test_every_generator_is_a_setting_and_gives_another_loss() -> None:
    assert set(get_args(Generator)) == set(OUTLIERS)
    model, x, y = dense(), images(16), labels(16)
    terms: set[float] = set()
    for name in OUTLIERS:
        generator = seeded()
        term = by_hand.outlier_term(model, OUTLIERS[name](x, generator))
        mixing = draw(y, generator)
        expected = by_hand.known_term(model, x, y) + by_hand.mix_term(model, x, mixing) + term
        objective = aware(outliers=name, enhanced=False, dummy_weight=0, mix_weight=1)
        assert objective.loss(model, x, y, seeded()).item() == pytest.approx(expected, abs=1e-11), name
        terms.add(round(term, 9))
    assert len(terms) == len(OUTLIERS)


def test_samples_are_not_changed() -> None:
    model, x, y = dense(), images(), labels()
    before = x.clone()
    aware(step_size=0.5).loss(model, x, y, seeded()).backward()
    assert torch.equal(x, before)


def test_an_unknown_generator_is_rejected_with_a_list_of_generators() -> None:
    with pytest.raises(UserError, match=r"objective\.outliers = 'noise' is not allowed.*destruction"):
        validate(OutlierAware.Params, {"outliers": "noise"}, "objective")


@pytest.mark.parametrize(("key", "value"), [("steps", -1), ("step_size", -0.1), ("destroyed", 3)])
def test_invalid_settings_are_rejected(key: str, value: float) -> None:
    with pytest.raises(UserError, match=rf"objective\.{key} = {value} is not allowed"):
        validate(OutlierAware.Params, {key: value}, "objective")


def test_samples_other_than_images_are_rejected() -> None:
    model = build("mlp", (5,), 3, params={"hidden": [4]})
    with pytest.raises(UserError, match="needs images"):
        aware().loss(model, torch.rand(4, 5), labels(4, 2), seeded())


@pytest.mark.parametrize("classes", [1, 100])
def test_any_number_of_classes_works(classes: int) -> None:
    model, x, y = dense(classes), images(), labels(8, classes)
    expected = expected_parts(model, x, y, seeded())
    loss = aware().loss(model, x, y, seeded())
    assert loss.item() == pytest.approx(sum(expected.values()), abs=1e-11)
    assert all(gradient.isfinite().all() for gradient in gradients(loss, model))


@pytest.mark.parametrize("n", [1, 8])
def test_a_batch_of_one_class_learns_from_outliers(n: int) -> None:
    model, x = dense(), images(n)
    y = torch.full((n,), 1)
    expected = expected_parts(model, x, y, seeded())
    loss = aware().loss(model, x, y, seeded())
    assert loss.item() == pytest.approx(sum(expected.values()), abs=1e-11)
    assert all(gradient.isfinite().all() for gradient in gradients(loss, model))


def test_batch_norm_sees_samples_and_outliers_once_as_one_batch() -> None:
    model = make("digit-cnn", outputs=4).double().train()
    x, y = images(6, model.input_shape), labels(6)
    copy = deepcopy(model).eval()
    destroyed = OUTLIERS["destruction"](x, seeded())
    enhanced = enhance(copy, destroyed, 3, 0.1)
    conv = copy.get_submodule("conv1.conv")
    maps = torch.cat([conv(batch) for batch in (x, destroyed, enhanced)]).detach().numpy()
    aware(steps=3, step_size=0.1).loss(model, x, y, seeded()).backward()
    state = model.state_dict()
    for name in ("conv1", "conv2", "conv3", "fc1", "fc2"):
        assert state[f"{name}.norm.num_batches_tracked"] == 1
    assert state["conv1.norm.running_mean"].numpy() == pytest.approx(0.1 * maps.mean((0, 2, 3)), abs=1e-12)
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_training_lowers_the_loss_and_makes_outliers_unknown() -> None:
    torch.manual_seed(0)
    model = build("mlp", (1, 8, 8), 3, params={"hidden": [32, 16]})
    y = torch.arange(24) % 2
    x = 0.05 * torch.rand(24, 1, 8, 8, generator=seeded())
    rows = torch.arange(8) < 4
    x[y == 0] += rows[:, None] * torch.linspace(0, 1, 8)
    x[y == 1] += ~rows[:, None] * torch.linspace(1, 0, 8)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    objective, generator = aware(outliers="erase"), seeded()
    losses = []
    for _ in range(30):
        loss = objective.loss(model, x, y, generator)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
    outliers = OUTLIERS["erase"](x, generator)
    with torch.no_grad():
        before = F.cross_entropy(build("mlp", (1, 8, 8), 3)(outliers), torch.full((24,), 2))
        after = F.cross_entropy(model(outliers), torch.full((24,), 2))
    assert after < before


@pytest.mark.parametrize("open_weight", [0.01, 1.0, 3.0])
def test_outliers_are_part_of_the_open_loss(open_weight: float) -> None:
    model, x, y = dense(), images(), labels()
    objective = aware(open_weight=open_weight)
    closed, open_ = objective.closed_and_open(model, x, y, seeded())
    expected = expected_parts(model, x, y, seeded())
    assert closed.item() == pytest.approx(by_hand.known_term(model, x, y), abs=1e-11)
    assert open_.item() == pytest.approx(sum(expected.values()) - closed.item(), abs=1e-11)
    assert objective.open_weight == open_weight
    assert objective.has_open_loss
    loss = objective.loss(model, x, y, seeded())
    assert loss.item() == pytest.approx((closed + open_weight * open_).item(), abs=1e-11)


def test_a_client_with_normalised_inputs_trains_on_outliers_of_its_pixels() -> None:
    """Black pixels of an erased box are -mean / std."""
    x = torch.full((6, 1, 8, 8), 255, dtype=torch.uint8)
    samples = Samples(x, torch.zeros(6, dtype=torch.int64), torch.arange(6), mean=0.5, std=0.25)
    model = build("mlp", (1, 8, 8), 3)
    objective = aware(outliers="erase", enhanced=False).on(samples, model)
    assert isinstance(objective, OutlierAware)
    (destroyed,) = objective.outliers(model, samples.all()[0], torch.Generator().manual_seed(0))
    assert sorted(destroyed.unique().tolist()) == [-2.0, 2.0]
