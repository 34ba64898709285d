"""`fedwild sweep` on the command line: runs, files, interruption, larger grids, failures and invalid input."""

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
    """The learning rate and seed of each run that is started."""
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
    printed = json.loads(outcome.out)
    assert [(row["name"], row["seeds"]) for row in printed["rows"]] == [
        ("method.lr=0.01", [0, 1]),
        ("method.lr=0.1", [0, 1]),
    ]
    assert printed["sweep"] == "runs/sweep-s"
    assert [run["state"] for run in printed["runs"]] == ["finished"] * 4
    for format in ("html", "csv", "md", "tex"):
        assert "method.lr=0.01" in Path(f"runs/sweep-s/table.{format}").read_text().replace("\\", "")


def test_runs_csv_has_a_row_for_each_run_with_its_settings_and_all_figures(sweep: Callable[..., Outcome]) -> None:
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


def test_sweep_json_describes_the_sweep(sweep: Callable[..., Outcome]) -> None:
    assert sweep("--quiet").code == 0
    printed = json.loads(Path("runs/sweep-s/sweep.json").read_text())
    assert printed["grid"] == {"method.lr": [0.01, 0.1]}
    assert printed["seeds"] == [0, 1]
    for row in printed["rows"]:
        for seed, name in row["runs"].items():
            facts = json.loads(Path("runs/sweep-s", name, "run.json").read_text())["config"]
            assert (facts["seed"], facts["method"]["lr"]) == (int(seed), row["settings"]["method.lr"])


def test_a_run_of_a_sweep_equals_a_single_run_with_its_settings(sweep: Callable[..., Outcome], cli: Cli) -> None:
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
    figures = [{row["name"]: row["figures"][key]["mean"] for row in printed["rows"]} for printed in (swept, again)]
    assert figures[0] == figures[1]


def test_a_sweep_needs_no_config_file(cli: Cli, started: Started) -> None:
    Path("b.toml").write_text(BASE)
    base = ("--set", "data.name=synthetic:8x8x1:4:80", "--set", "data.known=3", "--set", "federation.clients=2")
    brief = ("--set", "method.rounds=1", "--set", "model.name=mlp", "--workers", "0", "--quiet")
    assert cli("sweep", *base, *brief, "--grid", "method.lr=0.2,0.3").code == 0
    assert started == [(0.2, 0), (0.3, 0)]
    assert len(find_runs([Path("runs/sweep")]).finished) == 2


def test_rows_runs_gives_a_row_for_each_run(sweep: Callable[..., Outcome]) -> None:
    rows = json.loads(sweep("--quiet", "--json", "--rows", "runs").out)["rows"]
    assert [row["name"] for row in rows] == [f"method.lr={lr} seed {s}" for lr in (0.01, 0.1) for s in (0, 1)]


def test_reports_are_written_on_request(sweep: Callable[..., Outcome]) -> None:
    assert sweep("--quiet").code == 0
    assert not list(Path("runs/sweep-s").rglob("report.html"))
    assert sweep("--quiet", "--report").code == 0
    assert len(list(Path("runs/sweep-s").rglob("report.html"))) == 4


def test_variants_are_rows_named_by_their_label(cli: Cli) -> None:
    variants = '[[sweep.variants]]\nlabel = "plain"\n[[sweep.variants]]\nlabel = "prox"\ncorrection.name = "prox"\n'
    Path("v.toml").write_text(BASE + variants)
    printed = json.loads(cli("sweep", "v.toml", "--workers", "0", "--quiet", "--json").out)
    assert [row["name"] for row in printed["rows"]] == ["plain", "prox"]
    assert [row["variant"] for row in runs_csv("runs/sweep-v")] == ["plain", "prox"]


# --- interruption and larger grids ---------------------------------------------------------------------------


def test_finished_runs_are_kept_and_interrupted_ones_resumed(sweep: Callable[..., Outcome], started: Started) -> None:
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


def test_a_larger_grid_keeps_finished_runs(sweep: Callable[..., Outcome], started: Started) -> None:
    assert sweep("--quiet").code == 0
    started.clear()
    assert sweep("--quiet", "--grid", "method.lr=0.5,0.1,0.01", "--seeds", "2").code == 0
    assert started == [(0.5, 0), (0.5, 1)]
    # A new key, with the value that it had before.
    started.clear()
    assert sweep("--quiet", "--grid", "method.lr=0.5,0.1,0.01", "--grid", "method.momentum=0.9").code == 0
    assert started == []


def test_a_sweep_without_all_runs_of_the_folder_is_rejected(sweep: Callable[..., Outcome], refused: Refused) -> None:
    assert sweep("--quiet").code == 0
    printed = refused("sweep", "s.toml", "--seeds", "0,2")
    assert "contains a sweep with 'method.lr=0.01', seed 1" in printed
    assert "method.lr=0.01" in refused("sweep", "s.toml", "--set", "method.epochs=2")


def test_ctrl_c_prints_how_to_continue(sweep: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch) -> None:
    start = starting.start

    def stopped(config: Any, *rest: Any) -> api.Run:
        if config.method.params.lr == 0.1:
            raise KeyboardInterrupt
        return start(config, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(starting, "start", stopped)
        outcome = sweep("--quiet")
    assert outcome.code == 130
    assert outcome.err.splitlines() == [
        "interrupted: 1 of 4 runs are finished in runs/sweep-s; repeat the command to continue."
    ]
    assert [row["state"] for row in runs_csv()] == ["finished", "missing", "missing", "missing"]
    assert sweep("--quiet").code == 0


# --- failures ------------------------------------------------------------------------------------------------


def test_a_failed_run_is_reported_and_the_others_run(
    sweep: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    start = starting.start

    def failing(config: Any, *rest: Any) -> api.Run:
        if (config.method.params.lr, config.seed) == (0.1, 0):
            raise RoundFailed("too few\nanswered")
        return start(config, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(starting, "start", failing)
        outcome = sweep("--quiet", "--json")
    assert outcome.code == 1
    advice = "See runs/sweep-s/runs.csv; repeat the command to try again."
    assert outcome.err.splitlines() == [f"1 of 4 runs failed: method.lr=0.1 seed 0. {advice}"]
    printed = json.loads(outcome.out)
    assert [row["seeds"] for row in printed["rows"]] == [[0, 1], [1]]
    assert "Not included, because they failed: method.lr=0.1 seed 0." in printed["notes"]
    row = runs_csv()[1]
    assert (row["state"], row["problem"], row["auroc"]) == ("failed", "too few answered", "")
    assert sweep("--quiet").code == 0


def test_if_all_runs_fail_there_is_no_table(sweep: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> api.Run:
        raise RoundFailed("no replies")

    monkeypatch.setattr(starting, "start", failing)
    outcome = sweep("--json")
    assert outcome.code == 1
    printed = json.loads(outcome.out)
    assert (printed["rows"], [run["problem"] for run in printed["runs"]]) == ([], ["no replies"] * 4)
    assert "4 of 4 runs failed" in outcome.err
    assert not list(Path("runs/sweep-s").glob("table.*"))


def test_a_second_sweep_in_the_folder_is_rejected(sweep: Callable[..., Outcome], refused: Refused) -> None:
    assert sweep("--quiet").code == 0
    with open("runs/sweep-s/.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "is in use by another sweep" in refused("sweep", "s.toml", "--quiet")


# --- checks before the first run -----------------------------------------------------------------------------


def test_a_dry_run_lists_the_runs_and_writes_nothing(sweep: Callable[..., Outcome]) -> None:
    outcome = sweep("--dry-run", "--quiet")
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    assert lines[0].startswith("missing    method.lr=0.01, seed 0: runs/sweep-s/fedavg-")
    assert lines[-1] == "4 runs, 0 finished; none was started (--dry-run)"
    assert not Path("runs").exists()
    assert [run["seed"] for run in json.loads(sweep("--dry-run", "--quiet", "--json").out)["runs"]] == [0, 0, 1, 1]


def test_the_problems_of_all_combinations_are_reported_before_the_first_run(refused: Refused) -> None:
    Path("s.toml").write_text(SWEEP)
    printed = refused("sweep", "s.toml", "--grid", "method.name=fedavg,fedovv", "--grid", "method.lr=0.1,-1", "--quiet")
    assert "method=fedovv method.lr=0.1, method=fedovv method.lr=-1: method 'fedovv' is not known." in printed
    assert "method=fedavg method.lr=-1: method.lr = -1 is not allowed" in printed


def test_a_problem_of_all_combinations_is_reported_once(refused: Refused) -> None:
    Path("s.toml").write_text(SWEEP)
    printed = refused("sweep", "s.toml", "--set", "method.epochs=none", "--quiet")
    assert printed.count("error: ") == 1
    assert printed.startswith("error: method.epochs = 'none' is not allowed")


def test_problems_with_the_data_are_reported_before_the_first_run(refused: Refused) -> None:
    Path("s.toml").write_text(SWEEP)
    printed = refused("sweep", "s.toml", "--grid", "data.known=2,9", "--quiet")
    assert printed.startswith("error: method.lr=0.01 data.known=9, method.lr=0.1 data.known=9: ")
    assert "4 classes" in printed


def test_equal_combinations_are_rejected(refused: Refused) -> None:
    Path("s.toml").write_text(SWEEP)
    assert "'method.lr=0.1' and 'method.lr=0.1' are the same" in refused(
        "sweep", "s.toml", "--grid", "method.lr=0.1,0.1"
    )


def test_another_run_in_the_folder_of_a_run_is_rejected(sweep: Callable[..., Outcome], refused: Refused) -> None:
    assert sweep("--quiet").code == 0
    one, other = (Path("runs/sweep-s", row["folder"]) for row in runs_csv()[:2])
    shutil.rmtree(one)
    shutil.copytree(other, one)
    assert "contains another run: method.lr was 0.1 and is 0.01" in refused("sweep", "s.toml", "--quiet")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gone.toml",), "config file 'gone.toml' does not exist"),
        (("--grid", "method.lr=0.1", "--rows", "all"), "--rows all is not allowed"),
        (("--grid", "method.lr=0.1", "--workers", "many"), "engine.workers = 'many' is not allowed"),
        ((), "nothing varies"),
    ],
)
def test_other_invalid_input_is_one_sentence(refused: Refused, arguments: tuple[str, ...], message: str) -> None:
    assert message in refused("sweep", *arguments, "--quiet")


def test_a_damaged_sweep_json_is_named(sweep: Callable[..., Outcome], refused: Refused) -> None:
    assert sweep("--quiet").code == 0
    Path("runs/sweep-s/sweep.json").write_text("{}")
    assert "sweep.json' is damaged" in refused("sweep", "s.toml", "--quiet")


def test_run_rejects_a_sweep_and_names_its_command(refused: Refused) -> None:
    Path("s.toml").write_text(SWEEP)
    assert "run it with `fedwild sweep CONFIG.toml`" in refused("run", "s.toml", "--quiet")


def test_an_unreadable_sweep_json_is_named(sweep: Callable[..., Outcome], refused: Refused) -> None:
    assert sweep("--quiet").code == 0
    Path("runs/sweep-s/sweep.json").unlink()
    Path("runs/sweep-s/sweep.json").mkdir()
    assert "sweep.json' is damaged" in refused("sweep", "s.toml", "--quiet")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--grid", "data.name=2024-01-01,2024-02-01"), "data.name"),
        (("--set", "seed=7", "--seeds", "2"), "--set seed is not allowed: the sweep varies it"),
    ],
)
def test_dates_and_seeds_that_are_set_twice_are_rejected(
    refused: Refused, arguments: tuple[str, ...], message: str
) -> None:
    assert message in refused("sweep", *arguments, "--dry-run", "--quiet")


def test_a_failed_report_does_not_stop_the_others(
    sweep: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
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
