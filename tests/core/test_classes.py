"""The class registry: classes are identified by name, and ids never change."""

from __future__ import annotations

import json

import pytest

from fedwild.core.classes import ClassEntry, ClassRegistry


def test_a_name_is_added_once() -> None:
    registry = ClassRegistry.of(["cat", "dog"])
    first = registry.add("fox", "client-00", since=3)
    second = registry.add("fox", "client-07", since=5)
    assert first == second == 2
    assert len(registry) == 3
    assert registry.entries[2] == ClassEntry("fox", "client-00", 3)


def test_repeated_initial_names_give_one_class() -> None:
    assert ClassRegistry.of(["a", "b", "a"]).names == ("a", "b")


def test_ids_do_not_change_when_classes_are_added() -> None:
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


def test_an_empty_registry_has_no_names() -> None:
    registry = ClassRegistry()
    assert len(registry) == 0
    assert registry.names == ()
    assert "" not in registry
    assert registry.add("", "client-00", since=0) == 0


def test_registries_are_independent() -> None:
    ClassRegistry().add("a", "known", since=0)
    assert ClassRegistry().names == ()


def test_json_round_trip_keeps_order_origin_and_round() -> None:
    registry = ClassRegistry.of(['quo"te', "b\\s", "ünï 😀", "unknown"])
    registry.add("new", "client-03", since=12)
    copy = ClassRegistry.from_json(json.loads(json.dumps(registry.to_json())))
    assert copy == registry
    assert copy.entries[4] == ClassEntry("new", "client-03", 12)
    assert copy.entries[0].origin == "known"


def test_free_name_returns_the_first_name_that_is_not_taken() -> None:
    registry = ClassRegistry.of(["novel-2", "cat", "novel"])
    assert registry.free_name("novel") == "novel-1"
    registry.add("novel-1", "novel", since=4)
    assert registry.free_name("novel") == "novel-3"
    assert registry.free_name("cat") == "cat-1"
    # The call does not reserve the name.
    assert registry.free_name("novel") == "novel-3"


def test_the_old_name_of_a_renamed_class_is_free_again() -> None:
    registry = ClassRegistry.of(["cat"])
    registry.add("novel-1", "novel", since=4)
    registry.rename("novel-1", "fox")
    assert registry.free_name("novel") == "novel-1"


def test_a_renamed_class_keeps_its_id_and_its_history() -> None:
    registry = ClassRegistry.of(["cat", "dog"])
    registry.add("novel-1", "novel", since=7, stage=2, samples={"client-03": 5})
    registry.add("ant", "client-00", since=9)
    registry.rename("novel-1", "fox")
    assert registry.names == ("cat", "dog", "fox", "ant")
    assert registry.entries[2] == ClassEntry("fox", "novel", 7, 2, {"client-03": 5})
    assert "novel-1" not in registry
    assert registry.add("fox", "client-00", since=11) == 2
    with pytest.raises(ValueError, match="not in"):
        registry.rename("novel-1", "again")


def test_stage_and_samples_survive_json() -> None:
    registry = ClassRegistry.of(["cat"])
    registry.add("novel-1", "novel", since=12, stage=1, samples={"client-00": 7, "client-10": 1})
    copy = ClassRegistry.from_json(json.loads(json.dumps(registry.to_json())))
    assert copy == registry
    assert copy.entries[0] == ClassEntry("cat", "known", 0, 0, {})
    assert copy.entries[1].stage == 1
    assert copy.entries[1].samples == {"client-00": 7, "client-10": 1}


def test_registries_without_stages_can_be_read() -> None:
    old = [{"name": "cat", "origin": "known", "since": 0}, {"name": "fox", "origin": "client-03", "since": 12}]
    assert ClassRegistry.from_json(old).entries == [ClassEntry("cat", "known", 0), ClassEntry("fox", "client-03", 12)]


def test_an_entry_copies_its_samples() -> None:
    registry, samples = ClassRegistry(), {"client-00": 3}
    registry.add("novel-1", "novel", since=1, samples=samples)
    samples["client-00"] = 99
    assert registry.entries[0].samples == {"client-00": 3}
    assert ClassEntry("a", "known", 0).samples is not ClassEntry("b", "known", 0).samples


def test_novel_lists_the_discovered_classes_only() -> None:
    registry = ClassRegistry.of(["novel-9"])
    registry.add("novel-1", "novel", since=1, stage=1)
    registry.add("fox", "client-00", since=2)
    registry.add("novel-2", "novel", since=3, stage=2)
    registry.rename("novel-2", "newt")
    assert [entry.name for entry in registry.novel] == ["novel-1", "newt"]
