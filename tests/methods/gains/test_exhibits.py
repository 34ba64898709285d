"""What a report shows about newcomers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedwild.contract import CurveExhibit, Record, TableExhibit
from fedwild.methods.gains.exhibits import MAX_LINES, newcomer_exhibits
from fedwild.runs.events import read_events
from tests.methods.by_hand import method_of
from tests.methods.gains.federation import adapting


def record_of(*events: dict[str, Any]) -> Record:
    return Record(adapting("classes"), [{"event": "finding", **event} for event in events])


def discovery(**given: Any) -> dict[str, Any]:
    decided = {"shift": [None, 0.1], "cosine of 6's row": [0.7591, 0.0]}
    base = {"kind": "classes", "classes": ["6", "7"], "decided": decided, "diff_f": 0.12345, "diff_c": 2.0}
    return {"what": "discovery", "client": "late", **base, **given}


def judgement(**given: Any) -> dict[str, Any]:
    sources = {"samples": 77, "before": 0.987, "now": 0.961}
    newcomer = {"samples": 27, "before": 0.0, "now": 0.4815}
    base = {"bias": 0.5, "forgotten": 0.026, "refused": False, "sources": sources, "newcomer": newcomer}
    return {"what": "judgement", "client": "late", **base, **given}


def weights(index: int, phase: str = "adapt-1", **parts: dict[str, float | None]) -> dict[str, Any]:
    return {"what": "weights", "phase": phase, "index": index, **parts}


def test_a_decision_is_a_table_of_figures_and_limits() -> None:
    (table,) = newcomer_exhibits(record_of(discovery()))
    assert isinstance(table, TableExhibit)
    assert (table.section, table.title) == ("Newcomers", "What late brings")
    assert table.text == "late brings new classes (6, 7)."
    assert list(table.header) == ["figure", "value", "limit"]
    assert [list(row) for row in table.rows] == [
        ["shift", "-", "0.1"],
        ["cosine of 6's row", "0.759", "0"],
        ["Diff^F", "0.123", "-"],
        ["Diff^C", "2", "-"],
    ]


def test_figures_of_the_paper_are_shown_once() -> None:
    decided = {"Diff^F": [0.2, 0.154], "Diff^C": [0.3, 0.25]}
    (table,) = newcomer_exhibits(record_of(discovery(kind="domain", classes=[], decided=decided)))
    assert isinstance(table, TableExhibit)
    assert table.text == "late brings a new domain."
    assert [row[0] for row in table.rows] == ["Diff^F", "Diff^C"]


def test_a_judgement_is_a_table_of_accuracies() -> None:
    (table,) = newcomer_exhibits(record_of(judgement()))
    assert isinstance(table, TableExhibit)
    assert (table.section, table.title) == ("Newcomers", "Before and after")
    assert table.text == "Validation accuracy. Source clients forgot 2.6 %."
    assert [list(row) for row in table.rows] == [
        ["source clients", "77", "98.7 %", "96.1 %"],
        ["late", "27", "0.0 %", "48.1 %"],
    ]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"forgotten": 0.0}, "Source clients forgot nothing."),
        ({"forgotten": -0.1}, "Source clients forgot nothing."),
        ({"forgotten": None}, "it is not known how much source clients forgot."),
        ({"refused": True}, "This exceeds the limit, so the federation was restored without late."),
    ],
)
def test_the_text_says_what_was_forgotten(given: dict[str, Any], words: str) -> None:
    (table,) = newcomer_exhibits(record_of(judgement(**given)))
    assert words in table.text


def test_figures_that_are_missing_are_dashes() -> None:
    empty = {"samples": 0, "before": None, "now": None}
    (table,) = newcomer_exhibits(record_of(judgement(sources=empty, forgotten=None)))
    assert isinstance(table, TableExhibit)
    assert list(table.rows[0]) == ["source clients", "0", "-", "-"]


def test_weights_are_curves_over_rounds_of_adaptation() -> None:
    first = weights(21, "discover-1", encoder={"sources/all": 0.7, "late": 0.3})
    rounds = [weights(22, encoder={"a": 0.5, "late": 0.3}), weights(23, encoder={"a": 0.4, "b": 0.3, "late": None})]
    (curve,) = newcomer_exhibits(record_of(first, *rounds))
    assert isinstance(curve, CurveExhibit)
    assert (curve.section, curve.title) == ("Newcomers", "Contributions to the encoder")
    assert (curve.x, curve.y) == ("round", "weight")
    # Largest first; rounds count from 1; a client without a weight in a round has no point there.
    assert {name: list(line) for name, line in curve.lines.items()} == {
        "a": [(23.0, 0.5), (24.0, 0.4)],
        "b": [(24.0, 0.3)],
        "late": [(23.0, 0.3)],
    }
    assert next(iter(curve.lines)) == "a"


def test_the_classifier_has_its_own_curves() -> None:
    found = newcomer_exhibits(record_of(weights(1, encoder={"a": 1.0}, classifier={"a": 0.5})))
    assert [exhibit.title for exhibit in found] == ["Contributions to the encoder", "Contributions to the classifier"]


@pytest.mark.parametrize(("clients", "rest"), [(MAX_LINES, 0), (MAX_LINES + 1, 2), (MAX_LINES + 5, 6)])
def test_many_clients_share_a_line(clients: int, rest: int) -> None:
    named: dict[str, float | None] = {f"c{i:02d}": 1.0 / (i + 1) for i in range(clients)}
    (curve,) = newcomer_exhibits(record_of(weights(0, encoder=named)))
    assert isinstance(curve, CurveExhibit)
    assert len(curve.lines) == MAX_LINES
    if rest:
        ((x, value),) = curve.lines[f"{rest} other clients"]
        assert x == 1.0
        assert value == pytest.approx(sum(1.0 / (i + 1) for i in range(clients - rest, clients)))


def test_a_run_without_newcomers_shows_nothing() -> None:
    assert newcomer_exhibits(record_of()) == []


def test_the_method_shows_what_its_own_run_found(grown: Path) -> None:
    record = Record(adapting("classes"), list(read_events(grown / "events.jsonl")))
    found = method_of("gains").exhibits(record)
    assert [exhibit.title for exhibit in found] == [
        "What ann brings",
        "Before and after",
        "Contributions to the encoder",
    ]
    assert found[0].text == "ann brings new classes (class-3, class-4)."
    assert len(found[2].lines) == 5
    assert all(len(line) == 4 for line in found[2].lines.values())
