"""The 8x8 digits that are included in scikit-learn; no download is needed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from fedwild.data.sources.raw import Part, Raw, stratified_test


def load_digits() -> Raw:
    """Return 1,797 grey images (1, 8, 8), with a fixed split into 75 % training and 25 % test samples."""
    rows = np.loadtxt(digits_file(), delimiter=",")
    pixels = np.round(rows[:, :64].reshape(-1, 1, 8, 8) * (255 / 16)).astype(np.uint8)
    labels = rows[:, 64].astype(np.int64)
    whole = Part(torch.from_numpy(pixels), labels, np.zeros(len(labels), dtype=np.int64), None)
    test = stratified_test(0.25, labels)
    train = np.setdiff1d(np.arange(len(labels)), test)
    return Raw(whole.rows(train), whole.rows(test), tuple(str(d) for d in range(10)), ("digits",))


def digits_file() -> Path:
    """Return the file in scikit-learn, found without importing the package, which would take a second."""
    package = find_spec("sklearn")
    assert package is not None and package.submodule_search_locations
    return Path(package.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
