"""Rendered digits: the same images each time, all classes equally frequent, and classes that can be told apart."""

from __future__ import annotations

from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path

import numpy as np
import pytest

from fedwild.core.errors import UserError
from fedwild.data import DATASETS, DataSettings, load
from fedwild.data.sources import find_prepared, prepare, rendered, why_missing
from fedwild.data.sources.rendered import render_digits

# The package has a function of the same name.
PREPARING = import_module("fedwild.data.sources.prepare")


@pytest.fixture(scope="module")
def drawn() -> dict[str, np.ndarray]:
    return render_digits(1500, 300)


def foreground(x: np.ndarray) -> np.ndarray:
    """Return unit vectors (n, d): how much the middle of each image differs in brightness from its border."""
    grey = x.astype(np.float32) @ np.array([0.299, 0.587, 0.114], dtype=np.float32)
    border = np.median(np.concatenate([grey[:, 0], grey[:, -1]], 1), axis=1)[:, None, None]
    ink = np.abs(grey - border)[:, 2:-2, 4:-4].reshape(len(x), -1)
    ink -= ink.mean(1, keepdims=True)
    return np.asarray(ink / np.linalg.norm(ink, axis=1, keepdims=True))


def test_images_are_the_same_each_time(drawn: dict[str, np.ndarray]) -> None:
    again = render_digits(1500, 300)
    assert all(np.array_equal(drawn[key], again[key]) for key in drawn)


def test_classes_are_equally_frequent(drawn: dict[str, np.ndarray]) -> None:
    assert drawn["x_train"].shape == (1500, 32, 32, 3) and drawn["x_train"].dtype == np.uint8
    assert np.bincount(drawn["y_train"]).tolist() == [150] * 10
    assert np.bincount(drawn["y_test"]).tolist() == [30] * 10


def test_the_nearest_training_image_has_mostly_the_same_digit(drawn: dict[str, np.ndarray]) -> None:
    likeness = foreground(drawn["x_test"]) @ foreground(drawn["x_train"]).T
    assert (drawn["y_train"][likeness.argmax(1)] == drawn["y_test"]).mean() > 0.6


def test_images_differ_in_colour_and_no_test_image_is_a_training_image(drawn: dict[str, np.ndarray]) -> None:
    means = drawn["x_train"].mean((1, 2))
    assert means.std(0).min() > 30
    images = np.concatenate([drawn["x_train"], drawn["x_test"]]).reshape(1800, -1)
    assert len(np.unique(images, axis=0)) == 1800


def test_the_data_set_is_drawn_on_first_use_and_then_read(
    drawn: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PREPARING, "render_digits", lambda: drawn)
    assert why_missing("rendered-digits") is None
    first = load(DataSettings(name="rendered-digits"))
    assert find_prepared("rendered-digits") is not None
    monkeypatch.setattr(PREPARING, "render_digits", pytest.fail)
    again = load(DataSettings(name="rendered-digits"))
    assert first.classes == DATASETS["rendered-digits"].classes
    assert first.input_shape == DATASETS["rendered-digits"].shape
    assert np.array_equal(first.x_train.numpy(), again.x_train.numpy())
    assert np.array_equal(first.x_train.numpy().transpose(0, 2, 3, 1), drawn["x_train"])


def test_the_catalogue_states_how_many_images_are_drawn() -> None:
    entry = DATASETS["rendered-digits"]
    assert (entry.train, entry.test) == (rendered.TRAIN, rendered.TEST)
    assert DATASETS["synth-digits"].stand_in == "rendered-digits"


@pytest.mark.parametrize(
    ("installed", "reason"), [(False, "matplotlib, which is not installed"), (True, ".ttf is missing")]
)
def test_missing_fonts_are_reported(
    installed: bool, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = ModuleSpec("matplotlib", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(rendered, "find_spec", lambda name: spec if installed else None)
    assert reason in (why_missing("rendered-digits") or "")
    with pytest.raises(UserError, match=r"data set 'rendered-digits' cannot be drawn: .*matplotlib"):
        prepare("rendered-digits")


def test_a_folder_that_is_not_writable_is_named(
    drawn: dict[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FEDWILD_DATA", str(tmp_path / "file"))
    monkeypatch.setattr(PREPARING, "render_digits", lambda: drawn)
    with pytest.raises(UserError, match="is not writable"):
        prepare("rendered-digits")
