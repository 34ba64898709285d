"""Run the hostile trial, or some of its parts, and print one JSON object.

    python -m benchmarks.hostile                 # all parts: about half an hour
    python -m benchmarks.hostile files kills     # some parts
    python -m benchmarks.hostile --quick         # a few trials of each

The exit code is 1 if a trial ended with a traceback, a wrong result or not at all.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import benchmarks.hostile

HELPERS = ("__main__", "damage", "mutation", "tally")


def parts() -> list[str]:
    """Return the names of all parts, in alphabetical order."""
    return [module.name for module in pkgutil.iter_modules(benchmarks.hostile.__path__) if module.name not in HELPERS]


def run_part(name: str, quick: bool) -> dict[str, Any]:
    """Run a part in a separate process, so that peak memory is measured for this part alone; return its counts."""
    command = [sys.executable, "-m", "benchmarks.hostile", "--only", name, *(["--quick"] if quick else [])]
    begin = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return {**json.loads(done.stdout.splitlines()[-1]), "seconds": round(time.perf_counter() - begin)}


def main() -> int:
    parser = argparse.ArgumentParser(description="A hostile trial of fedwild.")
    parser.add_argument("parts", nargs="*", help=f"{', '.join(parts())} (default: all)")
    parser.add_argument("--quick", action="store_true", help="a few trials of each part")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only is not None:
        part = importlib.import_module(f"benchmarks.hostile.{arguments.only}")
        with tempfile.TemporaryDirectory(prefix="hostile-") as folder:
            print(json.dumps(part.run(Path(folder), arguments.quick).to_json()))
        return 0
    unknown = set(arguments.parts) - set(parts())
    if unknown:
        parser.error(f"unknown part {min(unknown)}: choose from {', '.join(parts())}")
    counted = {name: run_part(name, arguments.quick) for name in arguments.parts or parts()}
    sums = {key: sum(part[key] for part in counted.values()) for key in ("trials", "tracebacks", "wrong", "hangs")}
    peak = max(part["peak_mb"] for part in counted.values())
    print(json.dumps({**sums, "peak_mb": peak, "parts": counted}, indent=2))
    return 1 if sums["tracebacks"] or sums["wrong"] or sums["hangs"] else 0


if __name__ == "__main__":
    sys.exit(main())
