"""Small data sets for tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from fedwild.data import Dataset


def toy(
    per_class: int = 20,
    classes: int = 4,
    test_per_class: int = 6,
    domains: int = 1,
    owners: tuple[str, ...] = (),
    seed: int = 0,
) -> Dataset:
    """Return 2x2 grey images whose four pixels are the row number, in shuffled class order."""
    rng = np.random.default_rng(seed)
    y_train = torch.from_numpy(rng.permutation(np.repeat(np.arange(classes), per_class)))
    y_test = torch.from_numpy(rng.permutation(np.repeat(np.arange(classes), test_per_class)))

    def pixels(rows: int) -> torch.Tensor:
        return (torch.arange(rows) % 256).to(torch.uint8).view(-1, 1, 1, 1).expand(rows, 1, 2, 2).contiguous()

    names = ("toy",) if domains == 1 else tuple(f"domain{number}" for number in range(domains))
    return Dataset(
        name="toy",
        x_train=pixels(len(y_train)),
        y_train=y_train,
        x_test=pixels(len(y_test)),
        y_test=y_test,
        classes=tuple(f"class{number}" for number in range(classes)),
        domains=names,
        domain_train=torch.arange(len(y_train)) % domains,
        domain_test=torch.arange(len(y_test)) % domains,
        owners=owners,
        owner_train=torch.arange(len(y_train)) % len(owners) if owners else None,
    )


def write_image(path: Path, size: tuple[int, int] = (6, 5), mode: str = "RGB", value: int = 128) -> Path:
    """Write one plain image and create its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode == "L" else (value, value, value)).save(path)
    return path
