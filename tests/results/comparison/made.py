"""Files of finished runs, without running anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedwild.core.seal import seal_json
from fedwild.results.comparison import FinishedRun, read_run
from fedwild.runs.format import FORMAT

METHOD = {"name": "fedavg", "lr": 0.1}


def made_run(
    path: Path,
    auroc: float | None = 0.5,
    seed: int = 0,
    *,
    data: str = "same",
    finished: bool = True,
    settings: dict[str, dict[str, Any]] | None = None,
    metrics: dict[str, float | None] | None = None,
    seconds: float = 2.0,
    by: dict[str, dict[str, float]] | None = None,
) -> FinishedRun | None:
    """Make a run folder with what a comparison reads."""
    sections: dict[str, Any] = {"data": {"name": "digits", "known": 6}, "method": METHOD, "score": {"name": "msp"}}
    for section, table in (settings or {}).items():
        sections[section] = {**sections.get(section, {}), **table}
    path.mkdir(parents=True)
    (path / "run.json").write_bytes(
        seal_json({"format": FORMAT, "data": data, "config": {"seed": seed, **sections}, "versions": {}})
    )
    if not finished:
        return None
    costs = {"seconds": seconds, "bytes_up": 1_700_000, "bytes_down": 900, "rounds": 3, "clients": 2}
    figures = {"closed_accuracy": 0.9, "auroc": auroc, **(metrics or {})}
    about = {"method": "fedavg", "data": "digits", "seed": seed, "classes": []}
    (path / "result.json").write_bytes(
        seal_json({**about, "metrics": figures, "by": by or {}, "thresholds": {}, **costs})
    )
    return read_run(path)


def made_seeds(root: Path, name: str, values: list[float | None], **more: Any) -> None:
    """Make a run for each value, with seeds from 0."""
    for seed, value in enumerate(values):
        made_run(root / f"{name}-{seed}", value, seed, **more)
