"""The expected calibration error against a computation by hand."""

from __future__ import annotations

import numpy as np
import pytest

from fedwild.results.report.calibration import calibration_of


def test_error_is_the_weighted_mean_gap_of_the_bins() -> None:
    rng = np.random.default_rng(0)
    confidence = rng.random(1000)
    correct = rng.random(1000) < confidence**2
    expected = 0.0
    for low in np.arange(0, 1, 0.1):
        here = [(c, r) for c, r in zip(confidence, correct, strict=True) if low <= c < low + 0.1 - 1e-12]
        if here:
            gap = abs(np.mean([r for _, r in here]) - np.mean([c for c, _ in here]))
            expected += len(here) / 1000 * gap
    assert calibration_of(confidence, correct).error == pytest.approx(expected, abs=1e-9)


def test_confidence_1_is_in_the_last_bin() -> None:
    calibration = calibration_of(np.array([1.0, 0.95]), np.array([True, False]))
    assert list(calibration.rows()) == [(0.9, 1.0, 2, 0.5)]
    assert calibration.error == pytest.approx(0.475)


def test_error_is_0_if_confidence_equals_accuracy() -> None:
    assert calibration_of(np.full(4, 0.75), np.array([True, True, True, False])).error == 0
