"""Damaged run folders, each opened by every command that opens a run.

A command may use what is intact or refuse the folder with one sentence. It must not raise, hang, write anything when it
refuses, or give another answer than for the undamaged folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import shutil
import signal
import stat
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.hostile.damage import Damage, accidents, copy_damaged, forgeries
from benchmarks.hostile.tally import Tally
from fedwild import api
from fedwild.cli import main

MAX_SECONDS = 120
ALWAYS = (
    ("predict", "RUN", "IMAGE", "--json"),
    ("evaluate", "RUN", "--workers", "0", "--json", "--quiet"),
    ("resume", "RUN", "--workers", "0", "--no-report", "--quiet"),
    ("verify", "RUN"),
    ("compare", "RUN", "--json"),
)
SOMETIMES = (
    ("report", "RUN", "--workers", "0", "--quiet"),
    ("show", "confusion", "RUN", "--json"),
    ("show", "features", "RUN", "--json"),
    ("show", "exhibits", "RUN", "--json"),
    ("show", "novel", "RUN", "--json"),
    ("track", "RUN", "--quiet"),
    ("name", "RUN"),
    ("name", "RUN", "novel-1", "wolf"),
    ("welcome", "RUN", "--client", "NEWCOMER", "--workers", "0", "--rounds", "1", "--no-report", "--quiet"),
)
"""Each damaged folder is opened by all commands of the first list and by two of the second, in turn."""
JSON_FILES = ("run.json", "result.json", "manifest.json", "events.jsonl")
CLOSED: dict[str, Any] = {
    "data": {"name": "synthetic:8x8x1:4:80", "known": 3},
    "model": {"name": "mlp", "hidden": [4]},
    "method": {"name": "fedavg", "rounds": 3},
    "correction": {"name": "scaffold"},
    "partition": {"name": "iid"},
}
DISCOVERING: dict[str, Any] = {
    "data": {"name": "synthetic:8x8x1:5:150", "known": 3, "novel": 1, "unlabelled_known": 0.2},
    "model": {"name": "mlp", "hidden": [8, 6]},
    "method": {"name": "gal", "rounds": 2, "epochs": 1, "novel_rounds": 1}
    | {"novelty": "fixed", "r": 1.0, "min_count": 1},
    "estimator": {"name": "given", "classes": 1},
    "partition": {"name": "iid"},
}


@dataclass(frozen=True)
class Base:
    """A run that is damaged, with what commands print for the undamaged one."""

    path: Path
    expected: dict[str, str]
    model: bytes
    """The final model, to which a resumed run leads."""


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str
    hung: bool = False


def run(folder: Path, quick: bool = False) -> Tally:
    """Try every damage on a finished run, an unfinished one and one that discovered a class."""
    tally, turn = Tally(), 0
    os.chdir(folder)
    # Not the user's own key.
    os.environ["XDG_CONFIG_HOME"] = str(folder / "config")
    make_inputs()
    finished = api.run(CLOSED, clients=2, workers=0, out=folder / "finished").path
    bases = [Base(finished, answers(finished), model_of(finished)), unfinished(folder, finished)]
    found = api.run(DISCOVERING, clients=2, workers=0, out=folder / "found").path
    bases.append(Base(found, answers(found), model_of(found)))
    codes: dict[int, int] = {}
    for base in bases:
        damages = [*accidents(base.path), *(forgeries(base.path) if base is bases[0] else ())]
        for damage in damages[:: 25 if quick else 1]:
            tally.trials += 1
            turn += 2
            some = [SOMETIMES[turn % len(SOMETIMES)], SOMETIMES[(turn + 1) % len(SOMETIMES)]]
            for command in (*ALWAYS, *some):
                outcome = try_command(tally, base, damage, command)
                codes[outcome.code] = codes.get(outcome.code, 0) + 1
    tally.facts = {"commands": sum(codes.values()), "exit_codes": codes, "is_root": os.geteuid() == 0}
    return tally


def make_inputs() -> None:
    """Write an image to predict and a newcomer's data."""
    draw = np.random.default_rng(0)
    Image.fromarray(draw.integers(0, 256, (8, 8), dtype=np.uint8)).save("image.png")
    np.savez("late.npz", x=draw.integers(0, 256, (40, 8, 8), dtype=np.uint8), y=np.arange(40) % 2 + 7)


def unfinished(folder: Path, finished: Path) -> Base:
    """Return a copy of a run that was stopped before its last round."""

    def stop(event: dict[str, Any]) -> None:
        if event["event"] == "round-start" and event["index"] == 2:
            raise KeyboardInterrupt

    path = folder / "unfinished"
    with contextlib.suppress(KeyboardInterrupt):
        api.run(CLOSED, clients=2, workers=0, out=path, listener=stop)
    return Base(path, answers(path), model_of(finished))


def model_of(run: Path) -> bytes:
    return (run / "model.safetensors").read_bytes()


def answers(run: Path) -> dict[str, str]:
    """Return what predict and evaluate print for an undamaged run."""
    return {command[0]: call(command, run).out for command in ALWAYS[:2]}


def call(command: tuple[str, ...], run: Path) -> Outcome:
    """Run a command in this process."""
    words = {"RUN": str(run), "IMAGE": "image.png", "NEWCOMER": "late.npz"}
    out, err, path = io.StringIO(), io.StringIO(), list(sys.path)
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(MAX_SECONDS)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main([words.get(word, word) for word in command])
        return Outcome(0, out.getvalue(), err.getvalue())
    except SystemExit as end:
        return Outcome(int(end.code or 0), out.getvalue(), err.getvalue())
    except TimeoutError:
        return Outcome(-1, out.getvalue(), err.getvalue(), hung=True)
    except BaseException:
        return Outcome(-2, out.getvalue(), err.getvalue() + traceback.format_exc())
    finally:
        signal.alarm(0)
        sys.path[:] = path


def _too_long(signum: int, frame: object) -> None:
    raise TimeoutError


def try_command(tally: Tally, base: Base, damage: Damage, command: tuple[str, ...]) -> Outcome:
    """Run a command on a damaged copy and count what must not happen."""
    copy = copy_damaged(base.path, Path("copy"), damage)
    try:
        before = snapshot(copy)
        outcome = call(command, copy)
        what = f"{base.path.name}, {damage.file}: {damage.name}: {' '.join(command[:2])}"
        if outcome.hung:
            tally.fail("hangs", what)
        elif outcome.code == -2 or "Traceback" in outcome.err:
            tally.fail("tracebacks", f"{what}: {outcome.err.strip().splitlines()[-1]}")
        else:
            for problem in problems(base, damage, command, outcome, copy, before):
                tally.fail("wrong", f"{what}: {problem}")
        return outcome
    finally:
        shutil.rmtree(copy)
        for new in Path("runs").glob("*"):
            shutil.rmtree(new)


def problems(
    base: Base, damage: Damage, command: tuple[str, ...], outcome: Outcome, copy: Path, before: dict[str, Any]
) -> Iterator[str]:
    """Yield what is wrong about a command that ended."""
    if outcome.code not in (0, 1, 2) or (outcome.code == 1 and command[0] != "verify"):
        yield f"exit code {outcome.code}"
    if outcome.code and snapshot(copy) != before:
        yield "it changed files, although it failed"
    if outcome.code == 2 and not all(line.startswith(("error: ", "warning: ")) for line in outcome.err.splitlines()):
        yield f"not one sentence: {outcome.err[:200]!r}"
    if outcome.code or damage.forged:
        return
    # A warning says that an older checkpoint is used.
    if command[0] in base.expected and outcome.out != base.expected[command[0]] and "warning: " not in outcome.err:
        yield "another answer"
    # A finished run is not run again.
    if command[0] == "resume" and damage.file != "model.safetensors" and model_of(copy) != base.model:
        yield "another model after resume"
    if command[0] == "verify" and not is_allowed(damage):
        yield "the damage was not found"


def is_allowed(damage: Damage) -> bool:
    """Whether a damaged run is a run that fedwild may have left: one without a result, or with another [engine]."""
    # A checkpoint that is gone is one that was never written, or an older one that was pruned.
    can_be_gone = damage.file == "result.json" or damage.file.startswith("checkpoints/")
    is_gone = damage.name in ("deleted", "a dangling link") and can_be_gone
    # The last byte of these files is the end of a line, which has no meaning.
    is_line_end = damage.name == "one byte short" and damage.file in JSON_FILES
    return damage.file == "config.toml" or is_gone or is_line_end


def snapshot(folder: Path) -> dict[str, Any]:
    """Return kind, permissions and content of everything in a folder."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        about = path.lstat()
        content = b""
        if stat.S_ISREG(about.st_mode) and about.st_size < 1 << 30 and os.access(path, os.R_OK):
            content = hashlib.sha256(path.read_bytes()).digest()
        found[str(path)] = (about.st_mode, about.st_size, content)
    return found
