"""`fedwild name`: renaming discovered classes, who uses the names, interruptions and errors."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedwild import api
from fedwild.api import Run
from fedwild.core.errors import UserError
from fedwild.core.payload import Payload
from fedwild.openset.metrics import UNKNOWN
from fedwild.runs.events import EventLog
from fedwild.runs.folder import RunFolder
from tests.conftest import DISCOVERING, Cli, Refused, contents, unfinish
from tests.folders import read_json

NOVEL = ["novel-1", "novel-2", "novel-3", "novel-4"]
LAST_BUT_ONE = 12  # of the run's 13 rounds


def names_in(run: Path) -> dict[str, list[str]]:
    """Return the class names in each file that has them."""
    model = Payload.read(run / "model.safetensors").info["classes"]
    result = read_json(run / "result.json")["classes"]
    return {"model": [entry["name"] for entry in model], "result": result}


def both(names: list[str]) -> dict[str, list[str]]:
    return {"model": names, "result": names}


def namings(run: Path) -> list[tuple[str, str]]:
    """Return the old and new names in the log."""
    return [(event["old"], event["new"]) for event in Run(run).events() if event["event"] == "name"]


# --- what changes --------------------------------------------------------------------------------------------


def test_only_the_name_changes(cli: Cli, discovered: Path) -> None:
    before, model = Run(discovered).novel_classes(), Payload.read(discovered / "model.safetensors")
    result = read_json(discovered / "result.json")
    others = {path: data for path, data in contents(discovered).items() if "clients" in path or "checkpoints" in path}

    outcome = cli("name", discovered, "novel-2", "melanoma")
    assert outcome.code == 0, outcome.err
    assert outcome.out == "novel-2 is now called melanoma\n"

    after = Run(discovered).novel_classes()
    assert after == [before[0], replace(before[1], name="melanoma"), *before[2:]]
    assert (after[1].origin, after[1].stage) == ("novel", 1)
    assert after[1].samples
    now = Payload.read(discovered / "model.safetensors")
    assert now.tensors.keys() == model.tensors.keys()
    assert all(torch.equal(now.tensors[name], model.tensors[name]) for name in model.tensors)
    assert {**now.info, "classes": 0} == {**model.info, "classes": 0}
    names = ["0", "1", "2", "novel-1", "melanoma", "novel-3", "novel-4"]
    assert names_in(discovered) == both(names)
    assert read_json(discovered / "result.json") == {**result, "classes": names}
    assert {path: data for path, data in contents(discovered).items() if path in others} == others
    last = Run(discovered).events()[-1]
    assert (last["event"], last["old"], last["new"]) == ("name", "novel-2", "melanoma")
    assert not list(discovered.rglob("*.tmp"))


def test_a_class_can_be_renamed_again(cli: Cli, discovered: Path) -> None:
    for old, new in (("novel-1", "wolf"), ("wolf", "ünï 😀"), ("ünï 😀", "novel-1"), ("novel-1", "wolf")):
        assert cli("name", discovered, old, new).code == 0
        assert names_in(discovered) == both(["0", "1", "2", new, *NOVEL[1:]])
    assert len(namings(discovered)) == 4


def test_spaces_around_a_name_are_removed(cli: Cli, discovered: Path) -> None:
    printed = json.loads(cli("name", discovered, "novel-3", "  big cat ", "--json").out)
    assert (printed["run"], printed["old"], printed["new"]) == (str(discovered), "novel-3", "big cat")
    assert printed["class"] == vars(Run(discovered).novel_classes()[2])
    assert names_in(discovered)["model"][5] == "big cat"


def test_the_same_name_changes_nothing(cli: Cli, discovered: Path) -> None:
    before = contents(discovered)
    assert cli("name", discovered, "novel-1", "novel-1").code == 0
    assert contents(discovered) == before


def test_without_a_class_the_discovered_classes_are_listed(cli: Cli, discovered: Path) -> None:
    assert cli("name", discovered, "novel-3", "a tiger").code == 0
    found = Run(discovered).novel_classes()
    printed = json.loads(cli("name", discovered, "--json").out)
    assert printed == {"run": str(discovered), "classes": [vars(entry) for entry in found]}
    rows = [line.strip("│ ").split("│") for line in cli("name", discovered).out.splitlines() if "│" in line]
    assert [[cell.strip() for cell in row] for row in rows] == [
        [entry.name, str(entry.stage), str(sum(entry.samples.values())), str(len(entry.samples))] for entry in found
    ]
    assert [row[0].strip() for row in rows] == ["novel-1", "novel-2", "a tiger", "novel-4"]


def test_the_classes_of_an_unfinished_run_are_listed(cli: Cli, discovered: Path) -> None:
    names = [
        entry["name"] for entry in json.loads(cli("name", unfinish(discovered, LAST_BUT_ONE), "--json").out)["classes"]
    ]
    assert names == NOVEL


# --- who uses the name ---------------------------------------------------------------------------------------


def test_predictions_use_the_new_name(cli: Cli, discovered: Path) -> None:
    run = Run(discovered)
    x = run.experiment.dataset.x_train
    before = run.predict(x)
    cli("name", discovered, "novel-3", "tiger")
    after = run.predict(x)
    assert "novel-3" in before.labels
    assert after.labels == ["tiger" if label == "novel-3" else label for label in before.labels]
    np.save("one.npy", x[before.labels.index("novel-3"), 0].numpy())
    (row,) = json.loads(cli("predict", discovered, "one.npy", "--json").out)
    assert (row["answer"], row["best_class"]) == ("tiger", "tiger")
    assert "novel-3" not in row["scores"]


def test_pictures_use_the_new_name(cli: Cli, discovered: Path) -> None:
    cli("name", discovered, "novel-3", "tiger")
    known = ["0", "1", "2", "novel-1", "novel-2", "tiger", "novel-4"]
    for picture in ("confusion", "features"):
        assert json.loads(cli("show", picture, discovered, "--workers", "0", "--json").out)["known"] == known
    found = json.loads(cli("show", "novel", discovered, "--json").out)["classes"]
    assert [one["name"] for one in found] == known[3:]


def test_a_class_with_a_true_name_counts_as_known_and_the_figures_of_discovery_do_not_change(
    cli: Cli, discovered: Path
) -> None:
    def evaluated() -> dict[str, float]:
        metrics = json.loads(cli("evaluate", discovered, "--workers", "0", "--json").out)["metrics"]
        return {key: metrics[key] for key in metrics if key.startswith(("known_", "novel_", "all_", "forgetting"))}

    run, before = Run(discovered), evaluated()
    assert {"known_accuracy", "novel_accuracy", "all_accuracy", "forgetting"} <= set(before)
    assert run.experiment.split.novel == ("3", "4")
    fours = [name == "4" for name in run.outcome(workers=0).true_names]
    assert set(run.outcome(workers=0).truth[fours].tolist()) == {UNKNOWN}

    cli("name", discovered, "novel-3", "4")
    assert evaluated() == before
    assert set(run.outcome(workers=0).truth[fours].tolist()) == {5}
    confusion = json.loads(cli("show", "confusion", discovered, "--workers", "0", "--json").out)
    assert confusion["names"] == ["0", "1", "2", "novel-1", "novel-2", "4", "novel-4", "unknown"]
    assert sum(confusion["counts"][5]) == sum(fours) > 0


def test_a_run_that_starts_from_this_one_uses_the_new_name(cli: Cli, discovered: Path) -> None:
    def starting_notes(folder: str) -> list[str]:
        tables = {**DISCOVERING, "data": {**DISCOVERING["data"], "known": 4, "novel": 0, "stages": []}}
        tables = {key: table for key, table in tables.items() if key != "estimator"}
        tables["method"] = {"name": "fedavg", "rounds": 1, "epochs": 0}
        run = api.run(tables, clients=3, workers=0, start_from=discovered, out=folder)
        return [event["text"] for event in run.events() if event["event"] == "note"]

    assert "classes it did not have: 3" in starting_notes("first")
    cli("name", discovered, "novel-2", "3")
    assert not any("did not have" in note for note in starting_notes("second"))
    assert Run("first").result["classes"] == ["0", "1", "2", *NOVEL, "3"]
    assert Run("second").result["classes"] == ["0", "1", "2", "novel-1", "3", "novel-3", "novel-4"]
    earlier, later = (Run(folder).server().state.group("model")["head.weight"] for folder in (discovered, "second"))
    assert torch.equal(earlier, later)


def test_resuming_a_finished_run_keeps_the_name(cli: Cli, discovered: Path) -> None:
    cli("name", discovered, "novel-1", "wolf")
    before = contents(discovered)
    assert cli("resume", discovered).code == 0
    assert contents(discovered) == before
    assert names_in(discovered) == both(["0", "1", "2", "wolf", *NOVEL[1:]])


# --- interrupted, or out of disk space -----------------------------------------------------------------------


class Killed(BaseException):
    """Stands for the end of the process."""


def fail_at(place: str, error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the writing of one of the three files fail."""

    def failing(real: Callable[..., Any], name: str) -> Callable[..., Any]:
        def write(*arguments: Any, **named: Any) -> Any:
            if place in (name, Path(str(arguments[-1])).name):
                raise error
            return real(*arguments, **named)

        return write

    monkeypatch.setattr(os, "replace", failing(os.replace, "replace"))
    monkeypatch.setattr(EventLog, "write", failing(EventLog.write, "log"))
    monkeypatch.setattr(EventLog, "sync", failing(EventLog.sync, "synced log"))


PLACES = ["result.json", "log", "synced log", "model.safetensors"]


@pytest.mark.parametrize("place", PLACES)
def test_after_a_kill_the_run_is_readable_and_the_same_command_completes_the_change(
    place: str, cli: Cli, discovered: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = Run(discovered).experiment.dataset.x_train[:20]
    with monkeypatch.context() as patched, pytest.raises(Killed):
        fail_at(place, Killed(), patched)
        Run(discovered).name_class("novel-3", "tiger")

    assert names_in(discovered)["model"] == ["0", "1", "2", *NOVEL]
    assert Run(discovered).predict(x).classes[5] == "novel-3"
    assert Run(discovered).metrics
    for command in (("evaluate", "--workers", "0"), ("name",), ("resume",)):
        assert cli(command[0], discovered, *command[1:]).code == 0

    assert cli("name", discovered, "novel-3", "tiger").code == 0
    assert names_in(discovered) == both(["0", "1", "2", "novel-1", "novel-2", "tiger", "novel-4"])
    assert namings(discovered) == [("novel-3", "tiger")]
    assert Run(discovered).predict(x).classes[5] == "tiger"


def test_after_a_kill_another_class_can_be_named(cli: Cli, discovered: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched, pytest.raises(Killed):
        fail_at("model.safetensors", Killed(), patched)
        Run(discovered).name_class("novel-3", "tiger")
    assert cli("name", discovered, "novel-1", "wolf").code == 0
    assert names_in(discovered) == both(["0", "1", "2", "wolf", *NOVEL[1:]])


@pytest.mark.parametrize("place", PLACES)
def test_a_full_disk_is_one_sentence(place: str, cli: Cli, discovered: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        fail_at(place, OSError(28, "No space left on device"), patched)
        outcome = cli("name", discovered, "novel-3", "tiger")
    assert outcome.code == 2
    assert outcome.err == (
        f"error: run folder '{discovered}': No space left on device. Fix the problem, then repeat the command.\n"
    )
    assert cli("name", discovered, "novel-3", "tiger").code == 0
    assert namings(discovered) == [("novel-3", "tiger")]


# --- errors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("novel-11", "wolf"), ("class 'novel-11' is not known", "Did you mean 'novel-1'?", ", ".join(NOVEL))),
        (("", "wolf"), ("class '' is not known", ", ".join(NOVEL))),
        (("0", "wolf"), ("class '0' cannot be renamed", "comes from the labels", ", ".join(NOVEL))),
        (("0", "0"), ("class '0' cannot be renamed",)),
        (("novel-1", ""), ("name '' is not allowed",)),
        (("novel-1", "  "), ("name '  ' is not allowed", "not a space")),
        (("novel-1", "unknown"), ("name 'unknown' is not allowed", "samples of no class")),
        (("novel-1", " unknown "), ("name 'unknown' is not allowed",)),
        (("novel-1", "two\nlines"), (r"name 'two\nlines' is not allowed", "printable")),
        (("novel-1", "\udcff"), ("is not allowed", "printable")),
        (("novel-1", "x" * 101), ("is not allowed", "at most 100")),
        (("novel-1", "novel-2"), ("name 'novel-2' is taken", "another class has it")),
        (("novel-1", " 2"), ("name '2' is taken",)),
        (("novel-1", "Unknown"), ("name 'Unknown' is not allowed", "samples of no class")),
        (("novel-1", "NOVEL-2"), ("'NOVEL-2' differs from 'novel-2'", "Choose another name")),
        (("novel-1",), ("class 'novel-1' needs a name",)),
    ],
)
def test_an_invalid_name_is_one_sentence(
    arguments: tuple[str, ...], parts: tuple[str, ...], discovered: Path, refused: Refused
) -> None:
    error = refused("name", discovered, *arguments)
    assert len(error.splitlines()) == 1
    assert all(part in error for part in parts), error


def test_a_name_may_have_a_hundred_characters(cli: Cli, discovered: Path) -> None:
    assert cli("name", discovered, "novel-1", "x" * 100).code == 0


def test_an_earlier_name_is_suggested(cli: Cli, discovered: Path, refused: Refused) -> None:
    cli("name", discovered, "novel-1", "melanoma")
    assert "Did you mean 'melanoma'?" in refused("name", discovered, "melanome", "wolf")


def test_a_missing_run_is_an_error(refused: Refused) -> None:
    assert "run folder 'none' does not exist" in refused("name", "none", "novel-1", "wolf")
    assert "run folder 'none' does not exist" in refused("name", "none")


def test_an_unfinished_run_must_be_resumed_first(cli: Cli, discovered: Path, refused: Refused) -> None:
    unfinish(discovered, LAST_BUT_ONE)
    error = refused("name", discovered, "novel-1", "wolf")
    assert "is unfinished" in error
    assert f"`fedwild resume {discovered}`" in error
    assert cli("resume", discovered, "--workers", "0", "--quiet").code == 0
    assert cli("name", discovered, "novel-1", "wolf").code == 0
    assert names_in(discovered) == both(["0", "1", "2", "wolf", *NOVEL[1:]])


def test_a_run_without_a_model_is_an_error(discovered: Path, refused: Refused) -> None:
    (discovered / "model.safetensors").unlink()
    assert "has no model.safetensors" in refused("name", discovered, "novel-1", "wolf")


def test_a_run_in_use_is_rejected(discovered: Path, refused: Refused) -> None:
    other = RunFolder.open(discovered)
    other.lock()
    assert "in use by another process" in refused("name", discovered, "novel-1", "wolf")
    other.unlock()


def test_a_run_of_a_method_without_discovery_is_rejected(finished: Path, refused: Refused) -> None:
    for arguments in ((), ("novel-1", "wolf")):
        error = refused("name", finished, *arguments)
        assert "has no discovered classes: method 'fedavg' does not look for any; use a run of gal" in error
    assert "comes from the labels" in refused("name", finished, "0", "wolf")


def test_naming_in_python(discovered: Path) -> None:
    run = Run(discovered)
    entry = run.name_class("novel-4", "lynx")
    assert (entry.name, entry.stage) == ("lynx", 2)
    assert [one.name for one in run.novel_classes()] == [*NOVEL[:3], "lynx"]
    with pytest.raises(UserError, match="'novel-4' is not known"):
        run.name_class("novel-4", "lynx")
