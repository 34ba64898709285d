"""PROSER's terms against NumPy, their weights, where embeddings are mixed, and the one pass for all of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedwild.core.errors import UserError
from fedwild.core.settings import validate
from fedwild.models import Network, build
from fedwild.training.objectives import OBJECTIVES, CrossEntropy, Proser
from fedwild.training.objectives.proser import Terms, mask_class, mixtures
from tests.models.cases import make
from tests.training.objectives import by_hand
from tests.training.objectives.by_hand import dense, draw, images, labels, seeded


def proser(**settings: Any) -> Proser:
    return Proser(Proser.Params(**settings))


def terms(model: Network, x: Tensor, y: Tensor, *outliers: Tensor, seed: int = 5, **settings: Any) -> Terms:
    return proser(**settings).terms(model, x, y, outliers, seeded(seed))


def gradients(value: Tensor, model: Network) -> list[Tensor]:
    return list(torch.autograd.grad(value, list(model.parameters())))


def test_proser_is_registered_and_adds_one_output() -> None:
    assert OBJECTIVES.get("proser") is Proser
    assert Proser.name == "proser"
    assert Proser.extra_outputs == 1


def test_defaults_are_those_of_the_authors_programs() -> None:
    params = Proser.Params()
    assert (params.dummy_weight, params.mix_weight, params.mix_after) == (1.0, 0.01, "first-dense")


@pytest.mark.parametrize("seed", range(5))
def test_every_term_equals_the_one_computed_by_hand(seed: int) -> None:
    model, x, y = dense(), images(), labels()
    found = terms(model, x, y, images(3) / 2, seed=seed)
    mixing = draw(y, seeded(seed))
    assert mixing.differ.any()
    assert not mixing.differ.all()
    assert found.known.item() == pytest.approx(by_hand.known_term(model, x, y), abs=1e-12)
    assert found.dummy.item() == pytest.approx(by_hand.dummy_term(model, x, y), abs=1e-12)
    assert found.mix.item() == pytest.approx(by_hand.mix_term(model, x, mixing), abs=1e-12)
    assert [term.item() for term in found.outliers] == pytest.approx([by_hand.outlier_term(model, images(3) / 2)])


def test_the_loss_is_the_weighted_sum_of_the_terms() -> None:
    model, x, y = dense(), images(), labels()
    mixing = draw(y, seeded())
    for a, b in ((1.0, 0.01), (0.0, 0.0), (0.3, 2.0)):
        expected = (
            by_hand.known_term(model, x, y)
            + a * by_hand.dummy_term(model, x, y)
            + b * by_hand.mix_term(model, x, mixing)
        )
        loss = proser(dummy_weight=a, mix_weight=b).loss(model, x, y, seeded())
        assert loss.shape == ()
        assert loss.item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("weight", ["dummy_weight", "mix_weight"])
def test_each_weight_takes_effect_linearly(weight: str) -> None:
    model, x, y = dense(), images(), labels()
    settings = {"dummy_weight": 0.5, "mix_weight": 0.5}
    at = [proser(**{**settings, weight: value}).loss(model, x, y, seeded()).item() for value in (0.0, 1.0, 3.0)]
    assert at[1] - at[0] > 0.1
    assert at[2] - at[0] == pytest.approx(3 * (at[1] - at[0]), abs=1e-12)


def test_loss_has_the_numerical_gradient() -> None:
    model, x, y = dense(), images(), labels()
    parameters = dict(model.named_parameters())
    found = gradients(proser(mix_weight=1).loss(model, x, y, seeded()), model)
    for (name, parameter), gradient in zip(parameters.items(), found, strict=True):
        place = (0,) * parameter.dim()
        values = []
        for step in (1e-6, -2e-6):
            with torch.no_grad():
                parameter[place] += step
            values.append(proser(mix_weight=1).loss(model, x, y, seeded()).item())
        with torch.no_grad():
            parameter[place] += 1e-6
        assert gradient[place].item() == pytest.approx((values[0] - values[1]) / 2e-6, abs=1e-6), name


def test_one_lambda_and_one_permutation_mix_all_samples() -> None:
    hidden, y = images(6).flatten(1), torch.tensor([0, 0, 1, 1, 2, 2])
    mixed, differ = mixtures(hidden, y, seeded())
    mixing = draw(y, seeded())
    assert 0 < mixing.lam < 1
    assert sorted(mixing.partner.tolist()) == [0, 1, 2, 3, 4, 5]
    assert differ.tolist() == mixing.differ.tolist()
    assert mixed.numpy() == pytest.approx(mixing.mix(hidden.numpy()), abs=1e-15)


def test_mixtures_depend_on_the_generator_alone() -> None:
    model, x, y = dense(), images(), labels()
    assert torch.equal(terms(model, x, y, seed=1).mix, terms(model, x, y, seed=1).mix)
    assert terms(model, x, y, seed=1).mix != terms(model, x, y, seed=2).mix


def test_lambda_is_uniform() -> None:
    generator = seeded()
    hidden, y = torch.tensor([[1.0], [0.0]]), torch.tensor([0, 1])
    mixed = [mixtures(hidden, y, generator)[0] for _ in range(2000)]
    lams = torch.tensor([float(first) for first, second in mixed if second > 0])  # else each is its own partner
    assert len(lams) > 500
    assert lams.mean().item() == pytest.approx(1 / 2, abs=0.05)
    assert lams.var().item() == pytest.approx(1 / 12, abs=0.01)


def test_pairs_of_the_same_class_are_excluded() -> None:
    model, x = dense(), images()
    y = torch.tensor([0, 0, 0, 0, 0, 0, 0, 1])
    seed = next(seed for seed in range(20) if draw(y, seeded(seed)).differ.any())
    mixing = draw(y, seeded(seed))
    assert mixing.differ.sum() == 2
    everyone = by_hand.Mixing(mixing.lam, mixing.partner, mixing.differ | True)
    found = terms(model, x, y, seed=seed).mix.item()
    assert found == pytest.approx(by_hand.mix_term(model, x, mixing), abs=1e-12)
    assert abs(found - by_hand.mix_term(model, x, everyone)) > 1e-6


@pytest.mark.parametrize("n", [1, 8])
def test_a_batch_of_one_class_has_no_mix_term_and_finite_gradients(n: int) -> None:
    model, x = dense(), images(n)
    y = torch.full((n,), 2)
    assert terms(model, x, y).mix.item() == 0.0
    loss = proser(mix_weight=5.0).loss(model, x, y, seeded())
    without_mixing = proser(mix_weight=0.0).loss(model, x, y, seeded())
    assert loss.item() == without_mixing.item()
    for one, other in zip(gradients(loss, model), gradients(without_mixing, model), strict=True):
        assert one.isfinite().all()
        assert torch.equal(one, other)


@pytest.mark.parametrize("classes", [1, 2, 100])
def test_any_number_of_classes_works(classes: int) -> None:
    model, x, y = dense(classes), images(), labels(8, classes)
    found = terms(model, x, y)
    assert found.known.item() == pytest.approx(by_hand.known_term(model, x, y), abs=1e-12)
    assert found.dummy.item() == pytest.approx(by_hand.dummy_term(model, x, y), abs=1e-12)
    assert all(gradient.isfinite().all() for gradient in gradients(proser().total(found), model))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_masked_class_has_no_probability_and_no_gradient(dtype: torch.dtype) -> None:
    logits = torch.tensor([[50.0, 1.0, 2.0], [0.0, -80.0, 1.0]], dtype=dtype, requires_grad=True)
    y = torch.tensor([0, 1])
    rest = mask_class(logits, y)
    losses = F.cross_entropy(rest, torch.tensor([2, 2]))
    losses.backward()
    assert rest.softmax(1).gather(1, y[:, None]).tolist() == [[0.0], [0.0]]
    assert losses.item() == pytest.approx(0.3133, abs=5e-3)
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    assert logits.grad.gather(1, y[:, None]).tolist() == [[0.0], [0.0]]


def test_embeddings_are_mixed_if_only_the_head_is_dense() -> None:
    model = make("resnet-18", outputs=4).double().eval()
    x, y = images(6, model.input_shape), labels(6)
    mixing = draw(y, seeded())
    mixed = mixing.mix(model.embed(x).detach().numpy())[mixing.differ]
    expected = by_hand.unknown(by_hand.head(model, mixed))
    assert terms(model, x, y).mix.item() == pytest.approx(expected, abs=1e-10)


def test_samples_are_mixed_after_the_chosen_stage() -> None:
    model, x, y = dense(), images(), labels()
    mixing = draw(y, seeded())
    after_fc2 = mixing.mix(by_hand.second(model, by_hand.first(model, x)))[mixing.differ]
    found = {stage: terms(model, x, y, mix_after=stage) for stage in ("first-dense", "fc1", "fc2")}
    assert torch.equal(found["first-dense"].mix, found["fc1"].mix)
    assert found["fc2"].mix.item() == pytest.approx(by_hand.unknown(by_hand.head(model, after_fc2)), abs=1e-12)
    assert abs(found["fc2"].mix.item() - found["fc1"].mix.item()) > 1e-6
    assert found["fc2"].known.item() == pytest.approx(found["fc1"].known.item(), abs=1e-12)


def test_feature_maps_can_be_mixed() -> None:
    model = make("simple-cnn", outputs=4).double()
    x, y = images(6, model.input_shape), labels(6)
    found = [terms(model, x, y, mix_after=stage).mix.item() for stage in model.cuts]
    assert len({round(value, 9) for value in found}) == 4


def test_an_unknown_stage_is_rejected_with_a_list_of_stages() -> None:
    with pytest.raises(UserError, match=r"'fc3' is not known\..*Available: fc1, fc2"):
        proser(mix_after="fc3").loss(dense(), images(), labels(), seeded())


@pytest.mark.parametrize("key", ["dummy_weight", "mix_weight"])
def test_negative_weights_are_rejected(key: str) -> None:
    with pytest.raises(UserError, match=rf"objective\.{key} = -1 is not allowed.*>= 0"):
        validate(Proser.Params, {key: -1}, "objective")


@pytest.mark.parametrize("name", ["mlp", "simple-cnn", "vgg-9"])
def test_one_pass_equals_separate_passes_without_batch_norm(name: str) -> None:
    model = make(name, outputs=4).double()
    x, y = images(6, model.input_shape), labels(6)
    outliers = [x.flip(-1), x[:4] / 2]
    found = terms(model, x, y, *outliers)
    unknown = torch.full((6,), 3)
    mixed, differ = mixtures(model.upto(x, "fc1"), y, seeded())
    expected = Terms(
        known=F.cross_entropy(model(x), y),
        dummy=F.cross_entropy(mask_class(model(x), y), unknown),
        mix=F.cross_entropy(model.after(mixed[differ], "fc1"), unknown[differ]),
        outliers=tuple(F.cross_entropy(model(out), unknown[: len(out)]) for out in outliers),
    )
    together, apart = proser(mix_weight=1).total(found), proser(mix_weight=1).total(expected)
    assert together.item() == pytest.approx(apart.item(), abs=1e-6)
    for one, other in zip(gradients(together, model), gradients(apart, model), strict=True):
        assert (one - other).abs().max() <= 1e-6


def test_batch_norm_sees_real_samples_and_outliers_as_one_batch() -> None:
    model = make("digit-cnn", outputs=4).double().train()
    x, y = images(6, model.input_shape), labels(6)
    outliers = [x.flip(-1) + 1, x * 3]
    conv = model.get_submodule("conv1.conv")
    maps = torch.cat([conv(batch) for batch in (x, *outliers)]).detach().numpy()
    terms(model, x, y, *outliers)
    state = model.state_dict()
    assert state["conv1.norm.num_batches_tracked"] == 1
    assert state["conv1.norm.running_mean"].numpy() == pytest.approx(0.1 * maps.mean((0, 2, 3)), abs=1e-12)
    variance = maps.var((0, 2, 3), ddof=1)
    assert state["conv1.norm.running_var"].numpy() == pytest.approx(0.9 + 0.1 * variance, abs=1e-12)


def test_training_lowers_the_loss() -> None:
    torch.manual_seed(0)
    model = build("mlp", (2,), 4, params={"hidden": [16, 8]})
    y = labels(30)
    x = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])[y] + 0.05 * torch.randn(30, 2, generator=seeded())
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    generator = seeded()
    losses = []
    for _ in range(30):
        loss = proser().loss(model, x, y, generator)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


@pytest.mark.parametrize("open_weight", [0.0, 0.01, 1.0, 3.0])
def test_closed_and_open_loss_add_up_to_the_loss(open_weight: float) -> None:
    model, x, y = dense(), images(), labels()
    objective = proser(open_weight=open_weight, dummy_weight=0.3, mix_weight=2.0)
    generators = [seeded(), seeded()]
    closed, open_ = objective.closed_and_open(model, x, y, generators[0])
    loss = objective.loss(model, x, y, generators[1])
    assert objective.open_weight == open_weight
    assert (closed + open_weight * open_).item() == pytest.approx(loss.item(), abs=1e-12)
    assert torch.equal(generators[0].get_state(), generators[1].get_state())
    expected = 0.3 * by_hand.dummy_term(model, x, y) + 2.0 * by_hand.mix_term(model, x, draw(y, seeded()))
    assert closed.item() == pytest.approx(by_hand.known_term(model, x, y), abs=1e-12)
    assert open_.item() == pytest.approx(expected, abs=1e-12)


def test_a_negative_open_weight_is_rejected() -> None:
    with pytest.raises(UserError, match=r"objective\.open_weight = -1 is not allowed.*>= 0"):
        validate(Proser.Params, {"open_weight": -1}, "objective")


def test_cross_entropy_has_no_open_loss_and_says_so() -> None:
    assert proser().has_open_loss
    plain = CrossEntropy(CrossEntropy.Params())
    assert (plain.has_open_loss, plain.open_weight) == (False, 0.0)
    with pytest.raises(UserError) as raised:
        plain.closed_and_open(dense(), images(), labels(), seeded())
    assert raised.value.problems == ("objective.name = 'ce' has no open-set loss; use proser or outlier-aware.",)
