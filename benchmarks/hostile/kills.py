"""Runs that are killed at random moments and resumed: the model must be bit-equal to that of an undisturbed run.

Every trial starts a run with two worker processes, kills its main process with SIGKILL at a random moment, kills the
resumed run once more, and then lets it finish.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.hostile.tally import Tally
from fedwild import api
from fedwild.core.toml import dump_toml
from fedwild.runs.verify import verify_run

KILLS, QUICK_KILLS = 100, 10
KILLS_PER_TRIAL = 2
MAX_SECONDS = 600.0
"""A run that takes longer hangs."""
FORK = multiprocessing.get_context("fork")
WORKERS = 2
OPEN = {"name": "synthetic:8x8x1:6:300", "known": 3, "novel": 2, "stages": [1, 1], "unlabelled_known": 0.2}
NOVEL = {"novel_rounds": 1, "stages": 2, "novelty": "fixed", "r": 1.0, "min_count": 1, "keep_known": 0.8}
SETTINGS: dict[str, dict[str, Any]] = {
    "fedavg": {"method": {"rounds": 8, "epochs": 1}, "correction": {"name": "scaffold"}},
    "fedov": {"method": {"epochs": 4}},
    "fedoss": {"method": {"rounds": 3, "finetune_rounds": 3, "epochs": 1}},
    "gal": {"data": OPEN, "method": {"rounds": 4, "epochs": 1, **NOVEL}, "estimator": {"name": "given", "classes": 2}},
    "gains": {"data": {"name": "digits"}, "model": {}, "method": {"rounds": 4, "epochs": 1}},
}
COMMON: dict[str, Any] = {
    "data": {"name": "synthetic:8x8x1:4:200", "known": 3},
    "model": {"name": "mlp", "hidden": [16, 8]},
    "partition": {"name": "iid"},
    "federation": {"clients": 4},
    "engine": {"workers": WORKERS},
}


def run(folder: Path, quick: bool = False) -> Tally:
    """Run trials of all methods in turn until enough runs have been killed."""
    tally, moments = Tally(), random.Random(0)
    wanted = QUICK_KILLS if quick else KILLS
    references = {method: Reference(folder, method) for method in SETTINGS}
    kills = dict.fromkeys(references, 0)
    while sum(kills.values()) < wanted:
        for method, reference in references.items():
            kills[method] += one_trial(tally, reference, folder / f"{method}-{tally.trials}", moments)
    tally.facts["kills"] = kills
    return tally


class Reference:
    """An undisturbed run."""

    def __init__(self, folder: Path, method: str) -> None:
        self.config = folder / f"{method}.toml"
        self.folder = folder / method
        own = SETTINGS[method]
        tables = {key: own.get(key, COMMON.get(key, {})) for key in {**COMMON, **own}}
        tables["method"] = {"name": method, **tables["method"]}
        self.config.write_text(dump_toml({key: table for key, table in tables.items() if table}))
        begin = time.monotonic()
        process = in_process(api.run, self.config, self.folder)
        process.join()
        self.seconds = time.monotonic() - begin
        assert process.exitcode == 0, f"the undisturbed run of {method} failed"


def one_trial(tally: Tally, reference: Reference, folder: Path, moments: random.Random) -> int:
    """Kill a run, resume it, compare it; return the number of kills."""
    tally.trials += 1
    kills = 0
    for _ in range(KILLS_PER_TRIAL):
        process = next_process(reference, folder)
        process.join(moments.uniform(0, reference.seconds))
        if process.is_alive():
            os.kill(process.pid or 0, signal.SIGKILL)
            kills += 1
        process.join()
    process = next_process(reference, folder)
    process.join(MAX_SECONDS)
    if process.is_alive():
        process.kill()
        tally.fail("hangs", str(folder))
    elif process.exitcode != 0:
        tally.fail("tracebacks", f"{folder.name}: exit code {process.exitcode}")
    else:
        for difference in differences(reference.folder, folder):
            tally.fail("wrong", f"{folder.name}: {difference}")
    return kills


def next_process(reference: Reference, folder: Path) -> multiprocessing.process.BaseProcess:
    """Start the run, or resume it if its folder exists."""
    return in_process(api.resume, folder) if folder.exists() else in_process(api.run, reference.config, folder)


def in_process(target: Callable[..., object], *arguments: Path) -> multiprocessing.process.BaseProcess:
    """Run in a new process; `api.run` gets its folder as `out`."""
    named = {"out": arguments[1]} if len(arguments) > 1 else {}
    process = FORK.Process(target=target, args=arguments[:1], kwargs=named)
    process.start()
    return process


def differences(expected: Path, found: Path) -> list[str]:
    """Return what differs between two finished runs, and what is wrong with the second."""
    wrong = [f"{row.file}: {row.text}" for row in verify_run(found) if not row.good]
    if (expected / "model.safetensors").read_bytes() != (found / "model.safetensors").read_bytes():
        wrong.append("the model differs")
    one, two = (api.Run(folder).result for folder in (expected, found))
    wrong += [f"{key} differs" for key in ("metrics", "by", "thresholds", "classes") if one[key] != two[key]]
    return wrong + [f"{file.name} is left" for file in found.rglob("*.tmp")]
