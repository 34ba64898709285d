"""Event files for TensorBoard agree with the log of the run."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from fedwild import api
from fedwild.lifecycle.run import Run
from fedwild.results.tracking import Scalars, hyperparameters, tracked
from fedwild.runs.folder import RunFolder
from tests.conftest import TINY, Cli, Refused, unfinish

accumulator = pytest.importorskip(
    "tensorboard.backend.event_processing.event_accumulator", reason="needs TensorBoard: pip install 'fedwild[track]'"
)


def read_back(folder: Path) -> dict[str, list[tuple[int, float, float]]]:
    """Return what TensorBoard reads, by name: round, value, time."""
    read = accumulator.EventAccumulator(str(folder), purge_orphaned_data=False)
    read.Reload()
    return {tag: [(e.step, e.value, e.wall_time) for e in read.Scalars(tag)] for tag in read.Tags()["scalars"]}


def expected(run: Path, name: str) -> list[tuple[int, float, float]]:
    """Return the same from the log of the run, for loss and metrics."""
    points = []
    for event in Run(run).events():
        if event["event"] == "round":
            value = event["loss"] if name == "loss" else (event["metrics"] or {}).get(name.removeprefix("metrics/"))
            if value is not None:
                points.append((event["index"] + 1, value, event["time"]))
    return points


def same(read: list[tuple[int, float, float]], wanted: list[tuple[int, float, float]]) -> bool:
    """Whether points are equal; values are stored in single precision."""
    return [point[0] for point in read] == [point[0] for point in wanted] and all(
        a[1:] == pytest.approx(b[1:], rel=1e-6) for a, b in zip(read, wanted, strict=True)
    )


def check_file(run: Path, folder: Path) -> None:
    """Check that the file in a folder has everything in the log, once."""
    scalars, rounds = read_back(folder), [e for e in Run(run).events() if e["event"] == "round"]
    measured = {f"metrics/{key}" for e in rounds for key, value in (e["metrics"] or {}).items() if value is not None}
    counted = {"seconds/training", "seconds/evaluation", "bytes/up", "bytes/down"}
    assert scalars.keys() == measured | counted | {"loss"}
    assert len(measured) > 5
    for name in measured | {"loss"}:
        assert same(scalars[name], expected(run, name)), name
    for point, event in zip(scalars["seconds/training"], rounds, strict=True):
        assert point == pytest.approx((event["index"] + 1, event["seconds"], event["time"]))
    for point, event in zip(scalars["bytes/up"], rounds, strict=True):
        replies = [e for e in Run(run).events() if e["event"] == "client" and e["index"] == event["index"]]
        assert point[1] == sum(e["bytes_up"] for e in replies) > 0


def test_run_with_tensorboard_writes_what_is_in_its_log(cli: Cli) -> None:
    done = cli("run", *TINY, "--rounds", "3", "--out", "run", "--tensorboard", "--quiet")
    assert done.code == 0, done.err
    check_file(Path("run"), Path("run/tensorboard"))


def test_nothing_is_written_without_the_option(cli: Cli) -> None:
    assert cli("run", *TINY, "--rounds", "1", "--out", "run", "--quiet").code == 0
    assert not Path("run/tensorboard").exists()


def test_resumed_run_has_each_round_once(cli: Cli, finished: Path) -> None:
    assert cli("track", finished, "--quiet").code == 0
    unfinish(finished, rounds=1)
    assert cli("resume", finished, "--tensorboard", "--quiet").code == 0
    assert [point[0] for point in read_back(finished / "tensorboard")["loss"]] == [1, 2, 3]
    check_file(finished, finished / "tensorboard")


def test_resuming_a_finished_run_writes_its_file(cli: Cli, finished: Path) -> None:
    assert cli("resume", finished, "--tensorboard", "--quiet").code == 0
    check_file(finished, finished / "tensorboard")


def test_welcome_includes_the_rounds_of_the_run_that_it_continues(cli: Cli) -> None:
    assert cli("run", *TINY, "--rounds", "2", "--out", "before", "--quiet").code == 0
    newcomer = ("--client", "synthetic:8x8x1:4:80", "--name", "new", "--rounds", "1", "--workers", "0")
    done = cli("welcome", "before", *newcomer, "--out", "after", "--tensorboard", "--quiet")
    assert done.code == 0, done.err
    check_file(Path("after"), Path("after/tensorboard"))
    assert [point[0] for point in read_back(Path("after/tensorboard"))["loss"]][:2] == [1, 2]


def test_track_writes_a_folder_per_run_and_prints_how_to_view_them(cli: Cli, finished: Path, tmp_path: Path) -> None:
    assert cli("run", *TINY, "--rounds", "1", "--out", "other", "--quiet").code == 0
    done = cli("track", "finished", "other", "--out", "compare")
    assert done.out.splitlines() == [
        "compare/finished",
        "compare/other",
        "to view them: `tensorboard --logdir compare`",
    ]
    check_file(finished, tmp_path / "compare/finished")
    check_file(tmp_path / "other", tmp_path / "compare/other")
    assert not (finished / "tensorboard").exists()
    assert json.loads(cli("track", "other", "--json").out) == {"other": "other/tensorboard"}


def test_track_of_an_unfinished_run_has_its_completed_rounds(cli: Cli, finished: Path) -> None:
    events = finished / "events.jsonl"
    lines = events.read_text().splitlines(keepends=True)
    second = next(i for i, line in enumerate(lines) if '"round"' in line and '"index": 1' in line and '"loss"' in line)
    events.write_text("".join(lines[: second + 1]))
    unfinish(finished)
    assert cli("track", finished, "--quiet").out == ""
    points = read_back(finished / "tensorboard")["loss"]
    assert points and max(point[0] for point in points) <= 2
    assert same(points, expected(finished, "loss"))


def test_losses_of_clients_are_written_on_request(cli: Cli, finished: Path) -> None:
    assert cli("track", finished, "--clients", "--quiet").code == 0
    scalars = read_back(finished / "tensorboard")
    for client in ("client-00", "client-01"):
        replies = [e for e in Run(finished).events() if e["event"] == "client" and e["client"] == client]
        wanted = [(e["index"] + 1, e["info"]["loss"], e["time"]) for e in replies]
        assert len(wanted) == 3
        assert same(scalars[f"client_loss/{client}"], wanted)


def test_settings_are_written_as_text_and_as_hyperparameters(cli: Cli, finished: Path) -> None:
    from tensorboard.plugins.hparams import metadata, plugin_data_pb2

    assert cli("track", finished, "--quiet").code == 0
    read = accumulator.EventAccumulator(str(finished / "tensorboard"))
    read.Reload()
    (text,) = read.Tensors("config.toml/text_summary")
    assert (finished / "config.toml").read_text() in text.tensor_proto.string_val[0].decode()
    content = read.SummaryMetadata(metadata.SESSION_START_INFO_TAG).plugin_data.content
    start = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info
    assert start.hparams["method.rounds"].number_value == 3
    assert start.hparams["method.name"].string_value == "fedavg"
    assert metadata.SESSION_END_INFO_TAG in read.summary_metadata


def test_hyperparameters_are_numbers_text_or_json() -> None:
    tables = {"seed": 3, "method": {"lr": 0.1, "name": "x", "deep": {"on": True}}, "model": {"hidden": [4, 2]}}
    flat = {"seed": 3, "method.lr": 0.1, "method.name": "x", "method.deep.on": "true", "model.hidden": "[4, 2]"}
    assert hyperparameters(tables) == flat


def test_undefined_values_are_omitted() -> None:
    scalars = Scalars(by_client=True)
    scalars.of({"event": "round-start", "index": 0})
    client = {"event": "client", "index": 0, "client": "a", "bytes_up": 5, "bytes_down": 7, "info": {"loss": None}}
    assert scalars.of(client) == {}
    failed = {"event": "client-failed", "index": 0, "client": "b", "bytes_up": 1, "bytes_down": 2, "reason": "no"}
    assert scalars.of(failed) == {}
    figures = {"loss": None, "metrics": {"auroc": None, "oscr": 0.5}, "seconds": 1.5, "evaluation_seconds": 0.5}
    assert scalars.of({"event": "round", "index": 0, **figures}) == {
        "metrics/oscr": 0.5,
        "seconds/training": 1.5,
        "seconds/evaluation": 0.5,
        "bytes/up": 6,
        "bytes/down": 9,
    }


@pytest.mark.parametrize("measured", [True, False])
def test_final_metrics_belong_to_the_last_round_and_are_written_once(measured: bool) -> None:
    scalars, metrics = Scalars(), {"auroc": 0.5}
    scalars.of({"event": "start", "next_index": 0, "rounds": 4})
    scalars.of({"event": "round-start", "index": 3})
    rest: dict[str, Any] = {"loss": 1.0, "seconds": 1.0, "evaluation_seconds": 0.0}
    scalars.of({"event": "round", "index": 3, "metrics": metrics if measured else None, **rest})
    end = {"event": "end", "metrics": metrics}
    assert scalars.of(end) == ({} if measured else {"metrics/auroc": 0.5})
    assert scalars.step(end) == 4


@pytest.mark.parametrize("command", ["run", "resume", "welcome", "track"])
def test_missing_tensorboard_is_one_sentence(
    command: str, refused: Refused, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith(("tensorboard", "torch.utils.tensorboard"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    arguments: dict[str, list[str | Path]] = {
        "run": ["run", *TINY, "--tensorboard"],
        "resume": ["resume", finished, "--tensorboard"],
        "welcome": ["welcome", finished, "--client", "digits", "--tensorboard"],
        "track": ["track", finished],
    }
    message = refused(*arguments[command])
    assert message == "error: TensorBoard is not installed: pip install 'fedwild[track]'.\n"


def test_invalid_arguments_are_rejected(refused: Refused, finished: Path, tmp_path: Path) -> None:
    assert "run folder 'nowhere' does not exist" in refused("track", "nowhere")
    (tmp_path / "file").write_text("")
    assert "'file/finished' cannot be written: Not a directory" in refused("track", finished, "--out", "file")


def test_runs_with_equal_names_are_rejected(refused: Refused, finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "twin" / "finished")
    message = refused("track", "finished", "twin/finished", "--out", "both")
    assert "'finished' and 'twin/finished' would both be 'finished' in --out" in message


def test_run_in_progress_is_not_changed(
    cli: Cli, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedwild.runs.folder.LOCK_PATIENCE", 0)
    running = RunFolder.open(finished)
    running.lock()
    try:
        done = cli("track", finished)
        assert done.code == 2
        assert "is in use by another process. Choose another folder with --out DIR." in done.err
        assert not (finished / "tensorboard").exists()
        assert cli("track", finished, "--out", "elsewhere", "--quiet").code == 0
    finally:
        running.unlock()
    check_file(finished, tmp_path / "elsewhere" / "finished")


def test_listener_receives_every_event(finished: Path) -> None:
    received: list[dict[str, Any]] = []
    with tracked(received.append, True, finished) as listener:
        for event in Run(finished).events():
            listener(event)
    assert received == Run(finished).events()


def test_each_round_is_written_at_once(tmp_path: Path) -> None:
    seen: list[list[int]] = []

    def look(event: dict[str, Any]) -> None:
        if event["event"] == "round-start":
            written = read_back(tmp_path / "run" / "tensorboard")
            seen.append([point[0] for point in written.get("loss", [])])

    tables = {"data": {"name": "synthetic:8x8x1:4:80", "known": 3}, "model": {"name": "mlp", "hidden": [4]}}
    with tracked(look, True) as listener:
        api.run(tables, clients=2, rounds=3, workers=0, out=tmp_path / "run", listener=listener)
    assert seen == [[], [1], [1, 2]]


def test_folders_that_contain_runs_are_searched(cli: Cli, finished: Path, tmp_path: Path) -> None:
    deep = tmp_path / "runs" / "sweep-x" / "one"
    shutil.copytree(finished, deep)
    shutil.copytree(finished, tmp_path / "runs" / "two")
    outcome = cli("track", tmp_path / "runs" / "sweep-x", tmp_path / "runs" / "two", tmp_path / "runs")
    assert outcome.code == 0
    assert (deep / "tensorboard").is_dir()
    assert outcome.out.count("/tensorboard\n") == 2
