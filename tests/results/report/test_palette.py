"""The contrast of the page's colours."""

from __future__ import annotations

import numpy as np
import pytest

from fedwild.results.report.charts.heat import ink
from fedwild.results.report.palette import COLOURS, stylesheet


def rgb(name: str, theme: int) -> np.ndarray:
    text = COLOURS[name][theme]
    return np.array([int(text[i : i + 2], 16) for i in (1, 3, 5)]) / 255


def contrast(a: np.ndarray, b: np.ndarray) -> float:
    """Return the contrast ratio of WCAG 2."""

    def light(colour: np.ndarray) -> float:
        linear = np.where(colour <= 0.03928, colour / 12.92, ((colour + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    high, low = sorted((light(a), light(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1])
def test_text_in_cells_has_contrast_at_every_shade(theme: int) -> None:
    for shade in np.linspace(0.04, 1, 97).tolist():
        cell = shade * rgb("heat", theme) + (1 - shade) * rgb("card", theme)
        assert contrast(rgb(ink(shade), theme), cell) >= 4, shade


@pytest.mark.parametrize("theme", [0, 1])
def test_text_and_series_have_contrast(theme: int) -> None:
    for ground in ("page", "card"):
        for text in ("ink", "muted", "accent"):
            assert contrast(rgb(text, theme), rgb(ground, theme)) >= 4.5, (text, ground)
    assert contrast(rgb("warn", theme), rgb("warn-page", theme)) >= 4.5
    for number in range(8):
        assert contrast(rgb(f"s{number}", theme), rgb("card", theme)) >= 3, number
    for number in range(10):
        assert contrast(rgb(f"c{number}", theme), rgb("card", theme)) >= 1.9, number


def test_dark_colours_apply_to_screens_only() -> None:
    light, _, dark = stylesheet().partition("@media screen")
    assert COLOURS["page"][0] in light
    assert COLOURS["page"][1] not in light
    assert dark.count(COLOURS["page"][1]) == 2
