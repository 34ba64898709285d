"""FedPD's local half: importance against a naive loop in float64, masks of exactly the given ratio, and their parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from math import prod

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from fedwild.contract.task import Task, weights_of
from fedwild.core.rng import Rng
from fedwild.data import Samples
from fedwild.methods.fedpd.subnetworks import (
    Importance,
    Masks,
    Measure,
    Parts,
    neuron_shares,
    subnetwork_size,
    top_mask,
    weight_names,
)
from fedwild.models import Network
from fedwild.models.kernels import plain
from fedwild.training.corrections import ClientCorrection
from fedwild.training.corrections.prox import Pull
from fedwild.training.loop import PLAIN, Descent, LocalTraining, Trained, train
from fedwild.training.objectives import Proser

CLASSES = 3
LOCAL = LocalTraining(epochs=2, batch_size=6, lr=0.05, momentum=0.9, weight_decay=5e-4)
TASKS = {
    "mlp": Task((6,), "mlp", {"hidden": [5, 4]}),
    "simple-cnn": Task((1, 8, 8), "simple-cnn"),
    "digit-cnn": Task((1, 8, 8), "digit-cnn", {"width": 0.1}),
}


class Draw(ClientCorrection):
    """A penalty on some of the weights that depends on the batch, as MOON's does."""

    def __init__(self, model: Network) -> None:
        self.weight = model.head.weight

    def penalty(self, x: Tensor, y: Tensor) -> Tensor:
        return x.mean() * (self.weight - 1).square().sum()


CORRECTIONS: dict[str, Callable[[Network], ClientCorrection]] = {
    "none": lambda model: ClientCorrection(),
    "penalty": Draw,
    "prox": lambda model: Pull(model, 0.5),
}


class Doubled(Samples):
    """Samples in float64, where rounding cannot hide a mistake."""

    def batches(
        self, batch_size: int, generator: torch.Generator | None = None, augment: bool = False
    ) -> Iterator[tuple[Tensor, Tensor]]:
        for x, y in super().batches(batch_size, generator, augment):
            yield x.double(), y


def samples(shape: tuple[int, ...], count: int = 16) -> Samples:
    x = torch.rand(count, *shape, generator=torch.Generator().manual_seed(3))
    return Doubled(x, torch.arange(count) % CLASSES, torch.arange(count))


def proser(open_weight: float = 0.01, mix_weight: float = 0.01) -> Proser:
    return Proser(Proser.Params(open_weight=open_weight, mix_weight=mix_weight))


def network(name: str) -> Network:
    return TASKS[name].build(CLASSES + 1, Rng(1)).double()


def trained(
    model: Network,
    descent: Descent = PLAIN,
    objective: Proser | None = None,
    client_correction: str = "none",
    epochs: int = 2,
) -> Trained:
    data, local = samples(model.input_shape), LOCAL.model_copy(update={"epochs": epochs})
    return train(model, data, local, objective or proser(), CORRECTIONS[client_correction](model), Rng(7), descent)


def losses(model: Network, x: Tensor, y: Tensor, mix_weight: float, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """L_close and L_open of a mlp, written out: x (n, 6), y (n,)."""
    lam, partner = float(torch.rand((), generator=draws)), torch.randperm(len(y), generator=draws)
    hidden = model.upto(x, "fc1")
    logits = model.after(hidden, "fc1")
    others = torch.stack([torch.cat([row[:label], row[label + 1 :]]) for row, label in zip(logits, y, strict=True)])
    mixed = model.after(lam * hidden + (1 - lam) * hidden[partner], "fc1")[y != y[partner]]
    mix = -mixed.log_softmax(1)[:, -1].mean() if len(mixed) else torch.zeros(())
    return F.cross_entropy(logits, y), -others.log_softmax(1)[:, -1].mean() + mix_weight * mix


def naive_importance(measure: Measure, objective: Proser, epochs: int) -> tuple[Masks, Masks]:
    """The sums of |grad * w| or |grad| over the batches of the last epoch, each before its step, in float64."""
    model = network("mlp")
    weights = {name: p for name, p in model.named_parameters() if name.endswith(".weight")}
    optimiser = torch.optim.SGD(model.parameters(), lr=LOCAL.lr, momentum=0.9, weight_decay=LOCAL.weight_decay)
    order, draws = Rng(7).torch("batches"), Rng(7).torch("objective")
    close = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    open_ = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    for epoch in range(epochs):
        for x, y in samples((6,)).batches(LOCAL.batch_size, order):
            both = losses(model, x, y, objective.params.mix_weight, draws)
            for totals, loss in zip((close, open_), both, strict=True):
                for name, weight in weights.items():
                    (gradient,) = torch.autograd.grad(loss, weight, retain_graph=True)
                    value = gradient * weight if measure == "grad*weight" else gradient
                    totals[name] += value.detach().abs() * (epoch == epochs - 1)
            optimiser.zero_grad()
            (both[0] + objective.params.open_weight * both[1]).backward()
            optimiser.step()
    return close, open_


# --- importance ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize("measure", ["grad*weight", "grad"])
def test_importance_is_that_of_a_naive_loop_over_the_last_epoch(measure: Measure, epochs: int) -> None:
    # Large weights, so that a term that is missing or counted twice would show.
    objective = proser(open_weight=0.5, mix_weight=1.0)
    model = network("mlp")
    found = Importance(model, model.graph(), measure)
    trained(model, found, objective, epochs=epochs)
    for ours, naive in zip((found.close, found.open), naive_importance(measure, objective, epochs), strict=True):
        assert ours.keys() == naive.keys() == {"fc1.fc.weight", "fc2.fc.weight", "head.weight"}
        for name, expected in naive.items():
            assert expected.max() > 1e-3
            assert (ours[name] - expected).abs().max() < 1e-10 * float(expected.max()), name


def test_importance_and_weights_in_float32_are_those_of_float64() -> None:
    single, double = (TASKS["mlp"].build(CLASSES + 1, Rng(1)) for _ in range(2))
    found = [Importance(model, model.graph(), "grad*weight") for model in (single, double.double())]
    x, y = samples((6,)).all()
    local = (LOCAL, proser(), ClientCorrection(), Rng(7))
    train(single, Samples(x, y, torch.arange(len(y))), *local, found[0])
    train(double, samples((6,)), *local, found[1])
    for ours, exact in (
        (found[0].close, found[1].close),
        (found[0].open, found[1].open),
        (single.state_dict(), double.state_dict()),
    ):
        assert all(torch.allclose(ours[name].double(), exact[name], rtol=1e-4, atol=1e-6) for name in exact)


def test_importance_uses_the_unweighted_open_loss() -> None:
    """The first batch of a single epoch: before the first step, the weight of L_open has no effect."""
    once = []
    for open_weight in (0.01, 1.0):
        model = network("mlp")
        found = Importance(model, model.graph(), "grad*weight")
        local = LocalTraining(epochs=1, batch_size=16)
        train(model, samples((6,)), local, proser(open_weight), ClientCorrection(), Rng(7), found)
        once.append(found.open)
    assert all(torch.equal(once[0][name], once[1][name]) for name in once[0])
    assert all(score.max() > 0 for score in once[0].values())


@pytest.mark.parametrize("client_correction", CORRECTIONS)
@pytest.mark.parametrize("name", TASKS)
def test_measuring_importance_changes_neither_the_weights_nor_the_loss(name: str, client_correction: str) -> None:
    plainly, looked = network(name), network(name)
    before = weights_of(looked)
    without = trained(plainly, client_correction=client_correction)
    with_it = trained(looked, Importance(looked, looked.graph(), "grad*weight"), client_correction=client_correction)
    assert with_it.steps == without.steps == 6
    # The loss is summed in float32.
    assert with_it.loss == pytest.approx(without.loss, rel=1e-6)
    expected, found = plainly.state_dict(), looked.state_dict()
    for key, tensor in expected.items():
        assert torch.allclose(found[key], tensor, atol=1e-9, rtol=1e-9), key
    assert max(float((found[key] - before[key]).abs().max()) for key in found) > 0.01


@pytest.mark.parametrize("client_correction", ["penalty", "prox"])
def test_a_correction_changes_the_steps_but_not_the_reported_loss(client_correction: str) -> None:
    runs = {}
    for kind in ("none", client_correction):
        model = network("mlp")
        runs[kind] = (
            trained(model, Importance(model, model.graph(), "grad"), client_correction=kind, epochs=1),
            weights_of(model),
        )
    (plain_run, plain_weights), (bent_run, bent_weights) = runs["none"], runs[client_correction]
    assert not torch.allclose(plain_weights["head.weight"], bent_weights["head.weight"], atol=1e-4)
    # The penalty alone exceeds 10 here; the losses differ only because the steps differ.
    assert bent_run.loss == pytest.approx(plain_run.loss, abs=1)


def test_the_fast_kernels_give_the_importance_of_pytorchs_own() -> None:
    found = []
    for kernels in (nullcontext(), plain()):
        model = network("simple-cnn")
        found.append(Importance(model, model.graph(), "grad*weight"))
        with kernels:
            trained(model, found[-1])
    for fast, slow in ((found[0].close, found[1].close), (found[0].open, found[1].open)):
        for name in weight_names(network("simple-cnn").graph()):
            assert slow[name].max() > 0
            assert torch.allclose(fast[name], slow[name], rtol=1e-9, atol=1e-12), name


def test_batch_norm_counts_each_batch_once() -> None:
    model = network("digit-cnn")
    trained(model, Importance(model, model.graph(), "grad*weight"))
    # 16 samples in batches of 6, 6 and 4, twice.
    assert {int(n) for key, n in model.state_dict().items() if key.endswith("num_batches_tracked")} == {6}


def test_without_training_nothing_matters() -> None:
    model = network("mlp")
    found = Importance(model, model.graph(), "grad*weight")
    trained(model, found, epochs=0)
    assert all(not score.any() for scores in (found.close, found.open) for score in scores.values())


@pytest.mark.parametrize("name", TASKS)
def test_conv_and_linear_weights_including_the_head_have_masks_but_norms_do_not(name: str) -> None:
    model = network(name)
    names = weight_names(model.graph())
    assert names == tuple(key for key, value in model.named_parameters() if value.dim() > 1)
    assert names[-1] == "head.weight"


# --- masks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "count", "expected"),
    [(0.5, 4, 2), (0.5, 5, 3), (0.5, 1, 1), (0.1, 4, 0), (0.1, 5, 1), (0.9, 5, 5), (0.3, 10, 3), (0.7, 0, 0)],
)
def test_halves_are_rounded_up(ratio: float, count: int, expected: int) -> None:
    assert subnetwork_size(ratio, count) == expected


@pytest.mark.parametrize("ratio", [n / 10 for n in range(1, 10)])
def test_a_mask_keeps_exactly_the_given_ratio_of_the_largest_scores(ratio: float) -> None:
    generator = torch.Generator().manual_seed(0)
    for shape in [(1,), (2,), (3,), (7,), (8,), (3, 3), (10, 10), (6, 1, 5, 5), (33, 31), (1001,)]:
        scores = torch.rand(shape, generator=generator)
        mask = top_mask(scores, ratio)
        assert (mask.shape, mask.dtype) == (scores.shape, torch.bool)
        assert int(mask.sum()) == subnetwork_size(ratio, prod(shape))
        if mask.any() and not mask.all():
            assert scores[mask].min() > scores[~mask].max()


def test_equal_scores_are_kept_by_position() -> None:
    assert top_mask(torch.zeros(2, 4), 0.4).flatten().tolist() == [True] * 3 + [False] * 5
    assert top_mask(torch.tensor([1.0, 2.0, 1.0, 0.0, 1.0]), 0.6).tolist() == [True, True, True, False, False]
    assert top_mask(torch.tensor([0.0, 3.0, 3.0, 3.0]), 0.5).tolist() == [False, True, True, False]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.lists(
        st.one_of(st.integers(0, 3).map(float), st.floats(0, 2**20, width=32, allow_subnormal=False)), max_size=40
    ),
    st.integers(1, 99),
)
def test_a_mask_is_that_of_a_stable_sort(scores: list[float], percent: int) -> None:
    ratio = percent / 100
    best = sorted(range(len(scores)), key=lambda i: (-scores[i], i))[: subnetwork_size(ratio, len(scores))]
    mask = top_mask(torch.tensor(scores, dtype=torch.float32), ratio)
    assert mask.nonzero().flatten().tolist() == sorted(best)
    assert torch.equal(mask, top_mask(torch.tensor(scores, dtype=torch.float32), ratio))


# --- parts -----------------------------------------------------------------------------------------------------


def test_every_weight_is_in_exactly_one_part() -> None:
    generator = torch.Generator().manual_seed(0)
    close, open_ = (torch.rand(6, 5, generator=generator) < 0.5 for _ in range(2))
    parts = Parts.of(close, open_)
    assert torch.equal(torch.stack(parts).sum(0), torch.ones(6, 5, dtype=torch.int64))
    assert all(part.any() for part in parts)
    assert torch.equal(parts.close | parts.share, close)
    assert torch.equal(parts.open | parts.share, open_)


def test_parts_by_hand() -> None:
    close, open_ = torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False])
    parts = Parts.of(close, open_)
    assert parts.share.tolist() == [True, False, False, False]
    assert parts.close.tolist() == [False, True, False, False]
    assert parts.open.tolist() == [False, False, True, False]
    assert parts.rest.tolist() == [False, False, False, True]


@pytest.mark.parametrize("shape", [(2, 4), (2, 1, 2, 2)])
def test_shares_are_those_of_each_neurons_own_weights(shape: tuple[int, ...]) -> None:
    close = torch.tensor([[1, 1, 1, 0], [0, 0, 0, 1]]).bool().view(shape)
    open_ = torch.tensor([[0, 0, 1, 1], [0, 0, 0, 1]]).bool().view(shape)
    expected = np.array([[2 / 4, 0], [1 / 4, 0], [1 / 4, 1 / 4]])
    assert neuron_shares(close, open_).numpy() == pytest.approx(expected)
