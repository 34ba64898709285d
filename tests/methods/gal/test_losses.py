"""Losses of novel-class learning, compared with plain Python."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fedwild.methods.gal.objective import logit_distance, pairwise_bce, replay, semantic_weighted

Z = [[2.0, 1.0, -0.5], [0.3, -1.0, 4.0]]
PROTOTYPES = [[1.0, 2.0, 0.5], [-1.0, 0.4, 3.0]]


def exact(values: list[list[float]]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def dot(a: list[float], b: list[float]) -> float:
    return sum(u * v for u, v in zip(a, b, strict=True))


def written_out_swl(z: list[list[float]], prototypes: list[list[float]], temperature: float, normalised: bool) -> float:
    """Return Eq. 9 term by term."""
    losses = []
    for sample in z:
        length = math.hypot(*sample)
        alike = [dot(sample, p) / (length * math.hypot(*p)) if normalised else dot(sample, p) for p in prototypes]
        weights = [math.exp(a / temperature) for a in alike]
        losses.append(sum(w * math.dist(sample, p) for w, p in zip(weights, prototypes, strict=True)) / sum(weights))
    return sum(losses) / len(losses)


# --- the semantic-weighted loss -------------------------------------------------------------------------------


@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("temperature", [0.07, 0.5, 5.0])
def test_swl_is_eq_9(temperature: float, normalised: bool) -> None:
    found = semantic_weighted(exact(Z), exact(PROTOTYPES), temperature, normalised).item()
    assert found == pytest.approx(written_out_swl(Z, PROTOTYPES, temperature, normalised), rel=1e-12)


def test_swl_with_round_numbers() -> None:
    # Equal cosines: both prototypes have the weight 1/2, at distances 1 and 3.
    found = semantic_weighted(exact([[1.0, 0.0]]), exact([[2.0, 0.0], [4.0, 0.0]]), 0.07)
    assert found.item() == pytest.approx(2.0, rel=1e-12)


def test_a_sample_on_its_only_prototype_costs_nothing_and_has_a_finite_gradient() -> None:
    z = exact(Z[:1]).requires_grad_()
    loss = semantic_weighted(z, exact(Z[:1]), 0.07)
    loss.backward()
    assert loss.item() == 0.0
    assert z.grad is not None
    assert torch.isfinite(z.grad).all()


@pytest.mark.parametrize("normalised", [True, False])
def test_a_small_temperature_gives_the_distance_to_the_most_similar_prototype(normalised: bool) -> None:
    # The most similar prototype, by cosine and by dot product, is not the nearest.
    sample, along, near = [1.0, 0.0], [9.0, 0.0], [0.8, 0.6]
    found = semantic_weighted(exact([sample]), exact([near, along]), 1e-4, normalised)
    assert found.item() == pytest.approx(8.0, rel=1e-12)
    assert math.dist(sample, near) < 1


def test_a_large_temperature_gives_the_mean_distance() -> None:
    mean = sum(math.dist(z, p) for z in Z for p in PROTOTYPES) / 4
    assert semantic_weighted(exact(Z), exact(PROTOTYPES), 1e9).item() == pytest.approx(mean, rel=1e-6)


def test_the_gradient_of_swl_includes_the_weights() -> None:
    z, prototypes = exact(Z).requires_grad_(), exact(PROTOTYPES).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: semantic_weighted(a, b, 0.5), (z, prototypes))


def test_swl_is_accurate_in_single_precision() -> None:
    generator = torch.Generator().manual_seed(0)
    z, prototypes = (torch.randn(60, 16, generator=generator) for _ in range(2))
    expected = written_out_swl(z.tolist(), prototypes.tolist(), 0.07, True)
    assert semantic_weighted(z, prototypes, 0.07).item() == pytest.approx(expected, rel=1e-4)


# --- the pairwise loss ----------------------------------------------------------------------------------------


def written_out_bce(z: list[list[float]], logits: list[list[float]], top: int) -> float:
    """Return Eq. 11 over all n^2 pairs, with the sets of the largest features."""
    sets = [frozenset(sorted(range(len(row)), key=lambda i: -row[i])[:top]) for row in z]
    p = []
    for row in logits:
        e = [math.exp(v) for v in row]
        p.append([v / sum(e) for v in e])
    total = 0.0
    for i in range(len(z)):
        for j in range(len(z)):
            agree = dot(p[i], p[j])
            total -= math.log(agree + 1e-7) if sets[i] == sets[j] else math.log(1 - agree + 1e-7)
    return total / len(z) ** 2


def test_the_pairwise_loss_is_eq_11_over_all_pairs() -> None:
    generator = torch.Generator().manual_seed(3)
    z = torch.randn(8, 5, generator=generator, dtype=torch.float64)
    logits = torch.randn(8, 3, generator=generator, dtype=torch.float64)
    for top in (1, 2, 3):
        assert pairwise_bce(z, logits, top).item() == pytest.approx(
            written_out_bce(z.tolist(), logits.tolist(), top), rel=1e-12
        )


def test_the_order_of_the_largest_features_does_not_matter_but_their_set_does() -> None:
    z = exact([[9.0, 8.0, 1.0, 0.0], [8.0, 9.0, 0.0, 1.0], [9.0, 0.0, 8.0, 1.0]])
    same, other = exact([[5.0, -5.0], [5.0, -5.0]]), exact([[5.0, -5.0], [-5.0, 5.0]])
    # Samples 0 and 1 agree, so that equal answers have a small loss; 0 and 2 do not.
    assert pairwise_bce(z[[0, 1]], same, 2) < 0.01 < 1 < pairwise_bce(z[[0, 1]], other, 2)
    assert pairwise_bce(z[[0, 2]], other, 2) < 0.01 < 1 < pairwise_bce(z[[0, 2]], same, 2)


def test_fewer_features_than_compared_always_agree() -> None:
    generator = torch.Generator().manual_seed(0)
    z, logits = torch.randn(4, 3, generator=generator), torch.randn(4, 2, generator=generator)
    p = logits.softmax(1)
    assert pairwise_bce(z, logits).item() == pytest.approx(-(p @ p.T + 1e-7).log().mean().item(), rel=1e-6)


def test_five_largest_features_are_compared_by_default() -> None:
    generator = torch.Generator().manual_seed(0)
    z, logits = torch.rand(6, 7, generator=generator).double(), torch.randn(6, 3, generator=generator).double()
    assert pairwise_bce(z, logits).item() == pytest.approx(written_out_bce(z.tolist(), logits.tolist(), 5), rel=1e-12)


def test_the_pairwise_loss_is_finite_and_differentiable_for_certain_answers() -> None:
    logits = exact([[200.0, -200.0], [-200.0, 200.0]]).requires_grad_()
    z = exact([[2.0, 1.0, 0.0], [2.0, 1.0, 0.0]]).requires_grad_()
    loss = pairwise_bce(z, logits, 2)
    loss.backward()
    assert loss.item() == pytest.approx(-math.log(1e-7) / 2, rel=1e-3)
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
    # The selection of the largest features has no gradient.
    assert z.grad is None


# --- against forgetting ---------------------------------------------------------------------------------------


def test_the_distance_of_logits_is_that_of_batches_scaled_to_norm_1() -> None:
    z, before = exact(Z), exact(PROTOTYPES)
    flat, flat_before = ([v for row in rows for v in row] for rows in (Z, PROTOTYPES))
    expected = math.dist([v / math.hypot(*flat) for v in flat], [v / math.hypot(*flat_before) for v in flat_before])
    assert logit_distance(z, before).item() == pytest.approx(expected, rel=1e-12)
    assert logit_distance(7 * z, before).item() == pytest.approx(expected, rel=1e-12)
    assert logit_distance(3 * before, before).item() == pytest.approx(0, abs=1e-12)
    # Rows are not scaled one by one.
    assert logit_distance(torch.diag(torch.tensor([1.0, 5.0])), torch.eye(2)).item() > 0.1


def test_logits_of_zeros_have_distance_0() -> None:
    assert logit_distance(torch.zeros(2, 3), torch.zeros(2, 3)).item() == 0.0


HEAD = [[3.0, 0.0, 0.0], [0.0, 4.0, 0.0], [1.0, 1.0, 2.0], [0.5, 2.0, 1.0], [2.0, 1.0, 0.0]]


def drawn(known: int, per_class: int, noise: float) -> Tensor:
    """Return the features that a replay with seed 0 draws."""
    normal = torch.randn(known * per_class, 3, generator=torch.Generator().manual_seed(0)).double()
    return exact([HEAD[c] for c in range(known) for _ in range(per_class)]) + noise * normal


@pytest.mark.parametrize(("known", "per_class", "noise"), [(3, 2, 0.1), (3, 4, 0.3), (2, 1, 0.0), (1, 2, 0.5)])
def test_replay_is_the_cross_entropy_of_features_around_known_rows(known: int, per_class: int, noise: float) -> None:
    features, losses = drawn(known, per_class, noise), []
    for i, feature in enumerate(features.tolist()):
        e = [math.exp(dot(feature, row)) for row in HEAD]
        losses.append(-math.log(e[i // per_class] / sum(e)))
    found = replay(exact(HEAD), known, per_class, noise, torch.Generator().manual_seed(0))
    assert found.item() == pytest.approx(sum(losses) / len(losses), rel=1e-10)


def test_replay_moves_novel_rows_only_through_the_softmax() -> None:
    head = exact(HEAD).requires_grad_()
    replay(head, 3, 2, 0.2, torch.Generator().manual_seed(0)).backward()
    features = drawn(3, 2, 0.2)
    p = (features @ exact(HEAD).T).softmax(1)
    truth = torch.zeros_like(p)
    truth[torch.arange(6), torch.arange(6) // 2] = 1
    # Drawn features have no gradient; otherwise known rows would have a second term.
    assert head.grad is not None
    assert torch.allclose(head.grad, (p - truth).T @ features / 6, rtol=1e-10)
    assert (head.grad[3:].norm(dim=1) > 1e-3).all()
    assert (truth[:, 3:] == 0).all()
