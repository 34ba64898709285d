"""FedOV's voting rules and calibration, against computations by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedwild.data.samples import Samples
from fedwild.methods.fedov.voting import (
    MIN_SAMPLES,
    NOBODY,
    Calibration,
    calibrate,
    calibrated_votes,
    confident_votes,
    log_odds,
    stack_calibrations,
    stacked_outputs,
)
from fedwild.models import build


def drawn(models: int, samples: int, classes: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(models, samples, classes + 1, generator=generator, dtype=torch.float64) * 3


def test_log_odds_are_those_of_the_softmax() -> None:
    outputs = drawn(2, 3, 4)
    p = outputs.softmax(dim=-1)
    assert torch.allclose(log_odds(outputs), (p[..., :-1] / p[..., -1:]).log())


def test_votes_of_the_k_most_confident_models_for_every_k() -> None:
    outputs = drawn(5, 7, 3).numpy()
    votes, unknown = confident_votes(torch.from_numpy(outputs))
    p = np.exp(outputs) / np.exp(outputs).sum(axis=-1, keepdims=True)
    for sample in range(7):
        order = sorted(range(5), key=lambda model: p[model, sample, -1])
        for k in range(1, 6):
            chosen = [p[model, sample] for model in order[:k]]
            expected = np.mean(chosen, axis=0)
            assert np.allclose(votes[k - 1, sample].numpy(), expected[:-1])
            assert np.isclose(unknown[k - 1, sample].item(), expected[-1])


def test_the_vote_of_all_models_is_that_of_algorithm_1() -> None:
    outputs = drawn(4, 6, 3)
    votes, _ = confident_votes(outputs)
    assert torch.equal(votes[-1].argmax(dim=1), outputs.softmax(dim=-1).sum(dim=0)[:, :-1].argmax(dim=1))


def test_equally_confident_models_are_ranked_in_their_order() -> None:
    outputs = torch.zeros(3, 1, 3)
    outputs[1, 0, 0], outputs[1, 0, 1] = 1.0, -1.0
    votes, _ = confident_votes(torch.stack([outputs[0], outputs[0], outputs[0]]))
    assert torch.allclose(votes[0], votes[2])


def test_calibrated_scores_by_hand() -> None:
    # Two models, one sample, two classes: outputs (class 0, class 1, unknown).
    outputs = torch.tensor([[[5.0, 1.0, 2.0]], [[0.0, 4.0, 1.0]]], dtype=torch.float64)
    calibration = Calibration(torch.tensor([[4.0, 9.0], [1.0, 3.0]]), torch.tensor([[16, 0], [1, 20]]))
    evidence = (5 - 2) - 4 / 2, (0 - 1) - 1 / 2
    # The fourth roots of 16 and 1 are 2 and 1.
    score_0 = 4 * math.log(2 / 3 * math.exp(evidence[0] / 4) + 1 / 3 * math.exp(evidence[1] / 4))
    score_0 += math.log(1 / ((2 / 3) ** 2 + (1 / 3) ** 2))
    score_1 = (4 - 1) - 3 / 2
    expected = torch.tensor([[score_0, score_1]], dtype=torch.float64)
    assert torch.allclose(calibrated_votes(outputs, calibration), expected)


def test_equal_evidence_from_more_clients_counts_more() -> None:
    one = torch.tensor([[[3.0, 0.0, 0.0]]], dtype=torch.float64)
    for holders in (1, 4):
        calibration = Calibration(torch.zeros(holders, 2), torch.tensor([[7, 0]] * holders))
        score = calibrated_votes(one.expand(holders, 1, 3), calibration)[0, 0]
        assert score.item() == pytest.approx(3 + math.log(holders))


def test_half_of_a_models_scale_is_subtracted() -> None:
    """Appendix A.3: one client's 0.01 % is another's 5 %."""
    outputs = drawn(2, 50, 2)
    medians = torch.tensor([[1.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
    calibration = Calibration(medians, torch.tensor([[10, 0], [0, 10]]))
    moved = outputs.clone()
    moved[0, :, -1] -= 6.0
    recalibrated = Calibration(medians + torch.tensor([[6.0], [0.0]]), calibration.counts)
    change = calibrated_votes(moved, recalibrated) - calibrated_votes(outputs, calibration)
    assert torch.allclose(change, torch.tensor([3.0, 0.0], dtype=torch.float64))


def test_a_class_without_clients_is_never_chosen() -> None:
    outputs = drawn(3, 20, 4)
    counts = torch.tensor([[5, 0, 1, 0]] * 3)
    scores = calibrated_votes(outputs, Calibration(torch.zeros(3, 4), counts))
    assert set(scores.argmax(dim=1).tolist()) <= {0, 2}
    assert bool((scores[:, 1] == NOBODY).all())


def test_a_model_does_not_vote_on_classes_without_training_samples() -> None:
    outputs = drawn(2, 5, 3)
    calibration = Calibration(torch.zeros(2, 3), torch.tensor([[4, 4, 0], [0, 4, 4]]))
    moved = outputs.clone()
    moved[0, :, 2] += 100.0
    moved[1, :, 0] += 100.0
    assert torch.allclose(calibrated_votes(outputs, calibration), calibrated_votes(moved, calibration))


def test_eighty_models_and_a_hundred_classes_vote() -> None:
    outputs = drawn(80, 10, 100).float()
    votes, unknown = confident_votes(outputs)
    assert votes.shape == (80, 10, 100)
    assert torch.allclose(votes.sum(dim=-1) + unknown, torch.ones(80, 10))
    calibration = Calibration(torch.zeros(80, 100), torch.ones(80, 100, dtype=torch.int64))
    assert calibrated_votes(outputs, calibration).shape == (10, 100)


def held(per_class: dict[int, int], seed: int = 0) -> Samples:
    generator = torch.Generator().manual_seed(seed)
    y = torch.tensor([c for c, count in per_class.items() for _ in range(count)], dtype=torch.int64)
    return Samples(torch.rand(len(y), 4, generator=generator), y, torch.arange(len(y)))


def test_the_median_of_each_class_is_averaged_with_that_of_all_classes() -> None:
    model = build("mlp", (4,), 4)
    train, validation = held({0: 3, 2: 9}), held({0: MIN_SAMPLES, 2: MIN_SAMPLES + 3, 1: MIN_SAMPLES - 1}, seed=1)
    calibration = calibrate(model, train, validation, classes=3)
    outputs = model(validation.all()[0]).detach().numpy()
    labels = validation.y.numpy()
    own = outputs[np.arange(len(labels)), labels] - outputs[:, -1]

    def lower_median(values: np.ndarray) -> float:
        return float(np.sort(values)[(len(values) - 1) // 2])

    everyone = lower_median(own)
    expected = [(lower_median(own[labels == c]) + everyone) / 2 for c in (0, 2)]
    assert calibration.medians[[0, 2]].tolist() == pytest.approx(expected, abs=1e-5)
    assert calibration.medians[1].item() == pytest.approx(everyone, abs=1e-5), (
        "too few samples: the median of all classes is used"
    )
    assert calibration.counts.tolist() == [3, 0, 9]


def test_without_validation_samples_training_samples_are_used() -> None:
    model = build("mlp", (4,), 3)
    train = held({0: 8, 1: 8})
    assert torch.equal(calibrate(model, train, held({}), 2).medians, calibrate(model, train, train, 2).medians)


def test_a_client_without_samples_has_a_finite_calibration() -> None:
    calibration = calibrate(build("mlp", (4,), 3), held({}), held({}), 2)
    assert calibration.medians.tolist() == [0.0, 0.0]
    assert calibration.counts.tolist() == [0, 0]


def test_calibrations_are_stacked_by_client() -> None:
    one = Calibration(torch.tensor([1.0, 2.0]), torch.tensor([3, 4]))
    both = stack_calibrations([one, one])
    assert both.medians.tolist() == [[1.0, 2.0], [1.0, 2.0]]
    assert both.counts.tolist() == [[3, 4], [3, 4]]


def test_outputs_of_all_models_are_stacked_in_their_order() -> None:
    models = [build("mlp", (4,), 3).eval() for _ in range(3)]
    x = torch.rand(5, 4)
    outputs = stacked_outputs(models, x)
    assert all(torch.equal(outputs[i], model(x)) for i, model in enumerate(models))
