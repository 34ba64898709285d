"""The user's image folder.

`class/image`, `train/class/image` and `test/class/image`, or with one folder per client: `client/class/image` and
`client/train/class/image`. The depth of the files decides which.
"""

from __future__ import annotations

import os
from pathlib import Path

from fedwild.core.errors import UserError
from fedwild.data.sources.image_files import SUFFIXES
from fedwild.data.sources.listing import Item, load_items
from fedwild.data.sources.raw import Raw

_PARTS = {"train", "test"}


def load_folder(root: Path, size: int | None, channels: int | None) -> Raw:
    """Return all images below `root`."""
    found = _images_below(root)
    if not found:
        raise UserError(f"{root} has no images: put them into one folder per class, such as {root}/cat/1.png.")
    topmost = {folders[0] if folders else "" for folders, _ in found}
    parted = topmost <= _PARTS
    items = [_item(root, folders, file, parted) for folders, file in found]
    if len({bool(item.owner) for item in items}) > 1:
        odd = next(item for item in items if bool(item.owner) != bool(items[0].owner))
        raise UserError(
            f"{odd.file} and {items[0].file} are at different depths: use class/image or client/class/image."
        )
    _reject_empty_classes(root, items)
    return load_items(items, root.resolve().name, size, channels)


def _images_below(root: Path) -> list[tuple[tuple[str, ...], Path]]:
    """Return the folder names below root and the file of every image, sorted, without hidden ones."""
    found = []
    for folder, subfolders, files in os.walk(root, followlinks=True):
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        parts = Path(folder).relative_to(root).parts
        found += [
            (parts, Path(folder) / name)
            for name in sorted(files)
            if Path(name).suffix.lower() in SUFFIXES and not name.startswith(".")
        ]
    return found


def _item(root: Path, folders: tuple[str, ...], file: Path, parted: bool) -> Item:
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


def _reject_empty_classes(root: Path, items: list[Item]) -> None:
    """Reject a class folder without images, which is probably a mistake."""
    filled = {parent for item in items for parent in item.file.parents}
    for folder in sorted(path for path in {item.file.parent.parent for item in items} for path in path.iterdir()):
        if folder.is_dir() and not folder.name.startswith(".") and folder not in filled:
            raise UserError(f"{folder} has no images: fill this class folder or delete it.")
