"""scikit-learn's 8x8 digits: embedded in that library, no download."""

from __future__ import annotations

import numpy as np
import torch

from fedwild.data.sources.raw import Part, Raw, stratified_test


def load_digits() -> Raw:
    """1,797 grey images (1, 8, 8), 75 % training and 25 % test, the same split always."""
    from sklearn.datasets import load_digits as embedded  # imported late: scikit-learn is slow to import

    bunch = embedded()
    pixels = np.round(bunch.images * (255 / 16)).astype(np.uint8)[:, None]
    labels = bunch.target.astype(np.int64)
    whole = Part(torch.from_numpy(pixels), labels, np.zeros(len(labels), dtype=np.int64), None)
    test = stratified_test(0.25, labels)
    train = np.setdiff1d(np.arange(len(labels)), test)
    return Raw(whole.rows(train), whole.rows(test), tuple(str(d) for d in range(10)), ("digits",))
