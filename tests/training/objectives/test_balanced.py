"""Cross-entropy with a client's label shares."""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F

from fedwild.core.settings import Settings
from fedwild.data.samples import Samples
from fedwild.models import build
from fedwild.training.objectives import Balanced, Proser
from fedwild.training.objectives.balanced import log_shares, with_shares


def test_shares_are_smoothed_and_relative_to_an_even_split() -> None:
    shares = log_shares(torch.tensor([0, 0, 0, 1]), 3)
    assert torch.allclose(shares, torch.tensor([math.log(3 * n / 7) for n in (4, 2, 1)]))


def test_equal_shares_change_nothing() -> None:
    assert torch.allclose(log_shares(torch.tensor([0, 1, 2, 2, 1, 0]), 3), torch.zeros(3))


def test_the_loss_adds_the_shares_of_all_samples_of_the_client() -> None:
    torch.manual_seed(0)
    model = build("mlp", (4,), 3, params={"hidden": [5]})
    y = torch.tensor([0, 0, 0, 1, 2])
    samples = Samples(torch.rand(5, 4), y, torch.arange(5))
    x, labels = samples.x[:2], y[:2]
    objective = Balanced(Settings()).on(samples, model)
    loss = objective.loss(model, x, labels, torch.Generator())
    assert torch.allclose(loss, F.cross_entropy(model(x) + log_shares(y, 3), labels))
    assert not torch.allclose(loss, F.cross_entropy(model(x), labels))


def test_shares_of_one_client_do_not_affect_another() -> None:
    shared = Balanced(Settings())
    model = build("mlp", (4,), 3, params={"hidden": [5]})
    shared.on(Samples(torch.rand(2, 4), torch.tensor([0, 1]), torch.arange(2)), model)
    assert shared.shares is None


def test_an_unknown_output_has_no_share() -> None:
    shares = torch.tensor([0.5, -0.5])
    assert with_shares(torch.zeros(1, 3), shares).tolist() == [[0.5, -0.5, 0.0]]


def test_proser_balances_only_the_known_term() -> None:
    torch.manual_seed(0)
    model = build("mlp", (4,), 4, params={"hidden": [5]})
    y = torch.tensor([0, 0, 0, 1, 2])
    samples = Samples(torch.rand(5, 4), y, torch.arange(5))
    plain, balanced = (Proser(Proser.Params(balanced=flag)).on(samples, model) for flag in (False, True))
    one, other = (
        objective.terms(model, samples.x, y, [], torch.Generator().manual_seed(0))  # type: ignore[attr-defined]
        for objective in (plain, balanced)
    )
    assert torch.allclose(other.known, F.cross_entropy(with_shares(model(samples.x), log_shares(y, 3)), y))
    assert not torch.allclose(one.known, other.known)
    assert torch.equal(one.dummy, other.dummy)
    assert torch.equal(one.mix, other.mix)
