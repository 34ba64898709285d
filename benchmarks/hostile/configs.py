"""Mutated configs: tables, texts and options, through the settings, the data and the network of a run.

    python -m benchmarks.hostile.configs                 # 600 configs
    python -m benchmarks.hostile.configs --count 50 --seed 7

A config that the settings accept is prepared as a run would be: data loaded and split, network built, schedule made. A
text that they reject goes through the command line as well, which must end with exit code 2 and sentences. Prints one
JSON object. Nothing but `UserError` may be raised, within 20 seconds each and 2 GB more than at the start.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import json
import os
import resource
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch

from benchmarks.hostile.mutation import pick
from benchmarks.hostile.tally import Tally
from fedwild.api import configure
from fedwild.cli import main as command_line
from fedwild.core.errors import UserError
from fedwild.core.toml import dump_toml
from fedwild.data.partitions import PARTITIONS
from fedwild.methods import METHODS
from fedwild.models import MODELS
from fedwild.runs.components import KINDS
from fedwild.runs.config import Config
from fedwild.runs.experiment import prepare

COUNT = 600
SECONDS = 20
MORE_BYTES = 2_000_000_000
HUGE = "9" * 5000
VALUES: list[Any] = [
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2,
        3,
        7,
        10**6,
        10**9,
        2**31,
        2**63,
        2**64,
        10**30,
        0.0,
        0.5,
        -0.5,
        1.0,
        1e-300,
        1e300,
    ),
    *(
        float("nan"),
        float("inf"),
        -float("inf"),
        "",
        " ",
        "all",
        "rest",
        "0",
        "x" * 10_000,
        "\x00",
        "\x1b[2J",
        "\u202e",
    ),
    *(
        "unknown",
        "../..",
        "/",
        "/dev/zero",
        "/proc/self/mem",
        "os:system",
        "subprocess:Popen",
        "no.such:Thing",
        "a:b:c",
    ),
    *(
        "synthetic:8x8x1:5:60",
        "synthetic:99999x99999x3:9:99999",
        "synthetic:0x8x1:5:60",
        "sites",
        "auto",
        "cuda",
        "meta",
    ),
    *([], [0], ["0"], ["0", "0"], [None], [[]], [1e300], [10**9], ["x"] * 2000, [[["deep"]]], {}, {"name": "x"}),
    *({"a": {"b": {"c": 1}}}, {"": ""}, {"name": None}, {"x": [1, {"y": 2}]}),
]
"""Values that a setting may have in place of the right one."""
TEXTS = (
    "[",
    "]",
    "=",
    '"',
    "'",
    "\n",
    "#",
    "{",
    "}",
    "\x00",
    "\ufeff",
    HUGE,
    "[" * 3000,
    "nan",
    "1979-05-27T07:32:00Z",
    "1_0",
    "0x",
    ".",
)
"""What is inserted into a config file."""


def base(rng: np.random.Generator) -> dict[str, Any]:
    """Return a valid config of a random method and partition on little data."""
    return {
        "seed": int(rng.integers(100)),
        "data": {"name": "synthetic:8x8x1:5:80", "known": 3, "public": 0.2},
        "partition": {"name": pick(rng, ("iid", "dirichlet", "classes", "shards", "quantity"))},
        "federation": {"clients": 3},
        "model": {"name": pick(rng, ("mlp", "simple-cnn"))},
        "method": {"name": pick(rng, METHODS.names())},
        "engine": {"workers": 0},
    }


def keys_of(table: dict[str, Any]) -> list[tuple[str, str, Any]]:
    """Return all settings that a config may have, as (section, key, default)."""
    config = configure({"method": {"name": table["method"]["name"]}})
    sections: dict[str, Any] = {
        "data": type(config.data),
        "federation": type(config.federation),
        "evaluation": type(config.evaluation),
        "engine": type(config.engine),
        "method": type(config.method.params),
        "model": MODELS.get(table["model"]["name"]).Params,
        **{kind: type(part.params) for kind, part in config.parts.items()},
    }
    sections["partition"] = PARTITIONS.get(table["partition"]["name"]).Params
    found = [
        (section, key, field.get_default(call_default_factory=True))
        for section, settings in sections.items()
        for key, field in settings.model_fields.items()
    ]
    named = [(section, "name", "") for section in ("method", "model", "partition", *KINDS)]
    return [*found, *named, ("", "seed", 0)]


def value_for(default: Any, rng: np.random.Generator) -> Any:
    """Return a value of the same kind as the default, or of any kind."""
    alike = [value for value in VALUES if type(value) is type(default)]
    return copy.deepcopy(pick(rng, alike if alike and rng.random() < 0.8 else VALUES))


def mutate_table(rng: np.random.Generator) -> dict[str, Any]:
    """Return a valid config with one to three values replaced, or something else put in."""
    table = base(rng)
    choices = keys_of(table)
    for _ in range(int(rng.integers(1, 3))):
        section, key, default = pick(rng, choices)
        value = value_for(default, rng)
        kind = rng.random()
        if kind < 0.08:
            table[pick(rng, ("data", "method", "partition", "nonsense", "", "sweep", "\x00"))] = value
        elif not section:
            table[key] = value
        elif not isinstance(table.get(section, {}), dict):
            continue
        elif kind < 0.14:
            table.setdefault(section, {})[pick(rng, ("", "nme", "\x1b", "a.b", "x" * 500))] = value
        elif kind < 0.2 and section == "data":
            table["data"]["newcomers"] = {pick(rng, ("late", "../x", "", "client-00", "*", "x" * 300)): value}
        else:
            table.setdefault(section, {})[key] = value
    return table


def mutate_text(rng: np.random.Generator) -> str:
    """Return the TOML of a valid config, changed as text."""
    text = dump_toml(base(rng))
    for _ in range(int(rng.integers(1, 4))):
        place = int(rng.integers(len(text)))
        kind = int(rng.integers(4))
        if kind == 0:
            text = text[:place] + pick(rng, TEXTS) + text[place:]
        elif kind == 1:
            text = text[:place] + text[place + int(rng.integers(1, 12)) :]
        elif kind == 2:
            text = text[:place] + chr(int(rng.integers(1, 0x2FF))) + text[place + 1 :]
        else:
            lines = text.splitlines()
            text = "\n".join([*lines, pick(rng, lines)])
    return text


def mutate_option(rng: np.random.Generator) -> str:
    """Return the text of one --set option."""
    section, key, default = pick(rng, keys_of(base(rng)))
    value = pick(rng, TEXTS) if rng.random() < 0.3 else repr(value_for(default, rng))
    return pick(
        rng, (f"{section}.{key}={value}", f"{section}.{key}", f"{value}", f"{section}.{key}.x={value}", f"={value}")
    )


class Slow(Exception):
    """A config took too long."""


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """Raise what takes too long or too much memory."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Slow(f"more than {SECONDS} s")

    before, limits = signal.signal(signal.SIGALRM, stop), resource.getrlimit(resource.RLIMIT_DATA)
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + MORE_BYTES, limits[1]))
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_DATA, limits)


def attempt(make: Any) -> tuple[str, str]:
    """Return what became of a config, and the failure."""
    stage = "settings"
    try:
        with bounded():
            config: Config = make()
            stage = "prepare"
            prepare(config)
    except UserError as error:
        assert error.problems
        assert all(problem.strip() for problem in error.problems)
        return f"rejected by {stage}", ""
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return "failed", f"{type(error).__name__}: {str(error)[:100]} ({place.filename}:{place.lineno})"
    return "accepted", ""


def through_command_line(arguments: list[str]) -> str:
    """Return what is wrong with the way in which the command line rejects a config; empty if nothing is."""
    out, err = io.StringIO(), io.StringIO()
    try:
        with bounded(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            command_line(arguments)
    except SystemExit as ended:
        lines = err.getvalue().splitlines()
        if ended.code == 2 and lines and all(line.startswith("error: ") and line.isprintable() for line in lines):
            return ""
        return f"exit code {ended.code}: {err.getvalue()[-200:]}"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:100]}"
    return "no exit code"


def run_trial(number: int, rng: np.random.Generator, file: Path, outcomes: Counter[str]) -> tuple[str, str]:
    """Try one mutated config. Returns the config and its failure, which is empty if there is none."""
    kind = ("table", "table", "text", "option")[number % 4]
    tried: Any
    if kind == "table":
        tried = mutate_table(rng)
        outcome, failure = attempt(lambda: configure(tried))
    elif kind == "text":
        tried = mutate_text(rng)
        file.write_bytes(tried.encode("utf-8", "surrogatepass"))
        outcome, failure = attempt(lambda: configure(file))
    else:
        small, tried = base(rng), mutate_option(rng)
        outcome, failure = attempt(lambda: configure(small, settings=[tried]))
    if outcome == "rejected by settings" and kind != "table" and "\x00" not in str(tried):
        outcomes["through the command line"] += 1
        failure = through_command_line(["run", str(file)] if kind == "text" else ["run", "--set", str(tried)])
    outcomes[outcome] += 1
    return str(tried)[:300], failure


def hunt(folder: Path, count: int, seed: int = 0) -> Tally:
    """Return what became of mutated configs."""
    torch.set_num_threads(1)
    tally, outcomes = Tally(trials=count), Counter[str]()
    path = list(sys.path)
    with contextlib.chdir(folder):
        for number in range(count):
            tried, failure = run_trial(number, np.random.default_rng([seed, number]), Path("config.toml"), outcomes)
            if failure:
                tally.fail("hangs" if failure.startswith("Slow") else "tracebacks", f"{failure}: {tried}")
        for name in os.listdir():
            if name != "config.toml":
                tally.fail("wrong", f"{name} was written")
    sys.path[:] = path
    tally.facts |= outcomes
    return tally


def run(folder: Path, quick: bool) -> Tally:
    """Mutate configs."""
    return hunt(folder, 16 if quick else COUNT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(hunt(Path(folder), options.count, options.seed).to_json()))


if __name__ == "__main__":
    main()
