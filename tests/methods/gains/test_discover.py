"""Discover: nothing new, a new domain or new classes, and what becomes of the federation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedwild.data import Dataset
from tests.methods.by_hand import final
from tests.methods.gains.federation import (
    ROUNDS,
    domain_of,
    events,
    failing,
    findings,
    held_out,
    names,
    notes,
    phases,
    rows_of,
    run,
    split_of,
    with_tensors,
)


def test_new_classes_are_found_named_and_learnt(grown: Path) -> None:
    (found,) = findings(grown, "discovery")
    assert (found["client"], found["kind"], found["classes"]) == ("ann", "classes", ["class-3", "class-4"])
    # It has no class in common with the source clients, so there is no shift.
    assert found["shift"] is None
    assert "ann brings new classes (class-3, class-4)" in notes(grown)
    assert phases(grown) == ["source", "declare-1", "discover-1", "adapt-1", "judge-1"]
    result = events(grown, "end")[0]["metrics"]
    assert result["target_accuracy"] > 0.9
    assert result["source_accuracy"] > 0.9


def test_the_registry_grows_at_its_end_with_the_newcomer_as_origin(grown: Path) -> None:
    server = final(grown)
    assert names(server) == [f"class-{i}" for i in range(5)]
    assert [entry["origin"] for entry in server.info["classes"]] == ["known"] * 3 + ["ann"] * 2
    assert [entry["since"] for entry in server.info["classes"]] == [0] * 3 + [ROUNDS + 1] * 2
    assert len(server.group("model")["head.weight"]) == 5
    assert server.info["state"] == {"arrival": {"kind": "welcomed"}, "welcomed": ["ann"]}
    # Nothing of the stage remains; the reference of the answers is not part of it.
    assert {name.split("/")[0] for name in server.tensors} == {"model", "references"}


def test_a_newcomer_with_old_and_new_classes_brings_the_new_ones(data: Dataset, tmp_path: Path) -> None:
    server = run(tmp_path / "run", data, split_of(data, ann=[*rows_of(data, 4), *held_out(data)]))
    (found,) = findings(tmp_path / "run", "discovery")
    assert (found["kind"], found["classes"]) == ("classes", ["class-4"])
    assert found["shift"] < found["limit"]
    assert names(server) == ["class-0", "class-1", "class-2", "class-4"]


def test_a_held_out_part_of_the_source_brings_nothing_and_the_model_does_not_change(
    data: Dataset, alone: Path, tmp_path: Path
) -> None:
    server = run(tmp_path / "run", data, split_of(data, ann=held_out(data)))
    (found,) = findings(tmp_path / "run", "discovery")
    assert (found["kind"], found["classes"], found["rows"]) == ("nothing", [], {})
    assert phases(tmp_path / "run") == ["source", "declare-1", "discover-1"]
    before = final(alone)
    assert server.tensors.keys() == before.tensors.keys()
    assert all(torch.equal(server.group("model")[name], tensor) for name, tensor in before.group("model").items())
    assert server.info["classes"] == before.info["classes"]
    assert server.info["state"] == {"arrival": {"kind": "welcomed"}, "welcomed": ["ann"]}


@pytest.mark.parametrize("method", ["gains", "gains-paper"])
def test_a_clear_change_of_domain_is_found_and_no_class_is_added(method: str, data: Dataset, tmp_path: Path) -> None:
    server = run(tmp_path / "run", domain_of(data), split_of(data, ann=rows_of(data, 5)), method)
    (found,) = findings(tmp_path / "run", "discovery")
    assert found["kind"] == "domain"
    assert found["shift"] > 3 * found["limit"]
    assert names(server) == ["class-0", "class-1", "class-2"]
    assert phases(tmp_path / "run")[-2:] == ["adapt-1", "judge-1"]
    (judgement,) = findings(tmp_path / "run", "judgement")
    assert judgement["bias"] == 0.0
    assert judgement["newcomer"]["now"] > judgement["newcomer"]["before"]


def test_the_paper_s_rule_uses_its_fixed_limits(data: Dataset, tmp_path: Path) -> None:
    split = split_of(data, ann=rows_of(data, 3))
    limits: dict[str, dict[str, Any]] = {"nothing": {"t_f": 1e9}, "domain": {"t_c": 1e9}, "classes": {}}
    for kind, given in limits.items():
        server = run(tmp_path / kind, data, split, rule="fixed", adapt_rounds=1, **given)
        (found,) = findings(tmp_path / kind, "discovery")
        assert found["kind"] == kind
        # A domain adds no classes, even if some were declared.
        assert len(server.info["classes"]) == (4 if kind == "classes" else 3)


def test_a_class_that_looks_like_a_known_one_is_reported(data: Dataset, tmp_path: Path) -> None:
    other_name = replace(data, y_train=torch.where(torch.arange(len(data.y_train)) >= 300, 3, data.y_train))
    own = [row for row in rows_of(data, 1) if row >= 300]
    run(tmp_path / "run", other_name, split_of(data, ann=own), adapt_rounds=1, synonym=5.0)
    assert "class 'class-3' looks like the known class 'class-1'" in notes(tmp_path / "run")
    assert "--label class-3=class-1" in notes(tmp_path / "run")


def test_without_any_means_of_classes_probes_are_noise(data: Dataset, tmp_path: Path) -> None:
    server = run(tmp_path / "run", data, split_of(data, ann=rows_of(data, 3)), min_count=1000)
    assert findings(tmp_path / "run", "discovery")[0]["classes"] == ["class-3"]
    assert names(server)[-1] == "class-3"


@pytest.mark.parametrize("phase", ["discover-1", "adapt-1"])
def test_a_model_of_another_shape_is_rejected(
    phase: str, data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, phase, with_tensors("model", **{"head.weight": torch.zeros(9, 8)}))
    run(tmp_path / "run", data, split_of(data, ann=rows_of(data, 3)), rounds=1, epochs=1, adapt_rounds=1)
    assert {event["phase"] for event in events(tmp_path / "run", "client-failed")} == {phase}
