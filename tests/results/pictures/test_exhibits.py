"""Figures of a method's exhibits: the numbers that are drawn, which exhibits are chosen, and every refusal."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex

from fedwild import api
from fedwild.contract import BarExhibit, CurveExhibit, Exhibit, ImageExhibit, MapExhibit, TableExhibit
from fedwild.core.errors import UserError
from fedwild.core.text import count
from fedwild.data import DataSettings
from fedwild.lifecycle.run import Run
from fedwild.results.pictures.drawing import COLOURS
from fedwild.results.pictures.exhibits import (
    MAX_HEIGHT,
    blocks_of,
    count_fitting,
    described,
    draw,
    exhibits_of,
    figures,
    is_number,
    nice_top,
    write,
)
from fedwild.results.pictures.sheet import Sheet, fill_rows, pixels
from fedwild.results.pictures.sheet import draw as draw_sheet
from tests.conftest import Cli, Refused, unfinish

SHOW = ("show", "exhibits")
LAYERS = ["fc1.fc", "fc2.fc", "head"]
CLIENTS = ("client-00", "client-01")

TABLE = TableExhibit("A", "a table", header=("name", "samples"), rows=(("x", "12"), ("y", "3")))
CURVE = CurveExhibit(
    "A", "a curve", "Some text.", x="round", y="loss", lines={"p": [(0, 1.0), (1, 0.5)], "q": [(0, 3.0)]}
)
BARS = BarExhibit("B", "some bars", bars={"p": 0.25, "q": 0.5}, percent=True)
MAP = MapExhibit("B", "a map", values=torch.tensor([[0.0, 0.25], [0.3, 0.4]]), rows=("r", "s"), columns=("t", "u"))
IMAGES = ImageExhibit(
    "B",
    "some images",
    rows={"p": torch.rand(3, 1, 8, 8), "q": torch.randint(0, 256, (2, 1, 8, 8), dtype=torch.uint8)},
    captions={"p": ["1", "2", "3"], "q": ["4", "5"]},
)
WORDS = Exhibit("C", "nothing", "Nothing was found.")
EVERY = [TABLE, CURVE, BARS, MAP, IMAGES, WORDS]


def axes_of(exhibit: Exhibit) -> Any:
    return draw([exhibit]).axes[0]


def texts(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.texts if text.get_text()]


@pytest.fixture(scope="module")
def fedpd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished tiny FedPD run, which has exhibits. Do not change it."""
    tables: dict[str, Any] = {
        "data": {"name": "synthetic:8x8x1:4:80", "known": 3},
        "model": {"name": "mlp", "hidden": [6, 4]},
        "method": {"name": "fedpd", "rounds": 2, "ratio": 0.3},
        "partition": {"name": "iid"},
        "evaluation": {"every": 0},
    }
    return api.run(tables, clients=2, workers=0, out=tmp_path_factory.mktemp("fedpd") / "run").path


# --- what is drawn ---------------------------------------------------------------------------------------------


def test_a_table_has_every_cell_with_numbers_to_the_right() -> None:
    axes = axes_of(TABLE)
    assert texts(axes) == ["name", "x", "y", "samples", "12", "3"]
    heights = [text.get_position()[1] for text in axes.texts[:6]]
    assert heights == [0.5, 1.5, 2.5] * 2
    assert [text.get_horizontalalignment() for text in axes.texts[:6]] == ["left"] * 3 + ["right"] * 3
    assert [text.get_fontweight() for text in axes.texts[:3]] == ["bold", "normal", "normal"]


def test_columns_of_a_table_do_not_overlap() -> None:
    header, row = ("a", "b" * 30, "c"), ("x" * 30, "1", "z" * 99)
    figure: Any = draw([TableExhibit("A", "a", header=header, rows=(row, ("", "-", "")))])
    figure.draw_without_rendering()
    boxes = [
        text.get_window_extent() for text in figure.axes[0].texts if text.get_text() and text.get_position()[1] < 2
    ]
    for number, one in enumerate(boxes):
        assert not any(one.overlaps(other) for other in boxes[number + 1 :])


def test_a_curve_has_its_points_its_axes_and_a_legend() -> None:
    axes = axes_of(CURVE)
    assert [np.asarray(line.get_xydata()).tolist() for line in axes.lines] == [[[0, 1], [1, 0.5]], [[0, 3]]]
    assert [to_hex(line.get_color()) for line in axes.lines] == list(COLOURS[:2])
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("round", "loss")
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["p", "q"]
    assert axes_of(replace(CURVE, lines={"p": [(0, 1)]})).get_legend() is None
    assert axes_of(replace(CURVE, percent=True)).yaxis.get_major_formatter()(0.5) == "50 %"
    assert len(axes_of(replace(CURVE, lines={})).lines) == 0
    many = axes_of(replace(CURVE, lines={str(i): [(0, i)] for i in range(40)})).lines
    assert len({(to_hex(line.get_color()), line.get_linestyle()) for line in many}) == 40


def test_bars_are_as_long_as_their_values_from_top_to_bottom() -> None:
    axes = axes_of(BARS)
    bars = [patch.get_window_extent() for patch in axes.patches]
    assert bars[0].y0 > bars[1].y1
    assert bars[1].width == pytest.approx(2 * bars[0].width)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["p", "q"]
    assert texts(axes) == ["25.0 %", "50.0 %"]
    assert texts(axes_of(replace(BARS, bars={"p": -1.23456, "q": float("nan")}, percent=False))) == ["-1.235"]


def test_a_map_has_its_numbers_and_their_scale() -> None:
    figure: Any = draw([MAP])
    axes, scale = figure.axes[0], figure.axes[0].child_axes[0]
    assert MAP.values is not None
    assert np.allclose(axes.images[0].get_array(), MAP.values)
    assert texts(axes) == ["0.00", "0.25", "0.30", "0.40"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["r", "s"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["t", "u"]
    assert scale.get_ylim() == (0, 0.5)
    signed = draw([replace(MAP, values=torch.tensor([[-30.0, 7.0]]), rows=("r",))])
    assert texts(signed.axes[0]) == ["-30", "7"]
    assert signed.axes[0].child_axes[0].get_ylim() == (-50, 50)


def test_a_map_without_names_is_numbered() -> None:
    axes = axes_of(MapExhibit("B", "a map", values=torch.rand(2, 300)))
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "1"]
    assert texts(axes) == []
    assert axes_of(MapExhibit("B", "empty")).images[0].get_array().shape == (1, 1)


def test_images_are_the_contact_sheet_of_their_rows() -> None:
    drawn = np.asarray(axes_of(IMAGES).images[0].get_array())
    p, q = IMAGES.rows["p"], IMAGES.rows["q"].float() / 255
    expected = Sheet(
        caption="",
        pictures=fill_rows([pixels(x, DataSettings()) for x in (p, q)], (8, 8)),
        row_names=["p", "q"],
        notes=[["1", "2", "3"], ["4", "5"]],
        filled=[3, 2],
    )
    assert np.array_equal(drawn, np.asarray(draw_sheet(expected)))
    plain = np.asarray(axes_of(replace(IMAGES, captions={})).images[0].get_array())
    assert plain.shape[0] < drawn.shape[0]


def test_exhibits_stand_below_each_other_with_titles_texts_and_sections() -> None:
    figure: Any = draw(EVERY)
    shown = figure.axes
    assert [axes.get_title(loc="left") for axes in shown] == [exhibit.title for exhibit in EVERY]
    assert [text.get_text() for text in figure.texts] == ["A", "B", "C"]
    assert "Some text." in texts(shown[1])
    figure.draw_without_rendering()
    boxes = [axes.get_tightbbox() for axes in shown]
    for upper, lower in pairwise(boxes):
        assert upper.y0 > lower.y1
    headings = [text.get_window_extent() for text in figure.texts]
    for heading in headings:
        assert not any(heading.overlaps(box) for box in boxes)


def test_long_texts_are_wrapped_and_leave_room() -> None:
    figure: Any = draw([replace(TABLE, text="word " * 100), replace(TABLE, text="word " * 100)])
    figure.draw_without_rendering()
    upper, lower = (axes.get_tightbbox() for axes in figure.axes)
    assert upper.y0 > lower.y1
    assert upper.width < 8 * figure.dpi


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_the_same_exhibits_give_the_same_bytes(kind: str, tmp_path: Path) -> None:
    for name in "ab":
        assert write(EVERY, tmp_path / f"{name}.{kind}") == len(EVERY)
    assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()


def test_of_many_exhibits_the_first_that_fit_are_drawn(tmp_path: Path) -> None:
    many = [CURVE] * 100
    fitting = count_fitting(many)
    heights = [block.height for block in blocks_of(many)]
    assert sum(heights[:fitting]) <= MAX_HEIGHT < sum(heights[: fitting + 1])
    tall = replace(TABLE, rows=(("x", "1"),) * 2000)
    assert count_fitting([tall, TABLE]) == 1


@pytest.mark.parametrize(
    ("value", "top"), [(0, 1), (0.04, 0.05), (0.2, 0.2), (0.21, 0.5), (1, 1), (6, 10), (1e-9, 1e-9)]
)
def test_scales_end_at_round_numbers(value: float, top: float) -> None:
    assert nice_top(value) == pytest.approx(top)


def test_numbers_in_tables_are_recognised() -> None:
    assert all(map(is_number, ["1", "-2.5", "12.5 %", "1e3", "", "-", "–", "nan"]))
    assert not any(map(is_number, ["a", "1 of 2", "client-00"]))


# --- plain values ----------------------------------------------------------------------------------------------


def test_plain_values_are_json() -> None:
    values = json.loads(json.dumps([described(exhibit) for exhibit in EVERY]))
    assert [one["kind"] for one in values] == ["table", "curve", "bar", "map", "image", ""]
    assert [one["title"] for one in values] == [exhibit.title for exhibit in EVERY]
    assert values[0]["rows"] == [["x", "12"], ["y", "3"]]
    assert values[1]["lines"] == {"p": [[0, 1.0], [1, 0.5]], "q": [[0, 3.0]]}
    assert values[2]["bars"] == {"p": 0.25, "q": 0.5}
    assert values[3]["values"] == [[0.0, 0.25], [0.3, 0.4]]
    assert values[4]["rows"] == {"p": 3, "q": 2}


def test_a_runs_exhibits_are_those_of_its_method(fedpd: Path) -> None:
    run = Run(fedpd)
    expected = run.settings.make_method().exhibits(run.record())
    found = figures(run)
    assert [one["title"] for one in found] == [exhibit.title for exhibit in expected]
    for one, exhibit in zip(found, expected, strict=True):
        assert isinstance(exhibit, MapExhibit)
        assert exhibit.values is not None
        assert np.array(one["values"]) == pytest.approx(exhibit.values.numpy(), abs=1e-4)
    assert all(any(one["title"].startswith(layer) for one in found) for layer in LAYERS)


def test_sections_and_titles_select(fedpd: Path) -> None:
    run = Run(fedpd)
    everything = exhibits_of(run)
    section = everything[0].section
    assert len(exhibits_of(run, section)) == len(everything)
    chosen = exhibits_of(run, section, ["fc2.fc", "head"])
    assert [one.title for one in chosen] == [
        one.title for one in everything if one.title.startswith(("fc2.fc", "head"))
    ]
    with pytest.raises(UserError, match=rf"^--section 'none' is not known\..* Available: {section}\.$"):
        exhibits_of(run, "none")


# --- the command -----------------------------------------------------------------------------------------------


def test_the_command_draws_the_exhibits_and_prints_their_numbers(cli: Cli, fedpd: Path) -> None:
    outcome = cli(*SHOW, fedpd)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == "picture written to exhibits.png\n"
    assert Path("exhibits.png").read_bytes().startswith(b"\x89PNG")
    said = json.loads(cli(*SHOW, fedpd, "--title", "head", "--out", "some.pdf", "--json").out.splitlines()[-1])
    assert said == {"run": str(fedpd), "exhibits": figures(Run(fedpd), titles=["head"]), "picture": "some.pdf"}
    assert Path("some.pdf").read_bytes().startswith(b"%PDF-")


def test_the_command_says_if_not_all_are_drawn(cli: Cli, fedpd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedwild.results.pictures.exhibits.MAX_HEIGHT", 3.0)
    everything = len(exhibits_of(Run(fedpd)))
    said = cli(*SHOW, fedpd).out
    assert said == (
        f"picture written to exhibits.png: the first 1 of {count(everything, 'exhibit')}; "
        "choose others with --section or --title\n"
    )


def test_an_unfinished_run_shows_its_last_checkpoint(cli: Cli, fedpd: Path, tmp_path: Path) -> None:
    run = unfinish(Path(shutil.copytree(fedpd, tmp_path / "run")), rounds=2)
    assert cli(*SHOW, run).code == 0
    assert figures(Run(run)) == figures(Run(fedpd))


def test_help_teaches(cli: Cli) -> None:
    said = " ".join(cli(*SHOW, "--help").out.split())
    assert "fedwild show exhibits runs/fedpd-digits-001" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--section", "Subnetwork"), "--section 'Subnetwork' is not known. Did you mean 'Subnetworks'?"),
        (("--title", "conv9"), "--title 'conv9' is not known."),
        (("--title", "head", "--title", "conv9"), "--title 'conv9' is not known."),
        (("--out", "no/such/folder/x.png"), "--out 'no/such/folder/x.png' cannot be written: "),
        (("--out", "x.txt"), "--out 'x.txt' is not allowed: the file's name must end in .png, .svg or .pdf."),
    ],
)
def test_bad_values_are_refused_in_one_sentence(
    arguments: tuple[str, ...], said: str, fedpd: Path, refused: Refused
) -> None:
    error = refused(*SHOW, fedpd, *arguments)
    assert len(error.splitlines()) == 1
    assert said in error
    assert list(Path().glob("*")) == []


def test_a_method_without_exhibits_is_one_sentence(finished: Path, refused: Refused) -> None:
    error = refused(*SHOW, finished)
    assert "has nothing to show: method 'fedavg' returns no exhibits for it." in error
    assert len(error.splitlines()) == 1


def test_no_run_is_refused(refused: Refused) -> None:
    assert "'none' does not exist" in refused(*SHOW, "none")
