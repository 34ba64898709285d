"""What the phases of a stage have in common: the head that grows, and how a stage ends."""

from __future__ import annotations

import pytest
import torch

from fedwild.contract import Server, Step
from fedwild.contract.task import weights_of
from fedwild.core.classes import ClassRegistry
from fedwild.core.rng import Rng
from fedwild.methods.gains.stage import Arrival, Status, members
from tests.methods.by_hand import PLAIN
from tests.methods.gains.federation import adapting, phase_of


def test_rows_of_declared_classes_are_between_the_known_ones_and_unknown() -> None:
    phase = phase_of("declare-1", objective={"name": "proser"})
    server = Server(PLAIN, ClassRegistry.of(("a", "b", "c")), Step("declare-1", 0, 0), Rng(0))
    weights = weights_of(PLAIN.build(3, Rng(4)))
    grown = phase.refit(server, weights, ClassRegistry.of(("a", "b")))
    for name in ("head.weight", "head.bias"):
        assert torch.equal(grown[name][[0, 1, 3]], weights[name])
    assert grown["head.weight"][2].any()


def test_newcomers_are_members_once_they_are_welcomed() -> None:
    server = adapting("classes")
    server.newcomers = ("ann", "ben")
    assert members(server, ["ann", "ben", "bob"]) == ["bob"]
    server.state.info["welcomed"] = ["ann"]
    assert members(server, ["ann", "ben", "bob"]) == ["ann", "bob"]


@pytest.mark.parametrize(
    ("phase", "expected"),
    [("declare-1", "abcd"), ("discover-1", "a"), ("adapt-1", "ad"), ("judge-1", "abcd"), ("source", "d")],
)
def test_the_newcomer_takes_part_in_its_stage_with_all_members_or_a_share(phase: str, expected: str) -> None:
    server = adapting("classes")
    server.newcomers = ("a",)
    drawn: list[list[str]] = []

    def draw(names: list[str]) -> list[str]:
        drawn.append(names)
        return names[:1]

    # Shares are drawn in the order in which clients are present.
    assert phase_of(phase).who(server, ["d", "c", "b", "a"], draw) == list(expected)
    assert drawn == ([["d", "c", "b"]] if phase in ("adapt-1", "source") else [])
    if phase != "source":
        assert phase_of(phase).who(server, ["b", "c"], draw) == []


def test_without_members_the_newcomer_adapts_alone() -> None:
    server = adapting("classes")
    assert phase_of("adapt-1").who(server, ["ann"], lambda names: pytest.fail("nothing to draw from")) == ["ann"]


def test_a_phase_runs_only_for_the_newcomers_that_it_concerns() -> None:
    server = adapting("domain")
    wanted: dict[Status, set[str]] = {
        "declared": {"declare-1", "discover-1"},
        "domain": {"declare-1", "adapt-1", "judge-1"},
        "classes": {"declare-1", "adapt-1", "judge-1"},
        "nobody": {"declare-1"},
        "refused": {"declare-1"},
        "welcomed": {"declare-1"},
    }
    for kind, expected in wanted.items():
        Arrival(kind, tuple(server.classes.entries)).store(server)
        names = ("declare-1", "discover-1", "adapt-1", "judge-1")
        assert {name for name in names if phase_of(name).wants(server)} == expected


def test_restoring_gives_back_classes_tensors_and_info() -> None:
    server = adapting("classes", model={"w": torch.ones(1)}, before={"model/w": torch.zeros(1), "c/v": torch.ones(2)})
    before = Arrival.of(server)
    server.state.info["arrival"]["info"] = {"welcomed": ["eva"]}
    phase_of("judge-1").restore(server, "refused")
    assert server.classes == before.classes()
    assert {name: tensor.tolist() for name, tensor in server.state.tensors.items()} == {"model/w": [0], "c/v": [1, 1]}
    assert server.state.info == {"welcomed": ["eva"], "arrival": {"kind": "refused"}}


def test_admitting_and_excluding_add_to_the_lists() -> None:
    server = adapting(
        "classes", model={"w": torch.ones(1)}, **{group: {"w": torch.ones(1)} for group in ("before", "mean")}
    )
    server.state.info |= {"welcomed": ["eva"], "outside": ["fay"]}
    phase = phase_of("judge-1")
    phase.admit(server)
    phase.exclude(server)
    assert server.state.info == {"welcomed": ["eva", "ann"], "outside": ["fay", "ann"], "arrival": {"kind": "welcomed"}}
    assert list(server.state.tensors) == ["model/w"]
