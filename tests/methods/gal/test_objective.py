"""What a client minimises in novel-class learning."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedwild.contract.task import Task
from fedwild.core.rng import Rng
from fedwild.core.settings import Settings
from fedwild.data.samples import Samples
from fedwild.methods.gal import GAL
from fedwild.methods.gal.objective import (
    DISTILLATION,
    REPLAY,
    NovelObjective,
    logit_distance,
    pairwise_bce,
    replay,
    semantic_weighted,
)
from fedwild.methods.gal.stage import Discovery
from fedwild.models import Network
from fedwild.training.corrections import ClientCorrection
from fedwild.training.loop import LocalTraining, train
from fedwild.training.objectives import Balanced
from fedwild.training.objectives.balanced import log_shares

KNOWN, NOVEL = 3, 2
NOISE = 0.3
TASK = Task((1, 8, 8), "mlp", {"hidden": [8, 6]})
BEFORE = TASK.build(KNOWN, Rng(5), bias=False).eval()
LABELS = [4, 4, 4, 3, 4, 0, 4, 4]


def model_and_batch() -> tuple[Network, Tensor]:
    images = torch.rand(8, 1, 8, 8, generator=torch.Generator().manual_seed(3))
    return TASK.build(KNOWN + NOVEL, Rng(0), bias=False), images


def novel_objective(stretch: float = 1.0, **settings: Any) -> NovelObjective:
    """Return the objective with SWL and nothing against forgetting, unless the settings say otherwise."""
    prototypes = torch.rand(NOVEL, 6, generator=torch.Generator().manual_seed(8)) + 0.1
    replayed = torch.tensor(4), torch.tensor(NOISE)
    discovery = Discovery(BEFORE.state_dict(), prototypes, torch.full((NOVEL,), stretch), *replayed)
    params = GAL.Params(**{"loss": "swl", "against_forgetting": "nothing", **settings})
    return NovelObjective(params, discovery, Balanced(Settings()), BEFORE)


def value(objective: Any, model: Network, x: Tensor, y: list[int], seed: int = 0) -> float:
    return objective.loss(model, x, torch.tensor(y), torch.Generator().manual_seed(seed)).item()


@pytest.mark.parametrize("loss", ["swl", "bce"])
def test_novel_and_labelled_samples_are_weighted_by_their_shares(loss: str) -> None:
    model, x = model_and_batch()
    objective = novel_objective(loss=loss)
    y = [-1, 2, -1, -1, 0, -1, -1, 1]
    novel = [0, 2, 3, 5, 6]
    z = model.embed(x)
    of_novel = semantic_weighted(z[novel], objective.discovery.prototypes, 0.07)
    if loss == "bce":
        of_novel = pairwise_bce(z[novel], z[novel] @ model.head.weight[KNOWN:].T)
    # The cross-entropy is over known and novel classes.
    of_known = F.cross_entropy(z[[1, 4, 7]] @ model.head.weight.T, torch.tensor([2, 0, 1]))
    expected = 5 / 8 * of_novel.item() + 3 / 8 * of_known.item()
    assert value(objective, model, x, y) == pytest.approx(expected, rel=1e-5)
    assert value(objective, model, x[novel], [-1] * 5) == pytest.approx(of_novel.item(), rel=1e-5)
    assert value(objective, model, x[[1, 4, 7]], [2, 0, 1]) == pytest.approx(of_known.item(), rel=1e-5)


def test_a_batch_without_novel_samples_has_a_gradient_for_every_weight() -> None:
    model, x = model_and_batch()
    loss = novel_objective().loss(model, x[:2], torch.tensor([0, 1]), torch.Generator())
    loss.backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())


def test_learnt_prototypes_are_the_stretched_novel_rows_and_have_a_gradient() -> None:
    model, x = model_and_batch()
    objective = novel_objective(prototypes="learnt", stretch=2.5)
    expected = semantic_weighted(model.embed(x), model.head.weight[KNOWN:] * 2.5, 0.07).item()
    assert value(objective, model, x, [-1] * 8) == pytest.approx(expected, rel=1e-5)
    for prototypes in ("frozen", "learnt"):
        model.zero_grad()
        objective = novel_objective(prototypes=prototypes)
        objective.loss(model, x, torch.full((8,), -1), torch.Generator()).backward()
        moved = model.head.weight.grad is not None and bool((model.head.weight.grad != 0).any())
        assert moved is (prototypes == "learnt")


def test_training_with_novel_labels_moves_the_extractor() -> None:
    model, x = model_and_batch()
    view = Samples(x, torch.tensor([-1, 0, 1, 2] * 2), torch.arange(8))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    train(model, view, LocalTraining(epochs=2, lr=0.05), novel_objective(), ClientCorrection(), Rng(0))
    assert any(not torch.equal(model.state_dict()[name], before[name]) for name in before if "head" not in name)


def test_temperature_and_normalisation_change_the_loss() -> None:
    model, x = model_and_batch()
    z = model.embed(x)
    for temperature, normalised in ((0.07, True), (1.0, True), (1.0, False)):
        objective = novel_objective(temperature=temperature, normalised=normalised)
        expected = semantic_weighted(z, objective.discovery.prototypes, temperature, normalised).item()
        assert value(objective, model, x, [-1] * 8) == pytest.approx(expected, rel=1e-5)


def distilled(model: Network, x: Tensor) -> Tensor:
    """Return the distance of the known logits of two networks, and the replay of four samples per class."""
    logits, before = (network.embed(x) @ network.head.weight[:KNOWN].T for network in (model, BEFORE))
    replayed = replay(model.head.weight, KNOWN, 4, NOISE, torch.Generator().manual_seed(2))
    return DISTILLATION * logit_distance(logits, before) + REPLAY * replayed


def test_distillation_adds_the_distance_of_known_logits_and_a_replay() -> None:
    model, x = model_and_batch()
    y = [-1] * 6 + [0, 1]
    plain = value(novel_objective(), model, x, y)
    expected = plain + distilled(model, x).item()
    found = value(novel_objective(against_forgetting="distillation"), model, x, y, seed=2)
    assert found == pytest.approx(expected, rel=1e-5)
    assert found > plain + 0.1
    assert all(p.grad is None for p in BEFORE.parameters())


def test_with_labels_the_method_s_objective_is_minimised_fitted_to_the_samples() -> None:
    model, x = model_and_batch()
    view = Samples(x, torch.tensor(LABELS), torch.arange(8))
    shared = novel_objective(loss="labels")
    fitted = shared.on(view, model)
    expected = F.cross_entropy(model(x) + log_shares(view.y, KNOWN + NOVEL), view.y).item()
    assert value(fitted, model, x, LABELS) == pytest.approx(expected, rel=1e-5)
    assert abs(expected - F.cross_entropy(model(x), view.y).item()) > 0.01
    # The objective that the next client starts with is unchanged.
    assert isinstance(shared.objective, Balanced)
    assert shared.objective.shares is None


def test_distillation_can_be_combined_with_labels() -> None:
    model, x = model_and_batch()
    view = Samples(x, torch.tensor(LABELS), torch.arange(8))
    fitted = novel_objective(loss="labels", against_forgetting="distillation").on(view, model)
    expected = F.cross_entropy(model(x) + log_shares(view.y, KNOWN + NOVEL), view.y)
    expected = expected + distilled(model, x)
    assert value(fitted, model, x, LABELS, seed=2) == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("loss", ["swl", "bce"])
def test_without_labels_nothing_is_fitted(loss: str) -> None:
    model, x = model_and_batch()
    objective = novel_objective(loss=loss)
    assert objective.on(Samples(x[:1], torch.tensor([-1]), torch.arange(1)), model) is objective
