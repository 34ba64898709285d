from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from fedwild.data import DataSettings, make_split
from fedwild.results.pictures.dealing import class_counts, png_picture, terminal_picture
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
def test_the_png_is_a_legible_size(tmp_path: Path, clients: int, classes: int) -> None:
    dataset = toy(per_class=200 // classes + 1, classes=classes)
    split = make_split(dataset, DataSettings(), "iid", {}, clients, 0)
    with Image.open(png_picture(dataset, split, tmp_path / "p.png")) as image:
        assert image.format == "PNG"
        assert max(image.size) < 2000
        assert len(image.convert("L").getcolors() or []) > 3
