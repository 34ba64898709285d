"""`fedwild verify`: a line per file, exit code 1 for damage, and nothing written."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from fedwild import api
from tests.conftest import Cli, Refused, contents, unfinish
from tests.folders import flip_bit

FILES = ("run.json", "config.toml", "splits.npz", "model.safetensors", "result.json", "manifest.json", "events.jsonl")


def test_a_good_run_has_a_line_per_file(cli: Cli, finished: Path) -> None:
    before = contents(finished)
    outcome = cli("verify", finished)
    assert (outcome.code, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    assert all(line.startswith("good ") for line in lines[:-1])
    assert lines[-1] == "9 files checked, all good"
    assert all(any(str(finished / file) in line for line in lines) for file in FILES)
    assert contents(finished) == before


@pytest.mark.parametrize("file", ["run.json", "splits.npz", "model.safetensors", "checkpoints/000003.safetensors"])
def test_a_flipped_bit_is_found(file: str, cli: Cli, finished: Path) -> None:
    flip_bit(finished / file, -3)
    outcome = cli("verify", finished)
    assert outcome.code == 1
    assert any(line.startswith(f"DAMAGED {finished / file}: ") for line in outcome.out.splitlines())
    rows = json.loads(cli("verify", finished, "--json").out)[str(finished)]
    assert file in [row["file"] for row in rows if not row["good"]]


def test_lost_lines_of_the_log_are_found(cli: Cli, finished: Path) -> None:
    lines = (finished / "events.jsonl").read_bytes().splitlines(keepends=True)
    (finished / "events.jsonl").write_bytes(b"".join(lines[:4]))
    outcome = cli("verify", finished)
    assert outcome.code == 1
    assert "events.jsonl: damaged: its last lines are lost" in outcome.out


def test_other_settings_of_the_engine_are_no_damage(cli: Cli, finished: Path) -> None:
    file = finished / "config.toml"
    file.write_text(file.read_text().replace("workers = 0", "workers = 1"))
    outcome = cli("verify", finished)
    assert outcome.code == 0
    assert f"{file}: edited since the run began" in outcome.out


def test_an_unfinished_run_and_a_folder_of_runs_are_checked(cli: Cli, finished: Path) -> None:
    outcome = cli("verify", unfinish(finished).parent)
    assert outcome.code == 0
    assert outcome.out.splitlines()[-1] == "5 files checked, all good"


def test_what_is_not_a_run_is_refused(refused: Refused, tmp_path: Path) -> None:
    assert "does not exist" in refused("verify", "nowhere")
    (tmp_path / "empty").mkdir()
    assert "'empty' is not a run folder" in refused("verify", "empty")


def test_a_new_run_is_open_to_its_owner_only(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        tables = {"data": {"name": "synthetic:8x8x1:4:80", "known": 3}, "correction": {"name": "scaffold"}}
        api.run(tables, clients=2, workers=0, rounds=1, model="mlp", partition="iid", out=tmp_path / "run")
    finally:
        os.umask(before)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in [tmp_path / "run", *(tmp_path / "run").rglob("*")]}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}
    assert len([path for path in modes if path.parent.parent.name == "clients"]) == 2
