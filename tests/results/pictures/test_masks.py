"""Pictures and figures of FedPD's masks: known masks by hand, what is drawn where, and every refusal."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedwild import api
from fedwild.api import Run
from fedwild.core.payload import Payload
from fedwild.methods.fedpd.subnetworks import neuron_shares as shares
from fedwild.methods.fedpd.subnetworks import subnetwork_size as kept
from fedwild.results.pictures.masks import (
    BAR_WIDTH,
    CELL_WIDTHS,
    LINE,
    MARGIN,
    MAX_COLUMNS,
    PART_COLOURS,
    RAMPS,
    Layout,
    MaskedLayer,
    MaskFigures,
    Real,
    coloured,
    draw,
    figures,
    layer_title,
    merged,
    shown,
    write,
)
from tests.conftest import unfinish

SHOW = ("show", "masks")
# Ten layers: by name, fc10 comes before fc2.
WIDTHS = [6, *[4] * 9]
SIZES = dict(zip([*(f"fc{i}.fc" for i in range(1, 11)), "head"], [*WIDTHS, 4], strict=True))
CLIENTS = ["client-00", "client-01"]


def fedpd_run(folder: Path, **method: Any) -> Path:
    tables = {
        "data": {"name": "synthetic:8x8x1:4:80", "known": 3},
        "model": {"name": "mlp", "hidden": WIDTHS},
        "method": {"name": "fedpd", "rounds": 2, "ratio": 0.3, **method},
        "partition": {"name": "iid"},
        "evaluation": {"every": 0},
    }
    return api.run(tables, clients=2, workers=0, out=folder).path


@pytest.fixture(scope="module")
def fedpd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished tiny FedPD run. Do not change it."""
    return fedpd_run(tmp_path_factory.mktemp("fedpd") / "run")


def with_masks(run: Path, client: str, layer: str, close: Tensor, open_: Tensor) -> None:
    """Put shares made of known masks into a finished run."""
    payload = Payload.read(run / "model.safetensors")
    payload.tensors[f"shares/{client}/{layer}.weight"] = shares(close, open_)
    payload.write(run / "model.safetensors")


def masks_of(*layers: Real, clients: int = 2) -> MaskFigures:
    """Figures with these shares (clients, 3, neurons)."""
    named = [MaskedLayer(f"layer{i}.conv", layer) for i, layer in enumerate(layers)]
    return MaskFigures("runs/some", "fedpd", 0.5, 3, [f"c{i}" for i in range(clients)], named)


def random_layer(clients: int, neurons: int, seed: int = 0) -> Real:
    """Random shares (clients, 3, neurons) that add up to less than one."""
    parts = np.random.default_rng(seed).dirichlet(np.ones(4), (clients, neurons))
    return np.moveaxis(parts[..., :3], 2, 1)


def lightness(pixels: np.ndarray) -> np.ndarray:
    """Of colours (..., 3), as the eye weighs them and a printer without colours prints them."""
    return pixels.astype(float) @ np.array([0.299, 0.587, 0.114])


# --- figures ---------------------------------------------------------------------------------------------------


def test_known_masks_give_the_figures_counted_by_hand(fedpd: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(fedpd, tmp_path / "run"))
    # Four neurons with six incoming weights each.
    close = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [0, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0]]).bool()
    open_ = torch.tensor([[1, 1, 0, 0, 0, 0], [1, 0, 0, 1, 1, 1], [0, 0, 0, 0, 0, 0], [0, 1, 1, 1, 1, 1]]).bool()
    with_masks(run, "client-01", "fc2.fc", close, open_)
    found = figures(Run(run))["layers"]["fc2.fc"]
    assert found["neurons"] == 4
    assert found["closed"]["client-01"] == pytest.approx([1, 1 / 2, 0, 1 / 6], abs=1e-4)
    assert found["open"]["client-01"] == pytest.approx([1 / 3, 2 / 3, 0, 5 / 6], abs=1e-4)
    # Of 24 weights: 4 + 2 + 1 closed only, 3 + 5 open only, 2 + 1 both, and the other 6.
    assert found["parts"]["client-01"] == pytest.approx([7 / 24, 8 / 24, 3 / 24, 6 / 24], abs=1e-4)


def test_a_runs_figures_are_those_of_masks_of_the_asked_ratio(fedpd: Path) -> None:
    found = figures(Run(fedpd))
    about = {key: found[key] for key in ("run", "method", "ratio", "round", "clients")}
    assert about == {"run": str(fedpd), "method": "fedpd", "ratio": 0.3, "round": 2, "clients": CLIENTS}
    inputs = [64, *WIDTHS]
    for (name, layer), fan_in in zip(found["layers"].items(), inputs, strict=True):
        count = SIZES[name] * fan_in
        assert layer["neurons"] == SIZES[name]
        for client in CLIENTS:
            assert sum(layer["parts"][client]) == pytest.approx(1, abs=3e-4)
            closed, open_ = layer["closed"][client], layer["open"][client]
            assert len(closed) == len(open_) == SIZES[name]
            # Each subnetwork has exactly the ratio of a layer's weights, and neurons have equally many.
            assert np.mean(closed) == pytest.approx(kept(0.3, count) / count, abs=1e-4)
            assert np.mean(open_) == pytest.approx(kept(0.3, count) / count, abs=1e-4)
            own, other, both, _ = layer["parts"][client]
            assert (own + both, other + both) == pytest.approx((np.mean(closed), np.mean(open_)), abs=3e-4)


def test_layers_come_in_the_networks_order(fedpd: Path) -> None:
    assert list(figures(Run(fedpd))["layers"]) == list(SIZES)


def test_layers_and_clients_can_be_chosen(fedpd: Path) -> None:
    everything = figures(Run(fedpd))
    found = figures(Run(fedpd), ["head", "fc1.fc", "head"], ["client-01"])
    assert list(found["layers"]) == ["fc1.fc", "head"]
    assert found["clients"] == ["client-01"]
    for name, layer in found["layers"].items():
        for key in ("parts", "closed", "open"):
            assert layer[key] == {"client-01": everything["layers"][name][key]["client-01"]}


def test_an_unfinished_run_shows_its_last_checkpoint(fedpd: Path, tmp_path: Path) -> None:
    run = unfinish(Path(shutil.copytree(fedpd, tmp_path / "run")), rounds=2)
    found, expected = figures(Run(run)), figures(Run(fedpd))
    assert {**found, "run": None} == {**expected, "run": None}


def test_weights_in_neither_are_never_less_than_none() -> None:
    layer = MaskedLayer("a", np.full((1, 3, 1), 1 / 3) + 1e-9)
    assert layer.parts[0, 3] == 0
    assert "-0.0" not in json.dumps(masks_of(layer.shares, clients=1).described())


# --- the picture -----------------------------------------------------------------------------------------------


def test_cells_are_the_darker_the_larger_the_share() -> None:
    steps = np.linspace(0, 1, 6)
    # Closed grows from left to right at the first client and falls at the second; open does the opposite.
    both = np.zeros((2, 6))
    layer = np.stack([np.stack([steps, steps[::-1]]), np.stack([steps[::-1], steps]), both], axis=1)
    masks = masks_of(random_layer(2, 5), layer)
    layout, pixels = Layout(masks), np.asarray(draw(masks))
    width = CELL_WIDTHS[1]
    across = layout.left + np.arange(6) * width + width // 2
    for place, growing in ((0, 0), (1, 1)):
        for client in (0, 1):
            row = lightness(pixels[layout.panel(1, place) + client * layout.row + layout.row // 2, across])
            assert (np.diff(row if client != growing else row[::-1]) > 10).all(), (place, client)


def test_every_cell_has_the_colour_of_its_share() -> None:
    masks = masks_of(random_layer(5, 9), random_layer(5, 300, seed=1), clients=5)
    layout, pixels = Layout(masks), np.asarray(draw(masks))
    for number, layer in enumerate(masks.layers):
        for place, (ramp, values) in enumerate(zip(RAMPS.values(), layer.subnetworks, strict=True)):
            columns = merged(values)
            width = min(512 // columns.shape[1], 32)
            down = layout.panel(number, place) + np.arange(5) * layout.row + layout.row // 2
            across = layout.left + np.arange(columns.shape[1]) * width + width // 2
            assert np.array_equal(pixels[np.ix_(down, across)], coloured(columns, ramp))


def test_bars_are_as_long_as_the_parts() -> None:
    layer = np.zeros((2, 3, 4))
    layer[0] = [[0.5] * 4, [0.25] * 4, [0.1] * 4]
    layer[1] = [[0] * 4, [0] * 4, [1, 0, 1, 0]]
    masks = masks_of(layer)
    layout, pixels = Layout(masks), np.asarray(draw(masks))
    for client, expected in enumerate([(0.5, 0.25, 0.1, 0.15), (0, 0, 0.5, 0.5)]):
        y = layout.panel(0, 0) + client * layout.row + layout.row // 2
        bar = pixels[y, layout.bars : layout.bars + BAR_WIDTH]
        lengths = [int((bar == colour).all(axis=1).sum()) for colour in PART_COLOURS]
        assert lengths == pytest.approx([BAR_WIDTH * share for share in expected], abs=1)
        assert sum(lengths) == BAR_WIDTH


def test_ramps_and_parts_can_be_told_apart_without_colours() -> None:
    for ramp in RAMPS.values():
        fine = lightness(coloured(np.linspace(0, 1, 101)[None], ramp)[0])
        assert (np.diff(fine) < 0).all()
        assert fine[0] - fine[-1] > 200
    assert np.diff(np.sort(lightness(PART_COLOURS))).min() > 40


@pytest.mark.parametrize(("neurons", "columns", "step"), [(3, 3, 1), (256, 256, 1), (257, 129, 2), (2048, 256, 8)])
def test_many_neurons_are_means_of_neighbours_and_the_title_says_so(neurons: int, columns: int, step: int) -> None:
    values = np.random.default_rng(0).random((2, neurons))
    expected = [[row[i : i + step].mean() for i in range(0, neurons, step)] for row in values]
    found = merged(values)
    assert found.shape == (2, columns)
    assert columns <= MAX_COLUMNS
    assert found == pytest.approx(np.array(expected))
    title = layer_title(MaskedLayer("fc1.fc", np.zeros((2, 3, neurons))))
    assert title == f"fc1.fc: {neurons} neurons" + (f", {step} to a column" if step > 1 else "")


def names_drawn(masks: MaskFigures) -> int:
    """How many separate lines of text are left of the first panel."""
    layout, pixels = Layout(masks), np.asarray(draw(masks))
    top = layout.panel(0, 0)
    ink = (pixels[top - 4 : top + layout.height + 4, MARGIN : layout.left - 4] < 128).any(axis=(1, 2))
    return int((np.diff(ink.astype(int)) == 1).sum())


@pytest.mark.parametrize(("clients", "row", "names"), [(1, 16, 1), (15, 16, 15), (30, 8, 15), (200, 2, 25)])
def test_with_many_clients_rows_shrink_and_names_thin_out(clients: int, row: int, names: int) -> None:
    masks = masks_of(random_layer(clients, 8), clients=clients)
    layout = Layout(masks)
    assert (layout.row, layout.height) == (row, row * clients)
    assert names_drawn(masks) == names
    assert draw(masks).size[1] > 2 * layout.height
    assert row * (clients // names) >= LINE or names == clients


def test_long_names_are_cut() -> None:
    assert shown("a-hospital-with-a-very-long-name") == "a-hospital-with-a-ver…"
    short, long = (
        MaskFigures(run, "fedpd", 0.5, 1, [client], [MaskedLayer(name, random_layer(1, 4))])
        for run, client, name in (("r", "x" * 22, "conv"), ("r" * 999, "x" * 999, "c" * 999))
    )
    assert 0 < Layout(long).size[0] - Layout(short).size[0] < 10


def test_the_picture_grows_by_a_block_for_each_layer(tmp_path: Path) -> None:
    heights = [draw(masks_of(*[random_layer(2, 5)] * count)).size[1] for count in (1, 2, 3)]
    assert heights[2] - heights[1] == heights[1] - heights[0] > 0
    for name in ("a.png", "b.png"):
        write(masks_of(random_layer(2, 5)), tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
