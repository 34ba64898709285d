"""Data that needs no files: the 8x8 digits of scikit-learn, and synthetic images for tests and benchmarks.

Synthetic images are named `synthetic:28x28x1:10:6000` (HxWxC, classes, training samples).
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from fedwild.core.errors import UserError
from fedwild.core.memory import check_allocation
from fedwild.data.sources.raw import Part, Raw, stratified_test

_FORM = re.compile(r"synthetic:(\d{1,9})x(\d{1,9})x([13]):(\d{1,9}):(\d{1,9})", re.ASCII)
_CHUNK = 1024  # images drawn at a time


def load_digits() -> Raw:
    """Return 1,797 grey images (1, 8, 8), with a fixed split into 75 % training and 25 % test samples."""
    # The file is found without importing scikit-learn, which would take a second.
    package = find_spec("sklearn")
    assert package is not None and package.submodule_search_locations
    file = Path(package.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    rows = np.loadtxt(file, delimiter=",")
    pixels = np.round(rows[:, :64].reshape(-1, 1, 8, 8) * (255 / 16)).astype(np.uint8)
    labels = rows[:, 64].astype(np.int64)
    whole = Part(torch.from_numpy(pixels), labels, np.zeros(len(labels), dtype=np.int64), None)
    test = stratified_test(0.25, labels)
    train = np.setdiff1d(np.arange(len(labels)), test)
    return Raw(whole.rows(train), whole.rows(test), tuple(str(d) for d in range(10)), ("digits",))


def is_synthetic(name: str) -> bool:
    """Return whether a name asks for synthetic images."""
    return name.split(":")[0] == "synthetic"


def load_synthetic(name: str) -> Raw:
    """Return images of a Gaussian blob with noise, and a fifth as many test samples.

    Place, width and colour of the blob depend on the class.
    """
    match = _FORM.fullmatch(name)
    if not match:
        raise UserError(
            f"data.name = {name!r} is not allowed: use synthetic:HxWxC:classes:samples (synthetic:28x28x1:10:6000)."
        )
    height, width, channels, classes, samples = (int(text) for text in match.groups())
    if min(height, width, classes, samples) < 1:
        raise UserError(f"data.name = {name!r} is not allowed: every number must be at least 1.")
    drawn = 8 * min(_CHUNK, samples) * 3 * channels * height * width
    check_allocation(
        2 * samples * channels * height * width + drawn, f"data.name = {name!r}", "use fewer or smaller images"
    )
    rng = np.random.default_rng([0, 77])
    centre = rng.uniform(0.2, 0.8, (classes, 2)) * [height, width]
    spread = rng.uniform(0.08, 0.25, classes) * min(height, width) + 0.5
    colour = rng.uniform(0.4, 1.0, (classes, channels))
    rows, columns = np.mgrid[:height, :width]

    def draw(count: int) -> Part:
        y = rng.permutation(np.arange(count) % classes)
        shift = rng.normal(0, 0.04 * min(height, width), (count, 2))
        x = np.empty((count, channels, height, width), dtype=np.uint8)
        for start in range(0, count, _CHUNK):
            label = y[start : start + _CHUNK]
            place = centre[label] + shift[start : start + _CHUNK]
            distance = (rows - place[:, 0, None, None]) ** 2 + (columns - place[:, 1, None, None]) ** 2
            blob = np.exp(-distance / (2 * spread[label, None, None] ** 2))
            image = blob[:, None] * colour[label][:, :, None, None]
            image += rng.normal(0, 0.15, image.shape)
            x[start : start + _CHUNK] = np.clip(image * 255, 0, 255)
        return Part(torch.from_numpy(x), y.astype(np.int64), np.zeros(count, dtype=np.int64), None)

    train, test = draw(samples), draw(max(classes, samples // 5))
    return Raw(train, test, tuple(str(number) for number in range(classes)), ("synthetic",))
