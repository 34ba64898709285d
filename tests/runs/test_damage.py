"""Damaged and forged run folders: one sentence or the right answer, never a traceback or a changed file.

This is a slice of `python -m benchmarks.hostile files`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.hostile.damage import accidents, copy_damaged, forgeries
from fedwild import api
from tests.conftest import Cli, Refused, contents, unfinish
from tests.folders import flip_bit

FIFO_FREE = "a pipe"
"""`contents` would block on a pipe; tests/core/test_storage.py has it."""


def test_accidents_never_change_an_answer(cli: Cli, finished: Path, tmp_path: Path) -> None:
    Image.fromarray(np.full((8, 8), 99, dtype=np.uint8)).save("image.png")
    right = cli("predict", finished, "image.png", "--json").out
    chosen = [damage for damage in accidents(finished) if damage.name not in (FIFO_FREE, "a sparse terabyte")]
    for number, damage in enumerate(chosen[::17]):
        copy = copy_damaged(finished, tmp_path / f"copy-{number}", damage)
        before = contents(tmp_path)
        outcome = cli("predict", copy, "image.png", "--json")
        assert outcome.code in (0, 2), (damage.name, damage.file, outcome)
        assert outcome.out == (right if outcome.code == 0 else ""), (damage.name, damage.file)
        assert contents(tmp_path) == before


def test_a_damaged_state_of_a_client_is_one_sentence(refused: Refused, tmp_path: Path) -> None:
    tables = {"data": {"name": "synthetic:8x8x1:4:80", "known": 3}, "correction": {"name": "scaffold"}}
    run = api.run(tables, clients=2, workers=0, rounds=1, model="mlp", partition="iid", out=tmp_path / "run").path
    flip_bit(next((run / "clients" / "client-00").iterdir()))
    message = refused("evaluate", run, "--workers", "0", "--quiet")
    assert "000000.safetensors' is not the file that was signed: restore it from a copy" in message
    (run / "manifest.json").unlink()
    assert "a client's state of run" in refused("evaluate", run, "--workers", "0", "--quiet", "--trust-code")


def test_forgeries_are_one_sentence(cli: Cli, finished: Path, tmp_path: Path) -> None:
    Image.fromarray(np.full((8, 8), 99, dtype=np.uint8)).save("image.png")
    commands = [("predict", "image.png"), ("verify",), ("compare",), ("resume", "--no-report")]
    for number, damage in enumerate(list(forgeries(finished))[::37]):
        copy = copy_damaged(finished, tmp_path / f"copy-{number}", damage)
        before = contents(tmp_path)
        command, *rest = commands[number % len(commands)]
        outcome = cli(command, copy, *rest)
        assert outcome.code in (0, 1, 2), (damage.name, damage.file, outcome)
        if outcome.code:
            assert contents(tmp_path) == before, (damage.name, damage.file)


def test_a_folder_in_place_of_a_checkpoint_is_refused_before_the_run_continues(
    refused: Refused, finished: Path
) -> None:
    file = unfinish(finished, 2) / "checkpoints" / "000001.safetensors"
    file.unlink(missing_ok=True)
    file.mkdir()
    message = refused("resume", finished, "--workers", "0", "--no-report", "--quiet")
    assert message == f"error: {str(file)!r} is a folder, not a checkpoint: remove it.\n"
