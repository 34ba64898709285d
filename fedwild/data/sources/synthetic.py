"""Synthetic images for tests and benchmarks: `synthetic:28x28x1:10:6000` (HxWxC, classes, training samples)."""

from __future__ import annotations

import re

import numpy as np
import torch

from fedwild.core.errors import UserError
from fedwild.data.sources.raw import Part, Raw

_FORM = re.compile(r"synthetic:(\d+)x(\d+)x([13]):(\d+):(\d+)")


def is_synthetic(name: str) -> bool:
    """Return whether a name asks for synthetic images."""
    return name.split(":")[0] == "synthetic"


def load_synthetic(name: str, seed: int = 0) -> Raw:
    """Return images of the sizes in the name, and a fifth as many test samples."""
    match = _FORM.fullmatch(name)
    if not match:
        raise UserError(
            f"data.name = {name!r} is not allowed: use synthetic:HxWxC:classes:samples (synthetic:28x28x1:10:6000)."
        )
    height, width, channels, classes, samples = (int(text) for text in match.groups())
    if min(height, width, classes, samples) < 1:
        raise UserError(f"data.name = {name!r} is not allowed: every number must be at least 1.")
    return synthetic((channels, height, width), classes, samples, max(classes, samples // 5), seed)


def synthetic(
    shape: tuple[int, int, int], classes: int, train: int, test: int, seed: int = 0, noise: float = 0.15
) -> Raw:
    """Return images (C, H, W) of a Gaussian blob with noise; its place, width and colour depend on the class."""
    rng = np.random.default_rng([seed, 77])
    channels, height, width = shape
    centre = rng.uniform(0.2, 0.8, (classes, 2)) * [height, width]
    spread = rng.uniform(0.08, 0.25, classes) * min(height, width) + 0.5
    colour = rng.uniform(0.4, 1.0, (classes, channels))
    rows, columns = np.mgrid[:height, :width]

    def draw(count: int) -> Part:
        y = rng.permutation(np.arange(count) % classes)
        shift = rng.normal(0, 0.04 * min(height, width), (count, 2))
        x = np.empty((count, *shape), dtype=np.uint8)
        for start in range(0, count, 1024):
            label = y[start : start + 1024]
            place = centre[label] + shift[start : start + 1024]
            distance = (rows - place[:, 0, None, None]) ** 2 + (columns - place[:, 1, None, None]) ** 2
            blob = np.exp(-distance / (2 * spread[label, None, None] ** 2))
            image = blob[:, None] * colour[label][:, :, None, None]
            image += rng.normal(0, noise, (len(label), *shape))
            x[start : start + 1024] = np.clip(image * 255, 0, 255)
        return Part(torch.from_numpy(x), y.astype(np.int64), np.zeros(count, dtype=np.int64), None)

    return Raw(draw(train), draw(test), tuple(str(number) for number in range(classes)), ("synthetic",))
