"""An isolated environment for every test: one thread, no real data, and the command line as a function."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported
os.environ["FEDWILD_REPORT"] = "no"  # tests of reports enable it

import numpy as np
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put slow files at the start of the workers' parts, so that no worker is left with one of them at the end.

    Tests of one slow file stay together, since they share what is expensive to start. Tests with real sites start many
    processes that partly wait: two of them at a time leave the other workers enough of two cores.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    with_sites, slow, rest = [], dict[str, list[pytest.Item]](), []
    for item in items:
        if item.get_closest_marker("real_sites"):
            with_sites.append(item)
        elif item.get_closest_marker("slow"):
            slow.setdefault(item.nodeid.partition("::")[0], []).append(item)
        else:
            rest.append(item)
    parts: list[list[pytest.Item]] = [[] for _ in range(workers)]
    for number, item in enumerate(with_sites):
        parts[number % min(2, workers)].append(item)
    others = parts[2:] or parts
    for number, group in enumerate(slow.values()):
        others[number % len(others)] += group
    size = -(-len(items) // workers)
    for part in parts:
        missing = max(0, size - len(part))
        part += rest[:missing]
        del rest[:missing]
    items[:] = [item for part in parts for item in part]


@pytest.fixture(autouse=True, scope="session")
def own_keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Sign the runs of all tests with one key, which is not the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.getbasetemp() / "config"))
        yield


@pytest.fixture(autouse=True)
def no_real_data(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the data sets and the cache of this machine."""
    empty = str(tmp_path_factory.getbasetemp() / "no-data")
    monkeypatch.setenv("FEDWILD_DATA", empty)
    monkeypatch.setenv("XDG_CACHE_HOME", empty)


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for the disk: tests kill processes, not the machine. Halves the time of tiny runs."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(autouse=True)
def same_draws() -> None:
    """Seed the global generators, so that draws do not depend on the order of tests."""
    torch.manual_seed(0)
    np.random.seed(0)


@dataclass(frozen=True)
class Outcome:
    """The exit code, standard output and standard error of a command."""

    code: int
    out: str
    err: str


Cli = Callable[..., Outcome]
Refused = Callable[..., str]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run `fedwild ARGUMENTS` in this process, in an empty folder."""
    from fedwild.cli import main

    monkeypatch.chdir(tmp_path)

    def run(*arguments: str | Path) -> Outcome:
        monkeypatch.setattr(sys, "path", list(sys.path))
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Outcome(ended.value.code, printed.out, printed.err)

    return run


@pytest.fixture
def refused(cli: Cli, tmp_path: Path) -> Refused:
    """Run `fedwild ARGUMENTS`, which must end with exit code 2, 'error: ' lines and no changed file."""

    def refuse(*arguments: str | Path) -> str:
        before = contents(tmp_path)
        outcome = cli(*arguments)
        assert outcome.code == 2, outcome
        lines = outcome.err.splitlines()
        assert lines
        assert all(line.startswith("error: ") for line in lines), outcome.err
        assert outcome.out == ""
        assert contents(tmp_path) == before
        return outcome.err

    return refuse


def contents(folder: Path) -> dict[str, bytes | None]:
    """Return the contents of every file below a folder, hidden ones included."""
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


TINY = (
    *("--data", "synthetic:8x8x1:4:80", "--partition", "iid", "--clients", "2", "--workers", "0"),
    *("--model", "mlp", "--set", "model.hidden=[4]", "--set", "data.known=3"),
)
"""Arguments of a very small run: two clients, three known classes and one unknown."""


@pytest.fixture(scope="session")
def finished_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of three rounds. Tests that change it use `finished`."""
    from fedwild import api

    folder = tmp_path_factory.mktemp("finished") / "run"
    tables = {
        "data": {"name": "synthetic:8x8x1:4:80", "known": 3},
        "model": {"name": "mlp", "hidden": [4]},
        "method": {"name": "fedavg", "rounds": 3},
        "partition": {"name": "iid"},
    }
    return api.run(tables, clients=2, workers=0, out=folder).path


@pytest.fixture
def finished(finished_once: Path, tmp_path: Path) -> Path:
    """A copy of a finished run of three rounds."""
    return Path(shutil.copytree(finished_once, tmp_path / "finished"))


def unfinish(run: Path, rounds: int = 2) -> Path:
    """Turn a finished run into one that was killed after `rounds` rounds, and return it."""
    for name in ("result.json", "model.safetensors"):
        (run / name).unlink()
    for checkpoint in (run / "checkpoints").iterdir():
        if int(checkpoint.stem) > rounds:
            checkpoint.unlink()
    return run


DISCOVERING: dict[str, Any] = {
    "data": {"name": "synthetic:8x8x1:6:300", "known": 3, "novel": 2, "stages": [1, 1], "unlabelled_known": 0.2},
    "model": {"name": "mlp", "hidden": [16, 6]},
    "method": {"name": "gal", "rounds": 6, "epochs": 3, "lr": 0.1, "novel_rounds": 1, "stages": 2}
    # All unlabelled samples count as novel, so that classes are discovered with any network.
    | {"novelty": "fixed", "r": 1.0, "min_count": 1, "keep_known": 0.8},
    "estimator": {"name": "given", "classes": 2},
    "partition": {"name": "iid"},
}
"""Settings of a run that discovers novel-1 and novel-2 in its first stage, novel-3 and novel-4 in its second."""


@pytest.fixture(scope="session")
def discovered_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run that discovered four classes. Tests that change it use `discovered`."""
    from fedwild import api

    return api.run(DISCOVERING, clients=3, workers=0, out=tmp_path_factory.mktemp("discovered") / "run").path


@pytest.fixture
def discovered(discovered_once: Path, tmp_path: Path) -> Path:
    """A copy of a finished run that discovered four classes."""
    return Path(shutil.copytree(discovered_once, tmp_path / "discovered"))
