"""Learning novel classes at a client: the moving average, frozen rows, and what the loss is made of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedwild.corrections import CORRECTIONS, Steering
from fedwild.corrections.scaffold import CHANGE, CONTROL
from fedwild.data.samples import Samples
from fedwild.discovery.learning import (
    DISTILLATION,
    REPLAY,
    FrozenRows,
    NovelObjective,
    NovelTargets,
    embeddings,
    moving_average,
    tensors_of,
)
from fedwild.discovery.losses import feature_distance, pairwise_bce, replay, semantic_weighted
from fedwild.hyper import Hyper
from fedwild.models import Network
from fedwild.objectives import Balanced, Objective
from fedwild.objectives.balanced import log_shares
from fedwild.payload import Payload
from fedwild.protocol import Client, Step
from fedwild.rng import Rng
from fedwild.task import Task, weights_of
from fedwild.training import LocalTraining, train

KNOWN, NOVEL = 3, 2
TASK = Task((1, 8, 8), "mlp", {"hidden": [8, 6]})
NORMED = Task((1, 8, 8), "digit-cnn", {"width": 0.1})


def images(n: int, seed: int = 0) -> Tensor:
    return torch.rand(n, 1, 8, 8, generator=torch.Generator().manual_seed(seed))


def samples(y: list[int]) -> Samples:
    return Samples(images(len(y)), torch.tensor(y), torch.arange(len(y)))


def shaken(weights: dict[str, Tensor], seed: int = 1) -> dict[str, Tensor]:
    """Other weights of the same shapes, counters too."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: tensor + torch.randn(tensor.shape, generator=generator) if tensor.is_floating_point() else tensor + 7
        for name, tensor in weights.items()
    }


# --- embeddings and arrays ------------------------------------------------------------------------------------


def test_embeddings_are_those_of_evaluation_mode_in_order_and_batch_by_batch() -> None:
    model = NORMED.build(2, Rng(0)).train()
    before = weights_of(model)
    view = Samples(images(300), torch.zeros(300, dtype=torch.int64), torch.arange(300).flip(0))
    found = embeddings(model, view)
    with torch.no_grad():
        expected = model.eval().embed(images(300).flip(0))
    assert found.shape == (300, model.embedding_dim)
    assert torch.allclose(found, expected, atol=1e-5)
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights_of(model).items())


def test_nobodys_embeddings_have_a_width() -> None:
    assert embeddings(TASK.build(2, Rng(0)), samples([])).shape == (0, 6)


def test_arrays_become_tensors_in_single_precision_and_whole_numbers_stay() -> None:
    made = tensors_of(a=np.array([[0.1, 2.0]]), b=np.array([3, 4]), c=np.empty((0, 5)))
    assert {name: tensor.dtype for name, tensor in made.items()} == {
        "a": torch.float32,
        "b": torch.int64,
        "c": torch.float32,
    }
    assert made["a"].tolist() == [[pytest.approx(0.1), 2.0]]
    assert made["c"].shape == (0, 5)


# --- the moving average ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("beta", [0.99, 0.5, 0.1])
def test_the_extractor_is_beta_anchor_and_the_rest_trained_with_batch_norm_s_statistics(beta: float) -> None:
    anchor = weights_of(NORMED.build(3, Rng(0)))
    trained = shaken(anchor)
    merged = moving_average(trained, anchor, beta)
    assert list(merged) == list(trained)
    kinds = set()
    for name, tensor in merged.items():
        if name in ("head.weight", "head.bias"):
            assert torch.equal(tensor, trained[name])
            kinds.add("head")
        elif tensor.is_floating_point():
            expected = beta * anchor[name].double() + (1 - beta) * trained[name].double()
            assert torch.allclose(tensor.double(), expected, atol=1e-6)
            kinds.add("running" if "running" in name else "weights")
        else:
            assert torch.equal(tensor, anchor[name])
            assert tensor.dtype == torch.int64
            kinds.add("counter")
    assert kinds == {"head", "running", "weights", "counter"}


def test_at_its_ends_the_moving_average_is_the_one_or_the_other_bit_for_bit() -> None:
    anchor = weights_of(NORMED.build(3, Rng(0)))
    trained = shaken(anchor)
    for beta, expected in ((1.0, anchor), (0.0, trained)):
        merged = moving_average(trained, anchor, beta)
        body = [name for name, tensor in merged.items() if tensor.is_floating_point() and "head" not in name]
        assert body
        assert all(torch.equal(merged[name], expected[name]) for name in body)


def test_the_head_may_have_grown_since_the_anchor() -> None:
    anchor, trained = (weights_of(TASK.build(outputs, Rng(0), bias=False)) for outputs in (3, 5))
    merged = moving_average(trained, anchor, 0.9)
    assert torch.equal(merged["head.weight"], trained["head.weight"])


def test_what_is_merged_shares_no_memory_with_the_anchor() -> None:
    anchor = weights_of(NORMED.build(3, Rng(0)))
    merged = moving_average(shaken(anchor), anchor, 1.0)
    before = {name: tensor.clone() for name, tensor in anchor.items()}
    for name, tensor in merged.items():
        if "head" not in name:
            tensor.add_(1)
    assert all(torch.equal(tensor, before[name]) for name, tensor in anchor.items())


# --- frozen rows ----------------------------------------------------------------------------------------------


def client_with(state: Payload) -> Client:
    view: Any = None
    return Client("client-00", TASK, Step("novel-1", 0, 0), tuple("abcde"), view, {}, state)


def steering_of(correction: str, model: Network) -> Steering:
    """A correction at full strength, in a client's second round."""
    settings = {"none": {}, "prox": {"mu": 1.0}, "scaffold": {"strength": 1.0}, "moon": {"mu": 5.0}}[correction]
    kind = CORRECTIONS.get(correction)
    own = shaken(weights_of(model), seed=4)
    state = Payload.of(
        previous={name: tensor for name, tensor in own.items() if "head" not in name},
        **{CONTROL: shaken(weights_of(model), seed=5)},
    )
    payload = Payload.of(model=weights_of(model), **{CONTROL: shaken(weights_of(model), seed=6)})
    return kind(kind.Params(**settings)).at(client_with(state), model, payload)


def novel_objective(
    model: Network,
    loss: Any = "swl",
    frozen: bool = True,
    temperature: float = 0.07,
    normalised: bool = True,
    before: Network | None = None,
    stretch: float = 1.0,
    supervised: Objective | None = None,
) -> NovelObjective:
    prototypes = torch.rand(NOVEL, model.embedding_dim, generator=torch.Generator().manual_seed(8)) + 0.1
    targets = NovelTargets(KNOWN, prototypes, torch.full((NOVEL,), stretch))
    return NovelObjective(
        targets=targets,
        supervised=supervised,
        loss=loss,
        frozen=frozen,
        temperature=temperature,
        normalised=normalised,
        before=before,
    )


TRAINING = [
    {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.1},
    {"optimizer": "adam", "momentum": 0.9, "weight_decay": 0.1},
    {"optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0},
]


@pytest.mark.parametrize("settings", TRAINING, ids=lambda s: f"{s['optimizer']}-{s['weight_decay']}")
@pytest.mark.parametrize("correction", ["none", "prox", "scaffold", "moon"])
def test_known_rows_are_bit_equal_after_training_and_novel_ones_are_not(correction: str, settings: Any) -> None:
    model = TASK.network(weights_of(TASK.build(KNOWN + NOVEL, Rng(0), bias=False)), KNOWN + NOVEL, bias=False)
    before = weights_of(model)
    steering = FrozenRows(steering_of(correction, model), model, KNOWN)
    # Pseudo-labelled samples, so that known rows have gradients.
    view = samples([-1, 0, 1, 2] * 4)
    objective = novel_objective(model, frozen=False)
    trained = train(
        model, view, LocalTraining(epochs=2, batch_size=8, lr=0.05, **settings), objective, steering, Rng(0)
    )
    sent = steering.up(trained.steps, 0.05)
    after = model.state_dict()
    assert trained.steps == 4
    assert torch.equal(after["head.weight"][:KNOWN], before["head.weight"][:KNOWN])
    assert (after["head.weight"][KNOWN:] != before["head.weight"][KNOWN:]).any(dim=1).all()
    assert any(not torch.equal(after[name], before[name]) for name in before if "head" not in name)
    assert set(sent) == ({CHANGE} if correction == "scaffold" else set())


def test_frozen_rows_pass_on_the_correction_s_penalty_and_what_it_sends() -> None:
    class Told(Steering):
        def penalty(self, x: Tensor, y: Tensor) -> Tensor:
            return x.sum() + y.sum()

        def up(self, steps: int, lr: float) -> Any:
            return {"told": {"steps": torch.tensor(steps), "lr": torch.tensor(lr)}}

    steering = FrozenRows(Told(), TASK.build(3, Rng(0)), 1)
    penalty = steering.penalty(torch.ones(2), torch.ones(3))
    assert penalty is not None
    assert penalty.item() == 5
    assert steering.up(4, 0.5)["told"]["steps"].item() == 4


def test_rows_are_frozen_after_the_correction_has_bent_the_gradients() -> None:
    model = TASK.build(3, Rng(0), bias=False)

    class Bending(Steering):
        def bend(self) -> None:
            assert model.head.weight.grad is not None
            model.head.weight.grad += 1.0

    model.head.weight.grad = torch.zeros(3, 6)
    FrozenRows(Bending(), model, 2).bend()
    assert model.head.weight.grad.tolist() == [[0.0] * 6, [0.0] * 6, [1.0] * 6]


def test_rows_that_weight_decay_has_moved_are_put_back_before_the_next_step() -> None:
    model = TASK.build(3, Rng(0), bias=False)
    before = model.head.weight.detach().clone()
    steering = FrozenRows(Steering(), model, 2)
    with torch.no_grad():
        model.head.weight *= 0.9
    steering.bend()
    assert torch.equal(model.head.weight[:2], before[:2])
    assert torch.equal(model.head.weight[2], before[2] * 0.9)


def test_a_head_without_gradients_is_no_stumbling_block() -> None:
    FrozenRows(Steering(), TASK.build(3, Rng(0)), 2).bend()


# --- the loss -------------------------------------------------------------------------------------------------


def model_and_batch() -> tuple[Network, Tensor]:
    return TASK.build(KNOWN + NOVEL, Rng(0), bias=False), images(8, seed=3)


def value(objective: NovelObjective, model: Network, x: Tensor, y: list[int], seed: int = 0) -> float:
    return objective.loss(model, x, torch.tensor(y), torch.Generator().manual_seed(seed)).item()


@pytest.mark.parametrize("loss", ["swl", "bce"])
def test_pseudo_labelled_and_novel_samples_count_by_their_shares(loss: str) -> None:
    model, x = model_and_batch()
    objective = novel_objective(model, loss)
    y = [-1, 2, -1, -1, 0, -1, -1, 1]
    novel = [0, 2, 3, 5, 6]
    z = model.embed(x)
    of_novel = semantic_weighted(z[novel], objective.targets.prototypes, 0.07)
    if loss == "bce":
        of_novel = pairwise_bce(z[novel], z[novel] @ model.head.weight[KNOWN:].T)
    # Known classes compete with the novel ones, too.
    of_known = F.cross_entropy(z[[1, 4, 7]] @ model.head.weight.T, torch.tensor([2, 0, 1]))
    expected = 5 / 8 * of_novel.item() + 3 / 8 * of_known.item()
    assert value(objective, model, x, y) == pytest.approx(expected, rel=1e-5)
    assert value(objective, model, x[novel], [-1] * 5) == pytest.approx(of_novel.item(), rel=1e-5)
    assert value(objective, model, x[[1, 4, 7]], [2, 0, 1]) == pytest.approx(of_known.item(), rel=1e-5)


def test_a_batch_without_novel_samples_still_has_a_gradient_for_every_weight_of_the_extractor() -> None:
    model, x = model_and_batch()
    loss = novel_objective(model).loss(model, x[:2], torch.tensor([0, 1]), torch.Generator())
    loss.backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())


def test_learnt_prototypes_are_the_novel_rows_stretched_and_have_a_gradient() -> None:
    model, x = model_and_batch()
    objective = novel_objective(model, frozen=False, stretch=2.5)
    expected = semantic_weighted(model.embed(x), model.head.weight[KNOWN:] * 2.5, 0.07).item()
    assert value(objective, model, x, [-1] * 8) == pytest.approx(expected, rel=1e-5)
    for frozen in (True, False):
        model.zero_grad()
        loss = novel_objective(model, frozen=frozen).loss(model, x, torch.full((8,), -1), torch.Generator())
        loss.backward()
        moved = model.head.weight.grad is not None and bool((model.head.weight.grad != 0).any())
        assert moved is not frozen


def test_temperature_and_normalisation_reach_the_loss() -> None:
    model, x = model_and_batch()
    z = model.embed(x)
    for temperature, normalised in ((0.07, True), (1.0, True), (1.0, False)):
        objective = novel_objective(model, temperature=temperature, normalised=normalised)
        expected = semantic_weighted(z, objective.targets.prototypes, temperature, normalised).item()
        assert value(objective, model, x, [-1] * 8) == pytest.approx(expected, rel=1e-5)


def test_distillation_adds_the_distance_of_features_and_a_replay() -> None:
    model, x = model_and_batch()
    before = TASK.build(KNOWN, Rng(5), bias=False).eval()
    y = [-1] * 6 + [0, 1]
    plain = value(novel_objective(model), model, x, y)
    expected = plain + DISTILLATION * feature_distance(model.embed(x), before.embed(x)).item()
    expected += REPLAY * replay(model.head.weight, KNOWN, torch.Generator().manual_seed(2)).item()
    found = value(novel_objective(model, before=before), model, x, y, seed=2)
    assert found == pytest.approx(expected, rel=1e-5)
    assert found > plain + 0.1
    assert all(p.grad is None for p in before.parameters())


def test_labelled_novel_samples_are_learnt_by_the_method_s_own_objective_fitted_to_them() -> None:
    model, x = model_and_batch()
    labels = [4, 4, 4, 3, 4, 0, 4, 4]
    view = Samples(x, torch.tensor(labels), torch.arange(8))
    shared = novel_objective(model, "labels", supervised=Balanced(Hyper()))
    fitted = shared.on(view, model)
    assert isinstance(fitted, NovelObjective)
    expected = F.cross_entropy(model(x) + log_shares(view.y, KNOWN + NOVEL), view.y).item()
    assert value(fitted, model, x, labels) == pytest.approx(expected, rel=1e-5)
    assert abs(expected - F.cross_entropy(model(x), view.y).item()) > 0.01
    # The next client begins with the shares of nobody.
    assert isinstance(shared.supervised, Balanced)
    assert shared.supervised.shares is None


def test_distillation_goes_with_the_method_s_own_objective_too() -> None:
    model, x = model_and_batch()
    labels = [4, 4, 4, 3, 4, 0, 4, 4]
    view = Samples(x, torch.tensor(labels), torch.arange(8))
    before = TASK.build(KNOWN, Rng(5), bias=False).eval()
    fitted = novel_objective(model, "labels", supervised=Balanced(Hyper()), before=before).on(view, model)
    assert isinstance(fitted, NovelObjective)
    expected = F.cross_entropy(model(x) + log_shares(view.y, KNOWN + NOVEL), view.y)
    expected = expected + DISTILLATION * feature_distance(model.embed(x), before.embed(x))
    expected = expected + REPLAY * replay(model.head.weight, KNOWN, torch.Generator().manual_seed(2))
    assert value(fitted, model, x, labels, seed=2) == pytest.approx(expected.item(), rel=1e-5)


def test_without_an_objective_there_is_nothing_to_fit() -> None:
    model, _ = model_and_batch()
    objective = novel_objective(model)
    assert objective.on(samples([-1]), model) is objective
