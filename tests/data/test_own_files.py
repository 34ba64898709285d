from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedwild.core import memory
from fedwild.core.errors import UserError
from fedwild.data import Dataset, DataSettings, images, load, make_split
from fedwild.data.sources import image_files
from tests.data.helpers import write_image


def load_path(path: Path, **settings: Any) -> Dataset:
    return load(DataSettings(name=str(path), **settings))


def fill(root: Path, *folders: str, count: int = 5) -> Path:
    """Write `count` images into each of these folders, the n-th with value 10 n."""
    for folder in folders:
        for number in range(count):
            write_image(root / folder / f"{number}.png", value=10 * number)
    return root


def test_a_folder_per_class_gets_a_fixed_stratified_test_split(tmp_path: Path) -> None:
    root = fill(tmp_path / "pets", "cat", "dog")
    (root / "cat" / "notes.txt").write_text("not an image")
    write_image(root / ".hidden" / "x" / "1.png")
    dataset = load_path(root)
    assert dataset.classes == ("cat", "dog")
    assert dataset.domains == ("pets",)
    assert dataset.input_shape == (3, 5, 6)
    assert torch.bincount(dataset.y_train).tolist() == [4, 4]
    assert torch.bincount(dataset.y_test).tolist() == [1, 1]
    again = load(DataSettings(name=str(root)), seed=99)
    assert torch.equal(dataset.x_test, again.x_test)


def test_train_and_test_folders_are_kept_apart(tmp_path: Path) -> None:
    fill(tmp_path, "train/cat", "train/dog")
    fill(tmp_path, "test/cat", count=2)
    dataset = load_path(tmp_path)
    assert (len(dataset.y_train), dataset.y_test.tolist()) == (10, [0, 0])


def test_a_folder_per_client_names_the_owners(tmp_path: Path) -> None:
    fill(tmp_path, "ward-1/sick", "ward-1/well", "ward-2/sick")
    dataset = load_path(tmp_path)
    assert dataset.owners == ("ward-1", "ward-2")
    assert dataset.classes == ("sick", "well")
    assert dataset.owner_train is not None
    assert torch.bincount(dataset.owner_train).tolist() == [8, 4]
    split = make_split(dataset, DataSettings())
    assert [(c.name, len(c.train), len(c.test)) for c in split.clients] == [("ward-1", 8, 2), ("ward-2", 4, 1)]


def test_owners_with_few_samples_per_class_share_a_test_split(tmp_path: Path) -> None:
    fill(tmp_path, *(f"owner{number}/cat" for number in range(10)), count=2)
    dataset = load_path(tmp_path)
    assert (len(dataset.y_train), len(dataset.y_test)) == (16, 4)


def test_client_folders_may_contain_train_and_test(tmp_path: Path) -> None:
    fill(tmp_path, "ann/train/cat", "bob/train/dog")
    fill(tmp_path, "ann/test/cat", count=2)
    dataset = load_path(tmp_path)
    assert dataset.owners == ("ann", "bob")
    assert (len(dataset.y_train), len(dataset.y_test)) == (10, 2)


def test_train_and_test_may_contain_clients(tmp_path: Path) -> None:
    fill(tmp_path, "train/ann/cat", "train/bob/dog", "test/bob/dog")
    dataset = load_path(tmp_path)
    assert dataset.owners == ("ann", "bob")
    assert dataset.owner_test is not None
    assert set(dataset.owner_test.tolist()) == {1}


@pytest.mark.parametrize("suffix", ["png", "jpg", "jpeg", "bmp", "tif", "webp", "PNG"])
def test_usual_image_kinds_are_read(tmp_path: Path, suffix: str) -> None:
    for number in range(4):
        write_image(tmp_path / "grey" / f"{number}.{suffix}", mode="L", value=200)
    dataset = load_path(tmp_path, channels=1)
    assert dataset.input_shape == (1, 5, 6)
    assert (dataset.x_train.int() - 200).abs().max() <= 3


def test_grey_images_stay_grey_and_mixed_ones_become_colour(tmp_path: Path) -> None:
    for number in range(4):
        write_image(tmp_path / "a" / f"{number}.png", mode="L")
    assert load_path(tmp_path).input_shape[0] == 1
    write_image(tmp_path / "a" / "5.png", mode="RGB")
    assert load_path(tmp_path).input_shape[0] == 3


def test_sixteen_bit_grey_keeps_its_high_byte(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for number in range(3):
        Image.fromarray(np.full((4, 4), 200 * 256 + 7, dtype=np.uint16)).save(tmp_path / "a" / f"{number}.png")
    assert set(load_path(tmp_path).x_train.unique().tolist()) == {200}


@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_are_turned_as_the_camera_was_held(orientation: int, tmp_path: Path) -> None:
    upright = np.arange(20, dtype=np.uint8).reshape(4, 5)
    # What the camera stores, so that the orientation makes it upright again.
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.T,
        6: np.rot90(upright),
        7: upright[::-1, ::-1].T,
        8: np.rot90(upright, -1),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(np.ascontiguousarray(stored)).save(tmp_path / "a.png", exif=exif)
    assert image_files.read_images([tmp_path / "a.png"], None, None)[0, 0].tolist() == upright.tolist()


def test_size_resizes_images_of_different_sizes(tmp_path: Path) -> None:
    for number in range(4):
        write_image(tmp_path / "a" / f"{number}.png", size=(4 + number, 9), value=77)
    with pytest.raises(UserError, match=r"1\.png has 5x9 pixels but .*0\.png has 4x9: set data\.size"):
        load_path(tmp_path)
    dataset = load_path(tmp_path, size=8)
    assert dataset.input_shape == (3, 8, 8)
    assert set(dataset.x_train.unique().tolist()) == {77}


def test_problems_with_a_folder_are_reported_with_the_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no images: put them into one folder per class"):
        load_path(tmp_path)
    root = fill(tmp_path / "pets", "cat")
    (root / "dog").mkdir()
    with pytest.raises(UserError, match="dog has no images"):
        load_path(root)
    write_image(root / "dog" / "deeper" / "1.png")
    with pytest.raises(UserError, match="are at different depths"):
        load_path(root)
    bad = fill(tmp_path / "bad", "cat") / "cat" / "2.png"
    bad.write_bytes(b"no image")
    with pytest.raises(UserError, match=r"cat/2\.png cannot be read as an image"):
        load_path(tmp_path / "bad")
    write_image(bad, size=(60, 60))
    bad.write_bytes(bad.read_bytes()[:60])
    with pytest.raises(UserError, match=r"cat/2\.png cannot be read as an image"):
        load_path(tmp_path / "bad", size=8)
    write_image(tmp_path / "flat" / "1.png")
    with pytest.raises(UserError, match="is not in a class folder"):
        load_path(tmp_path / "flat")


def test_pipes_in_a_folder_are_rejected_without_waiting(tmp_path: Path) -> None:
    fill(tmp_path, "cat")
    os.mkfifo(tmp_path / "cat" / "9.png")
    with pytest.raises(UserError, match=r"9\.png is a pipe: a regular file is required"):
        load_path(tmp_path)


def test_links_to_folders_above_are_not_followed_for_ever(tmp_path: Path) -> None:
    fill(tmp_path, "cat")
    for name in ("one", "two"):
        (tmp_path / "cat" / name).symlink_to(tmp_path)
    assert load_path(tmp_path).classes == ("cat",)


def png(path: Path, width: int, height: int) -> Path:
    """Write a valid PNG of zeros without keeping its pixels in memory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = zlib.compressobj()
    data = b"".join([*(rows.compress(bytes(width // 8 + 1)) for _ in range(height)), rows.flush()])
    parts = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)), (b"IDAT", data), (b"IEND", b"")]
    chunks = [struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in parts]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))
    return path


@pytest.mark.parametrize("sides", [(50_000, 50_000), (12_000, 12_000)])
def test_images_with_too_many_pixels_are_rejected_by_their_header(sides: tuple[int, int], tmp_path: Path) -> None:
    fill(tmp_path, "cat")
    width, height = sides
    huge = png(tmp_path / "cat" / "huge.png", width, 4)
    data = bytearray(huge.read_bytes())
    data[16:24] = struct.pack(">II", width, height)
    data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    huge.write_bytes(data)
    with pytest.raises(UserError, match=r"huge\.png has more than 89,478,485 pixels: use a smaller image"):
        load_path(tmp_path, size=8)


def test_data_sets_that_do_not_fit_into_memory_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "a", "cat")
    arrays = write_arrays(tmp_path, x=pixels(10), y=np.array([3, 7] * 5))
    monkeypatch.setattr(memory, "machine_memory", lambda: 5_000_000)
    with pytest.raises(UserError, match=r"5 images of 1024x1024 pixels needs .* of memory.*: set data\.size"):
        load_path(tmp_path / "a", size=1024)
    with pytest.raises(UserError, match=r"data\.size = 1024 for 8 images needs 8\.4 MB of memory.* 4\.0 MB: decrease"):
        load_path(arrays, size=1024)
    with pytest.raises(UserError, match=r"data\.name = 'synthetic:900x900x1:4:900' needs"):
        load(DataSettings(name="synthetic:900x900x1:4:900"))


def test_large_images_are_converted_in_small_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_arrays(tmp_path, x=pixels(10), y=np.array([3, 7] * 5))
    whole = load_path(path, size=9, channels=3)
    monkeypatch.setattr(images, "_MAX_CHUNK_VALUES", 3 * 81 * 3)
    pieces = load_path(path, size=9, channels=3)
    assert torch.equal(whole.x_train, pieces.x_train)


def write_csv(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "list.csv"
    path.write_text(text)
    return path


def test_a_csv_lists_labels_clients_and_splits(tmp_path: Path) -> None:
    fill(tmp_path / "images", ".")
    lines = ["path,label,client,split"]
    lines += [f"images/{n}.png,{'ab'[n % 2]},{'xy'[n // 3]},{'test' if n == 4 else 'train'}" for n in range(5)]
    dataset = load_path(write_csv(tmp_path, "\n".join(lines)))
    assert (dataset.classes, dataset.owners) == (("a", "b"), ("x", "y"))
    assert dataset.y_train.tolist() == [0, 1, 0, 1]
    assert dataset.x_test.unique().tolist() == [40]
    assert dataset.owner_train is not None
    assert dataset.owner_train.tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("file,label\na,b\n", "has no column path: its columns are file, label"),
        ("", "has no column path and label"),
        ("path,label\n", "lists no images"),
        ("path,label\nnothing.png,a\n", r"line 2: .*nothing\.png does not exist"),
        ("path,label\n,a\n", "line 2: path is empty"),
        ("path,label,split\nimages/0.png,a,moon\n", "line 2: split = 'moon' is not allowed"),
        ("path,label,client\nimages/0.png,a,x\nimages/1.png,a,\n", "name a client for all images or for none"),
        ("path,label,split\nimages/0.png,a,test\n", "training images are required"),
    ],
)
def test_problems_with_a_csv_are_reported_with_the_line(tmp_path: Path, text: str, message: str) -> None:
    fill(tmp_path / "images", ".")
    with pytest.raises(UserError, match=message):
        load_path(write_csv(tmp_path, text))


def write_arrays(tmp_path: Path, **arrays: Any) -> Path:
    path = tmp_path / "mine.npz"
    np.savez(path, **arrays)
    return path


def pixels(count: int) -> np.ndarray:
    return np.arange(count * 16, dtype=np.uint8).reshape(count, 4, 4)


def test_npz_with_everything(tmp_path: Path) -> None:
    path = write_arrays(
        tmp_path,
        x_train=pixels(6),
        y_train=np.array([[0], [1], [0], [1], [0], [1]]),
        x_test=pixels(2),
        y_test=np.array([1, 0]),
        classes=np.array(["no", "yes"]),
        domain_train=np.array(["b", "a"] * 3),
        domain_test=np.array(["a", "b"]),
        client_train=np.array([7, 7, 9, 9, 7, 9]),
    )
    dataset = load_path(path)
    assert (dataset.classes, dataset.domains, dataset.owners) == (("no", "yes"), ("a", "b"), ("7", "9"))
    assert dataset.y_train.tolist() == [0, 1] * 3
    assert dataset.domain_train.tolist() == [1, 0] * 3
    assert dataset.owner_train is not None
    assert dataset.owner_train.tolist() == [0, 0, 1, 1, 0, 1]
    assert dataset.owner_test is None


def test_npz_with_x_and_y_alone_and_labels_as_names(tmp_path: Path) -> None:
    numbers = load_path(write_arrays(tmp_path, x=pixels(10), y=np.array([3, 7] * 5)))
    assert numbers.classes == ("3", "7")
    assert (len(numbers.y_train), len(numbers.y_test)) == (8, 2)
    words = load_path(write_arrays(tmp_path, x=pixels(10), y=np.array(["pear", "fig"] * 5)))
    assert words.classes == ("fig", "pear")


def test_vectors_stay_vectors(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(10, 7))
    dataset = load_path(write_arrays(tmp_path, x=x, y=np.array([0, 1] * 5)))
    assert dataset.input_shape == (7,)
    assert dataset.x_train.dtype == torch.float32


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x_train": pixels(4)}, "has no 'y_train'"),
        ({"a": pixels(4)}, r"must have x_train and y_train .or x and y.; it has \['a'\]"),
        ({"x": pixels(4), "y": np.zeros(3, dtype=int)}, "numbers of rows must be equal"),
        ({"x": pixels(0), "y": np.zeros(0, dtype=int)}, "has no samples"),
        ({"x": pixels(4), "y": np.array([0.5] * 4)}, "labels must be whole numbers or text"),
        ({"x": pixels(4), "y": np.array([0, 1, np.inf, 0])}, "has a label that is not finite or beyond"),
        ({"x": pixels(4), "y": np.array([0, 1, -np.inf, 0])}, "has a label that is not finite or beyond"),
        ({"x": pixels(4), "y": np.array([0, 1, 1e300, 0])}, "has a label that is not finite or beyond"),
        ({"x": pixels(4), "y": np.array([0, 1, 2**63 + 5, 0], dtype=np.uint64)}, "has a label that is not finite"),
        (
            {"x": np.zeros((10_001, 1, 1), np.uint8), "y": np.arange(10_001)},
            "has 10,001 classes: at most 10,000",
        ),
        (
            {"x": pixels(4), "y": np.array([0, 1, 2, 0]), "classes": np.array(["a", "b"])},
            "has label 2: labels must",
        ),
        ({"x": pixels(4), "y": np.array([0, -1, 1, 0]), "classes": np.array(["a", "b"])}, "has label -1"),
        ({"x": pixels(2), "y": np.array(["a", "c"]), "classes": np.array(["a", "b"])}, "label 'c' is not in classes"),
        ({"x": np.full((4, 3, 3), np.nan), "y": np.zeros(4, dtype=int)}, "x in .*mine.npz has NaN"),
        ({"x": pixels(4), "y": np.array([{}] * 4)}, "has pickled objects"),
        (
            {"x_train": pixels(4), "y_train": np.zeros(4, dtype=int), "domain_train": np.zeros(3, dtype=int)},
            "domain_train must give the name or number",
        ),
        (
            {
                "x_train": pixels(4),
                "y_train": np.zeros(4, dtype=int),
                "x_test": np.zeros((1, 5, 5), dtype=np.uint8),
                "y_test": np.zeros(1, dtype=int),
            },
            r"training samples have shape \(1, 4, 4\) but test samples \(1, 5, 5\)",
        ),
        ({"x": pixels(2), "y": np.array([0, 1])}, r"data\.test_fraction = 0\.2"),
    ],
)
def test_problems_with_an_npz_are_reported(tmp_path: Path, arrays: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_path(write_arrays(tmp_path, **arrays))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["cat", "Unknown"], r"mine\.npz: class name 'Unknown' is not allowed: 'unknown' is the answer"),
        (
            ["cat", "Cat"],
            r"mine\.npz: class 'Cat' differs from 'cat' only by case or spaces \('cat' is from .*mine\.npz\)\. Merge",
        ),
        (["cat", "cat "], "class 'cat ' differs from 'cat'"),
        (["cat", " "], "class name ' ' is not allowed"),
        (["cat", "x" * 101], "at most 100 printable characters"),
        (["cat", "\x1b[31m"], r"class name '\\x1b\[31m' is not allowed"),
    ],
)
def test_ambiguous_and_invalid_class_names_are_rejected(tmp_path: Path, names: list[str], message: str) -> None:
    y = np.arange(10) % 2
    with pytest.raises(UserError, match=message):
        load_path(write_arrays(tmp_path, x=pixels(10), y=y, classes=np.array(names)))


def test_class_names_of_several_sources_are_compared(tmp_path: Path) -> None:
    roots = [fill(tmp_path / "one", "cat"), fill(tmp_path / "two", "CAT")]
    with pytest.raises(UserError) as refused:
        load(DataSettings(name=[str(root) for root in roots]))
    assert f"{roots[1]}: class 'CAT' differs from 'cat' only by case" in str(refused.value)
    assert f"'cat' is from {roots[0]}" in str(refused.value)


def test_owners_whose_names_differ_only_by_case_are_rejected(tmp_path: Path) -> None:
    fill(tmp_path, "ward/sick", "Ward/sick")
    with pytest.raises(UserError, match="client 'ward' differs from 'Ward'"):
        make_split(load_path(tmp_path), DataSettings())


def test_a_truncated_npz_is_rejected(tmp_path: Path) -> None:
    path = write_arrays(tmp_path, x=pixels(400), y=np.zeros(400, dtype=int))
    whole = path.read_bytes()
    for size in (0, 10, 3000, len(whole) - 10):
        path.write_bytes(whole[:size])
        with pytest.raises(UserError, match=r"mine\.npz cannot be read as \.npz"):
            load_path(path)


def test_missing_paths_are_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        load_path(tmp_path / "nothing")
    with pytest.raises(UserError, match="does not exist"):
        load(DataSettings(name="nothing.npz"))
    (tmp_path / "words.txt").write_text("hello")
    with pytest.raises(UserError, match="cannot be read: use an image folder"):
        load_path(tmp_path / "words.txt")
    with pytest.raises(UserError, match="Did you mean 'fashion-mnist'"):
        load(DataSettings(name="fashion-mnst"))
