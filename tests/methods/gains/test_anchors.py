"""W_n(0,0): received or the client's own, by hand on toy clients, and after a refusal.

That own anchors survive kill and resume, with any number of workers and over sites, is in `contract/test_every_method`
and `sites/test_welcome`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedwild.contract import Step
from fedwild.contract.task import weights_of
from fedwild.core.payload import Payload
from fedwild.core.rng import Rng
from fedwild.data import Dataset
from fedwild.methods.gains.anchors import grow_anchor, keep_anchor, keep_own
from tests.methods.by_hand import PLAIN, final, states
from tests.methods.gains.federation import FORGETFUL, client_of, phase_of, rows_of, run, split_of
from tests.tiny import model_bytes

OWN: dict[str, Any] = {"anchor": "own"}


def weights(seed: int, rows: int = 3) -> dict[str, Tensor]:
    return weights_of(PLAIN.build(rows, Rng(seed)))


def equal(first: Any, second: Any) -> bool:
    return first.keys() == second.keys() and all(torch.equal(tensor, second[name]) for name, tensor in first.items())


# --- by hand --------------------------------------------------------------------------------------------------


def test_the_received_model_is_the_anchor_by_default() -> None:
    bob = client_of("bob", Step("declare-1", 0, 0))
    keep_own(bob, weights(1), 0)
    keep_anchor(bob, weights(2), 1)
    assert equal(bob.state.group("anchor"), weights(2))


def test_the_client_s_own_model_is_the_anchor_if_it_has_trained() -> None:
    bob = client_of("bob", Step("declare-1", 0, 0))
    keep_anchor(bob, weights(2), 1, undone=[])
    assert equal(bob.state.group("anchor"), weights(2))
    keep_own(bob, weights(1), 1)
    keep_anchor(bob, weights(3), 2, undone=[])
    assert equal(bob.state.group("anchor"), weights(1))
    assert bob.state.info["stage"] == 2


def test_a_model_of_a_stage_that_was_undone_is_not_an_anchor() -> None:
    bob = client_of("bob", Step("declare-3", 0, 0))
    keep_own(bob, weights(1), 0)
    keep_anchor(bob, weights(9), 1, undone=[])
    keep_own(bob, weights(2), 1)
    # The first newcomer was refused; the second one brought nothing, and the client did not train again.
    for stage in (2, 3):
        keep_anchor(bob, weights(9), stage, undone=[1])
        assert equal(bob.state.group("anchor"), weights(1))
    keep_own(bob, weights(3), 3)
    keep_anchor(bob, weights(9), 4, undone=[1])
    assert equal(bob.state.group("anchor"), weights(3))


@pytest.mark.parametrize("extra", [0, 1])
def test_rows_that_an_anchor_lacks_are_the_received_model_s(extra: int) -> None:
    anchor, model = weights(1, rows=2 + extra), weights(2, rows=5 + extra)
    grown = grow_anchor(anchor, model, extra)
    for name in ("head.weight", "head.bias"):
        assert torch.equal(grown[name][:2], anchor[name][:2])
        assert torch.equal(grown[name][2:5], model[name][2:5])
        # An output for "unknown" stays the last row.
        assert torch.equal(grown[name][5:], anchor[name][2:])
    assert len(anchor["head.bias"]) == 2 + extra


@pytest.mark.parametrize(("settings", "kept"), [(OWN, True), ({}, False), ({**OWN, "keep": 0.0}, False)])
@pytest.mark.parametrize("name", ["source", "adapt-1"])
def test_clients_keep_what_they_send(name: str, settings: dict[str, Any], kept: bool) -> None:
    bob = client_of("bob", Step(name, 0, 0), y=[0, 1, 2, 0])
    info = {"newcomer": "ann", "known": 3, **({"undone": []} if settings else {})}
    reply = phase_of(name, settings).local(Payload.of(info, model=weights(1)), bob, Rng(0))
    assert ("own" in bob.state) == kept
    if kept:
        assert equal(bob.state.group("own"), reply.group("model"))
        assert bob.state.info["trained"] == (0 if name == "source" else 1)


# --- runs -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def held(data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("anchors") / "run"
    run(folder, data, split_of(data, ann=rows_of(data, 3)), **OWN, rounds=2, adapt_rounds=2)
    return folder


def test_each_client_has_its_own_anchor(held: Path, data: Dataset, tmp_path: Path) -> None:
    found = {name: state.group("anchor")["head.weight"] for name, state in states(held).items() if name != "ann"}
    assert len({tensor.numpy().tobytes() for tensor in found.values()}) == 4
    run(tmp_path / "alone", data, split_of(data), **OWN, rounds=2, stages=0)
    # It is the client's model before the newcomer came.
    before = {name: state.group("own")["head.weight"] for name, state in states(tmp_path / "alone").items()}
    assert equal(found, before)


def test_own_anchors_change_the_model_only_if_anti_forgetting_acts(held: Path, data: Dataset, tmp_path: Path) -> None:
    split = split_of(data, ann=rows_of(data, 3))
    run(tmp_path / "received", data, split, rounds=2, adapt_rounds=2)
    assert model_bytes(tmp_path / "received") != model_bytes(held)
    for anchor in ("own", "received"):
        run(tmp_path / f"free-{anchor}", data, split, anchor=anchor, keep=0.0, rounds=2, adapt_rounds=2)
    assert model_bytes(tmp_path / "free-own") == model_bytes(tmp_path / "free-received")


def test_after_a_refusal_the_anchor_is_the_model_from_before(data: Dataset, tmp_path: Path) -> None:
    threes = rows_of(data, 3)
    split = split_of(data, ann=threes[:32], ben=threes[32:])
    given = {**OWN, **FORGETFUL, "adapt_rounds": 1, "stages": 2, "max_forgetting": 0.0, "keep": 0.1, "lr": 0.5}
    server = run(tmp_path / "run", data, split, **given)
    assert server.info["state"]["outside"][0] == "ann"
    run(tmp_path / "alone", data, split_of(data), **OWN, stages=0, lr=0.5)
    before = {name: state.group("own") for name, state in states(tmp_path / "alone").items()}
    for name, state in states(tmp_path / "run").items():
        if name in before:
            assert equal(state.group("anchor"), before[name])
    assert final(tmp_path / "run").info["step"]["phase"] == "judge-2"
