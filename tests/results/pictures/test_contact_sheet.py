"""Contact sheets: what is on them, and that it is drawn where the layout says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedwild import api
from fedwild.core.errors import UserError
from fedwild.data import Dataset, DataSettings, samples_of
from fedwild.lifecycle.run import Run
from fedwild.openset.adversarial import enhance
from fedwild.openset.outliers import OUTLIERS
from fedwild.results.pictures.contact_sheet import (
    EVERY,
    check_images,
    data_sheet,
    draw_varied,
    run_sheet,
    to_full_range,
)
from fedwild.results.pictures.sheet import (
    GAP,
    LINE,
    MARGIN,
    WIDE_GAP,
    Layout,
    Sheet,
    cell_size,
    draw,
    fill_rows,
    pixels,
    write,
)

PLAIN = DataSettings()
GREY, COLOUR, VOLUMES = (1, 8, 8), (3, 32, 32), (1, 6, 12, 12)


def dataset_of(*shape: int, classes: int = 4, per_class: int = 5) -> Dataset:
    """Random uint8 images of any shape."""
    y = torch.arange(classes).repeat(per_class)
    x = torch.randint(0, 256, (len(y), *shape), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    nowhere = torch.zeros_like(y)
    names = tuple(f"class-{i}" for i in range(classes))
    return Dataset("some", x, y, x, y, names, ("some",), nowhere, nowhere)


def sheet_of(dataset: Dataset, data: DataSettings = PLAIN, outliers: str = "destruction", seed: int = 0) -> Sheet:
    return data_sheet(dataset, data, outliers, rows=3, columns=5, seed=seed)


def cell(sheet: Sheet, row: int, column: int) -> np.ndarray:
    """A picture as it is in the drawn image."""
    layout = Layout(sheet)
    left, top = layout.place(row, column)
    width, height = layout.cell
    return np.asarray(draw(sheet).crop((left, top, left + width, top + height)))


def real(dataset: Dataset, sheet: Sheet, row: int) -> np.ndarray:
    """The stored sample of a row (H, W, 3)."""
    stored = dataset.x_train[sheet.about["samples"][row]["row"]]
    if stored.ndim == 4:
        stored = stored[:, stored.shape[1] // 2]
    return stored.expand(3, -1, -1).permute(1, 2, 0).numpy()


# --- a data set's sheet ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [GREY, COLOUR, VOLUMES, (3, 9, 13)])
def test_the_first_column_is_the_real_sample_pixel_for_pixel(shape: tuple[int, ...]) -> None:
    dataset = dataset_of(*shape)
    sheet = sheet_of(dataset)
    assert sheet.pictures.shape == (3, 5, *shape[-2:], 3)
    width, height = cell_size(*shape[-2:])
    for row in range(3):
        stored = real(dataset, sheet, row)
        enlarged = stored.repeat(height // shape[-2], 0).repeat(width // shape[-1], 1)
        assert np.array_equal(cell(sheet, row, 0), enlarged)


@pytest.mark.parametrize("shape", [GREY, COLOUR, VOLUMES])
def test_the_other_columns_are_outliers_that_differ(shape: tuple[int, ...]) -> None:
    sheet = sheet_of(dataset_of(*shape))
    pictures = [sheet.pictures[0, column].tobytes() for column in range(5)]
    assert len(set(pictures)) == 5


def test_a_generator_makes_of_the_models_inputs_what_is_shown() -> None:
    dataset = dataset_of(*GREY)
    sheet = sheet_of(dataset, outliers="swap")
    for row in range(3):
        stored = real(dataset, sheet, row)
        swapped = (np.roll(stored, 4, 0).tobytes(), np.roll(stored, 4, 1).tobytes())
        assert all(sheet.pictures[row, column].tobytes() in swapped for column in range(1, 5))


def test_a_sheet_depends_on_its_seed_alone() -> None:
    dataset = dataset_of(*GREY)
    first, again, other = (draw(sheet_of(dataset, seed=seed)).tobytes() for seed in (0, 0, 1))
    assert first == again
    assert first != other


def test_normalisation_is_undone_for_drawing() -> None:
    dataset = dataset_of(*COLOUR)
    data = DataSettings(mean=[0.4, 0.5, 0.6], std=[0.2, 0.3, 0.4])
    plain, normed = sheet_of(dataset), sheet_of(dataset, data)
    assert np.array_equal(plain.pictures[:, 0], normed.pictures[:, 0])
    moved, moved_normed = (sheet_of(dataset, settings, "rotate").pictures for settings in (PLAIN, data))
    assert np.array_equal(moved, moved_normed)


def test_an_erased_box_is_black_also_if_inputs_are_normalised() -> None:
    sheet = sheet_of(dataset_of(*GREY), DataSettings(mean=0.4, std=0.2), "erase")
    share = (sheet.pictures[:, 1:] == 0).mean(axis=(2, 3, 4))
    assert (share > 0.3).all()


@pytest.mark.parametrize(("shape", "data"), [(GREY, PLAIN), (COLOUR, DataSettings(mean=[0.1, 0.2, 0.3], std=0.5))])
def test_pixels_give_back_what_is_stored(shape: tuple[int, ...], data: DataSettings) -> None:
    dataset = dataset_of(*shape)
    inputs = samples_of(dataset, np.arange(4), data=data).all()[0]
    expected = dataset.x_train[:4].expand(-1, 3, -1, -1).permute(0, 2, 3, 1).numpy()
    assert np.array_equal(pixels(inputs, data), expected)


def test_of_a_volume_the_middle_slice_is_shown() -> None:
    dataset = dataset_of(*VOLUMES)
    inputs = samples_of(dataset, np.arange(2)).all()[0]
    assert np.array_equal(pixels(inputs, PLAIN)[..., 0], dataset.x_train[:2, 0, 3].numpy())


def test_all_has_a_labelled_column_for_each_generator() -> None:
    sheet = data_sheet(dataset_of(*GREY), PLAIN, "all", rows=2, columns=5, seed=0)
    singles = ["crop", "blur", "erase", "paste", "swap", "rotate", "cutpaste"]
    assert list(sheet.column_names) == ["real", *singles, "destruction", "uniform", "mixture"]
    assert set(EVERY) == set(OUTLIERS)
    assert sheet.pictures.shape[:2] == (2, 11)
    assert sheet.about["columns"] == list(sheet.column_names)


def test_captions_name_the_data_and_the_generator() -> None:
    assert sheet_of(dataset_of(*GREY), outliers="paste").caption.startswith("some: ")
    assert "'paste'" in sheet_of(dataset_of(*GREY), outliers="paste").caption


def test_samples_are_of_different_classes_where_possible_and_in_their_order() -> None:
    labels = torch.tensor([0] * 50 + [1, 2, 3])
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        assert labels[draw_varied(labels, 4, generator)].tolist() == [0, 1, 2, 3]
        assert labels[draw_varied(labels, 6, generator)].tolist() == [0, 0, 0, 1, 2, 3]
        assert sorted(draw_varied(labels[50:], 9, generator).tolist()) == [0, 1, 2]


@pytest.mark.parametrize("shape", [(7,), (1, 3, 8)])
def test_vectors_and_the_smallest_images_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match=r"'some' cannot be shown.*sides of at least 4"):
        check_images(dataset_of(*shape))


def test_unknown_generators_are_refused_with_a_suggestion() -> None:
    with pytest.raises(UserError, match=r"--outliers 'cropp' is not known. Did you mean 'crop'"):
        sheet_of(dataset_of(*GREY), outliers="cropp")


# --- drawing ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("side", "shown"), [(4, 60), (8, 64), (16, 64), (28, 56), (32, 64), (64, 64), (128, 128), (224, 128)]
)
def test_small_images_are_enlarged_by_a_whole_factor_and_large_ones_made_smaller(side: int, shown: int) -> None:
    assert cell_size(side, side) == (shown, shown)


def test_sides_keep_their_proportion() -> None:
    assert cell_size(10, 20) == (60, 30)
    assert cell_size(200, 400) == (128, 64)


def test_the_size_follows_from_the_pictures() -> None:
    sheet = sheet_of(dataset_of(*GREY))
    width, height = draw(sheet).size
    left, top = Layout(sheet).place(0, 0)
    assert width == max(
        left + 5 * 64 + 4 * GAP + WIDE_GAP + GAP // 2 + MARGIN, Layout(sheet).width_of(sheet.caption) + 2 * MARGIN
    )
    assert height == top + 3 * 64 + 2 * GAP + MARGIN


def test_notes_take_a_line_under_each_row_and_long_ones_make_room() -> None:
    sheet = replace(sheet_of(dataset_of(*GREY)), caption="")
    noted = replace(sheet, notes=[["0.5"] * 5] * 3)
    assert Layout(noted).pitch == (64 + GAP, 64 + GAP + LINE)
    assert draw(noted).height == draw(sheet).height + 3 * LINE
    longer = replace(sheet, notes=[["a rather long note"] * 5] * 3)
    assert Layout(longer).pitch[0] > 64 + GAP


def test_long_names_are_cut() -> None:
    layout = Layout(sheet_of(dataset_of(*GREY)))
    assert layout.row_name("short") == "short"
    assert layout.row_name("a name without an end") == "a name withou…"


def test_short_rows_end_in_white() -> None:
    rows = [np.full((n, 2, 3, 3), n, dtype=np.uint8) for n in (1, 3)]
    filled = fill_rows(rows, (2, 3))
    assert filled.shape == (2, 3, 2, 3, 3)
    assert filled[:, :, 0, 0, 0].tolist() == [[1, 255, 255], [3, 3, 3]]
    assert fill_rows([], (2, 3)).shape == (0, 1, 2, 3, 3)


@pytest.mark.parametrize("path", ["none/such.png", "none/such.pdf"])
def test_a_sheet_that_cannot_be_written_is_a_user_error(path: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--out .* cannot be written"):
        write(sheet_of(dataset_of(*GREY)), tmp_path / path)
    assert list(tmp_path.iterdir()) == []


def test_a_sheet_is_written_as_png(tmp_path: Path) -> None:
    sheet = sheet_of(dataset_of(*GREY))
    write(sheet, tmp_path / "sheet.png")
    with Image.open(tmp_path / "sheet.png") as image:
        assert image.format == "PNG"
        assert np.array_equal(np.asarray(image), np.asarray(draw(sheet)))


# --- a run's sheet ---------------------------------------------------------------------------------------------

TABLES = {
    "data": {"name": "synthetic:8x8x1:3:90", "mean": 0.3, "std": 0.5},
    "model": {"name": "mlp", "hidden": [8]},
    "method": {"name": "fedov", "epochs": 2},
    "objective": {"steps": 3, "step_size": 0.05, "outliers": "swap"},
    "partition": {"name": "iid"},
}


@pytest.fixture(scope="module")
def voters(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A small FedOV run of two clients."""
    return api.run(TABLES, clients=2, workers=0, out=tmp_path_factory.mktemp("voters") / "run")


def test_a_runs_sheet_has_x_and_three_pictures_for_each_outlier(voters: Run) -> None:
    sheet = run_sheet(voters, None, rows=4, columns=7, seed=0)
    assert sheet.pictures.shape == (4, 7, 8, 8, 3)
    assert list(sheet.column_names) == ["x", *("x'", "x''", "|x''-x'|") * 2]
    assert list(sheet.wide) == [1, 4]
    assert "client-00" in sheet.caption
    assert "3 steps of 0.05" in sheet.caption
    assert "'swap'" in sheet.caption
    assert np.array_equal(cell(sheet, 1, 0)[::8, ::8], real(voters.experiment.dataset, sheet, 1))


def test_a_runs_samples_are_its_clients_training_samples(voters: Run) -> None:
    for client in voters.experiment.split.clients:
        rows = [sample["row"] for sample in run_sheet(voters, client.name, 6, 4, 0).about["samples"]]
        assert set(rows) <= set(client.train.tolist())
        assert len(set(rows)) == 6


def test_the_figures_are_those_of_the_clients_own_model(voters: Run) -> None:
    sheet = run_sheet(voters, "client-01", rows=4, columns=4, seed=2)
    samples = sheet.about["samples"]
    data = voters.config.data
    held = samples_of(voters.experiment.dataset, np.array([sample["row"] for sample in samples]), data=data)
    x = held.all()[0]
    # `swap` exchanges upper and lower or left and right halves: which of the two, the picture says.
    first, second = x.roll(4, 2), x.roll(4, 3)
    upright = [np.array_equal(pixels(first, data)[i], sheet.pictures[i, 1]) for i in range(4)]
    before = torch.where(torch.tensor(upright).view(-1, 1, 1, 1), first, second)
    model = voters.task.network(voters.folder.server().group("models/client-01"), 4).eval()
    after = enhance(model, before, 3, 0.05, held.normalisation)
    for column, batch in enumerate((x, before, after)):
        assert np.array_equal(sheet.pictures[:, column], pixels(batch, data))
        expected = model(batch).softmax(1)[:, -1].tolist()
        assert [row[column] for row in sheet.notes] == [f"{value:.2f}" for value in expected]
    change = (after - before).abs()
    assert np.array_equal(sheet.pictures[:, 3], pixels(to_full_range(change), PLAIN))
    assert [sample["largest_change"][0] for sample in samples] == pytest.approx(change.flatten(1).amax(1).tolist())
    assert [sample["unknown"]["x"] for sample in samples] == pytest.approx(model(x).softmax(1)[:, -1].tolist())
    assert sheet.notes[0][3].startswith("max 0.")


def test_enhancement_makes_outliers_look_more_known(voters: Run) -> None:
    for sample in run_sheet(voters, None, 6, 7, 0).about["samples"]:
        assert all(
            after < before for before, after in zip(sample["unknown"]["x'"], sample["unknown"]["x''"], strict=True)
        )


def test_a_runs_sheet_depends_on_its_seed_alone(voters: Run) -> None:
    first, again, other = (draw(run_sheet(voters, None, 3, 7, seed)).tobytes() for seed in (0, 0, 1))
    assert first == again
    assert first != other


def test_one_model_for_all_with_another_objective_takes_the_usual_settings(tmp_path: Path) -> None:
    tables = {**TABLES, "method": {"name": "fedavg", "rounds": 1}, "objective": {"name": "proser"}}
    run = api.run(tables, clients=2, workers=0, out=tmp_path / "run")
    about = run_sheet(run, "client-01", rows=2, columns=4, seed=0).about
    assert (about["outliers"], about["steps"], about["step_size"]) == ("destruction", 5, 0.002)
    assert about["client"] == "client-01"


def test_a_change_is_scaled_to_the_full_range_and_none_stays_black() -> None:
    change = torch.tensor([[0.0, 0.002], [0.0, 0.0]]).view(2, 1, 1, 2)
    assert to_full_range(change).flatten().tolist() == [0, 1, 0, 0]
