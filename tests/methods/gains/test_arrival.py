"""The record of a newcomer: the same JSON in checkpoints as ever."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from fedwild.core.classes import ClassRegistry
from fedwild.methods.gains.stage import Arrival
from tests.methods.gains.federation import adapting

ENTRY = {"name": "a", "origin": "known", "since": 0, "stage": 0, "samples": {}}
ACTIVE: dict[str, Any] = {
    "kind": "declared",
    "before": [ENTRY, {**ENTRY, "name": "b"}],
    "info": {"welcomed": ["eva"], "outside": []},
    "declared": ["c", "d"],
    "samples": 120,
    "sources": 3,
    "shift": 0.25,
    "limit": 0.1,
    "alike": {"c": ["a", 0.5]},
}


def record_of(row: dict[str, Any]) -> Arrival:
    """Return the record of a server that has this JSON in its state."""
    server = adapting("domain")
    server.state.info["arrival"] = row
    return Arrival.of(server)


def json_of(record: Arrival) -> dict[str, Any]:
    """Return what a checkpoint has of a server with this record."""
    server = adapting("domain")
    record.store(server)
    found: dict[str, Any] = json.loads(json.dumps(server.state.info["arrival"]))
    return found


def test_an_active_record_has_all_its_keys() -> None:
    record = record_of(ACTIVE)
    assert record.known == 2
    assert (record.declared, record.alike) == (("c", "d"), {"c": ("a", 0.5)})
    assert json_of(record) == ACTIVE
    assert record_of(json_of(record)) == record


def test_the_record_is_the_same_before_and_after_a_checkpoint() -> None:
    server, record = adapting("domain"), record_of(ACTIVE)
    record.store(server)
    assert Arrival.of(server) == record


def test_a_shift_that_is_unknown_survives_json() -> None:
    assert math.isnan(record_of(json_of(record_of({**ACTIVE, "shift": math.nan}))).shift)


@pytest.mark.parametrize("kind", ["nobody", "nothing", "refused", "welcomed"])
def test_of_a_stage_that_is_over_only_the_kind_is_kept(kind: Any) -> None:
    assert json_of(Arrival(kind)) == {"kind": kind}
    assert record_of({"kind": kind}) == Arrival(kind)


def test_the_registry_is_a_new_one_each_time() -> None:
    record = record_of(ACTIVE)
    record.classes().add("c", "ann", 4)
    assert record.classes() == ClassRegistry.of(("a", "b"))
