"""The class registry: names are what counts, ids are positions that never change."""

from __future__ import annotations

import json

from fedwild.classes import ClassEntry, ClassRegistry


def test_equal_names_meet_in_one_class() -> None:
    registry = ClassRegistry.of(["cat", "dog"])
    first = registry.add("fox", "client-00", since=3)
    second = registry.add("fox", "client-07", since=5)
    assert first == second == 2
    assert len(registry) == 3
    assert registry.entries[2] == ClassEntry("fox", "client-00", 3)


def test_repeated_names_at_the_start_are_one_class() -> None:
    assert ClassRegistry.of(["a", "b", "a"]).names == ("a", "b")


def test_ids_stay_when_classes_are_added() -> None:
    registry = ClassRegistry.of(["zebra", "ant"])
    before = {name: registry.add(name, "again", since=9) for name in registry.names}
    for name in ("bee", "aardvark", "newt"):
        registry.add(name, "client-00", since=1)
    assert registry.names == ("zebra", "ant", "bee", "aardvark", "newt")
    assert {name: registry.add(name, "again", since=9) for name in before} == before == {"zebra": 0, "ant": 1}


def test_names_are_compared_exactly() -> None:
    registry = ClassRegistry.of(["cat", "Cat", " cat", "1", "01"])
    assert len(registry) == 5
    assert "CAT" not in registry
    assert "Cat" in registry


def test_an_empty_registry_knows_nothing() -> None:
    registry = ClassRegistry()
    assert len(registry) == 0
    assert registry.names == ()
    assert "" not in registry
    assert registry.add("", "client-00", since=0) == 0


def test_two_registries_share_nothing() -> None:
    ClassRegistry().add("a", "known", since=0)
    assert ClassRegistry().names == ()


def test_json_round_trip_keeps_order_origin_and_round() -> None:
    registry = ClassRegistry.of(['quo"te', "b\\s", "ünï 😀", "unknown"])
    registry.add("new", "client-03", since=12)
    copy = ClassRegistry.from_json(json.loads(json.dumps(registry.to_json())))
    assert copy == registry
    assert copy.entries[4] == ClassEntry("new", "client-03", 12)
    assert copy.entries[0].origin == "known"
