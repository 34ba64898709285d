"""The exchange of a round: which answers are accepted, and what is recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fedwild.contract import Phase, Server, Step
from fedwild.contract.claims import Claims
from fedwild.contract.engine import Answer, Job
from fedwild.contract.task import Task
from fedwild.core.classes import ClassRegistry
from fedwild.core.payload import Payload
from fedwild.core.rng import Rng
from fedwild.evaluation.examiner import Evaluation
from fedwild.lifecycle.exchange import Collected, Exchange
from fedwild.lifecycle.ledger import Ledger
from fedwild.runs.events import EventLog


class Replaying:
    """An engine with prepared answers."""

    def __init__(self, folder: Path, replies: dict[str, Payload | str]) -> None:
        self.folder, self.replies = folder, replies

    def run(self, jobs: Iterable[Job], started: Callable[[Job], None] = lambda job: None) -> Iterator[Answer]:
        for job in jobs:
            started(job)
            reply = self.replies[job.client or ""]
            if isinstance(reply, str):
                yield Answer(job, error=reply, disk_failed=reply == "disk")
            else:
                path = self.folder / f"up-{job.client}"
                yield Answer(job, str(path), size=reply.write(path), state=3)

    def present(self) -> None:
        return None

    def close(self) -> None:
        pass


def exchange(
    folder: Path, replies: dict[str, Payload | str], limit: float = 1e6
) -> tuple[Collected, Ledger, list[Any]]:
    """Run one exchange; return what was collected, the ledger and the events."""
    events: list[dict[str, Any]] = []
    log = EventLog(folder / "events.jsonl", events.append)
    server = Server(Task((4,), "mlp"), ClassRegistry(), Step("train", 0, 0), Rng(0))
    ledger = Ledger()
    running = Exchange(Replaying(folder, replies), folder, log, limit, max_update=100)
    return running.run(server, ledger, Phase("train", 1), list(replies)), ledger, events


def reply(loss: float | str, **tensors: torch.Tensor) -> Payload:
    return Payload(dict(tensors), {"samples": 2, "loss": loss})


def test_valid_replies_are_accepted_and_their_costs_recorded(tmp_path: Path) -> None:
    collected, ledger, events = exchange(tmp_path, {"b": reply(3.0), "a": reply(1.0), "c": reply("nan")})
    assert sorted(collected.accepted) == ["a", "b", "c"]
    assert collected.mean_loss == 2.0
    assert collected.states == {"a": 3, "b": 3, "c": 3}
    assert [event["event"] for event in events] == ["client-start", "client"] * 3
    assert ledger.bytes_up == sum(event.get("bytes_up", 0) for event in events) > 0
    assert ledger.bytes_down == sum(event.get("bytes_down", 0) for event in events) > 0
    assert not list(tmp_path.glob("down-*"))


def test_invalid_replies_are_rejected_with_the_reason(tmp_path: Path) -> None:
    replies: dict[str, Payload | str] = {
        "crashed": "RuntimeError: no memory",
        "large": reply(1.0, w=torch.zeros(1000)),
        "infinite": reply(1.0, w=torch.tensor([float("inf")])),
        "unlabelled": Payload(),
        "good": reply(1.0),
    }
    collected, _, events = exchange(tmp_path, replies, limit=2000)
    assert list(collected.accepted) == ["good"]
    reasons = {event["client"]: event["reason"] for event in events if event["event"] == "client-failed"}
    assert list(reasons.values()) == collected.reasons
    assert reasons["crashed"] == "RuntimeError: no memory"
    assert "larger than engine.max_reply_mb allows" in reasons["large"]
    assert reasons["infinite"].startswith("bad reply: ")
    assert "samples" in reasons["unlabelled"]
    assert collected.states == {"good": 3}


def test_an_error_in_a_check_rejects_the_reply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Phase, "check", lambda self, server, reply: reply.info["missing"])
    collected, _, _ = exchange(tmp_path, {"a": reply(1.0)})
    assert collected.reasons == ["bad reply: KeyError: 'missing'"]
    assert collected.mean_loss is None


def test_a_failing_disk_is_raised(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="disk"):
        exchange(tmp_path, {"a": "disk"})


@pytest.mark.parametrize("evaluation", [None, Evaluation({"auroc": 0.5}, {"a": {"auroc": 0.5}})])
def test_json_keeps_the_ledger(evaluation: Evaluation | None) -> None:
    ledger = Ledger(3, {"a": 2}, 10, 20, 1.5, {"b": {"since": 1, "newcomer": True, "identity": "x"}}, evaluation)
    assert Ledger.from_json(Payload.decode(Payload(info=ledger.to_json()).encode()).info) == ledger


def test_samples_are_held_to_what_the_client_declared_and_to_the_largest_share(tmp_path: Path) -> None:
    replies: dict[str, Payload | str] = {name: reply(1.0) for name in "abcd"}
    for name, count in (("a", 10), ("b", 10), ("c", 1000), ("d", 2**53)):
        payload = replies[name]
        assert isinstance(payload, Payload)
        payload.info["samples"] = count
    claims = Claims({"c": 1000, "d": 50}, max_weight=0.5)
    log = EventLog(tmp_path / "events.jsonl", lambda event: None)
    server = Server(Task((4,), "mlp"), ClassRegistry(), Step("train", 0, 0), Rng(0))
    running = Exchange(Replaying(tmp_path, replies), tmp_path, log, 1e6, max_update=100)
    collected = running.run(server, Ledger(), Phase("train", 1), list(replies), claims)
    assert {name: read().info["samples"] for name, read in collected.accepted.items()} == {"a": 10, "b": 10, "c": 20}
    assert collected.reasons == [
        f"bad reply: info 'samples' is {2**53}, but the client declared 50 samples when it joined"
    ]
    assert server.notes == ["c is weighted by 20 of its 1000 samples (federation.max_weight)"]
