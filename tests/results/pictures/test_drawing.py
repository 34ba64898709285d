"""What pictures share: short texts, and PNG files that are whole or not there."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFont

from fedwild.core.errors import UserError
from fedwild.results.pictures.drawing import blue, counted, text_width, upright, write_png

IMAGE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8))


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        assert image.format == "PNG"
        return np.asarray(image)


def test_a_picture_is_written_also_over_an_old_one(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"something else")
    write_png(IMAGE, path)
    assert np.array_equal(pixels(path), np.asarray(IMAGE))
    assert os.listdir(tmp_path) == ["a.png"]


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "old.png").write_bytes(b"old")

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    for name in ("old.png", "new.png"):
        with pytest.raises(UserError, match=rf"--png '.*{name}' cannot be written: No space left on device\."):
            write_png(IMAGE, tmp_path / name)
    assert os.listdir(tmp_path) == ["old.png"]
    assert (tmp_path / "old.png").read_bytes() == b"old"


def test_a_link_stays_a_link_and_a_pipe_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "link.png").symlink_to(tmp_path / "target.png")
    write_png(IMAGE, tmp_path / "link.png")
    assert (tmp_path / "link.png").is_symlink()
    assert np.array_equal(pixels(tmp_path / "target.png"), np.asarray(IMAGE))
    os.mkfifo(tmp_path / "pipe")
    ours = os.open(tmp_path / "pipe", os.O_RDWR | os.O_NONBLOCK)
    write_png(IMAGE, tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()
    assert os.read(ours, 2**16) == (tmp_path / "target.png").read_bytes()
    os.close(ours)


@pytest.mark.parametrize("place", [".", "no/such/folder/a.png", "file/a.png"])
def test_a_place_that_cannot_be_written_is_one_sentence(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    with pytest.raises(UserError, match=rf"^--png '{place}' cannot be written: .*\.$"):
        write_png(IMAGE, Path(place))
    assert os.listdir() == ["file"]


def test_upright_text_is_as_high_as_it_was_wide() -> None:
    font = ImageFont.load_default(size=13)
    short, long = upright("a", font), upright("a longer text", font)
    assert long.height > 3 * short.height
    assert long.height >= text_width(font, "a longer text")
    assert short.width == long.width
    # The text begins at the bottom.
    ink = (np.asarray(upright("i    ", font)) < 128).any(axis=(1, 2))
    assert ink.nonzero()[0].min() > len(ink) / 2


def test_blue_darkens_from_zero_to_one() -> None:
    sums = [sum(blue(shade)) for shade in np.linspace(0, 1, 11)]
    assert sums == sorted(sums, reverse=True)
    assert len(set(sums)) == 11


def test_one_is_not_many() -> None:
    assert [counted(count, "sample") for count in (0, 1, 2)] == ["0 samples", "1 sample", "2 samples"]
