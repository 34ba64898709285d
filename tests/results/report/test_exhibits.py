"""Exhibits of any method: each kind is drawn, in the section that it names, and failures affect nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from fedwild.contract import (
    BarExhibit,
    CurveExhibit,
    Exhibit,
    ImageExhibit,
    MapExhibit,
    Record,
    TableExhibit,
)
from fedwild.core.errors import UserError
from fedwild.lifecycle.run import Run
from fedwild.methods.fedavg import FedAvg
from fedwild.results.report import write_report
from fedwild.results.report.facts import Facts
from fedwild.results.report.history import History
from fedwild.results.report.sections.exhibits import MAX_DRAWN, MAX_IMAGES, MAX_OPEN, content_of, draw, text_columns
from tests.results.report.pages import NOT_DRAWN, page, section

SECTION = "Something new"


@pytest.fixture
def facts(finished_once: Path) -> Facts:
    """Facts with a log of two phases."""
    rounds = [{"event": "round", "index": i, "phase": name} for i, name in enumerate(("first", "second", "second"))]
    return Facts(Run(finished_once), {}, {}, None, History(rounds), None)


def test_table_aligns_its_last_columns_of_numbers(facts: Facts) -> None:
    shown = content_of(
        facts,
        TableExhibit(SECTION, "t", header=("name", "value", "limit"), rows=[("a", "0.5", "-"), ("b", "2 %", "1")]),
    )
    assert re.findall(r"<t[dh]( class=\"n\")?>(.*?)</t[dh]>", shown)[:6] == [
        *[("", "name"), (' class="n"', "value"), (' class="n"', "limit")],
        *[("", "a"), (' class="n"', "0.5"), (' class="n"', "-")],
    ]
    assert text_columns([("1", "2 to 3")]) == 2
    assert text_columns([("1", "2")]) == 1
    assert text_columns([]) == 1


def test_curve_over_rounds_has_the_borders_of_phases(facts: Facts) -> None:
    lines = {"a": [(2.0, 0.5), (3.0, 0.25)], "b": []}
    shown = content_of(facts, CurveExhibit(SECTION, "c", x="round", y="share", lines=lines, percent=True))
    assert "<title>a: 25.0 % (round 3)</title>" in shown
    assert "second" in shown
    assert "first" not in shown, "phases before the first point are not shown"
    shown = content_of(facts, CurveExhibit(SECTION, "c", x="distance", y="share", lines=lines))
    assert "second" not in shown


@pytest.mark.parametrize(("values", "has_zero"), [((1.0, 2.0), True), ((100.0, 101.0), False), ((-9.0, -8.0), False)])
def test_axis_of_a_curve_includes_0_unless_that_flattens_it(
    facts: Facts, values: tuple[float, float], has_zero: bool
) -> None:
    exhibit = CurveExhibit(SECTION, "c", x="x", y="y", lines={"a": [(0.5, values[0]), (0.75, values[1])]})
    shown = content_of(facts, exhibit)
    left = re.findall(r'text-anchor="end" class="tick">(.*?)<', shown)
    assert ("0.0" in left) == has_zero


def test_bars_have_their_values(facts: Facts) -> None:
    assert "1.235" in content_of(facts, BarExhibit(SECTION, "b", bars={"a": 1.23456, "b": 0.0}))
    assert "12.5 %" in content_of(facts, BarExhibit(SECTION, "b", bars={"a": 0.125}, percent=True))


@pytest.mark.parametrize("images", [torch.zeros(2, 1, 4, 4).byte(), torch.rand(2, 3, 4, 4)])
def test_images_have_labels_and_captions(facts: Facts, images: torch.Tensor) -> None:
    exhibit = ImageExhibit(SECTION, "i", rows={"cat": images, "dog": images[:1]}, captions={"cat": ["first"]})
    shown = content_of(facts, exhibit)
    assert re.findall("<h4>(.*?)</h4>", shown) == ["cat", "dog"]
    assert shown.count("<img") == 3
    assert 'alt="cat: first"' in shown
    assert shown.count("<span>first</span>") == 1
    assert 'alt="dog"' in shown


def test_long_rows_of_images_are_cut(facts: Facts) -> None:
    shown = content_of(facts, ImageExhibit(SECTION, "i", rows={"cat": torch.zeros(MAX_IMAGES + 6, 1, 2, 2)}))
    assert shown.count("<img") == MAX_IMAGES
    assert f"<h4>cat ({MAX_IMAGES} of {MAX_IMAGES + 6})</h4>" in shown


def test_map_shades_positive_values_and_writes_all(facts: Facts) -> None:
    values = torch.tensor([[1.0, 0.5], [-0.5, float("nan")]])
    shown = content_of(facts, MapExhibit(SECTION, "m", values=values, rows=("a", "b"), columns=("x", "y")))
    assert re.findall(r'fill-opacity="(.*?)"', shown) == ["1.00", "0.50"]
    for text in ("1.00", "0.50", "-0.50", "-"):
        assert f">{text}</text>" in shown
    assert "<title>a, y: 0.50</title>" in shown


def test_map_without_names_numbers_rows_and_columns(facts: Facts) -> None:
    shown = content_of(facts, MapExhibit(SECTION, "m", values=torch.ones(1, 2)))
    assert "<title>1, 2: 1.00</title>" in shown


def test_map_without_values_gives_the_reason(facts: Facts) -> None:
    for values in (None, torch.zeros(0, 3)):
        with pytest.raises(UserError, match="no values"):
            content_of(facts, MapExhibit(SECTION, "m", values=values))


def test_many_exhibits_are_closed_at_first_and_even_more_are_not_drawn(facts: Facts) -> None:
    def figures(number: int) -> str:
        exhibits = tuple(Exhibit(SECTION, f"title {i}", "text") for i in range(number))
        return draw(Facts(facts.run, {}, {}, None, facts.history, None, exhibits=exhibits), SECTION)

    assert "<details" not in figures(MAX_OPEN)
    assert "<summary>2 more</summary>" in figures(MAX_OPEN + 2)
    assert figures(MAX_DRAWN + 3).count("<figure") == MAX_DRAWN
    assert "3 exhibits not drawn here: use <code>fedwild show exhibits" in figures(MAX_DRAWN + 3)


Show = Callable[..., None]


@pytest.fixture
def show(monkeypatch: pytest.MonkeyPatch) -> Show:
    """Let the method of the test's run return these exhibits."""

    def exhibit(*exhibits: Exhibit) -> None:
        monkeypatch.setattr(FedAvg, "exhibits", lambda self, record: exhibits)

    return exhibit


def test_exhibits_have_a_section_by_name_in_their_order(finished: Path, show: Show) -> None:
    show(Exhibit("B", "one"), Exhibit("A", "two", "`code`"), Exhibit("B", "three"), Exhibit("Samples", "four"))
    text = page(finished)
    assert re.findall("<b>(.*?)</b>", section(text, "B")) == ["one", "three"]
    assert "<span><code>code</code></span>" in section(text, "A")
    titles = re.findall("<h2>(.*?)</h2>", text)
    assert titles.index("Rounds") + 1 == titles.index("B") == titles.index("A") - 1
    assert titles.count("Samples") == 1
    assert section(text, "Samples").index("four") < section(text, "Samples").index("Unknown but accepted")
    links = re.findall('<a href="#(.*?)">', text)
    assert sorted(links) == sorted(re.findall('<section id="(.*?)">', text))
    assert len(links) == len(set(links))


def test_exhibits_are_escaped(finished: Path, show: Show) -> None:
    evil = "<script>alert(1)</script>"
    images = torch.zeros(1, 1, 2, 2)
    show(
        TableExhibit(evil, evil, evil, header=(evil,), rows=[(evil,)]),
        CurveExhibit(evil, evil, x=evil, y=evil, lines={evil: [(1.0, 1.0)]}),
        BarExhibit(evil, evil, bars={evil: 1.0}),
        ImageExhibit(evil, evil, rows={evil: images}, captions={evil: [evil]}),
        MapExhibit(evil, evil, values=torch.ones(1, 1), rows=(evil,), columns=(evil,)),
    )
    text = page(finished)
    assert evil not in text
    assert text.count("<script") == 1
    assert NOT_DRAWN not in text


def test_failure_of_one_exhibit_does_not_affect_others(finished: Path, show: Show) -> None:
    show(
        MapExhibit(SECTION, "empty"),
        ImageExhibit(SECTION, "broken", rows={"a": torch.zeros(1, 2, 4, 4)}),
        Exhibit(SECTION, "good", "a text"),
    )
    part = section(page(finished), SECTION)
    assert "There are no values to draw." in part
    assert part.count(NOT_DRAWN) == 1
    assert "a text" in part


@pytest.mark.parametrize(
    ("error", "text"), [(KeyError("client"), "KeyError: &#x27;client&#x27;"), (UserError("not here"), "Not here")]
)
def test_failure_of_the_method_does_not_affect_the_page(
    finished: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, text: str
) -> None:
    def fail(method: FedAvg, record: Record) -> Sequence[Exhibit]:
        raise error

    monkeypatch.setattr(FedAvg, "exhibits", fail)
    written = page(finished)
    assert f'<h2>Not available: Exhibits of the method</h2><p class="why">{text}</p>' in written
    assert "Confusion matrix" in written


def test_the_record_opens_clients_only_if_the_data_is_there(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records: list[Record] = []

    def keep(method: FedAvg, record: Record) -> Sequence[Exhibit]:
        records.append(record)
        return ()

    monkeypatch.setattr(FedAvg, "exhibits", keep)
    write_report(finished)
    assert records[0].client is not None
    assert records[0].client("client-00").name == "client-00"
    monkeypatch.setattr("fedwild.results.report.facts.why_no_data", lambda run: "No data.")
    write_report(finished)
    assert records[1].client is None
