"""Lists of labelled image files, from a folder or a CSV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedwild.core.errors import UserError
from fedwild.data.sources.image_files import read_images
from fedwild.data.sources.raw import Part, Raw


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
