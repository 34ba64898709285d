"""The losses of a client by hand, and what its personal head does not change."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch.nn import functional as F

from fedwild.methods.fedoss.heads import LightBranch
from fedwild.methods.fedoss.open_space import Grid
from fedwild.methods.fedoss.settings import FedOSSParams
from fedwild.methods.fedoss.synthesis import PersonalTraining, Synthesis
from fedwild.models import Network, build
from fedwild.training.corrections.base import ClientCorrection
from fedwild.training.loop import PLAIN
from fedwild.training.objectives import CrossEntropy

CUT = "fc1"
X = torch.rand(6, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.tensor([0, 1, 2, 0, 1, 2])
NEAR = torch.tensor([True, False, True, True, False, False])
LOG_PRIOR = torch.tensor([0.3, -0.2, -0.4], dtype=torch.float64)
DRAWN, DRAWN_NEAR = (
    torch.rand(4, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64),
    torch.tensor([1, 1, 2, 0]),
)


def network() -> Network:
    torch.manual_seed(1)
    return build("mlp", (7,), 4, params={"hidden": [8, 5]}).double()


def personal(log_prior: torch.Tensor = LOG_PRIOR) -> PersonalTraining:
    torch.manual_seed(2)
    head = LightBranch(8, 3).double()
    return PersonalTraining(CUT, head, torch.optim.SGD(head.parameters(), lr=0.1), log_prior)


def synthesis(weights: tuple[float, float] = (0.5, 2.0), sample: bool = True, **settings: Any) -> Synthesis:
    rule: Any = Mock(return_value=NEAR)
    params = FedOSSParams(duss=weights[0], foss=weights[1], **settings)
    return Synthesis(
        personal(), rule, (lambda: (DRAWN, DRAWN_NEAR)) if sample else None, params, Grid.within((8,), 100)
    )


@pytest.fixture(autouse=True)
def pushed_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedwild.methods.fedoss.synthesis.invert", lambda model, h, y, cut, settings: h + 1.0)


def step(descent: Any, model: Network) -> torch.Tensor:
    return descent.gradients(model, CrossEntropy(CrossEntropy.Params()), ClientCorrection(), X, Y, torch.Generator())


def log_softmax_by_hand(logits: torch.Tensor, drop: torch.Tensor | None = None) -> torch.Tensor:
    powers = logits.exp()
    if drop is not None:
        powers = powers * (1 - F.one_hot(drop, logits.shape[1]))
    return logits - powers.sum(1, keepdim=True).log()


@pytest.mark.parametrize("masked", [True, False])
def test_the_loss_is_the_papers_sum_of_known_pushed_and_drawn(masked: bool) -> None:
    """Equations 11 to 13, with numbers for both weights, in float64."""
    model = network()
    h = model.upto(X, CUT)
    known = log_softmax_by_hand(model.after(h, CUT) + torch.cat([LOG_PRIOR, torch.zeros(1)]))
    expected = -known[torch.arange(6), Y].mean()
    for weight, features, near in ((0.5, h[NEAR].detach() + 1.0, Y[NEAR]), (2.0, DRAWN, DRAWN_NEAR)):
        answers = log_softmax_by_hand(model.after(features, CUT), near if masked else None)
        expected = expected - weight * answers[:, 3].mean()
    assert torch.allclose(step(synthesis(masked=masked), network()), expected.detach(), atol=1e-12)


def test_pretraining_does_not_train_the_unknown_output() -> None:
    model = network()
    loss = step(personal(), model)
    logits = network()(X)[:, :3] + LOG_PRIOR
    assert torch.allclose(loss, F.cross_entropy(logits, Y), atol=1e-12)
    assert model.head.weight.grad is not None
    assert torch.equal(model.head.weight.grad[3], torch.zeros(5, dtype=torch.float64))


def test_the_personal_head_does_not_change_the_gradients_of_the_network() -> None:
    with_head, without = network(), network()
    step(personal(torch.zeros(3, dtype=torch.float64)), with_head)
    with torch.no_grad():
        without.head.bias[3] = -1e9
    PLAIN.gradients(without, CrossEntropy(CrossEntropy.Params()), ClientCorrection(), X, Y, torch.Generator())
    for one, other in zip(with_head.parameters(), without.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None
        assert torch.allclose(one.grad, other.grad, rtol=0, atol=1e-15)


def test_the_personal_head_learns_from_known_samples_only() -> None:
    """Equation 14: its step is the gradient of its own cross-entropy, whatever was synthesised."""
    descent = synthesis()
    expected = personal()
    F.cross_entropy(expected.head(network().upto(X, CUT)) + LOG_PRIOR, Y).backward()
    expected.optimiser.step()
    step(descent, network())
    for one, other in zip(descent.head.parameters(), expected.head.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-15)


def test_pushed_samples_do_not_train_the_extractor() -> None:
    gradients = []
    for weights in ((0.0, 0.0), (5.0, 5.0)):
        model = network()
        step(synthesis(weights), model)
        gradients.append([p.grad for p in model.get_submodule(CUT).parameters()])
    assert all(torch.allclose(a, b, rtol=0, atol=1e-14) for a, b in zip(*gradients, strict=True))


def test_a_weight_of_zero_removes_a_term() -> None:
    assert torch.equal(step(synthesis((1.0, 0.0)), network()), step(synthesis((1.0, 3.0), sample=False), network()))
    plain = step(synthesis((0.0, 0.0)), network())
    known = network()(X) + torch.cat([LOG_PRIOR, torch.zeros(1)])
    assert torch.allclose(plain, F.cross_entropy(known, Y), atol=1e-12)


def test_only_the_last_epoch_is_counted() -> None:
    descent = synthesis()
    for left, expected in ((1, 0), (0, 3)):
        descent.epoch(left)
        step(descent, network())
        assert descent.tally.boundary == expected
    assert descent.tally.info()["boundary"] == pytest.approx(0.5)


def test_rectified_features_are_not_negative(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedwild.methods.fedoss.synthesis.invert", lambda model, h, y, cut, settings: h - 0.5)
    monkeypatch.setattr("tests.methods.fedoss.test_synthesis.DRAWN", DRAWN - 0.5)
    model = network()
    h = model.upto(X, CUT).detach()
    assert float(h.min()) == 0.0
    for rectify in (False, True):
        pushed, drawn = (batch.h for batch in synthesis(rectify=rectify).virtual(model, h, Y, torch.Generator()))
        expected = (h[NEAR] - 0.5, DRAWN)
        assert torch.equal(pushed, expected[0].relu() if rectify else expected[0])
        assert torch.equal(drawn, expected[1].relu() if rectify else expected[1])


def test_activations_that_may_be_negative_are_raised_to_the_smallest_real_one() -> None:
    virtual, h = torch.tensor([[-3.0, -1.0, 2.0]]), torch.tensor([[-2.0, 0.5, 1.0]])
    assert synthesis(rectify=True).allowed(virtual, h).tolist() == [[-2.0, -1.0, 2.0]]


def test_pretraining_over_all_outputs_is_cross_entropy_over_them() -> None:
    descent = personal()
    descent.all_outputs = True
    model = network()
    h = model.upto(X, CUT)
    known = log_softmax_by_hand(model.after(h, CUT) + torch.cat([LOG_PRIOR, torch.zeros(1)]))
    expected = -known[torch.arange(6), Y].mean()
    assert torch.allclose(step(descent, model), expected.detach(), atol=1e-12)
    assert model.head.weight.grad is not None and bool(model.head.weight.grad[3].abs().sum() > 0)


def normalised() -> Network:
    """A network with batch-norm after the cut, so that it matters which samples pass together."""
    torch.manual_seed(1)
    return build("resnet-18", (3, 8, 8), 4, params={"width": 2}).double()


def test_drawn_samples_can_have_a_pass_of_their_own() -> None:
    """Batch-norm then normalises them by their own mean and variance."""
    model, generator = normalised(), torch.Generator().manual_seed(3)
    x = torch.rand(6, 3, 8, 8, generator=generator, dtype=torch.float64)
    h = model.upto(x, "layer3").detach()
    drawn = torch.rand(4, *h.shape[1:], generator=generator, dtype=torch.float64)
    losses = {}
    for own_pass in (False, True):
        descent = synthesis((0.0, 2.0), prior=False, own_pass=own_pass)
        descent.cut, descent.log_prior, descent.sample = "layer3", torch.zeros(3), lambda: (drawn, DRAWN_NEAR)
        losses[own_pass] = descent.loss(model, h, Y, torch.Generator())
    known = -log_softmax_by_hand(model.after(h, "layer3"))[torch.arange(6), Y].mean()
    alone = -log_softmax_by_hand(model.after(drawn, "layer3"), DRAWN_NEAR)[:, 3].mean()
    together = model.after(torch.cat([h, drawn]), "layer3").split([6, 4])
    joint = -log_softmax_by_hand(together[1], DRAWN_NEAR)[:, 3].mean()
    joint = 2 * joint - log_softmax_by_hand(together[0])[torch.arange(6), Y].mean()
    assert torch.allclose(losses[True], known + 2 * alone, atol=1e-12)
    assert torch.allclose(losses[False], joint, atol=1e-12)
    assert not torch.allclose(losses[True], losses[False], atol=1e-3)


def test_a_single_drawn_sample_passes_with_the_known_ones() -> None:
    descent = synthesis(own_pass=True)
    descent.sample = lambda: (DRAWN[:1], DRAWN_NEAR[:1])
    assert not descent.virtual(network(), torch.rand(6, 8).double(), Y, torch.Generator())[1].own_pass


@pytest.mark.parametrize(
    ("draw_in", "is_boundary", "batches"), [("all", False, 2), ("boundary", False, 1), ("boundary", True, 2)]
)
def test_draws_can_be_limited_to_batches_with_boundary_samples(draw_in: str, is_boundary: bool, batches: int) -> None:
    descent = synthesis(draw_in=draw_in)
    descent.rule = Mock(return_value=NEAR & is_boundary)
    assert len(descent.virtual(network(), network().upto(X, CUT).detach(), Y, torch.Generator())) == batches


def test_only_pushed_samples_that_are_called_unknown_can_be_accepted() -> None:
    """The outputs are the features themselves, so that answers can be read off."""
    model = build("mlp", (7,), 4, params={"hidden": [4]}).double()
    with torch.no_grad():
        model.head.weight.copy_(torch.eye(4))
        model.head.bias.zero_()
    # After the push by 1, features 1 and 4 have their maximum at the last output.
    h = torch.tensor(
        [[3, 0, 0, 2], [0, 1, 0, 5], [1, 0, 2, 0], [0, 4, 0, 0], [0, 0, 1, 2], [9, 0, 0, 8]], dtype=torch.float64
    )
    for accept, expected in (("all", [0, 2, 3, 4]), ("unknown", [4])):
        descent = synthesis(accept=accept, sample=False)
        descent.rule = Mock(return_value=torch.tensor([True, False, True, True, True, False]))
        descent.is_last_epoch = True
        (pushed,) = descent.virtual(model, h, Y, torch.Generator())
        assert torch.equal(pushed.h, h[expected] + 1.0) and torch.equal(pushed.near, Y[expected])
        assert descent.tally.boundary == 4
        assert sum(part.count for part in descent.tally.moments(1).values()) == len(expected)
