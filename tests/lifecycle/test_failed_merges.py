"""A merge that fails costs a reply or the round, never the run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from fedwild.aggregation import Mean, by_samples
from fedwild.aggregation.means import Weight
from fedwild.contract import Reply, Tensors
from fedwild.core.errors import RoundFailed
from fedwild.lifecycle.rounds import Federation
from fedwild.runs.events import read_events
from fedwild.runs.folder import RunFolder
from tests.tiny import even_shares, model_bytes, run_tiny, split_by, tiny_dataset, tiny_experiment

DATA = tiny_dataset(classes=2)
SPLIT = split_by(DATA, 2, even_shares(DATA, 2, 3))


class Intolerant(Mean):
    """A mean that fails if the client `client-01` takes part."""

    def mean(
        self, replies: Iterable[Reply], group: str, weight: Weight = by_samples, reference: Tensors | None = None
    ) -> dict[str, Tensor] | None:
        held = list(replies)
        if any(reply.client == "client-01" for reply in held):
            raise ValueError("no merge with client-01")
        return super().mean(held, group, weight, reference)


class Broken(Mean):
    """A mean that fails as long as weights have their first values."""

    failures = 0

    def mean(
        self, replies: Iterable[Reply], group: str, weight: Weight = by_samples, reference: Tensors | None = None
    ) -> dict[str, Tensor] | None:
        type(self).failures += 1
        if type(self).failures <= LIMIT["failures"]:
            raise ValueError("no merge yet")
        return super().mean(replies, group, weight, reference)


LIMIT = {"failures": 0}


def events_of(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_events(folder / "events.jsonl") if event["event"] == kind]


def test_a_reply_that_makes_the_merge_fail_is_rejected_with_the_reason(tmp_path: Path) -> None:
    run_tiny(tmp_path / "run", "fedavg", DATA, SPLIT, {"aggregation": {"name": f"{__name__}:Intolerant"}})
    failed = events_of(tmp_path / "run", "client-failed")
    assert [event["client"] for event in failed] == ["client-01", "client-01"]
    assert failed[0]["reason"] == "its reply makes the merge fail: ValueError: no merge with client-01"
    assert [event["participants"] for event in events_of(tmp_path / "run", "round")] == [["client-00", "client-02"]] * 2


def test_a_round_without_a_valid_merge_changes_nothing_and_the_run_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The merge of all replies, of all but one (three times), and of all but two fails: the whole first round.
    monkeypatch.setitem(LIMIT, "failures", 5)
    monkeypatch.setattr(Broken, "failures", 0)
    settings = {"aggregation": {"name": f"{__name__}:Broken"}}
    run_tiny(tmp_path / "run", "fedavg", DATA, SPLIT, settings)
    (failed,) = events_of(tmp_path / "run", "merge-failed")
    assert (failed["index"], failed["reason"]) == (0, "ValueError: no merge yet")
    assert any("this round changes nothing" in event["text"] for event in events_of(tmp_path / "run", "note"))
    assert len(events_of(tmp_path / "run", "round")) == 2


def test_a_phase_of_one_round_that_cannot_be_merged_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LIMIT, "failures", 5)
    monkeypatch.setattr(Broken, "failures", 0)
    settings = {"aggregation": {"name": f"{__name__}:Broken"}, "method": {"rounds": 1}, "engine": {"workers": 0}}
    with pytest.raises(
        RoundFailed, match=r"the merge of the replies failed: ValueError: no merge yet\. `fedwild resume"
    ):
        run_tiny(tmp_path / "run", "fedavg", DATA, SPLIT, settings)
    experiment = tiny_experiment("fedavg", DATA, SPLIT, settings)
    Federation(experiment, RunFolder.open(tmp_path / "run")).run()
    run_tiny(tmp_path / "whole", "fedavg", DATA, SPLIT, settings)
    assert model_bytes(tmp_path / "run") == model_bytes(tmp_path / "whole")
