"""A run that is killed at any moment and resumed gives a bit-equal model."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import tests.sketches  # noqa: F401  (registers toy-scaffold)
from fedwild import api
from fedwild.core.errors import UserError
from fedwild.core.payload import Payload
from fedwild.lifecycle import start as starting
from fedwild.runs.config import Config
from fedwild.runs.events import ignore_event
from tests.folders import change_json, flip_bit
from tests.tiny import model_bytes

KILLS = 20
FORK = multiprocessing.get_context("fork")
SETTINGS = [
    "method.rounds=12",
    "method.epochs=1",
    "method.batch_size=32",
    "federation.participation=0.6",
    "data.known=4",
]


def config(correction: str, workers: int = 2) -> Config:
    return api.configure(clients=6, workers=workers, settings=[*SETTINGS, f"correction.name={correction}"])


def start(folder: Path, correction: str) -> None:
    starting.start(config(correction), folder, ignore_event)


def resume(folder: Path) -> None:
    api.resume(folder, workers=2)


def in_process(target: Callable[..., None], *arguments: object) -> multiprocessing.process.BaseProcess:
    process = FORK.Process(target=target, args=arguments)
    process.start()
    return process


@pytest.mark.slow
@pytest.mark.parametrize("correction", ["none", "toy-scaffold"])
def test_killed_twenty_times_at_random_moments_the_model_is_bit_equal(correction: str, tmp_path: Path) -> None:
    begin = time.perf_counter()
    undisturbed = in_process(start, tmp_path / "undisturbed", correction)
    undisturbed.join()
    whole = time.perf_counter() - begin
    assert undisturbed.exitcode == 0

    moments = random.Random(0)
    folder = tmp_path / "killed"
    kills = 0
    while kills < KILLS:
        process = in_process(resume, folder) if folder.exists() else in_process(start, folder, correction)
        # Kill early, so that twenty kills fit into one run.
        process.join(moments.uniform(0, whole / 4))
        if process.is_alive():
            os.kill(process.pid or 0, signal.SIGKILL)
            kills += 1
        process.join()
        if (folder / "result.json").exists():
            # The run finished before all kills: start another one.
            assert model_bytes(folder) == model_bytes(tmp_path / "undisturbed")
            folder = tmp_path / f"killed-{kills}"
    final = in_process(resume, folder) if folder.exists() else in_process(start, folder, correction)
    final.join()
    assert final.exitcode == 0
    assert model_bytes(folder) == model_bytes(tmp_path / "undisturbed")
    rounds = [e for e in api.Run(folder).events() if e["event"] == "round"]
    assert [e["index"] for e in rounds] == list(range(12))
    assert not list(folder.rglob("*.tmp"))


@pytest.mark.parametrize("method", ["fedavg", "tests.sketches:Noisy"])
def test_a_run_stopped_after_each_round_gives_a_bit_equal_model(method: str, tmp_path: Path) -> None:
    """The run stops right after every single checkpoint."""

    class Stop(Exception):
        pass

    def stopping(event: dict[str, object]) -> None:
        if event["event"] == "round-start" and event["index"] != 0 and event["index"] not in seen:
            seen.add(event["index"])
            raise Stop

    seen: set[object] = set()
    settings = [*SETTINGS, "correction.name=toy-scaffold"]
    resolved = api.configure(method=method, clients=6, workers=0, settings=settings)
    starting.start(resolved, tmp_path / "whole", ignore_event)
    folder = tmp_path / "pieces"
    with pytest.raises(Stop):
        starting.start(resolved, folder, stopping)
    while not (folder / "result.json").exists():
        try:
            api.resume(folder, workers=0, listener=stopping)
        except Stop:
            continue
    assert len(seen) == 11
    assert model_bytes(folder) == model_bytes(tmp_path / "whole")


@pytest.fixture
def interrupted(tmp_path: Path) -> Path:
    """A run that stopped after three rounds."""

    def stopping(event: dict[str, object]) -> None:
        if event["event"] == "round-start" and event["index"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        starting.start(config("toy-scaffold", workers=0), tmp_path / "run", stopping)
    return tmp_path / "run"


def test_a_changed_config_is_rejected_with_the_key(interrupted: Path) -> None:
    file = interrupted / "config.toml"
    file.write_text(file.read_text().replace("lr = 0.05", "lr = 0.5"))
    with pytest.raises(UserError, match=r"method.lr was 0.05 and is 0.5"):
        api.resume(interrupted)


def test_the_number_of_workers_can_change(interrupted: Path, tmp_path: Path) -> None:
    start(tmp_path / "whole", "toy-scaffold")
    file = interrupted / "config.toml"
    file.write_text(file.read_text().replace("workers = 0", "workers = 1"))
    api.resume(interrupted)
    assert model_bytes(interrupted) == model_bytes(tmp_path / "whole")


@pytest.mark.parametrize("what", ["checkpoint", "state"])
def test_a_damaged_checkpoint_or_state_repeats_one_round(what: str, interrupted: Path, tmp_path: Path) -> None:
    start(tmp_path / "whole", "toy-scaffold")
    newest = sorted((interrupted / "checkpoints").iterdir())[-1]
    states = Payload.read(newest).info["ledger"]["states"]
    # A client of the last round: the checkpoint before refers to an older state of it.
    client = max(states, key=lambda name: int(states[name]))
    state = interrupted / "clients" / client / f"{states[client]:06d}.safetensors"
    damaged = newest if what == "checkpoint" else state
    flip_bit(damaged)
    heard: list[dict[str, object]] = []
    api.resume(interrupted, workers=0, listener=heard.append)
    (note,) = [event["text"] for event in heard if event["event"] == "note" and "damaged" in str(event["text"])]
    assert str(damaged) in str(note)
    assert "the checkpoint before it is used" in str(note)
    assert note in [event.get("text") for event in api.Run(interrupted).events()]
    assert model_bytes(interrupted) == model_bytes(tmp_path / "whole")


def test_without_an_intact_checkpoint_the_run_can_begin_again(interrupted: Path, tmp_path: Path) -> None:
    start(tmp_path / "whole", "toy-scaffold")
    checkpoints = list((interrupted / "checkpoints").iterdir())
    for checkpoint in checkpoints:
        flip_bit(checkpoint)
    with pytest.raises(UserError, match="no other checkpoint is intact"):
        api.resume(interrupted, workers=0)
    for checkpoint in checkpoints:
        checkpoint.unlink()
    api.resume(interrupted, workers=0)
    assert model_bytes(interrupted) == model_bytes(tmp_path / "whole")


def test_client_states_that_no_checkpoint_refers_to_are_removed(interrupted: Path) -> None:
    api.resume(interrupted, workers=0)
    for client in (interrupted / "clients").iterdir():
        assert 1 <= len(list(client.iterdir())) <= 2
    states = Payload.read(sorted((interrupted / "checkpoints").iterdir())[-1]).info["ledger"]["states"]
    for name, version in states.items():
        assert (interrupted / "clients" / name / f"{version:06d}.safetensors").exists()


def test_resuming_a_finished_run_changes_nothing(interrupted: Path) -> None:
    api.resume(interrupted, workers=0)
    before = {path: path.read_bytes() for path in interrupted.rglob("*") if path.is_file()}
    api.resume(interrupted, workers=0)
    assert {path: path.read_bytes() for path in interrupted.rglob("*") if path.is_file()} == before


def test_changed_data_is_rejected(interrupted: Path) -> None:
    change_json(interrupted / "run.json", lambda facts: facts.update(data=f"0{facts['data']}"))
    with pytest.raises(UserError, match="is not what run"):
        api.resume(interrupted)


def test_states_that_are_all_damaged_are_one_sentence(interrupted: Path) -> None:
    states = Payload.read(sorted((interrupted / "checkpoints").iterdir())[-1]).info["ledger"]["states"]
    for name, version in states.items():
        file = interrupted / "clients" / name / f"{version:06d}.safetensors"
        file.write_bytes(file.read_bytes()[:50])
    with pytest.raises(UserError, match=r"truncated.*no other checkpoint is intact"):
        api.resume(interrupted, workers=0)
