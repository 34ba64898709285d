"""The local engine: failing clients are excluded, dead workers are replaced, and nothing is left behind."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch

from fedwild.core.errors import RoundFailed
from fedwild.core.payload import Payload
from fedwild.runs.events import read_events
from tests.tiny import even_shares, model_bytes, run_tiny, split_by, tiny_dataset


@pytest.fixture
def data() -> Any:
    return tiny_dataset(classes=2, per_class=24)


def mischief(folder: Path, data: Any, clients: int, workers: int, minimum: int = 1) -> dict[str, str]:
    """Run the mischievous clients; return the reason of each client that failed in the first round."""
    split = split_by(data, 2, even_shares(data, 2, clients))
    settings = {"federation": {"min_clients": minimum}}
    run_tiny(folder, "tests.sketches:Mischief", data, split, settings, workers=workers)
    events = read_events(folder / "events.jsonl")
    return {e["client"]: e["reason"] for e in events if e["event"] == "client-failed" and e["index"] == 0}


@pytest.mark.parametrize("workers", [0, 2])
def test_failing_clients_are_reported_and_excluded(workers: int, data: Any, tmp_path: Path) -> None:
    reasons = mischief(tmp_path / "run", data, 5, workers)
    assert set(reasons) == {"client-01", "client-02", "client-03", "client-04"}
    assert "ZeroDivisionError" in reasons["client-01"]
    assert "NaN" in reasons["client-02"]
    assert "wrong" in reasons["client-03"]
    assert "-5" in reasons["client-04"]
    failed = [e for e in read_events(tmp_path / "run" / "events.jsonl") if e["event"] == "client-failed"]
    assert "1 / 0" in next(e["traceback"] for e in failed if e["client"] == "client-01")


def test_only_the_honest_client_determines_the_model(data: Any, tmp_path: Path) -> None:
    mischief(tmp_path / "run", data, 5, 2)
    honest = split_by(data, 2, even_shares(data, 2, 5)[:1])
    run_tiny(tmp_path / "alone", "fedavg", data, honest)
    ours = Payload.read(tmp_path / "run" / "model.safetensors").group("model")
    alone = Payload.read(tmp_path / "alone" / "model.safetensors").group("model")
    assert all(torch.equal(ours[name], alone[name]) for name in alone)


def test_a_dead_worker_is_replaced_and_only_its_client_fails(data: Any, tmp_path: Path) -> None:
    reasons = mischief(tmp_path / "run", data, 6, 2)
    assert "exit code 7" in reasons["client-05"]
    assert "client-00" not in reasons


def test_a_round_with_too_few_replies_fails(data: Any, tmp_path: Path) -> None:
    with pytest.raises(RoundFailed, match=r"1 of 5 clients replied, federation.min_clients = 2"):
        mischief(tmp_path / "run", data, 5, 0, minimum=2)


def test_a_too_large_reply_is_rejected(data: Any, tmp_path: Path) -> None:
    split = split_by(data, 2, even_shares(data, 2, 2))
    with pytest.raises(RoundFailed):
        run_tiny(tmp_path / "run", "fedavg", data, split, {"engine": {"max_reply_mb": 0.0001}})
    reason = next(e for e in read_events(tmp_path / "run" / "events.jsonl") if e["event"] == "client-failed")["reason"]
    assert "max_reply_mb" in reason


def test_no_process_and_no_spool_file_is_left(data: Any, tmp_path: Path) -> None:
    split = split_by(data, 2, even_shares(data, 2, 3))
    run_tiny(tmp_path / "run", "fedavg", data, split, workers=2)
    assert multiprocessing.active_children() == []
    assert not list((tmp_path / "run").glob(".spool*"))


def test_the_callers_thread_count_and_random_state_are_restored(data: Any, tmp_path: Path) -> None:
    torch.set_num_threads(2)
    before = torch.get_rng_state()
    split = split_by(data, 2, even_shares(data, 2, 2))
    for workers in (0, 2):
        run_tiny(tmp_path / str(workers), "tests.sketches:Noisy", data, split, workers=workers)
        assert torch.get_num_threads() == 2
        assert torch.equal(torch.get_rng_state(), before)
        assert float(torch.tensor(1e-40) * 1) > 0  # denormal numbers are no longer flushed
    torch.set_num_threads(1)


def test_many_more_clients_than_workers(data: Any, tmp_path: Path) -> None:
    split = split_by(data, 2, even_shares(data, 2, 24))
    for workers in (0, 3):
        run_tiny(tmp_path / str(workers), "fedavg", data, split, workers=workers)
    assert model_bytes(tmp_path / "0") == model_bytes(tmp_path / "3")


def test_replies_without_a_model_or_with_absurd_counts_are_rejected(data: Any, tmp_path: Path) -> None:
    reasons = mischief(tmp_path / "run", data, 9, 2)
    assert "lacks" in reasons["client-06"]
    assert "samples" in reasons["client-07"]
    assert "client-08" not in reasons  # an odd loss is only excluded from the mean
    assert mischief(tmp_path / "honest", data, 1, 0) == {}


def test_draws_from_the_global_generator_are_bit_equal_for_any_number_of_workers(data: Any, tmp_path: Path) -> None:
    split = split_by(data, 2, even_shares(data, 2, 4))
    for workers in (0, 1, 3):
        run_tiny(tmp_path / str(workers), "tests.sketches:Noisy", data, split, workers=workers)
    assert model_bytes(tmp_path / "0") == model_bytes(tmp_path / "1") == model_bytes(tmp_path / "3")


def test_phases_that_share_a_name_draw_different_numbers(data: Any, tmp_path: Path) -> None:
    run_tiny(tmp_path / "run", "tests.sketches:Stages", data, split_by(data, 2, even_shares(data, 2, 2)))
    draws = Payload.read(tmp_path / "run" / "model.safetensors").info["state"]["draws"]
    assert len(set(draws)) == 3


@pytest.mark.parametrize("workers", [0, 2])
def test_changing_the_payload_in_place_is_an_error(workers: int, data: Any, tmp_path: Path) -> None:
    split = split_by(data, 2, even_shares(data, 2, 2))
    with pytest.raises(RoundFailed):
        run_tiny(tmp_path / "run", "tests.sketches:Scribbler", data, split, workers=workers)
    failed = [e for e in read_events(tmp_path / "run" / "events.jsonl") if e["event"] == "client-failed"]
    assert "in place" in failed[0]["reason"]


def test_every_pass_over_the_replies_reads_them_unchanged(data: Any, tmp_path: Path) -> None:
    split = split_by(data, 2, even_shares(data, 2, 3))
    run_tiny(tmp_path / "plain", "fedavg", data, split)
    run_tiny(tmp_path / "twice", "tests.sketches:TwoPasses", data, split)
    plain, twice = (Payload.read(tmp_path / name / "model.safetensors").tensors for name in ("plain", "twice"))
    assert all(torch.equal(plain[name], twice[name]) for name in plain)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_reply_that_cannot_be_encoded_is_a_failure_of_the_client(workers: int, data: Any, tmp_path: Path) -> None:
    split = split_by(data, 2, even_shares(data, 2, 3))
    run_tiny(tmp_path / "run", "tests.sketches:Unencodable", data, split, workers=workers)
    failed = [e for e in read_events(tmp_path / "run" / "events.jsonl") if e["event"] == "client-failed"]
    assert {e["client"] for e in failed} == {"client-01"}
    assert "JSON serializable" in failed[0]["reason"]


def test_a_killed_worker_does_not_change_the_model(data: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDWILD_TEST_MARK", str(tmp_path / "mark"))
    split = split_by(data, 2, even_shares(data, 2, 4))
    run_tiny(tmp_path / "plain", "fedavg", data, split, workers=2)
    run_tiny(tmp_path / "killed", "tests.sketches:DiesOnce", data, split, workers=2)
    assert (tmp_path / "mark").exists()
    plain, killed = (Payload.read(tmp_path / name / "model.safetensors").tensors for name in ("plain", "killed"))
    assert all(torch.equal(plain[name], killed[name]) for name in plain)
