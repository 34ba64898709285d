"""Accuracy against epsilon: FedAvg on MNIST with differential privacy at client and at sample level.

    python -m benchmarks.privacy [--out FOLDER] [--seeds 3] [--level client] [--workers 2]

Each run has a folder below FOLDER. Finished runs are not repeated, and interrupted runs are resumed: repeat the command
after a stop. It prints a table of the finished runs. MNIST must be in `FEDWILD_DATA` or `~/.cache/fedwild`.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fedwild import api

Table = dict[str, Any]
EPSILONS: tuple[float | None, ...] = (1.0, 3.0, 8.0, None)
"""None is a run without privacy."""
BASE: Table = {
    "data": {"name": "mnist", "known": 10},
    "partition": {"name": "iid"},
    "model": {"name": "mlp", "hidden": [32]},
    "evaluation": {"every": 0},
}
LEVELS: dict[str, Table] = {
    "client": {
        "federation": {"clients": 1000, "participation": 0.1},
        "method": {"rounds": 30, "epochs": 3, "batch_size": 27, "lr": 0.2, "momentum": 0.0},
    },
    "sample": {
        "federation": {"clients": 10},
        "method": {"rounds": 12, "epochs": 1, "batch_size": 256, "lr": 2.0, "momentum": 0.0},
    },
}
CLIP = 1.0
LR_WITHOUT_PRIVACY = {"client": 0.2, "sample": 0.2}
"""Clipped gradients of samples are short, so that private steps need a larger learning rate."""


class Cell(NamedTuple):
    """One run."""

    level: str
    epsilon: float | None
    seed: int

    @property
    def name(self) -> str:
        return f"{self.level}-{'none' if self.epsilon is None else f'{self.epsilon:g}'}-{self.seed}"

    def settings(self, workers: int) -> Table:
        table = {**BASE, **LEVELS[self.level], "seed": self.seed, "engine": {"workers": workers}}
        if self.epsilon is None:
            return {**table, "method": {**table["method"], "lr": LR_WITHOUT_PRIVACY[self.level]}}
        return {**table, "privacy": {"level": self.level, "epsilon": self.epsilon, "clip": CLIP}}


def cells(levels: list[str], seeds: int) -> Iterator[Cell]:
    """All runs, the first seed of every cell first."""
    for seed in range(seeds):
        for level in levels:
            for epsilon in EPSILONS:
                yield Cell(level, epsilon, seed)


def measured(cell: Cell, folder: Path, workers: int) -> api.Run:
    """Run a cell, continue it, or read it."""
    path = folder / cell.name
    if not path.exists():
        return api.run(cell.settings(workers), out=path)
    return api.resume(path)


def table(folder: Path, levels: list[str], seeds: int) -> str:
    """The finished runs as a Markdown table: mean and standard deviation of the accuracy over seeds."""
    lines = ["| Level | epsilon | delta | noise | Accuracy | Seeds |", "|---|---|---|---|---|---|"]
    for level in levels:
        for epsilon in EPSILONS:
            paths = [folder / Cell(level, epsilon, seed).name / "result.json" for seed in range(seeds)]
            results = [json.loads(path.read_text()) for path in paths if path.exists()]
            if not results:
                continue
            accuracies = [100 * result["metrics"]["closed_accuracy"] for result in results]
            spread = f" ± {statistics.stdev(accuracies):.1f}" if len(accuracies) > 1 else ""
            privacy = results[0].get("privacy")
            figures = (
                [f"{privacy['epsilon']:.2f}", f"{privacy['delta']:.1e}", f"{privacy['noise']:.2f}"] if privacy else []
            )
            cost = " | ".join(figures or ["none", "", ""])
            lines.append(f"| {level} | {cost} | {statistics.mean(accuracies):.1f} %{spread} | {len(accuracies)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/privacy"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--level", choices=sorted(LEVELS), action="append", help="one level only; may be repeated")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    levels = options.level or list(LEVELS)
    options.out.mkdir(parents=True, exist_ok=True)
    for cell in cells(levels, options.seeds):
        run = measured(cell, options.out, options.workers)
        print(f"{cell.name}: {100 * run.metrics['closed_accuracy']:.1f} %, {run.result['seconds']:.0f} s", flush=True)
    print(table(options.out, levels, options.seeds))


if __name__ == "__main__":
    main()
