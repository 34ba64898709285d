"""Declare: what clients send, who is missing, and which declarations are rejected."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedwild.contract import Client
from fedwild.core.payload import Payload
from fedwild.data import Dataset
from fedwild.methods.gains.declare import Declare
from tests.methods.by_hand import final, states
from tests.methods.gains.federation import (
    Change,
    domain_of,
    events,
    failing,
    findings,
    held_out,
    lost,
    names,
    notes,
    phases,
    rows_of,
    run,
    split_of,
    with_info,
    with_tensors,
)
from tests.tiny import model_bytes


def test_statistics_go_with_their_classes_whatever_the_order_of_names(data: Dataset, tmp_path: Path) -> None:
    other = replace(data, classes=("ten", "Seven", "9", "four", "3", "two"))
    run(tmp_path / "run", other, split_of(other, ann=[*held_out(data), *rows_of(data, 3)]), adapt_rounds=1)
    (found,) = findings(tmp_path / "run", "discovery")
    assert found["classes"] == ["four"]
    assert found["shift"] < found["limit"]


def test_source_clients_send_means_of_inputs_only_without_public_data(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[str, bool]] = []
    local = Declare.local

    def listening(self: Declare, payload: Payload, client: Client, *rest: Any) -> Payload:
        reply = local(self, payload, client, *rest)
        sent.append((client.name, "moments" in reply))
        return reply

    monkeypatch.setattr(Declare, "local", listening)
    models = []
    for public in (False, True):
        sent.clear()
        run(tmp_path / str(public), data, split_of(data, public, ann=rows_of(data, 3)))
        assert dict(sent) == {**{f"client-0{i}": not public for i in range(4)}, "ann": False}
        assert findings(tmp_path / str(public), "discovery")[0]["kind"] == "classes"
        models.append(model_bytes(tmp_path / str(public)))
    assert models[0] != models[1]


def test_source_clients_keep_an_anchor_only_if_it_is_used(data: Dataset, tmp_path: Path) -> None:
    split = split_of(data, ann=rows_of(data, 3))
    server = run(tmp_path / "kept", data, split)
    kept = states(tmp_path / "kept")
    assert set(kept) == {f"client-0{i}" for i in range(4)}
    # Their model from before ann came has three rows.
    assert {len(state.group("anchor")["head.weight"]) for state in kept.values()} == {3}
    run(tmp_path / "free", data, split, keep=0.0)
    assert states(tmp_path / "free") == {}
    assert not torch.equal(final(tmp_path / "free").group("model")["head.bias"], server.group("model")["head.bias"])


# --- nobody to welcome ----------------------------------------------------------------------------------------


def test_a_newcomer_that_is_absent_is_not_waited_for(data: Dataset, alone: Path, tmp_path: Path) -> None:
    parts = {"federation": {"arrivals": {"ann": 99}}}
    server = run(tmp_path / "run", data, split_of(data, ann=rows_of(data, 3)), parts=parts)
    assert "ann is not welcomed: it did not reply" in notes(tmp_path / "run")
    assert phases(tmp_path / "run") == ["source", "declare-1"]
    assert torch.equal(server.group("model")["head.weight"], final(alone).group("model")["head.weight"])
    assert "welcomed" not in server.info["state"]
    assert server.info["state"] == {"arrival": {"kind": "nobody"}, "outside": ["ann"]}


def test_a_stage_without_a_newcomer_is_skipped_with_a_note(data: Dataset, tmp_path: Path) -> None:
    server = run(tmp_path / "run", data, split_of(data), rounds=1)
    assert phases(tmp_path / "run") == ["source"]
    assert "no newcomer to welcome in stage 1 (see data.newcomers)" in notes(tmp_path / "run")
    assert server.info["state"] == {"arrival": {"kind": "nobody"}}


# --- replies that are rejected --------------------------------------------------------------------------------


def of_two(reply: Payload, labels: dict[str, int]) -> Payload:
    """Declare two classes, with matching statistics."""
    reply.info["labels"] = labels
    counts = torch.tensor(list(labels.values()))
    return with_tensors("classes", count=counts, mean=torch.zeros(2, 8), variance=torch.zeros(2))(reply)


COUNT = 48  # training samples of ann's class-3
DECLARATIONS: dict[str, tuple[Change, str]] = {
    "negative": (with_info(labels={"class-3": -COUNT}), "expected a whole number of at least 1"),
    "half": (with_info(labels={"class-3": COUNT + 0.5}), "expected a whole number of at least 1"),
    "true": (with_info(labels={"class-3": True}), "expected a whole number of at least 1"),
    "many": (with_info(labels={f"c{i}": 1 for i in range(2000)}), "at most 100 classes"),
    "list": (with_info(labels=["class-3"]), "must be a table"),
    "long": (with_info(labels={"x" * 101: COUNT}), "one line of at most 100"),
    "lines": (with_info(labels={"two\nlines": COUNT}), "one line"),
    "blank": (with_info(labels={"  ": COUNT}), "not a space"),
    "case of a known one": (with_info(labels={"Class-0": COUNT}), "differs from 'class-0' only by case"),
    "unknown": (with_info(labels={"UnKnown": COUNT}), "is not allowed"),
    "case of its own": (lambda reply: of_two(reply, {"Cat": 8, "cat": COUNT - 8}), "only by case"),
    "sum": (with_info(labels={"class-3": COUNT + 1}), f"do not add up to info 'samples' = {COUNT}"),
    "samples": (with_info(samples=-3), "info 'samples'"),
    "statistics of more classes": (with_info(labels={"class-3": 8, "class-4": COUNT - 8}), "class statistics"),
    "width": (with_tensors("classes", mean=torch.zeros(1, 9)), "class statistics tensor 'mean'"),
    "nan": (with_tensors("classes", mean=torch.full((1, 8), float("nan"))), "NaN"),
    "infinite": (with_tensors("classes", variance=torch.tensor([float("inf")])), "NaN or infinite"),
    "negative variance": (with_tensors("classes", variance=torch.tensor([-1.0])), "less than 0"),
    "counts": (with_tensors("classes", count=torch.tensor([COUNT + 1])), "do not fit"),
    "types": (with_tensors("classes", count=torch.tensor([1.0])), "torch.int64"),
    "moments": (with_tensors("moments", mean=torch.zeros(3)), "moments"),
    "shift": (with_info(own_shift="wide"), "own_shift"),
    "huge shift": (with_info(own_shift=10**400), "bad reply"),
}


@pytest.mark.parametrize("what", DECLARATIONS)
def test_an_invalid_declaration_is_rejected_and_the_run_continues(
    what: str, data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, words = DECLARATIONS[what]
    failing(monkeypatch, "declare-1", change)
    server = run(tmp_path / "run", data, split_of(data, ann=rows_of(data, 3)), rounds=1, epochs=0)
    (failed,) = events(tmp_path / "run", "client-failed")
    assert failed["client"] == "ann"
    assert failed["reason"].startswith("bad reply: ")
    assert words in failed["reason"]
    assert names(server) == ["class-0", "class-1", "class-2"]
    assert "ann is not welcomed" in notes(tmp_path / "run")


SOURCES: dict[str, Change] = {
    "declares": lambda reply: of_two(reply, {"his": 1, "mine": reply.info["samples"] - 1}),
    "counts": with_tensors("classes", count=torch.tensor([-1, 0, 0])),
    "classes": with_tensors("classes", count=torch.zeros(2, dtype=torch.int64)),
    "moments": with_tensors("moments", mean=torch.zeros(3, 1, 8, 9)),
    "more moments": with_tensors("moments", extra=torch.zeros(3)),
    "many": with_tensors("moments", count=torch.tensor([999, 0, 0])),
    "nan": with_tensors("classes", variance=torch.full((3,), float("nan"))),
}


@pytest.mark.parametrize("what", SOURCES)
def test_an_invalid_reply_of_a_source_client_does_not_stop_the_welcome(
    what: str, data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, "declare-1", SOURCES[what], who="client-02")
    server = run(tmp_path / "run", data, split_of(data, ann=rows_of(data, 3)), rounds=1, epochs=1, adapt_rounds=1)
    assert names(server) == ["class-0", "class-1", "class-2", "class-3"]
    assert "mine" not in names(server)


def test_a_newcomer_does_not_influence_the_limit_for_itself(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, "declare-1", with_info(own_shift=1e9))
    run(tmp_path / "run", domain_of(data), split_of(data, ann=rows_of(data, 5)), adapt_rounds=1)
    assert findings(tmp_path / "run", "discovery")[0]["kind"] == "domain"


@pytest.mark.parametrize("phase", ["declare-1", "discover-1"])
def test_a_newcomer_that_fails_before_the_decision_is_not_welcomed(
    phase: str, data: Dataset, alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, phase, lost)
    server = run(tmp_path / "run", data, split_of(data, ann=rows_of(data, 3)))
    assert "ann is not welcomed" in notes(tmp_path / "run")
    assert phases(tmp_path / "run")[-1] == phase
    before = final(alone)
    assert all(torch.equal(server.tensors[name], tensor) for name, tensor in before.tensors.items())
    assert server.tensors.keys() == before.tensors.keys()
    assert server.info["classes"] == before.info["classes"]
    assert "welcomed" not in server.info["state"]
