"""Run folders: complete or absent, locked while in use, and damaged files."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from fedwild.contract import Step
from fedwild.core.errors import DamageWarning, UserError
from fedwild.core.payload import Payload
from fedwild.lifecycle.ledger import Ledger
from fedwild.runs.events import EventLog, read_events
from fedwild.runs.folder import RunFolder
from fedwild.runs.format import FORMAT
from tests.tiny import even_shares, run_tiny, split_by, tiny_dataset


def make(path: Path | None) -> RunFolder:
    data = tiny_dataset(2)
    return RunFolder.create(path, "stem", "seed = 0\n", split_by(data, 2, even_shares(data, 2, 2)), {"data": "x"})


def checkpoint(number: int) -> Payload:
    """Return a checkpoint without tensors after `number` rounds."""
    server: dict[str, Any] = {"state": {}, "classes": [], "clients": [], "thresholds": {}}
    return Payload(info={**server, "step": vars(Step("train", 0, number - 1)), "ledger": Ledger(number).to_json()})


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    data = tiny_dataset(2)
    split = split_by(data, 2, even_shares(data, 2, 2))
    run_tiny(tmp_path / "run", "fedavg", data, split, {"method": {"rounds": 4}, "evaluation": {"every": 1}})
    return tmp_path / "run"


def test_a_folder_contains_what_a_run_needs(tmp_path: Path) -> None:
    folder = make(tmp_path / "run")
    names = {path.name for path in folder.path.iterdir()}
    assert names == {"config.toml", "run.json", "splits.npz", "events.jsonl", "checkpoints", "clients"}
    assert set(folder.facts()["versions"]) >= {"fedwild", "python", "torch", "numpy"}


def test_a_folder_that_cannot_be_completed_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedwild.data.Split.save", full)
    with pytest.raises(OSError):
        make(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_folders_are_numbered_and_never_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert [make(None).path.name for _ in range(3)] == ["stem-001", "stem-002", "stem-003"]
    with pytest.raises(UserError, match="already exists"):
        make(Path("runs/stem-001"))


def test_an_empty_folder_is_used(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    assert make(tmp_path / "run").path == tmp_path / "run"


def test_only_the_last_checkpoints_are_kept_and_the_newest_is_read(tmp_path: Path) -> None:
    folder = make(tmp_path / "run")
    for number in range(1, 12):
        folder.checkpoints.save(number, checkpoint(number).encode(sealed=True))
    assert len(list((folder.path / "checkpoints").iterdir())) == 2
    last = folder.last_checkpoint()
    assert last is not None
    assert last.info["ledger"]["next_index"] == 11


@pytest.mark.parametrize("keep", [0, 5, 40, 0.5, -1])
def test_a_damaged_checkpoint_is_skipped_with_a_warning_that_names_it(keep: float, finished: Path) -> None:
    newest = sorted((finished / "checkpoints").iterdir())[-1]
    data = newest.read_bytes()
    newest.write_bytes(data[: int(len(data) * keep) if keep == 0.5 else int(keep)])
    with pytest.warns(DamageWarning, match=newest.name):
        last = RunFolder.open(finished).last_checkpoint()
    assert last is not None
    assert last.info["ledger"]["next_index"] == 3


def test_a_folder_in_use_is_locked_for_other_processes(tmp_path: Path) -> None:
    folder = make(tmp_path / "run")
    folder.lock()
    code = (
        "import sys; from pathlib import Path; from fedwild.runs.folder import RunFolder; "
        "from fedwild.core.errors import UserError\n"
        "try: RunFolder.open(Path(sys.argv[1])).lock()\n"
        "except UserError as error: print(error)"
    )
    output = subprocess.run([sys.executable, "-c", code, str(folder.path)], capture_output=True, text=True)
    assert "in use by another process" in output.stdout
    folder.unlock()
    output = subprocess.run([sys.executable, "-c", code, str(folder.path)], capture_output=True, text=True)
    assert output.stdout == ""


@pytest.mark.parametrize("missing", ["config.toml", "run.json", "splits.npz", "events.jsonl"])
def test_a_folder_without_one_of_its_files_is_not_a_run(missing: str, tmp_path: Path) -> None:
    folder = make(tmp_path / "run")
    (folder.path / missing).unlink()
    with pytest.raises(UserError, match=missing):
        RunFolder.open(folder.path)


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        (
            {"format": 1, "versions": {"fedwild": "0.1.0"}},
            f"was made by fedwild 0.1.0 (format 1); this version reads format {FORMAT}. Use that version to open it.",
        ),
        (
            {"format": 99, "versions": {"fedwild": "9.1.0"}},
            f"was made by fedwild 9.1.0 (format 99); this version reads format {FORMAT}. "
            "Upgrade with `pip install --upgrade fedwild`.",
        ),
        ({}, "was made by another version of fedwild (format None)"),
    ],
)
def test_a_folder_of_another_format_names_the_version_that_reads_it(
    facts: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    folder = make(tmp_path / "run")
    (folder.path / "run.json").write_text(json.dumps(facts))
    with pytest.raises(UserError, match=re.escape(f"run {str(folder.path)!r} {sentence}")):
        RunFolder.open(folder.path)


def test_a_damaged_run_json_is_an_error(tmp_path: Path) -> None:
    folder = make(tmp_path / "run")
    (folder.path / "run.json").write_text("not json")
    with pytest.raises(UserError, match="damaged"):
        RunFolder.open(folder.path)


def test_the_log_has_every_round_and_client(finished: Path) -> None:
    events = read_events(finished / "events.jsonl")
    kinds = [event["event"] for event in events]
    assert kinds[0] == "start"
    assert kinds[-1] == "end"
    assert kinds.count("round") == 4
    assert kinds.count("client") == 8
    rounds = [event for event in events if event["event"] == "round"]
    assert all(0 <= event["metrics"]["closed_accuracy"] <= 1 for event in rounds)
    client: dict[str, Any] = next(event for event in events if event["event"] == "client")
    assert client["bytes_up"] > 0
    assert client["seconds"] >= 0


ROUND: dict[str, Any] = {"phase": "train", "loss": 0.5, "seconds": 1, "evaluation_seconds": 1, "metrics": None}


@pytest.mark.parametrize("line", [b"[1]", b'"round"', b"{}", b'{"event": "round"}', b'{"event": "client"}', b"\xff{"])
def test_lines_that_are_not_events_are_ignored(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    log.write("round", index=0, **ROUND)
    log.close()
    path.write_bytes(line + b"\n" + path.read_bytes())
    assert [event["event"] for event in read_events(path)] == ["round"]


def test_a_line_cut_short_does_not_damage_the_next(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    log.write("round", index=0, value=float("nan"), **ROUND)
    log.close()
    with path.open("a") as file:
        file.write('{"event": "client", "ind')
    log = EventLog(path)
    log.write("resume", next_index=1, rounds=2)
    log.close()
    events = read_events(path)
    assert [event["event"] for event in events] == ["round", "resume"]
    assert events[0]["value"] is None


def test_repeated_rounds_are_counted_once(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    for index in (0, 1, 2):
        log.write("round", index=index, attempt=1, **ROUND)
    log.write("resume", next_index=2, rounds=3)
    log.write("round", index=2, attempt=2, **ROUND)
    log.close()
    rounds = [e for e in read_events(tmp_path / "events.jsonl") if e["event"] == "round"]
    assert [(e["index"], e["attempt"]) for e in rounds] == [(0, 1), (1, 1), (2, 2)]


def test_locking_waits_for_a_lock_that_is_released_soon(tmp_path: Path) -> None:
    holder, waiting = RunFolder(tmp_path), RunFolder(tmp_path)
    holder.lock()
    release = threading.Timer(0.3, holder.unlock)
    release.start()
    waiting.lock()
    release.join()
    with pytest.raises(UserError, match="in use by another process"):
        holder.lock()
    waiting.unlock()
