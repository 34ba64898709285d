"""Stages: which novel classes and which unlabelled samples appear in each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedwild.core.errors import UserError
from fedwild.data import Dataset, DataSettings, Split, make_split
from fedwild.data.npz import pack_json, read_npz, unpack_json, write_npz
from tests.conftest import TINY, Refused
from tests.data.helpers import toy


def staged(stages: list[int], unlabelled_known: float = 0.3, clients: int = 3, **data: Any) -> tuple[Dataset, Split]:
    """Two known classes and four novel ones."""
    dataset = toy(per_class=30, classes=7)
    settings = DataSettings(**{"known": 2, "novel": 4, "stages": stages, "unlabelled_known": unlabelled_known, **data})
    return dataset, make_split(dataset, settings, "iid", {}, clients, 0)


def labels(dataset: Dataset, rows: np.ndarray) -> list[str]:
    return [dataset.classes[i] for i in dataset.y_train.numpy()[rows]]


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        ([], [[2, 3, 4, 5]]),
        ([4], [[2, 3, 4, 5]]),
        ([1, 3], [[2], [3, 4, 5]]),
        ([2, 1, 1], [[2, 3], [4], [5]]),
    ],
)
def test_novel_classes_appear_in_order(stages: list[int], expected: list[list[int]]) -> None:
    _, split = staged(stages)
    assert split.stages == tuple(stages)
    assert split.novel_by_stage == tuple(tuple(f"class{i}" for i in names) for names in expected)


@pytest.mark.parametrize(("stages", "total"), [([1, 2], 3), ([4, 1], 5), ([2, 2, 2], 6)])
def test_stages_with_a_wrong_sum_are_rejected_with_both_numbers(stages: list[int], total: int) -> None:
    with pytest.raises(UserError) as refusal:
        staged(stages)
    assert f"sums to {total}, but data.novel gives 4 novel classes" in str(refusal.value)
    assert "data.stages" in str(refusal.value)


def test_stages_without_novel_classes_are_rejected() -> None:
    with pytest.raises(UserError, match=r"sums to 1, but data\.novel gives 0 novel classes"):
        staged([1], novel=0)


@pytest.mark.parametrize("value", [[0, 4], [-1], ["x"], [1.5]])
def test_a_stage_has_at_least_one_class(value: list[Any], refused: Refused) -> None:
    error = refused("run", *TINY, "--rounds", "1", "--set", f"data.stages={value}")
    assert "data.stages" in error


def test_the_command_line_reports_stages_with_a_wrong_sum(refused: Refused) -> None:
    error = refused("run", *TINY, "--rounds", "1", "--set", "data.novel=1", "--set", "data.stages=[1, 1]")
    assert error == "error: data.stages = [1, 1] is not allowed: it sums to 2, but data.novel gives 1 novel class.\n"


def test_named_novel_classes_appear_in_the_order_of_the_setting() -> None:
    _, split = staged([1, 1], novel=["class6", "class3"])
    assert split.novel_by_stage == (("class6",), ("class3",))


@pytest.mark.parametrize("stages", [[], [1, 3], [2, 1, 1], [1, 1, 1, 1]])
@pytest.mark.parametrize("share", [0.0, 0.3])
def test_each_unlabelled_row_appears_in_one_stage(stages: list[int], share: float) -> None:
    dataset, split = staged(stages, share)
    for client in split.clients:
        parts = [split.unlabelled_in(client, stage, dataset) for stage in range(1, len(split.novel_by_stage) + 1)]
        assert sorted(np.concatenate(parts).tolist()) == client.unlabelled.tolist()
        for classes, part in zip(split.novel_by_stage, parts, strict=True):
            assert set(labels(dataset, part)) - set(split.known) == set(classes)
            assert (np.diff(part) > 0).all()
        for beyond in (0, len(parts) + 1):
            assert len(split.unlabelled_in(client, beyond, dataset)) == 0


def test_unlabelled_samples_of_known_classes_are_spread_evenly_over_stages() -> None:
    dataset, split = staged([2, 1, 1], unlabelled_known=0.5)
    for client in split.clients:
        counts = []
        for stage in (1, 2, 3):
            part = labels(dataset, split.unlabelled_in(client, stage, dataset))
            counts.append(sum(name in split.known for name in part))
        assert sum(counts) == sum(name in split.known for name in labels(dataset, client.unlabelled)) > 3
        assert max(counts) - min(counts) <= 1


def test_hidden_known_classes_are_spread_over_stages() -> None:
    dataset, split = staged([2, 2], 0.0, known_by_client={"client-01": ["class0"]})
    client = split.clients[1]
    hidden = [labels(dataset, split.unlabelled_in(client, stage, dataset)).count("class1") for stage in (1, 2)]
    assert sum(hidden) == labels(dataset, client.unlabelled).count("class1") > 5
    assert max(hidden) - min(hidden) <= 1


def test_without_unlabelled_samples_every_stage_is_empty() -> None:
    dataset, split = staged([], 0.0, novel=0)
    assert split.novel_by_stage == ((),)
    assert all(len(split.unlabelled_in(client, 1, dataset)) == 0 for client in split.clients)


def test_a_saved_split_keeps_its_stages(tmp_path: Path) -> None:
    dataset, split = staged([1, 3])
    split.save(tmp_path / "a.npz")
    again = Split.load(tmp_path / "a.npz")
    again.save(tmp_path / "b.npz")
    assert again.stages == (1, 3)
    assert again.novel_by_stage == split.novel_by_stage
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    for mine, theirs in zip(split.clients, again.clients, strict=True):
        assert np.array_equal(split.unlabelled_in(mine, 2, dataset), again.unlabelled_in(theirs, 2, dataset))


def test_a_split_file_without_stages_has_one_stage(tmp_path: Path) -> None:
    dataset, split = staged([1, 3])
    path = tmp_path / "old.npz"
    split.save(path)
    arrays = read_npz(path)
    about = unpack_json(arrays["about"])
    del about["stages"]
    write_npz(path, {**arrays, "about": pack_json(about)})
    old = Split.load(path)
    assert old.stages == ()
    assert old.novel_by_stage == (split.novel,)
    client = old.clients[0]
    assert np.array_equal(old.unlabelled_in(client, 1, dataset), client.unlabelled)
