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


def test_an_active_record_has_all_its_keys() -> None:
    record = Arrival.from_json(ACTIVE)
    assert record.known == 2
    assert (record.declared, record.alike) == (("c", "d"), {"c": ("a", 0.5)})
    assert json.loads(json.dumps(record.to_json())) == ACTIVE
    assert Arrival.from_json(record.to_json()) == record


def test_a_shift_that_is_unknown_survives_json() -> None:
    again = Arrival.from_json(json.loads(json.dumps(Arrival.from_json({**ACTIVE, "shift": math.nan}).to_json())))
    assert math.isnan(again.shift)


@pytest.mark.parametrize("kind", ["nobody", "nothing", "refused", "welcomed"])
def test_of_a_stage_that_is_over_only_the_kind_is_kept(kind: Any) -> None:
    assert Arrival(kind).to_json() == {"kind": kind}
    assert Arrival.from_json({"kind": kind}) == Arrival(kind)


def test_the_registry_is_a_new_one_each_time() -> None:
    record = Arrival.from_json(ACTIVE)
    record.classes().add("c", "ann", 4)
    assert record.classes() == ClassRegistry.of(("a", "b"))


def test_the_record_is_part_of_the_server_s_state() -> None:
    server = adapting("domain")
    record = Arrival.from_json(ACTIVE)
    record.store(server)
    assert server.state.info["arrival"] == record.to_json()
    assert Arrival.of(server) == record
