"""A method's rounds in order, and clients that arrive later, by round or by phase."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fedwild.contract import Phase, Step
from fedwild.contract.schedule import first_rounds, plan_of
from fedwild.core.errors import UserError
from fedwild.methods.fedavg import FedAvg
from fedwild.runs.events import read_events
from tests.conftest import TINY, Refused
from tests.tiny import even_shares, run_tiny, split_by, tiny_dataset


class Phased(FedAvg):
    """FedAvg in phases given by hand."""

    name = "phased"

    def __init__(self, *phases: tuple[str, int]) -> None:
        self.given = [Phase(*phase) for phase in phases]

    def phases(self) -> Sequence[Phase]:
        return self.given


def steps_of(method: Phased, first: int = 0) -> list[Step]:
    return [planned.step for planned in plan_of(method, first)]


def arrivals_of(chosen: dict[str, int | str], steps: list[Step]) -> dict[str, int]:
    return first_rounds(LEARN_AND_LOOK, (), chosen, steps)


LEARN_AND_LOOK = Phased(("learn", 2), ("look", 1), ("empty", 0), ("learn", 3), ("look", 1))


def test_rounds_are_counted_in_the_run_and_in_their_phase() -> None:
    assert steps_of(LEARN_AND_LOOK) == [
        Step("learn", 0, 0),
        Step("learn", 1, 1),
        Step("look", 0, 2),
        Step("learn", 2, 3),
        Step("learn", 3, 4),
        Step("learn", 4, 5),
        Step("look", 1, 6),
    ]


def test_rounds_continue_the_count_of_an_earlier_run_but_those_of_phases_start_at_zero() -> None:
    counted = steps_of(LEARN_AND_LOOK, first=10)
    assert [(step.phase, step.round) for step in counted] == [(s.phase, s.round) for s in steps_of(LEARN_AND_LOOK)]
    assert [step.index for step in counted] == list(range(10, 17))
    # A number counts this run's own rounds.
    assert arrivals_of({"ann": "look", "bob": 0, "cyd": 3}, counted) == {"ann": 12, "bob": 10, "cyd": 13}


def test_a_plan_without_rounds_is_rejected() -> None:
    with pytest.raises(UserError, match="method 'phased' has no rounds"):
        steps_of(Phased(("learn", 0)))


def test_a_phase_name_stands_for_its_first_round() -> None:
    arrivals: dict[str, int | str] = {"ann": "look", "bob": "learn", "cyd": 4, "dan": 0, "eve": 99}
    found = arrivals_of(arrivals, steps_of(LEARN_AND_LOOK))
    assert found == {"ann": 2, "bob": 0, "cyd": 4, "dan": 0, "eve": 99}


def test_all_clients_are_present_from_the_start_by_default() -> None:
    assert arrivals_of({}, steps_of(LEARN_AND_LOOK)) == {}


@pytest.mark.parametrize(("name", "guess"), [("lern", "learn"), ("loook", "look")])
def test_an_unknown_phase_is_rejected_with_a_suggestion(name: str, guess: str) -> None:
    with pytest.raises(UserError) as raised:
        arrivals_of({"ann": 1, "bob": name}, steps_of(LEARN_AND_LOOK))
    assert f"federation.arrivals.bob: phase {name!r} is not known" in str(raised.value)
    assert f"Did you mean {guess!r}?" in str(raised.value)


def test_no_client_can_arrive_in_a_phase_without_rounds() -> None:
    with pytest.raises(UserError, match="phase 'empty' is not known"):
        arrivals_of({"ann": "empty"}, steps_of(LEARN_AND_LOOK))


@pytest.mark.parametrize(
    ("method", "phase", "words"),
    [
        ("fedavg", "trian", ("phase 'trian' is not known", "Did you mean 'train'?")),
        ("gal", "discover-2", ("phase 'discover-2' is not known", "Did you mean 'discover-1'?", "describe")),
        ("gal", "novel", ("phase 'novel' is not known", "novel-1")),
    ],
)
def test_the_command_line_rejects_an_unknown_phase_before_a_folder_exists(
    method: str, phase: str, words: tuple[str, ...], refused: Refused
) -> None:
    error = refused("run", *TINY, "--method", method, "--set", f"federation.arrivals={{client-01='{phase}'}}")
    assert len(error.splitlines()) == 1
    assert "federation.arrivals.client-01" in error
    assert all(word in error for word in words), error


@pytest.mark.parametrize("value", ["''", "-1", "1.5", "true"])
def test_an_arrival_that_is_neither_a_round_nor_a_name_is_rejected(value: str, refused: Refused) -> None:
    error = refused("run", *TINY, "--rounds", "1", "--set", f"federation.arrivals={{client-01={value}}}")
    assert "federation.arrivals" in error


def participants(folder: Path) -> list[tuple[str, list[str]]]:
    events = read_events(folder / "events.jsonl")
    return [(event["phase"], event["participants"]) for event in events if event["event"] == "round"]


@pytest.mark.parametrize("when", ["finetune", 2])
def test_a_client_takes_part_since_the_first_round_of_its_phase(when: Any, tmp_path: Path) -> None:
    data = tiny_dataset(classes=2)
    split = split_by(data, 2, even_shares(data, 2, 3))
    settings = {
        "method": {"rounds": 2, "finetune_rounds": 2},
        "federation": {"arrivals": {"client-02": when, "client-01": 0}},
    }
    run_tiny(tmp_path / "run", "fedoss", data, split, settings)
    early, everyone = ["client-00", "client-01"], ["client-00", "client-01", "client-02"]
    assert participants(tmp_path / "run") == [("pretrain", early)] * 2 + [("finetune", everyone)] * 2
