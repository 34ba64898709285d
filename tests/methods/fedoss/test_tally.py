"""Moments and figures of pushed samples."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedwild.methods.fedoss.open_space import Grid
from fedwild.methods.fedoss.synthesis import Tally


def test_moments_are_those_of_all_pushed_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedwild.methods.fedoss.synthesis.MAX_ROWS", 10)
    tally = Tally(Grid.within((3, 4, 4), 12))
    generator = torch.Generator().manual_seed(0)
    everything, labels = [], []
    for _ in range(9):
        start = torch.rand(5, 3, 4, 4, generator=generator)
        y = torch.randint(0, 2, (5,), generator=generator)
        tally.add(8, start, 1.5 * start, y, torch.ones(5, dtype=torch.bool))
        everything.append(torch.nn.functional.adaptive_avg_pool2d(1.5 * start, 2).flatten(1))
        labels.append(y)
    x, y = torch.cat(everything).double(), torch.cat(labels)
    found = tally.moments(min_count=1)
    for k in (0, 1):
        assert found[k].count == int((y == k).sum())
        assert torch.allclose(found[k].mean, x[y == k].mean(0), atol=1e-9)
        assert np.allclose(found[k].scatter() / (found[k].count - 1), np.cov(x[y == k].T), atol=1e-9)
    assert tally.info() == {"boundary": pytest.approx(45 / 72), "displacement": pytest.approx(0.5)}


def test_a_class_below_the_minimum_is_omitted() -> None:
    tally = Tally(Grid.within((2,), 12))
    tally.add(4, torch.ones(4, 2), torch.ones(4, 2), torch.tensor([0, 0, 0, 1]), torch.ones(4, dtype=torch.bool))
    assert list(tally.moments(min_count=2)) == [0]
    assert list(tally.moments(min_count=4)) == []


def test_an_empty_tally_has_no_moments() -> None:
    tally = Tally(Grid.within((2,), 12))
    assert tally.moments(1) == {}
    assert tally.info() == {"boundary": 0.0, "displacement": 0.0}
    nothing = torch.zeros(0, dtype=torch.int64)
    tally.add(3, torch.ones(0, 2), torch.ones(0, 2), nothing, nothing.bool())
    assert tally.moments(1) == {}


def test_only_accepted_samples_enter_the_moments() -> None:
    tally = Tally(Grid.within((2,), 12))
    start, labels = torch.tensor([[1.0, 0.0], [2.0, 0.0], [4.0, 0.0]]), torch.tensor([0, 0, 1])
    tally.add(6, start, 2 * start, labels, torch.tensor([True, False, True]))
    found = tally.moments(min_count=1)
    assert {k: (part.count, part.mean.tolist()) for k, part in found.items()} == {
        0: (1, [2.0, 0.0]),
        1: (1, [8.0, 0.0]),
    }
    assert tally.info() == {"boundary": 0.5, "displacement": 1.0}
