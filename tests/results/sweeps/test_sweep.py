"""`fedwild sweep` through the command line: its runs, what it leaves, going on, growing, failing and refusing."""

from __future__ import annotations

import csv
import fcntl
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedwild import api
from fedwild.core.errors import RoundFailed
from fedwild.lifecycle import start as starting
from fedwild.results.comparison import find_runs
from tests.conftest import Cli, Outcome, Refused, unfinish

BASE = """
[data]
name = "synthetic:8x8x1:4:80"
known = 3
[partition]
name = "iid"
[federation]
clients = 2
[model]
name = "mlp"
hidden = [4]
[method]
rounds = 2
epochs = 1
"""
SWEEP = f"{BASE}\n[sweep]\nseeds = 2\n[sweep.grid]\nmethod.lr = [0.01, 0.1]\n"
Started = list[tuple[float, int]]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """The learning rate and seed of each run that is begun."""
    seen: Started = []
    start = starting.start

    def noticed(config: Any, *rest: Any) -> api.Run:
        seen.append((config.method.params.lr, config.seed))
        return start(config, *rest)

    monkeypatch.setattr(starting, "start", noticed)
    return seen


@pytest.fixture
def sweep(cli: Cli) -> Callable[..., Outcome]:
    """`fedwild sweep s.toml` in this process."""
    Path("s.toml").write_text(SWEEP)
    return lambda *more: cli("sweep", "s.toml", "--workers", "0", *more)


def runs_csv(folder: str = "runs/sweep-s") -> list[dict[str, str]]:
    with open(f"{folder}/runs.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_every_combination_is_run_with_every_seed_and_compared(sweep: Callable[..., Outcome], started: Started) -> None:
    outcome = sweep("--json")
    assert outcome.code == 0
    assert started == [(0.01, 0), (0.1, 0), (0.01, 1), (0.1, 1)]
    said = json.loads(outcome.out)
    assert [(row["name"], row["seeds"]) for row in said["rows"]] == [
        ("method.lr=0.01", [0, 1]),
        ("method.lr=0.1", [0, 1]),
    ]
    assert said["sweep"] == "runs/sweep-s"
    assert [run["state"] for run in said["runs"]] == ["finished"] * 4
    for format in ("html", "csv", "md", "tex"):
        assert "method.lr=0.01" in Path(f"runs/sweep-s/table.{format}").read_text().replace("\\", "")


def test_runs_csv_has_a_row_for_each_run_with_what_was_varied_and_all_figures(sweep: Callable[..., Outcome]) -> None:
    assert sweep("--quiet").code == 0
    rows = runs_csv()
    assert [(row["method.lr"], row["seed"], row["state"]) for row in rows] == [
        (lr, seed, "finished") for seed in "01" for lr in ("0.01", "0.1")
    ]
    for row in rows:
        result = json.loads(Path("runs/sweep-s", row["folder"], "result.json").read_text())
        for key, value in {
            **result["metrics"],
            **{k: result[k] for k in ("seconds", "bytes_up", "bytes_down")},
        }.items():
            assert float(row[key]) == value


def test_sweep_json_says_what_the_sweep_is(sweep: Callable[..., Outcome]) -> None:
    assert sweep("--quiet").code == 0
    said = json.loads(Path("runs/sweep-s/sweep.json").read_text())
    assert said["grid"] == {"method.lr": [0.01, 0.1]}
    assert said["seeds"] == [0, 1]
    for row in said["rows"]:
        for seed, name in row["runs"].items():
            facts = json.loads(Path("runs/sweep-s", name, "run.json").read_text())["config"]
            assert (facts["seed"], facts["method"]["lr"]) == (int(seed), row["settings"]["method.lr"])


def test_a_run_of_a_sweep_is_the_run_that_its_settings_give_alone(sweep: Callable[..., Outcome], cli: Cli) -> None:
    assert sweep("--quiet").code == 0
    Path("plain.toml").write_text(BASE)
    arguments = ("--set", "method.lr=0.1", "--seed", "1", "--workers", "0", "--quiet", "--out", "alone")
    assert cli("run", "plain.toml", *arguments).code == 0
    (name,) = {row["folder"] for row in runs_csv() if (row["method.lr"], row["seed"]) == ("0.1", "1")}
    assert Path("alone/model.safetensors").read_bytes() == Path("runs/sweep-s", name, "model.safetensors").read_bytes()


def test_compare_shows_the_same_rows_as_the_sweep(sweep: Callable[..., Outcome], cli: Cli) -> None:
    swept = json.loads(sweep("--json", "--quiet").out)
    again = json.loads(cli("compare", "runs/sweep-s", "--json").out)
    key = "closed_accuracy"
    figures = [{row["name"]: row["figures"][key]["mean"] for row in said["rows"]} for said in (swept, again)]
    assert figures[0] == figures[1]


def test_without_a_file_options_are_enough(cli: Cli, started: Started) -> None:
    Path("b.toml").write_text(BASE)
    base = ("--set", "data.name=synthetic:8x8x1:4:80", "--set", "data.known=3", "--set", "federation.clients=2")
    brief = ("--set", "method.rounds=1", "--set", "model.name=mlp", "--workers", "0", "--quiet")
    assert cli("sweep", *base, *brief, "--grid", "method.lr=0.2,0.3").code == 0
    assert started == [(0.2, 0), (0.3, 0)]
    assert len(find_runs([Path("runs/sweep")]).finished) == 2


def test_rows_runs_shows_a_row_for_each_run(sweep: Callable[..., Outcome]) -> None:
    said = json.loads(sweep("--quiet", "--json", "--rows", "runs").out)
    assert [row["name"] for row in said["rows"]] == [f"method.lr={lr} seed {s}" for lr in (0.01, 0.1) for s in (0, 1)]


def test_reports_are_written_if_asked_for(sweep: Callable[..., Outcome]) -> None:
    assert sweep("--quiet").code == 0
    assert not list(Path("runs/sweep-s").rglob("report.html"))
    assert sweep("--quiet", "--report").code == 0
    assert len(list(Path("runs/sweep-s").rglob("report.html"))) == 4


def test_variants_are_rows_by_their_label(cli: Cli) -> None:
    variants = '[[sweep.variants]]\nlabel = "plain"\n[[sweep.variants]]\nlabel = "prox"\ncorrection.name = "prox"\n'
    Path("v.toml").write_text(BASE + variants)
    said = json.loads(cli("sweep", "v.toml", "--workers", "0", "--quiet", "--json").out)
    assert [row["name"] for row in said["rows"]] == ["plain", "prox"]
    assert [row["variant"] for row in runs_csv("runs/sweep-v")] == ["plain", "prox"]


# --- going on ------------------------------------------------------------------------------------------------


def test_what_is_done_is_kept_and_what_was_cut_short_goes_on(sweep: Callable[..., Outcome], started: Started) -> None:
    assert sweep("--quiet").code == 0
    folders = [Path("runs/sweep-s", row["folder"]) for row in runs_csv()]
    models = [folder.joinpath("model.safetensors").read_bytes() for folder in folders]
    started.clear()
    unfinish(folders[1], rounds=1)
    shutil.rmtree(folders[2])
    dates = folders[0].joinpath("result.json").stat().st_mtime_ns
    assert sweep("--quiet").code == 0
    assert started == [(0.01, 1)]
    assert [folder.joinpath("model.safetensors").read_bytes() for folder in folders] == models
    assert folders[0].joinpath("result.json").stat().st_mtime_ns == dates
    assert '"resume"' in folders[1].joinpath("events.jsonl").read_text()


def test_a_larger_grid_keeps_what_is_done(sweep: Callable[..., Outcome], started: Started) -> None:
    assert sweep("--quiet").code == 0
    started.clear()
    assert sweep("--quiet", "--grid", "method.lr=0.5,0.1,0.01", "--seeds", "2").code == 0
    assert started == [(0.5, 0), (0.5, 1)]
    # A key that was not varied before, at the value that it had.
    started.clear()
    assert sweep("--quiet", "--grid", "method.lr=0.5,0.1,0.01", "--grid", "method.momentum=0.9").code == 0
    assert started == []


def test_a_sweep_that_leaves_runs_out_is_refused_in_the_same_folder(
    sweep: Callable[..., Outcome], refused: Refused
) -> None:
    assert sweep("--quiet").code == 0
    said = refused("sweep", "s.toml", "--seeds", "0,2")
    assert "holds a sweep with 'method.lr=0.01', seed 1" in said
    assert "method.lr=0.01" in refused("sweep", "s.toml", "--set", "method.epochs=2")


def test_ctrl_c_says_how_to_go_on(sweep: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch) -> None:
    start = starting.start

    def stopped(config: Any, *rest: Any) -> api.Run:
        if config.method.params.lr == 0.1:
            raise KeyboardInterrupt
        return start(config, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(api, "start", stopped)
        outcome = sweep("--quiet")
    assert outcome.code == 130
    assert outcome.err.splitlines() == ["interrupted: 1 of 4 runs are done in runs/sweep-s; the same command goes on."]
    assert [row["state"] for row in runs_csv()] == ["finished", "missing", "missing", "missing"]
    assert sweep("--quiet").code == 0


# --- failing -------------------------------------------------------------------------------------------------


def test_a_run_that_fails_is_told_and_stops_no_other(
    sweep: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    start = starting.start

    def failing(config: Any, *rest: Any) -> api.Run:
        if (config.method.params.lr, config.seed) == (0.1, 0):
            raise RoundFailed("too few\nanswered")
        return start(config, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(api, "start", failing)
        outcome = sweep("--quiet", "--json")
    assert outcome.code == 1
    why = "runs/sweep-s/runs.csv says why, and the same command tries again."
    assert outcome.err.splitlines() == [f"1 of 4 runs failed: method.lr=0.1 seed 0; {why}"]
    said = json.loads(outcome.out)
    assert [row["seeds"] for row in said["rows"]] == [[0, 1], [1]]
    assert "Failed and left out: method.lr=0.1 seed 0." in said["notes"]
    row = runs_csv()[1]
    assert (row["state"], row["problem"], row["auroc"]) == ("failed", "too few answered", "")
    assert sweep("--quiet").code == 0


def test_if_all_fail_there_is_no_table(sweep: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> api.Run:
        raise RoundFailed("nobody answered")

    monkeypatch.setattr(starting, "start", failing)
    outcome = sweep("--json")
    assert outcome.code == 1
    said = json.loads(outcome.out)
    assert (said["rows"], [run["problem"] for run in said["runs"]]) == ([], ["nobody answered"] * 4)
    assert "4 of 4 runs failed" in outcome.err
    assert not list(Path("runs/sweep-s").glob("table.*"))


def test_a_second_sweep_in_the_folder_is_kept_out(sweep: Callable[..., Outcome], refused: Refused) -> None:
    assert sweep("--quiet").code == 0
    with open("runs/sweep-s/.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "is in use by another sweep" in refused("sweep", "s.toml", "--quiet")


# --- checking before anything runs ---------------------------------------------------------------------------


def test_a_dry_run_lists_the_runs_and_writes_nothing(sweep: Callable[..., Outcome]) -> None:
    outcome = sweep("--dry-run", "--quiet")
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    assert lines[0].startswith("missing    method.lr=0.01, seed 0: runs/sweep-s/fedavg-")
    assert lines[-1] == "4 runs, 0 of them done; none was begun (--dry-run)"
    assert not Path("runs").exists()
    assert [run["seed"] for run in json.loads(sweep("--dry-run", "--quiet", "--json").out)["runs"]] == [0, 0, 1, 1]


def test_all_that_is_wrong_with_any_combination_is_told_before_the_first_run(refused: Refused) -> None:
    Path("s.toml").write_text(SWEEP)
    said = refused("sweep", "s.toml", "--grid", "method.name=fedavg,fedovv", "--grid", "method.lr=0.1,-1", "--quiet")
    assert "method=fedovv method.lr=0.1, method=fedovv method.lr=-1: method 'fedovv' is not known." in said
    assert "method=fedavg method.lr=-1: method.lr = -1 is not allowed" in said


def test_what_is_wrong_with_all_combinations_is_told_once(refused: Refused) -> None:
    Path("s.toml").write_text(SWEEP)
    said = refused("sweep", "s.toml", "--set", "method.epochs=none", "--quiet")
    assert said.count("error: ") == 1
    assert said.startswith("error: method.epochs = 'none' is not allowed")


def test_what_only_the_data_shows_is_told_before_the_first_run(refused: Refused) -> None:
    Path("s.toml").write_text(SWEEP)
    said = refused("sweep", "s.toml", "--grid", "data.known=2,9", "--quiet")
    assert said.startswith("error: method.lr=0.01 data.known=9, method.lr=0.1 data.known=9: ")
    assert "4 classes" in said


def test_combinations_that_are_the_same_are_refused(refused: Refused) -> None:
    Path("s.toml").write_text(SWEEP)
    assert "'method.lr=0.1' and 'method.lr=0.1' are the same" in refused(
        "sweep", "s.toml", "--grid", "method.lr=0.1,0.1"
    )


def test_another_run_in_a_runs_place_is_refused(sweep: Callable[..., Outcome], refused: Refused) -> None:
    assert sweep("--quiet").code == 0
    one, other = (Path("runs/sweep-s", row["folder"]) for row in runs_csv()[:2])
    shutil.rmtree(one)
    shutil.copytree(other, one)
    assert "holds another run: method.lr was 0.1 and is 0.01" in refused("sweep", "s.toml", "--quiet")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("gone.toml",), "config file 'gone.toml' does not exist"),
        (("--grid", "method.lr=0.1", "--rows", "all"), "--rows all is not allowed"),
        (("--grid", "method.lr=0.1", "--workers", "many"), "engine.workers = 'many' is not allowed"),
        ((), "nothing is varied"),
    ],
)
def test_other_bad_input_is_one_sentence(refused: Refused, arguments: tuple[str, ...], said: str) -> None:
    assert said in refused("sweep", *arguments, "--quiet")


def test_a_damaged_sweep_json_is_named(sweep: Callable[..., Outcome], refused: Refused) -> None:
    assert sweep("--quiet").code == 0
    Path("runs/sweep-s/sweep.json").write_text("{}")
    assert "sweep.json' is damaged" in refused("sweep", "s.toml", "--quiet")


def test_run_says_which_command_a_sweep_is_for(refused: Refused) -> None:
    Path("s.toml").write_text(SWEEP)
    assert "it is for `fedwild sweep CONFIG.toml`" in refused("run", "s.toml", "--quiet")


def test_a_sweep_json_that_cannot_be_read_is_named(sweep: Callable[..., Outcome], refused: Refused) -> None:
    assert sweep("--quiet").code == 0
    Path("runs/sweep-s/sweep.json").unlink()
    Path("runs/sweep-s/sweep.json").mkdir()
    assert "sweep.json' is damaged" in refused("sweep", "s.toml", "--quiet")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--grid", "data.name=2024-01-01,2024-02-01"), "data.name"),
        (("--set", "seed=7", "--seeds", "2"), "--set seed is not allowed: the sweep varies it"),
    ],
)
def test_odd_values_and_seeds_given_twice_are_refused(refused: Refused, arguments: tuple[str, ...], said: str) -> None:
    assert said in refused("sweep", *arguments, "--dry-run", "--quiet")


def test_a_report_that_fails_stops_no_other(sweep: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch) -> None:
    from fedwild.results.sweeps import running

    write, seen = running.write_report, []

    def failing(folder: Path) -> Path:
        seen.append(folder)
        if len(seen) == 1:
            raise OSError("the disk is full")
        return write(folder)

    monkeypatch.setattr(running, "write_report", failing)
    outcome = sweep("--quiet", "--report")
    assert outcome.code == 0
    assert f"warning: the report of {seen[0]} could not be written: the disk is full" in outcome.err
    assert [(folder / "report.html").exists() for folder in seen] == [False, True, True, True]
