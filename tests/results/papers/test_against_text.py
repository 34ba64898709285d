"""The figures against the text of the papers, where it is available."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from fedwild.results import papers
from fedwild.results.papers import Cell
from tests.results.papers.shelf import TABLES, printed, the_cell

TEXTS = Path(__file__).resolve().parents[4] / "shared" / "papers"
FILES = {
    "fedov": "fedov.txt",
    "fedpd": "fedpd.txt",
    "fedoss": "fedoss.txt",
    "gal": "gal-fednovel.txt",
    "gains": "gains-slides.txt",
}
# Places where the text lacks a decimal point or has a space inside a number; see the notes of the tables.
REPAIRS = {"fedov": ("48 5%", "48.5%"), "gal": ("\t2 8\t", "\t28\t")}
# In the text, several rows of this table are in one cell.
ROWS_RUN_TOGETHER = "gal/table2"
# The text of Gains is that of its slides; these tables are only in the paper.
NOT_IN_TEXT = ("gains/table6", "gains/table7")
NUMBER = re.compile(r"\d+(?:\.\d+)?")


@cache
def text_lines(paper: str) -> list[list[str]]:
    """Return the numbers of every line of a paper's text."""
    path = TEXTS / FILES[paper]
    if not path.is_file():
        pytest.skip(f"the papers' text is not at {TEXTS}")
    text = path.read_text(encoding="utf-8").replace(*REPAIRS.get(paper, ("\n", "\n")))
    return [NUMBER.findall(line) for line in text.splitlines()]


def our_rows(name: str) -> Iterator[list[str]]:
    """Yield the figures of every row of a table, as written in its file."""
    paper, table = name.split("/")
    raw: dict[str, Any] = tomllib.loads(
        files("fedwild.results.papers").joinpath(paper, f"{table}.toml").read_text("utf-8")
    )
    for block in raw.get("blocks", [raw]):
        for line in block["cells"].strip().splitlines():
            yield line.split()[len(block.get("rows", [])) :]


def is_in(numbers: list[str], line: list[str]) -> bool:
    """Return whether a line has all these numbers in this order."""
    rest = iter(line)
    return all(number in rest for number in numbers)


WITH_ROWS = [t.name for t in TABLES if t.name not in (ROWS_RUN_TOGETHER, *NOT_IN_TEXT) and not t.curves]


@pytest.mark.parametrize("name", WITH_ROWS)
def test_every_row_is_in_one_line_of_the_text(name: str) -> None:
    lines = text_lines(name.split("/")[0])
    for row in our_rows(name):
        numbers = [number for figure in row for number in NUMBER.findall(figure)]
        assert any(is_in(numbers, line) for line in lines), row


def test_every_figure_of_a_table_with_merged_rows_is_in_the_text() -> None:
    lines = text_lines("gal")
    for row in our_rows(ROWS_RUN_TOGETHER):
        for figure in row:
            assert any(is_in(NUMBER.findall(figure), line) for line in lines), figure


# --- what the papers say about their tables ------------------------------------------------------------------


SPOTS: list[tuple[str, dict[str, str], str]] = [
    ("fedov/table1", {"data": "mnist", "partition": "c2", "method": "fedov"}, "64.2±1.6"),
    ("fedov/table1", {"data": "fashion-mnist", "partition": "dir0.1", "method": "fedkt"}, "54.2±8.5"),
    ("fedov/table4", {"clients": "80", "partition": "dir0.1", "method": "fedov"}, "48.5"),
    ("fedov/table10", {"partition": "c1", "outliers": "swap"}, "32.3±0.3"),
    ("fedov/table16", {"data": "fashion-mnist", "known": "1", "method": "proser-mixture"}, "98.1"),
    ("fedov/table17", {"data": "mnist", "clients": "40", "partition": "dir0.1", "method": "scaffold"}, "42.6"),
    ("fedov/table20", {"data": "svhn", "known": "8", "method": "proser"}, "78.6±0.6"),
    ("fedpd/table1", {"method": "dias", "figure": "auroc", "domain": "synth-digits"}, "77.48"),
    ("fedpd/table2", {"method": "fedpd", "known": "6", "figure": "auroc"}, "85.07±0.50"),
    ("fedpd/table3", {"method": "without-conquer", "figure": "accuracy", "domain": "mean"}, "87.76"),
    ("fedpd/table4", {"splitting": "grad", "figure": "auroc"}, "80.95"),
    ("fedoss/table1", {"method": "fedoss", "unknown": "5", "figure": "f1"}, "80.56±3.58"),
    ("fedoss/table5", {"duss": "iu-3", "unknown": "9", "figure": "recall"}, "86.69±1.67"),
    ("gal/table1", {"method": "gal", "data": "tiny-imagenet", "accuracy": "novel"}, "32.7±1.7"),
    ("gal/table8", {"method": "gal", "seed": "2023", "accuracy": "number"}, "21"),
    ("gal/table13", {"parameter": "beta", "value": "0.80", "accuracy": "novel"}, "37.9"),
    ("gal/table14", {"method": "gal", "clients": "100", "accuracy": "all"}, "66.6"),
    ("gains/table1", {"setting": "strong-mnist", "method": "fedheal", "accuracy": "source"}, "83.32"),
    ("gains/table3", {"sequence": "domains", "arrival": "third", "accuracy": "target"}, "93.53"),
]


@pytest.mark.parametrize(("table", "keys", "figure"), SPOTS)
def test_a_cell_has_the_figure_of_the_paper(table: str, keys: dict[str, str], figure: str) -> None:
    cell = the_cell(table, **keys)
    mean, _, deviation = figure.partition("±")
    assert cell.value == float(mean)
    assert cell.deviation == (float(deviation) if deviation else None)


def test_fedov_averages_of_table_16_match_its_classes() -> None:
    table = papers.table("fedov/table16")
    for data in table.keys["data"]:
        for method in table.keys["method"]:
            values = {cell.keys["known"]: printed(cell) for cell in table.only({"data": data, "method": method}).cells}
            average = values.pop("average")
            assert sum(values.values()) / len(values) == pytest.approx(average, abs=0.06)


@pytest.mark.parametrize("name", ["fedpd/table1", "fedpd/table3"])
def test_fedpd_means_match_its_domains(name: str) -> None:
    table = papers.table(name)
    for method in table.keys["method"]:
        for figure in table.keys["figure"]:
            cells = table.only({"method": method, "figure": figure}).cells
            values = {cell.keys["domain"]: cell.value for cell in cells if cell.value is not None}
            if not values:
                continue
            mean = values.pop("mean")
            assert sum(values.values()) / len(values) == pytest.approx(mean, abs=0.011)


def test_the_lead_of_fedoss_matches_its_text() -> None:
    def ahead(table: str, row: str, other: str, unknown: str, figure: str) -> float:
        ours, theirs = (
            the_cell(table, **{row: name, "unknown": unknown, "figure": figure}) for name in ("fedoss", other)
        )
        return round(printed(ours) - printed(theirs), 2)

    assert ahead("fedoss/table1", "method", "cac", "3", "f1") == 5.31
    assert ahead("fedoss/table1", "method", "ssb", "5", "accuracy") == 9.45
    assert ahead("fedoss/table2", "method", "proser", "3", "precision") == 2.79
    assert ahead("fedoss/table3", "method", "fedmix", "4", "precision") == 4.58
    assert ahead("fedoss/table6", "boundary", "method-b", "3", "accuracy") == 9.03
    assert ahead("fedoss/table6", "boundary", "method-b", "9", "precision") == 15.25


def test_the_lead_of_gal_matches_its_text() -> None:
    def ahead(data: str) -> float:
        cells = papers.table("gal/table1").only({"data": data, "accuracy": "novel"}).cells
        novel = {cell.keys["method"]: printed(cell) for cell in cells if not cell.keys["method"].startswith("without")}
        ours = novel.pop("gal")
        return round(ours - max(novel.values()), 1)

    assert ahead("cifar-100") == 10.6
    assert ahead("imagenet-subset") == 5.1


@pytest.mark.parametrize("name", ["gal/table11", "gal/table12"])
def test_gal_mean_errors_match_its_estimates(name: str) -> None:
    table = papers.table(name)
    for estimator in table.keys["estimator"]:
        cells = table.only({"estimator": estimator}).cells
        errors = [
            abs(printed(cell) / int(cell.keys["novel"]) - 1) for cell in cells if cell.keys["accuracy"] == "number"
        ]
        (mean,) = (cell.value for cell in cells if cell.keys["accuracy"] == "error")
        assert 100 * sum(errors) / len(errors) == pytest.approx(mean, abs=0.06)


def test_gal_numbers_of_table_2_are_the_estimates_of_table_11() -> None:
    novel = {
        "1": {"cifar-100": "20", "tiny-imagenet": "30", "imagenet-subset": "15"},
        "2": {"cifar-100": "10", "tiny-imagenet": "20", "imagenet-subset": "5"},
    }
    cells = papers.table("gal/table2").only({"accuracy": "number"}).cells
    assert len(cells) == 2 * 9 * 3
    for cell in cells:
        data = cell.keys["data"]
        known = {"estimator": cell.keys["estimator"], "data": data, "novel": novel[cell.keys["stage"]][data]}
        assert cell.value == the_cell("gal/table11", **known).value


@pytest.mark.parametrize(("name", "misprints"), [("gains/table1", 11), ("gains/table2", 1), ("gains/table3", 1)])
def test_gains_global_accuracy_is_the_measured_mean_except_where_the_notes_say_so(name: str, misprints: int) -> None:
    sides: dict[tuple[str, ...], dict[str, Cell]] = {}
    for cell in papers.table(name).cells:
        others = tuple(text for key, text in cell.keys.items() if key != "accuracy")
        sides.setdefault(others, {})[cell.keys["accuracy"]] = cell
    misfits = 0
    for side in sides.values():
        metrics = {f"{which}_accuracy": printed(side[which]) / 100 for which in ("target", "source")}
        measure = side["global"].measure
        assert measure is not None
        misfits += abs(measure.of({"metrics": metrics, "by": {}}) - printed(side["global"])) > 0.03
    assert misfits == misprints
