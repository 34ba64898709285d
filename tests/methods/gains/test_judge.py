"""Judge: the bias of new rows, accuracy before and after, and when the federation is restored."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedwild.contract import Step
from fedwild.contract.task import weights_of
from fedwild.core.payload import Payload
from fedwild.core.rng import Rng
from fedwild.data import Dataset
from tests.methods.by_hand import PLAIN, final
from tests.methods.gains.federation import (
    FORGETFUL,
    client_of,
    domain_of,
    events,
    failing,
    findings,
    notes,
    phase_of,
    rows_of,
    run,
    split_of,
    with_tensors,
)


@pytest.mark.parametrize(("name", "judged"), [("bob", 2), ("ann", 4)])
def test_source_clients_send_margins_of_old_classes_and_the_newcomer_of_all(name: str, judged: int) -> None:
    groups = {"before": weights_of(PLAIN.build(2, Rng(1))), "model": weights_of(PLAIN.build(3, Rng(2)))}
    payload = Payload.of({"newcomer": "ann", "known": 2}, **groups)
    client = client_of(name, Step("judge-1", 0, 9), y=[0, 2, 1, 2])
    reply = phase_of("judge-1").local(payload, client, Rng(0))
    assert reply.info["samples"] == judged
    assert len(reply.group("model")["margin"]) == len(reply.group("before")["margin"]) == judged


def test_the_bias_of_new_rows_is_part_of_the_model_that_answers(data: Dataset, tmp_path: Path) -> None:
    given: dict[str, Any] = {"adapt_rounds": 1, "lr": 0.02}
    split = split_of(data, ann=rows_of(data, 3, 4))
    plain = run(tmp_path / "plain", data, split, **given, calibrate=False).group("model")
    moved = run(tmp_path / "moved", data, split, **given).group("model")
    (judgement,) = findings(tmp_path / "moved", "judgement")
    assert judgement["bias"] != 0
    assert findings(tmp_path / "plain", "judgement")[0]["bias"] == 0
    change = moved["head.bias"].double() - plain["head.bias"].double()
    assert change.tolist() == pytest.approx([0, 0, 0, -judgement["bias"], -judgement["bias"]], abs=1e-6)
    assert torch.equal(moved["head.weight"], plain["head.weight"])


def test_the_figures_are_those_of_the_models_on_validation_samples(data: Dataset, grown: Path, alone: Path) -> None:
    split = split_of(data, ann=rows_of(data, 3, 4))
    (judgement,) = findings(grown, "judgement")
    for folder, when in ((alone, "before"), (grown, "now")):
        weights = final(folder).group("model")
        network = replace(PLAIN, model_params={"hidden": [16, 8]}).build(len(weights["head.bias"]), Rng(0))
        network.load_state_dict(weights)
        for whose in ("sources", "newcomer"):
            theirs = [c.validation for c in split.clients if (c.name == "ann") == (whose == "newcomer")]
            rows = np.concatenate(theirs)
            with torch.no_grad():
                answers = network.eval()(data.x_train[rows].float() / 255).argmax(1)
            right = (answers == data.y_train[rows]).double().mean()
            assert judgement[whose][when] == pytest.approx(float(right))
            assert judgement[whose]["samples"] == len(rows)
    assert judgement["forgotten"] == judgement["sources"]["before"] - judgement["sources"]["now"]
    assert judgement["refused"] is False
    row = judgement["newcomer"]
    assert f"ann: validation accuracy {row['before']:.1%} before, {row['now']:.1%} now" in notes(grown)


# --- restoring ------------------------------------------------------------------------------------------------


def test_a_federation_that_would_forget_is_restored_bit_for_bit(data: Dataset, tmp_path: Path) -> None:
    before = run(tmp_path / "alone", data, split_of(data), **FORGETFUL, stages=0)
    split = split_of(data, ann=rows_of(data, 3))
    kept = run(tmp_path / "kept", data, split, **FORGETFUL)
    assert findings(tmp_path / "kept", "judgement")[0]["forgotten"] > 0
    assert len(kept.info["classes"]) == 4
    server = run(tmp_path / "back", data, split, **FORGETFUL, max_forgetting=0.0)
    (judgement,) = findings(tmp_path / "back", "judgement")
    assert judgement["refused"] is True
    forgotten = f"ann is not welcomed: source clients forgot {judgement['forgotten']:.1%}, max_forgetting = 0.0"
    assert forgotten in notes(tmp_path / "back")
    assert server.tensors.keys() == before.tensors.keys()
    assert all(torch.equal(server.tensors[name], tensor) for name, tensor in before.tensors.items())
    assert server.info["classes"] == before.info["classes"]
    assert server.info["thresholds"] == before.info["thresholds"]
    assert server.info["state"] == {"arrival": {"kind": "refused"}, "outside": ["ann"]}


def test_the_state_of_a_correction_is_restored_too(data: Dataset, tmp_path: Path) -> None:
    scaffold = {"correction": {"name": "scaffold"}}
    given: dict[str, Any] = {**FORGETFUL, "adapt_rounds": 1, "new_rows": "newcomer", "momentum": 0.0}
    before = run(tmp_path / "alone", data, split_of(data), parts=scaffold, **given, stages=0)
    split = split_of(data, ann=rows_of(data, 3))
    server = run(tmp_path / "back", data, split, parts=scaffold, **given, max_forgetting=0.0)
    assert len(before.tensors) > len(before.group("model"))
    assert findings(tmp_path / "back", "judgement")[0]["refused"]
    assert server.tensors.keys() == before.tensors.keys()
    assert all(torch.equal(server.tensors[name], tensor) for name, tensor in before.tensors.items())


def test_without_validation_samples_any_limit_counts_as_exceeded(data: Dataset, tmp_path: Path) -> None:
    split = split_of(data, ann=rows_of(data, 3))
    blind = replace(split, clients=tuple(replace(c, validation=c.validation[:0]) for c in split.clients))
    limits: dict[str, dict[str, Any]] = {"limited": {"max_forgetting": 1.0}, "free": {}}
    for name, limit in limits.items():
        server = run(tmp_path / name, data, blind, adapt_rounds=1, **limit)
        (judgement,) = findings(tmp_path / name, "judgement")
        assert judgement["forgotten"] is None
        assert judgement["refused"] is bool(limit)
        assert len(server.info["classes"]) == (3 if limit else 4)
    assert "source clients forgot an unknown share, max_forgetting = 1.0" in notes(tmp_path / "limited")


def test_a_newcomer_is_admitted_if_forgetting_is_within_the_limit(data: Dataset, tmp_path: Path) -> None:
    server = run(tmp_path / "run", data, split_of(data, ann=rows_of(data, 3)), max_forgetting=1.0)
    assert server.info["state"]["welcomed"] == ["ann"]
    assert "outside" not in server.info["state"]


def test_a_refused_newcomer_takes_no_part_in_the_next_stage(data: Dataset, tmp_path: Path) -> None:
    split = split_of(data, ann=rows_of(data, 3), ben=rows_of(data, 4))
    given: dict[str, Any] = {**FORGETFUL, "max_forgetting": 0.0, "stages": 2}
    run(tmp_path / "run", data, split, **given)
    taking_part = {event["phase"]: event["participants"] for event in events(tmp_path / "run", "round")}
    assert findings(tmp_path / "run", "judgement")[0]["refused"]
    assert [name for name in taking_part["declare-2"] if not name.startswith("client")] == ["ben"]


# --- replies that are rejected --------------------------------------------------------------------------------


@pytest.mark.parametrize("who", ["ann", "client-02"])
@pytest.mark.parametrize(
    "tensors",
    [
        {"margin": torch.zeros(1)},
        {"new": torch.zeros(0, dtype=torch.uint8)},
        {"right": torch.zeros(3)},
        {"margin": torch.full((12,), float("nan"))},
    ],
)
def test_invalid_margins_are_rejected(
    who: str, tensors: dict[str, torch.Tensor], data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, "judge-1", with_tensors("model", **tensors), who=who)
    split = split_of(data, ann=rows_of(data, 3))
    run(tmp_path / "run", data, split, rounds=1, epochs=1, adapt_rounds=1)
    (failed,) = events(tmp_path / "run", "client-failed")
    assert failed["reason"].startswith("bad reply: ")
    (judgement,) = findings(tmp_path / "run", "judgement")
    held = {client.name: len(client.validation) for client in split.clients}
    others = sum(count for name, count in held.items() if name not in ("ann", who))
    assert judgement["sources"]["samples"] == others
    assert judgement["newcomer"]["samples"] == (0 if who == "ann" else held["ann"])


def test_extreme_margins_of_new_classes_where_there_are_none_give_a_finite_bias(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def all_new(reply: Payload) -> Payload:
        extreme = torch.linspace(-3e38, 3e38, reply.info["samples"])
        return with_tensors("model", new=torch.ones(len(extreme), dtype=torch.uint8), margin=extreme)(reply)

    failing(monkeypatch, "judge-1", all_new, who="client-01")
    for name, own in (("domain", 5), ("classes", 3)):
        given: dict[str, Any] = {"rounds": 1, "epochs": 1, "adapt_rounds": 1}
        run(tmp_path / name, domain_of(data), split_of(data, ann=rows_of(data, own)), **given)
        (judgement,) = findings(tmp_path / name, "judgement")
        assert np.isfinite(judgement["bias"])
