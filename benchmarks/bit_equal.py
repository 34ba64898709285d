"""Compare two checkouts of fedwild bit by bit: the same commands, the same seeds, on the embedded digits.

    python -m benchmarks.bit_equal run CHECKOUT RESULTS      # run every case with the code of a checkout
    python -m benchmarks.bit_equal compare RESULTS RESULTS   # list the cases and whether they agree

Two runs agree if every metric, every threshold, the class names and every tensor of the final model are equal.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from safetensors.numpy import load_file

METHODS = (
    *("fedavg", "fedbn", "fedproto", "fedheal", "afl", "qffl", "local-only", "fedma"),
    *("close-set-voting", "distilled-close-set", "fedov", "distilled-fedov"),
    *("fedpd", "fedpd-paper", "fedoss", "fedoss-paper"),
    *("gal", "gal-paper", "gains", "gains-paper", "gains-released"),
)
SHORT = ("--rounds", "3")
VARIANTS: dict[str, tuple[str, ...]] = {
    "prox": ("--method", "fedavg", "--set", "correction.name=prox", *SHORT),
    "scaffold": ("--method", "fedavg", "--set", "correction.name=scaffold", *SHORT),
    "moon": ("--method", "fedavg", "--set", "correction.name=moon", *SHORT),
    "proser": ("--method", "fedavg", "--set", "objective.name=proser", "--set", "score.name=proser", *SHORT),
    "outlier-aware": ("--method", "fedavg", "--set", "objective.name=outlier-aware", *SHORT),
    "prototypes": ("--method", "fedavg", "--set", "objective.name=prototype-contrast", *SHORT),
    "energy": ("--method", "fedavg", "--set", "score.name=energy", *SHORT),
    "half": ("--method", "fedavg", "--set", "federation.participation=0.5", *SHORT),
    "dirichlet": ("--method", "fedavg", "--partition", "dirichlet:0.1", "--seed", "3", *SHORT),
    "adam": ("--method", "fedavg", "--set", "method.optimizer=adam", "--set", "method.lr=0.001", *SHORT),
    "resnet": ("--method", "fedavg", "--model", "resnet-18", "--set", "model.width=8", "--rounds", "1"),
    "resnet-fedbn": ("--method", "fedbn", "--model", "resnet-18", "--set", "model.width=8", "--rounds", "1"),
    "ppm": ("--method", "gal", "--set", "estimator.name=ppm", *SHORT),
    "macc": ("--method", "gal", "--set", "estimator.name=macc", *SHORT),
    "gains-scaffold": ("--method", "gains", "--set", "correction.name=scaffold", *SHORT),
    "from-fedavg": ("--method", "fedoss", "--start-from", "fedavg", *SHORT),
}
WELCOMES = {"welcome-fedavg": "fedavg", "welcome-gal": "gal", "welcome-again": "welcome-fedavg"}
CLASSES = {"welcome-fedavg": ("8",), "welcome-gal": ("8",), "welcome-again": ("9",)}


def run(checkout: Path, results: Path) -> None:
    """Run every case with the code of a checkout; cases that are there already are kept."""
    results.mkdir(parents=True, exist_ok=True)
    cases = {name: ("--method", name) for name in METHODS} | VARIANTS
    for name, arguments in cases.items():
        given = [
            str((results / a).resolve()) if a in METHODS and arguments[i - 1] == "--start-from" else a
            for i, a in enumerate(arguments)
        ]
        execute(checkout, results / name, "run", *given)
    for name, source in WELCOMES.items():
        wanted = [flag for label in CLASSES[name] for flag in ("--class", label)]
        parts = ("welcome", str((results / source).resolve()), "--client", "digits", "--name", name, *wanted)
        execute(checkout, results / name, *parts)


def execute(checkout: Path, out: Path, *arguments: str) -> None:
    """Give one fedwild command to a checkout's code."""
    if (out / "result.json").exists():
        return
    environment = {**os.environ, "PYTHONPATH": str(checkout.resolve()), "OMP_NUM_THREADS": "1", "FEDWILD_REPORT": "no"}
    command = [sys.executable, "-m", "fedwild", *arguments, "--out", str(out.resolve())]
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True)
    print(f"{out.name}: {'done' if done.returncode == 0 else done.stderr.strip()[-300:]}", flush=True)


def compare(before: Path, after: Path) -> int:
    """Print one line per case; returns the number of cases that differ or are missing."""
    wrong = 0
    for folder in sorted(path for path in before.iterdir() if (path / "result.json").exists()):
        differences = differing(folder, after / folder.name)
        wrong += bool(differences)
        print(f"{folder.name:22} {'equal' if not differences else 'DIFFERS: ' + ', '.join(differences)}")
    return wrong


def differing(before: Path, after: Path) -> list[str]:
    """What two runs do not agree on."""
    if not (after / "result.json").exists():
        return ["missing"]
    then, now = (json.loads((path / "result.json").read_text()) for path in (before, after))
    # NaN is equal to NaN here, so results are compared as text.
    keys = [key for key in ("metrics", "by", "thresholds", "classes") if json.dumps(then[key]) != json.dumps(now[key])]
    old, new = (load_file(path / "model.safetensors") for path in (before, after))
    same = old.keys() == new.keys() and all(old[name].tobytes() == new[name].tobytes() for name in old)
    return keys if same else [*keys, "model.safetensors"]


def main(what: str, first: Path, second: Path) -> int:
    if what == "compare":
        return min(1, compare(first, second))
    run(first, second)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])))
