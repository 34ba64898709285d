"""Whole runs of unusual federations and networks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedwild.data import Dataset
from fedwild.runs.events import read_events
from tests.methods.fedoss.federation import EVERYTHING, final, split_by_class
from tests.tiny import even_shares, run_tiny, split_by, tiny_dataset

ODD: dict[str, list[dict[int, int]]] = {
    "a client of one class": [{0: 12}, {0: 6, 1: 12, 2: 12}],
    "every client of one class": [{0: 12}, {1: 12}, {2: 12}],
    "a client without samples": [{0: 8, 1: 8, 2: 8}, {}],
    "a client of one sample": [{0: 8, 1: 8, 2: 8}, {1: 1}],
    "one client": [{0: 8, 1: 8, 2: 8}],
    "a class nobody has": [{0: 12, 1: 12}, {0: 8, 1: 4}],
}
MODELS = [{"name": "mlp", "hidden": [8, 6]}, {"name": "digit-cnn", "width": 0.05}]


RULES = ["informed", "agreement", "all"]
PAIRS = [(odd, MODELS[(i + j) % 2], rule) for i, odd in enumerate(ODD) for j, rule in enumerate(RULES)]
"""Every pair of a federation, a network and a rule occurs."""


@pytest.mark.parametrize(
    ("odd", "model", "boundary"), PAIRS, ids=lambda value: value if isinstance(value, str) else value["name"]
)
def test_unusual_federations_run_to_the_end(
    odd: str, model: dict[str, Any], boundary: str, data: Dataset, tmp_path: Path
) -> None:
    # Batch-norm needs two samples.
    batch = 1 if model["name"] == "mlp" else 2
    settings = {"method": {**EVERYTHING, "boundary": boundary, "batch_size": batch}, "model": model}
    run_tiny(tmp_path / "run", "fedoss", data, split_by_class(data, ODD[odd]), settings)
    infos = [e["info"] for e in read_events(tmp_path / "run" / "events.jsonl") if e["event"] == "client"]
    assert all(info["steps"] > 0 for info in infos if info["samples"] > 1)
    assert all(bool(torch.isfinite(t).all()) for t in final(tmp_path / "run").group("model").values())


@pytest.mark.parametrize(
    ("shape", "model"),
    [((3, 16, 16), {"name": "resnet-18", "width": 2}), ((1, 8, 8, 8), {"name": "resnet-18-3d", "width": 2})],
)
@pytest.mark.parametrize("branch", ["light", "full"])
def test_images_and_volumes_with_residual_networks(
    shape: tuple[int, ...], model: dict[str, Any], branch: str, tmp_path: Path
) -> None:
    data = tiny_dataset(classes=2, per_class=20)
    generator = torch.Generator().manual_seed(0)
    for part in ("train", "test"):
        count = len(getattr(data, f"y_{part}"))
        object.__setattr__(
            data, f"x_{part}", torch.randint(0, 255, (count, *shape), generator=generator, dtype=torch.uint8)
        )
    split = split_by(data, 2, even_shares(data, 2, 2))
    settings = {"method": {**EVERYTHING, "branch": branch, "dims": 8}, "model": model}
    result = run_tiny(tmp_path / "run", "fedoss", data, split, settings)
    assert final(tmp_path / "run").group("gaussians")
    assert result["metrics"]["boundary"] == 1.0
