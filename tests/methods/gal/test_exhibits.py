"""What the report shows about discovered classes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedwild.contract import CurveExhibit, MapExhibit, Record, Server, Step, TableExhibit
from fedwild.core.classes import ClassRegistry
from fedwild.core.payload import Payload
from fedwild.core.rng import Rng
from fedwild.discovery import ESTIMATORS, ClassCount
from fedwild.methods.gal.exhibits import SECTION, discovery_exhibits
from tests.methods.by_hand import PLAIN

HEAD = torch.tensor([[3.0, 0.0], [0.0, 2.0], [1.0, 1.0]])


def record(counts: list[ClassCount], events: list[dict[str, Any]] | None = None) -> Record:
    registry = ClassRegistry.of(("cat", "dog"))
    registry.add("novel-1", "novel", since=3, stage=1)
    state = Payload.of({"estimates": [count.to_json() for count in counts]}, model={"head.weight": HEAD})
    return Record(Server(PLAIN, registry, Step("describe", 1, 9), Rng(0), state=state), events or [])


def exhibits_of(
    counts: list[ClassCount], events: list[dict[str, Any]] | None = None, name: str = "ppm"
) -> dict[str, Any]:
    kind = ESTIMATORS.get(name)
    found = discovery_exhibits(record(counts, events), kind(kind.Params()))
    assert {exhibit.section for exhibit in found} <= {SECTION}
    return {exhibit.title: exhibit for exhibit in found}


def test_before_a_discovery_there_is_nothing_to_show() -> None:
    assert exhibits_of([]) == {}


def test_the_number_of_classes_is_shown_by_stage_with_its_range() -> None:
    shown = exhibits_of([ClassCount(3, 2, 4), ClassCount(0, 0, 0)])["Number of novel classes"]
    assert isinstance(shown, TableExhibit)
    assert shown.header == ("stage", "found", "range")
    assert shown.rows == [("1", "3", "2 to 4"), ("2", "0", "0 to 0")]


@pytest.mark.parametrize("name", ESTIMATORS.names())
def test_the_curve_of_each_estimate_is_shown_with_its_axes(name: str) -> None:
    curve = [(0.5, 2.0), (1.0, 3.0)]
    shown = exhibits_of([ClassCount(3, 2, 4, curve), ClassCount(1, 1, 1)], name=name)
    assert "Estimate in stage 2" not in shown
    exhibit = shown["Estimate in stage 1"]
    assert isinstance(exhibit, CurveExhibit)
    assert (exhibit.x, exhibit.y) == ESTIMATORS.get(name).curve_axes
    assert exhibit.lines == {name: curve}
    assert not exhibit.percent


def test_metrics_are_shown_over_the_evaluated_rounds_that_have_them() -> None:
    events: list[dict[str, Any]] = [
        {"event": "start"},
        {"event": "round", "index": 0, "metrics": {"auroc": 0.5}},
        {"event": "round", "index": 1, "metrics": {"known_accuracy": 0.1}},
        # The same round again, after an interruption.
        {"event": "round", "index": 1, "metrics": {"known_accuracy": 0.9, "forgetting": None}},
        {"event": "round", "index": 2},
        {"event": "round", "index": 3, "metrics": {"known_accuracy": 0.8, "novel_accuracy": 0.6, "novel_nmi": 0.7}},
    ]
    shown = exhibits_of([ClassCount(1, 1, 1)], events)
    accuracy, agreement = shown["Known and novel classes"], shown["Agreement and forgetting"]
    assert accuracy.lines == {"known classes": [(2.0, 0.9), (4.0, 0.8)], "novel classes": [(4.0, 0.6)], "all": []}
    assert agreement.lines == {"NMI": [(4.0, 0.7)], "ARI": [], "forgetting": []}
    assert accuracy.percent
    assert agreement.percent


def test_the_cosines_of_prototypes_are_shown_by_class() -> None:
    shown = exhibits_of([ClassCount(1, 1, 1)])["Prototypes"]
    assert isinstance(shown, MapExhibit)
    assert shown.rows == shown.columns == ("cat", "dog", "novel-1")
    assert shown.values is not None
    root = 0.5**0.5
    assert torch.allclose(shown.values, torch.tensor([[1, 0, root], [0, 1, root], [root, root, 1]]).double())
