"""Who holds how many samples of which class: the counts, in the terminal and as a figure."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from fedwild.data import DataSettings, make_split
from fedwild.results.pictures.drawing import write_figure
from fedwild.results.pictures.partition import class_counts, draw, terminal_picture
from tests.data.helpers import toy


def shown(dataset: object, split: object, width: int) -> list[str]:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(terminal_picture(dataset, split, width))  # type: ignore[arg-type]
    return console.export_text().splitlines()


def test_counts_add_up_to_what_clients_hold() -> None:
    dataset = toy(per_class=50)
    split = make_split(dataset, DataSettings(novel=1), "iid", {}, 5, 0)
    counts = class_counts(dataset, split)
    assert counts.shape == (5, 4)
    assert counts.sum(0).tolist() == [50] * 4
    labelled = class_counts(dataset, split, ["train"])
    assert labelled[:, 3].sum() == 0
    client = split.clients[2]
    assert labelled[2].tolist() == np.bincount(dataset.y_train.numpy()[client.train], minlength=4).tolist()


def test_the_terminal_shows_every_client_and_count() -> None:
    dataset = toy(per_class=50)
    split = make_split(dataset, DataSettings(novel=1), "iid", {}, 5, 0)
    lines = shown(dataset, split, 100)
    assert "class0" in lines[0]
    assert "class3?" in lines[0]
    for line, client, row in zip(lines[1:], split.clients, class_counts(dataset, split), strict=False):
        assert line.startswith(client.name)
        assert line.split()[-1] == str(row.sum())
        assert all(str(count) in line.split() for count in row)


@pytest.mark.parametrize("width", [60, 120])
def test_two_hundred_clients_and_a_hundred_classes_still_fit(width: int) -> None:
    dataset = toy(per_class=40, classes=100)
    split = make_split(dataset, DataSettings(), "iid", {}, 200, 0)
    lines = shown(dataset, split, width)
    assert len(lines) < 70
    assert max(len(line) for line in lines) <= width
    assert any("200 clients, 4000 samples" in line for line in lines)
    assert "client-000..client-004" in lines[1]


@pytest.mark.parametrize(("clients", "classes"), [(1, 1), (5, 4), (200, 100)])
def test_the_figure_shows_every_count_and_fits_on_a_page(tmp_path: Path, clients: int, classes: int) -> None:
    dataset = toy(per_class=200 // classes + 1, classes=classes)
    split = make_split(dataset, DataSettings(), "iid", {}, clients, 0)
    axes: Any = draw(dataset, split).axes[0]
    assert np.array_equal(axes.images[0].get_array(), class_counts(dataset, split))
    assert axes.get_yticklabels()[0].get_text() == split.clients[0].name
    if classes == 4:
        totals = [text.get_text() for text in axes.texts if getattr(text, "xy", (0, 0))[0] == 1][: len(split.clients)]
        assert totals == [str(total) for total in class_counts(dataset, split).sum(axis=1)]
        assert [label.get_text() for label in axes.get_xticklabels()] == ["class0", "class1", "class2", "class3"]
    write_figure(draw(dataset, split), tmp_path / "p.png")
    with Image.open(tmp_path / "p.png") as image:
        assert image.format == "PNG"
        assert max(image.size) < 2500


def test_a_thousand_clients_are_added_up_in_groups_and_none_is_lost() -> None:
    dataset = toy(per_class=300)
    split = make_split(dataset, DataSettings(), "iid", {}, 1000, 0)
    (axes,) = draw(dataset, split).axes
    shown = np.asarray(axes.images[0].get_array())
    assert shown.shape == (250, 4)
    assert np.array_equal(shown, class_counts(dataset, split).reshape(250, 4, 4).sum(axis=1))
    assert axes.get_yticklabels()[0].get_text() == "client-000..client-003"


@pytest.mark.parametrize("kind", ["svg", "pdf"])
def test_the_same_split_gives_the_same_file(kind: str, tmp_path: Path) -> None:
    dataset = toy(per_class=50)
    split = make_split(dataset, DataSettings(novel=1), "iid", {}, 5, 0)
    for name in "ab":
        write_figure(draw(dataset, split), tmp_path / f"{name}.{kind}")
    assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()
