"""Counts, percentages, sizes, durations and shortened names."""

from __future__ import annotations

import math

import pytest

from fedwild.core.text import HIDDEN, clean, count, cut, duration, percent, size


@pytest.mark.parametrize(("number", "text"), [(0, "0 clients"), (1, "1 client"), (2, "2 clients")])
def test_count_uses_the_plural_except_for_one(number: int, text: str) -> None:
    assert count(number, "client") == text


def test_count_accepts_an_irregular_plural() -> None:
    assert [count(number, "class", "classes") for number in (1, 3)] == ["1 class", "3 classes"]


@pytest.mark.parametrize(
    ("share", "text"), [(0.0, "0.0 %"), (0.125, "12.5 %"), (1.0, "100.0 %"), (None, "-"), (math.nan, "-")]
)
def test_percent_shows_one_decimal_and_a_dash_for_missing_values(share: float | None, text: str) -> None:
    assert percent(share) == text


def test_percent_accepts_the_number_of_decimals_and_the_missing_mark() -> None:
    assert percent(0.128, decimals=0) == "13 %"
    assert percent(None, missing="–") == "–"


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (1_500_000, "1.5 MB"), (2e9, "2.0 GB"), (5e12, "5000.0 GB")],
)
def test_size_uses_decimal_units_up_to_gigabytes(number: float, text: str) -> None:
    assert size(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (99.94, "99.9 s"), (100, "2 min"), (5940, "99 min"), (6000, "1 h 40 min"), (7500, "2 h 5 min")],
)
def test_duration_uses_the_unit_that_fits(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("text", "shown"), [("short", "short"), ("exactly ten", "exactly t…"), ("ten digits", "ten digits")]
)
def test_cut_keeps_short_texts_and_shortens_long_ones(text: str, shown: str) -> None:
    assert cut(text, 10) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Zürich 100 % – 北京", "Zürich 100 % – 北京"),
        ("\x1b[31mred\x1b[0m", f"{HIDDEN}[31mred{HIDDEN}[0m"),
        ("\x1b]0;title\x07", f"{HIDDEN}]0;title{HIDDEN}"),
        ("a\x9bb\x00c\x7f", f"a{HIDDEN}b{HIDDEN}c{HIDDEN}"),
        ("abc\u202egnp.exe", f"abc{HIDDEN}gnp.exe"),
        ("zero\u200bwidth\ufeff", f"zero{HIDDEN}width{HIDDEN}"),
        ("\udcff", HIDDEN),
        ("a\tb\u00a0c", "a b c"),
        ("one\ntwo\r\nthree\x85four\u2028five\x0csix", "one two three four five six"),
        ("ends\n", "ends"),
        ("", ""),
    ],
)
def test_clean_shows_one_line_without_control_or_format_characters(text: str, shown: str) -> None:
    assert clean(text) == shown


def test_clean_limits_the_length_and_the_number_of_lines() -> None:
    assert clean("x" * 1000, 10) == "x" * 9 + "…"
    assert clean("a\nb\nc\nd", lines=3) == "a\nb\nc d"
    assert clean("a\nb", lines=3) == "a\nb"


def test_clean_reads_no_more_of_a_long_text_than_it_shows() -> None:
    assert clean("\x1b" * 10_000_000, 20) == HIDDEN * 19 + "…"
