"""FedPD's two learning rates as two stages: losses, rates, rounds, and what cannot have stages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from fedwild.contract import Step
from fedwild.core.errors import UserError
from fedwild.core.payload import Payload
from fedwild.data import Dataset
from fedwild.data.samples import Samples
from fedwild.methods.fedpd.stages import Reweighted, closed_rounds
from fedwild.models import build
from fedwild.training.objectives import Proser
from tests.methods.fedpd.test_method import final, one_reply, same, training
from tests.tiny import even_shares, run_tiny, split_by, tiny_dataset, tiny_experiment

STAGED = {"stages": "two", "rounds": 10}


@pytest.fixture
def data() -> Dataset:
    return tiny_dataset(classes=3, per_class=20)


def experiment_of(data: Dataset, method: dict[str, Any], objective: dict[str, Any] | None = None) -> Any:
    settings = {"method": method, "objective": {"name": "proser", "open_weight": 0.01, **(objective or {})}}
    return tiny_experiment("fedpd", data, split_by(data, 3, even_shares(data, 3, 2)), settings)


@pytest.mark.parametrize(
    ("rounds", "share", "closed"),
    [(100, 0.7, 70), (50, 0.7, 35), (20, 0.7, 14), (2, 0.7, 1), (2, 0.1, 1), (9, 0.99, 8)],
)
def test_the_first_stage_has_its_share_of_the_rounds(rounds: int, share: float, closed: int) -> None:
    assert closed_rounds(rounds, share) == closed


def test_the_second_stage_has_both_losses_at_the_smaller_rate(data: Dataset) -> None:
    train = training(experiment_of(data, {**STAGED, "lr": 0.02, "closed_share": 0.7}))
    rates = [train.in_round(round_)[0].lr for round_ in range(10)]
    weights = [train.in_round(round_)[1].open_weight for round_ in range(10)]
    assert rates == pytest.approx([0.02] * 7 + [0.0002] * 3)
    assert weights == [0.0] * 7 + [1.0] * 3


def test_one_stage_has_one_rate_and_the_weight_of_the_objective(data: Dataset) -> None:
    train = training(experiment_of(data, {"rounds": 10, "lr": 0.02}))
    assert {train.in_round(round_)[0].lr for round_ in range(10)} == {0.02}
    assert {train.in_round(round_)[1].open_weight for round_ in range(10)} == {0.01}


def test_a_single_round_has_one_stage(data: Dataset) -> None:
    settings, objective = training(experiment_of(data, {**STAGED, "rounds": 1, "lr": 0.02})).in_round(0)
    assert (settings.lr, objective.open_weight) == (0.02, 0.01)


def test_without_open_weight_the_loss_is_cross_entropy_with_the_label(data: Dataset) -> None:
    model = build("mlp", (1, 8, 8), 4, params={"hidden": [8, 6]})
    x, y = torch.rand(6, 1, 8, 8), torch.tensor([0, 1, 2, 0, 1, 2])
    whole = Proser(Proser.Params(open_weight=0.01))
    closed, full = (Reweighted(whole, weight).on(Samples(x, y, torch.arange(6)), model) for weight in (0.0, 1.0))
    losses = [stage.loss(model, x, y, torch.Generator().manual_seed(0)) for stage in (closed, full)]
    all_terms = Proser(Proser.Params(open_weight=1.0)).loss(model, x, y, torch.Generator().manual_seed(0))
    assert torch.allclose(losses[0], F.cross_entropy(model(x), y))
    assert torch.allclose(losses[1], all_terms)


@pytest.mark.parametrize("importance", ["grad*weight", "none"])
@pytest.mark.parametrize(("round_", "weight", "lr"), [(0, 0.0, 0.02), (9, 1.0, 0.0002)])
def test_a_stage_trains_like_a_run_with_its_weight_and_its_rate(
    round_: int, weight: float, lr: float, importance: str, data: Dataset, tmp_path: Path
) -> None:
    staged = experiment_of(data, {**STAGED, "lr": 0.02, "importance": importance, "epochs": 2})
    plain = experiment_of(
        data, {"rounds": 10, "lr": lr, "importance": importance, "epochs": 2}, {"open_weight": weight}
    )
    step = Step("train", round_, round_)
    ours, theirs = (trained_in(step, experiment, data, tmp_path) for experiment in (staged, plain))
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-7) for name in theirs)
    assert not same(ours, trained_in(step, experiment_of(data, {"rounds": 10, "lr": 0.02}), data, tmp_path))


def trained_in(step: Step, experiment: Any, data: Dataset, folder: Path) -> dict[str, torch.Tensor]:
    return Payload.decode(one_reply(experiment, data, folder, step=step)).group("model")


def test_stages_and_their_share_take_effect(data: Dataset, tmp_path: Path) -> None:
    split = split_by(data, 3, even_shares(data, 3, 2))
    models = []
    readings: dict[str, dict[str, Any]] = {
        "one": {},
        "two": {"stages": "two"},
        "early": {"stages": "two", "closed_share": 0.3},
    }
    for name, method in readings.items():
        run_tiny(tmp_path / name, "fedpd", data, split, {"method": {"rounds": 3, **method}})
        models.append(final(tmp_path / name))
    assert not any(same(one, other) for one, other in ((models[0], models[1]), (models[1], models[2])))


@pytest.mark.parametrize(
    ("method", "objective", "words"),
    [
        ({}, {"open_weight": 0.0}, "'proser' and an open weight of 0: the second stage needs an open-set loss"),
        ({"importance": "none"}, {"name": "ce"}, "'ce' and an open weight of 0"),
    ],
)
def test_stages_without_an_open_loss_are_rejected(
    method: dict[str, Any], objective: dict[str, Any], words: str, data: Dataset
) -> None:
    settings = {
        "method": {**STAGED, **method},
        "objective": {"name": "proser", **objective},
        "score": {"name": "msp"},
    }
    split = split_by(data, 3, even_shares(data, 3, 2))
    with pytest.raises(UserError, match=words):
        tiny_experiment("fedpd", data, split, settings).method.check(None, None)
