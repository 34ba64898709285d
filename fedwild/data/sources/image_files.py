"""The user's image files: folders and CSV lists of them, read into one tensor.

Folders: `class/image`, `train/class/image` and `test/class/image`, or with one folder per client: `client/class/image`
and `client/train/class/image`. The depth of the files decides which. A CSV has the columns path (relative to the CSV)
and label, and optionally client and split (train or test).
"""

from __future__ import annotations

import csv
import math
import os
import struct
import warnings
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from fedwild.core.errors import UserError, explain_os_errors
from fedwild.core.files import check_regular
from fedwild.core.memory import check_allocation
from fedwild.data.sources.raw import Part, Raw

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".gif", ".webp", ".ppm", ".pgm"})
_GREY_MODES = frozenset({"1", "L", "LA", "I", "I;16", "I;16B", "I;16L", "F"})
_PARTS = {"train", "test"}
_ORIENTATION = 0x0112
_TURNED = frozenset({5, 6, 7, 8})
"""The EXIF orientations that exchange width and height."""


@dataclass(frozen=True)
class Item:
    """One image file: its class, its owner and its part ('train' or 'test'); '' if it is not given."""

    file: Path
    label: str
    owner: str = ""
    part: str = ""


def load_items(items: Sequence[Item], domain: str, size: int | None, channels: int | None) -> Raw:
    """Return the images of all files, with classes and owners sorted by name."""
    classes = tuple(sorted({item.label for item in items}))
    owners = tuple(sorted({item.owner for item in items if item.owner}))
    if owners and not all(item.owner for item in items):
        raise UserError(f"{domain}: only some images belong to a client: name a client for all images or for none.")
    x = read_images([item.file for item in items], size, channels)
    y = np.array([classes.index(item.label) for item in items], dtype=np.int64)
    owner = np.array([owners.index(item.owner) for item in items], dtype=np.int64) if owners else None
    whole = Part(x, y, np.zeros(len(items), dtype=np.int64), owner)
    held_out = np.array([item.part == "test" for item in items])
    if not held_out.any():
        return Raw(whole, None, classes, (domain,), owners)
    if held_out.all():
        raise UserError(f"{domain}: all images are test images: training images are required.")
    return Raw(whole.rows(np.nonzero(~held_out)[0]), whole.rows(np.nonzero(held_out)[0]), classes, (domain,), owners)


def load_folder(root: Path, size: int | None, channels: int | None) -> Raw:
    """Return all images below `root`."""
    found = images_below(root)
    if not found:
        raise UserError(f"{root} has no images: put them into one folder per class, such as {root}/cat/1.png.")
    parted = {folders[0] if folders else "" for folders, _ in found} <= _PARTS
    items = [_folder_item(root, folders, file, parted) for folders, file in found]
    if len({bool(item.owner) for item in items}) > 1:
        odd = next(item for item in items if bool(item.owner) != bool(items[0].owner))
        raise UserError(
            f"{odd.file} and {items[0].file} are at different depths: use class/image or client/class/image."
        )
    filled = {parent for item in items for parent in item.file.parents}
    for folder in sorted(path for above in {item.file.parent.parent for item in items} for path in above.iterdir()):
        if folder.is_dir() and not folder.name.startswith(".") and folder not in filled:
            raise UserError(f"{folder} has no images: fill this class folder or delete it.")
    return load_items(items, root.resolve().name, size, channels)


def images_below(root: Path) -> list[tuple[tuple[str, ...], Path]]:
    """Return the folder names below root and the file of every image, sorted, without hidden ones."""
    found, visited = [], set()
    for folder, subfolders, files in os.walk(root, followlinks=True):
        status = os.stat(folder)
        # A link to a folder above would be followed without end.
        is_new = (status.st_dev, status.st_ino) not in visited
        visited.add((status.st_dev, status.st_ino))
        subfolders[:] = sorted(name for name in subfolders if not name.startswith(".")) if is_new else []
        files = files if is_new else []
        parts = Path(folder).relative_to(root).parts
        found += [
            (parts, Path(folder) / name)
            for name in sorted(files)
            if Path(name).suffix.lower() in SUFFIXES and not name.startswith(".")
        ]
    return found


def _folder_item(root: Path, folders: tuple[str, ...], file: Path, parted: bool) -> Item:
    """Return an item whose part, owner and class come from the folder names."""
    part = ""
    if parted and folders:
        part, folders = folders[0], folders[1:]
    if len(folders) == 1:
        return Item(file, folders[0], part=part)
    if len(folders) == 2:
        return Item(file, folders[1], owner=folders[0], part=part)
    if len(folders) == 3 and not part and folders[1] in _PARTS:
        return Item(file, folders[2], owner=folders[0], part=folders[1])
    raise UserError(
        f"{file} is not in a class folder: use {root.name}/class/image or {root.name}/client/class/image, optionally "
        "with folders train and test above the classes."
    )


def load_csv(path: Path, size: int | None, channels: int | None) -> Raw:
    """Return the images that the CSV lists."""
    rows = read_csv(path, ("path", "label"))
    items = [_csv_item(path, number, row) for number, row in enumerate(rows, start=2)]
    return load_items(items, path.stem, size, channels)


def read_csv(path: Path, required: Sequence[str]) -> list[dict[str, str | None]]:
    """Return the rows of a CSV that lists images, by column; reject one without rows or required columns."""
    try:
        with explain_os_errors(f"{path} cannot be read"), path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            columns = [name.strip() for name in reader.fieldnames or []]
            reader.fieldnames = columns
            missing = [name for name in required if name not in columns]
            if missing:
                raise UserError(
                    f"{path} has no column {' and '.join(missing)}: its columns are {', '.join(columns) or 'none'}."
                )
            rows = list(reader)
    except (UnicodeDecodeError, csv.Error) as problem:
        raise UserError(f"{path} cannot be read as CSV: {problem}.") from None
    if not rows:
        raise UserError(f"{path} lists no images.")
    return rows


def _csv_item(path: Path, number: int, row: dict[str, str | None]) -> Item:
    cells = {key: (row.get(key) or "").strip() for key in ("path", "label", "client", "split")}
    for key in ("path", "label"):
        if not cells[key]:
            raise UserError(f"{path}, line {number}: {key} is empty.")
    if cells["split"] not in ("", "train", "test"):
        raise UserError(f"{path}, line {number}: split = {cells['split']!r} is not allowed: it must be train or test.")
    file = path.parent / cells["path"]
    if not file.is_file():
        raise UserError(f"{path}, line {number}: {file} does not exist.")
    return Item(file, cells["label"], cells["client"], cells["split"])


def read_images(files: Sequence[Path], size: int | None, channels: int | None) -> Tensor:
    """Return all files as uint8 (n, C, H, W), resized to `size` if given; in colour if any has colour, by default."""
    shapes = [_header(file) for file in files]
    if channels is None:
        channels = 3 if any(colour for _, colour in shapes) else 1
    width, height = (size, size) if size else shapes[0][0]
    for file, (found, _) in zip(files, shapes, strict=True):
        if size is None and found != (width, height):
            raise UserError(
                f"{file} has {found[0]}x{found[1]} pixels but {files[0]} has {width}x{height}: set data.size to "
                "resize all images."
            )
    shape = (len(files), channels, height, width)
    check_allocation(
        math.prod(shape), f"{len(files)} images of {width}x{height} pixels", "set data.size to a smaller number"
    )
    out = np.empty(shape, dtype=np.uint8)
    for number, file in enumerate(files):
        out[number] = _pixels(file, (width, height), channels)
    return torch.from_numpy(out)


def _header(file: Path) -> tuple[tuple[int, int], bool]:
    """Return (width, height) as the camera held it, and whether the image has colour, without decoding it."""
    with _reject_unreadable(file):
        check_regular(file)
        with Image.open(file) as image:
            width, height = image.size
            turned = image.getexif().get(_ORIENTATION) in _TURNED
            return (height, width) if turned else (width, height), image.mode not in _GREY_MODES


def _pixels(file: Path, size: tuple[int, int], channels: int) -> np.ndarray:
    """Return one image as uint8 (C, H, W)."""
    with _reject_unreadable(file), Image.open(file) as opened:
        image = _eight_bit(ImageOps.exif_transpose(opened)).convert("L" if channels == 1 else "RGB")
        if image.size != size:
            image = image.resize(size, Image.Resampling.BILINEAR)
        pixels = np.asarray(image, dtype=np.uint8)
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


def _eight_bit(image: Image.Image) -> Image.Image:
    """Return a 16-bit grey image without its low byte; Pillow's conversion would clip it to white."""
    if not image.mode.startswith("I"):
        return image
    return Image.fromarray((np.asarray(image).astype(np.int64).clip(0, 65535) >> 8).astype(np.uint8))


@contextmanager
def _reject_unreadable(file: Path) -> Iterator[None]:
    try:
        with warnings.catch_warnings():
            # Pillow only warns of images above its limit, and raises above twice the limit.
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            yield
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise UserError(f"{file} has more than {Image.MAX_IMAGE_PIXELS:,} pixels: use a smaller image.") from None
    except (OSError, SyntaxError, ValueError, OverflowError, MemoryError, EOFError, struct.error, zlib.error):
        raise UserError(f"{file} cannot be read as an image: repair or delete it.") from None
