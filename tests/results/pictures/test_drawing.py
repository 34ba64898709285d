"""Files of pictures: the ending chooses the format, the bytes are the same each time, and nothing is half written."""

from __future__ import annotations

import base64
import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from fedwild.core.errors import UserError
from fedwild.results.pictures.drawing import (
    add_title,
    check_drawable,
    check_ending,
    label,
    styled,
    write_figure,
    write_image,
)

MAGIC = {"png": b"\x89PNG\r\n\x1a\n", "svg": b"<?xml", "pdf": b"%PDF-"}
IMAGE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (90, 70, 3), dtype=np.uint8))


@styled()
def some_figure(last: float = 2.0, title: str = "a title") -> Figure:
    figure = Figure(figsize=(2, 1))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.scatter([0, 1], [1, last])
    add_title(axes, title, "some text")
    return figure


WRITERS: dict[str, Callable[[Path], None]] = {
    "figure": lambda path: write_figure(some_figure(), path),
    "image": lambda path: write_image(IMAGE, path),
}


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image)


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize(
    ("name", "kind"), [("a.png", "png"), ("a.SVG", "svg"), ("a.b.pdf", "pdf"), ("a.Png", "png"), ("a.svg", "svg")]
)
def test_the_ending_chooses_the_format(name: str, kind: str, writer: str, tmp_path: Path) -> None:
    WRITERS[writer](tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(MAGIC[kind])


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("name", ["a.jpg", "a", "png", ".png", "a.png.txt", "a."])
def test_another_ending_is_one_sentence_and_nothing_is_written(name: str, writer: str, tmp_path: Path) -> None:
    wanted = r"^--out '.*' is not allowed: the file's name must end in \.png, \.svg or \.pdf\.$"
    for write in (WRITERS[writer], check_ending, check_drawable):
        with pytest.raises(UserError, match=wanted):
            write(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", MAGIC)
def test_the_same_figure_gives_the_same_bytes(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, (last, time) in enumerate([(2, 10**9), (2, 2 * 10**9), (3, 10**9)]):
        # Formats that hold a date would take this one.
        monkeypatch.setenv("SOURCE_DATE_EPOCH", str(time))
        write_figure(some_figure(last), tmp_path / f"{number}.{kind}")
        write_image(IMAGE.rotate(last), tmp_path / f"image{number}.{kind}")
    for name in ("", "image"):
        first, again, other = ((tmp_path / f"{name}{number}.{kind}").read_bytes() for number in range(3))
        assert first == again != other


def test_an_embedded_image_keeps_its_pixels(tmp_path: Path) -> None:
    write_image(IMAGE, tmp_path / "a.svg")
    tree = ElementTree.parse(tmp_path / "a.svg")
    (found,) = tree.iter("{http://www.w3.org/2000/svg}image")
    data = found.attrib["{http://www.w3.org/1999/xlink}href"].partition(",")[2]
    with Image.open(io.BytesIO(base64.b64decode(data))) as image:
        # It is stored upside down, and turned by a transform.
        assert np.array_equal(np.asarray(image.convert("RGB"))[::-1], np.asarray(IMAGE))
    assert found.attrib["transform"].startswith("scale(1 -1)")


@pytest.mark.parametrize("kind", MAGIC)
@pytest.mark.parametrize("title", ["$x$ and $", r"\frac{1", '<a> & "b"', "猫", "two\nlines\x00\x1b", "--", "_^{}"])
def test_any_name_can_be_drawn(kind: str, title: str, tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    path = tmp_path / f"a.{kind}"
    write_figure(some_figure(title=label(title)), path)
    if kind == "svg":
        ElementTree.parse(path)
    assert [str(warning.message) for warning in recwarn] == []


def test_a_picture_is_written_also_over_an_old_one(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"something else")
    write_image(IMAGE, path)
    assert np.array_equal(pixels(path), np.asarray(IMAGE))
    assert os.listdir(tmp_path) == ["a.png"]


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "old.png").write_bytes(b"old")

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    for name in ("old.png", "new.png"):
        with pytest.raises(UserError, match=rf"--out '.*{name}' cannot be written: No space left on device\."):
            write_image(IMAGE, tmp_path / name)
    assert os.listdir(tmp_path) == ["old.png"]
    assert (tmp_path / "old.png").read_bytes() == b"old"


def test_a_link_stays_a_link_and_a_pipe_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "link.png").symlink_to(tmp_path / "target.png")
    write_image(IMAGE, tmp_path / "link.png")
    assert (tmp_path / "link.png").is_symlink()
    assert np.array_equal(pixels(tmp_path / "target.png"), np.asarray(IMAGE))
    os.mkfifo(tmp_path / "pipe.png")
    ours = os.open(tmp_path / "pipe.png", os.O_RDWR | os.O_NONBLOCK)
    write_image(IMAGE, tmp_path / "pipe.png")
    assert (tmp_path / "pipe.png").is_fifo()
    assert os.read(ours, 2**16) == (tmp_path / "target.png").read_bytes()
    os.close(ours)


@pytest.mark.parametrize("place", ["folder.png", "no/such/folder/a.png", "file/a.svg"])
def test_a_place_that_cannot_be_written_is_one_sentence(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("folder.png").mkdir()
    with pytest.raises(UserError, match=rf"^--out '{place}' cannot be written: .*\.$"):
        write_image(IMAGE, Path(place))
    assert sorted(os.listdir()) == ["file", "folder.png"]


# --- matplotlib ------------------------------------------------------------------------------------------------


def test_the_users_own_settings_of_matplotlib_neither_count_nor_change(tmp_path: Path) -> None:
    import matplotlib

    write_figure(some_figure(), tmp_path / "plain.svg")
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "svg.hashsalt": "mine"}):
        mine = dict(matplotlib.rcParams)
        write_figure(some_figure(), tmp_path / "mine.svg")
        assert dict(matplotlib.rcParams) == mine
    assert (tmp_path / "mine.svg").read_bytes() == (tmp_path / "plain.svg").read_bytes()


def test_without_matplotlib_there_is_one_sentence_but_contact_sheets_as_png_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    missing = r"^`fedwild show` needs matplotlib: pip install 'fedwild\[plots\]'\.$"
    attempts: list[Callable[[], Any]] = [
        some_figure,
        lambda: check_drawable(Path("a.png")),
        lambda: write_image(IMAGE, tmp_path / "a.pdf"),
    ]
    for attempt in attempts:
        with pytest.raises(UserError, match=missing):
            attempt()
    assert list(tmp_path.iterdir()) == []
    write_image(IMAGE, tmp_path / "a.png")
    assert (tmp_path / "a.png").is_file()


@pytest.mark.slow
def test_drawing_uses_no_pyplot(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.results.pictures.test_drawing import WRITERS, MAGIC;"
        f"[write(Path({str(tmp_path)!r}) / f'a.{{kind}}') for write in WRITERS.values() for kind in MAGIC];"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120, check=False).returncode == 0


def test_long_names_are_cut_and_stay_on_one_line() -> None:
    assert label("a name") == "a name"
    assert label("x" * 99) == "x" * 23 + "…"
    assert label("a\nb\tc\x00", 9) == "a b c "
