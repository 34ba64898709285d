"""Gains: the plan of phases, who takes part, newcomers in turn, who answers, and the settings of a welcome."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedwild.contract import Outcome, Prediction, Welcomes
from fedwild.contract.task import weights_of
from fedwild.core.rng import Rng
from fedwild.data import Dataset
from fedwild.methods import METHODS
from fedwild.methods.gains import Gains
from fedwild.methods.gains.method import NEVER
from tests.methods.by_hand import PLAIN, final, method_of, states
from tests.methods.gains.federation import adapting, events, findings, names, rows_of, run, split_of

# --- the plan -------------------------------------------------------------------------------------------------


def test_every_newcomer_has_a_stage_of_four_phases() -> None:
    phases = method_of("gains", {"rounds": 7, "stages": 2, "adapt_rounds": 3}).phases()
    stage = [("declare", 1), ("discover", 1), ("adapt", 3), ("judge", 1)]
    expected = [("source", 7), *((f"{name}-{k}", rounds) for k in (1, 2) for name, rounds in stage)]
    assert [(phase.name, phase.rounds) for phase in phases] == expected
    assert [phase.requires_replies for phase in phases] == [True, True, False, True, True, True, False, True, True]


def test_newcomers_arrive_in_their_stage_or_never() -> None:
    arrivals = method_of("gains", {"stages": 2}).arrivals(["ann", "ben", "cyd"])
    assert arrivals == {"ann": "declare-1", "ben": "declare-2", "cyd": NEVER}


@pytest.mark.parametrize("name", ["gains", "gains-paper", "gains-released"])
def test_presets_are_gains_with_other_defaults(name: str) -> None:
    kind = METHODS.get(name)
    assert issubclass(kind, Gains)
    assert issubclass(kind, Welcomes)
    assert kind.traits.starts_from and kind.traits.sends_embeddings
    params: Any = kind.Params()
    assert (params.rule == "fixed") == (name != "gains")
    assert (params.anchor == "own") == (name != "gains")
    released = {
        "target_weight": "released",
        "decide": "rounds",
        "difference": "norm",
        "t_f": 1000.0,
        "inclusive": True,
        "extra_epochs": 1,
    }
    defaults = Gains.Params()
    for key, value in released.items():
        assert getattr(params, key) == (value if name == "gains-released" else getattr(defaults, key))


@pytest.mark.parametrize(
    ("rounds", "max_forgetting", "more"),
    [
        (None, None, {}),
        (4, None, {"adapt_rounds": 4}),
        (None, 0.0, {"max_forgetting": 0.0}),
        (0, 0.5, {"adapt_rounds": 0, "max_forgetting": 0.5}),
    ],
)
def test_a_welcome_has_one_stage_and_no_rounds_before_it(
    rounds: int | None, max_forgetting: float | None, more: dict[str, Any]
) -> None:
    assert Gains.welcome_settings(rounds, max_forgetting) == {"rounds": 0, "stages": 1, **more}


# --- who takes part -------------------------------------------------------------------------------------------


def test_a_share_of_the_members_trains_but_all_of_them_declare_and_judge(data: Dataset, tmp_path: Path) -> None:
    parts = {"federation": {"participation": 0.5}}
    run(tmp_path / "run", data, split_of(data, ann=rows_of(data, 3)), parts=parts)
    taking_part: dict[str, set[int]] = {}
    for event in events(tmp_path / "run", "round"):
        taking_part.setdefault(event["phase"], set()).add(len(event["participants"]))
        assert ("ann" in event["participants"]) == (event["phase"] != "source")
    assert taking_part == {"source": {2}, "declare-1": {5}, "discover-1": {1}, "adapt-1": {3}, "judge-1": {5}}


def test_newcomers_without_a_stage_wait(data: Dataset, tmp_path: Path) -> None:
    split = split_of(data, ann=rows_of(data, 3), ben=rows_of(data, 4))
    server = run(tmp_path / "run", data, split, adapt_rounds=1)
    taking_part = {name for event in events(tmp_path / "run", "round") for name in event["participants"]}
    assert "ben" not in taking_part
    assert server.info["state"]["welcomed"] == ["ann"]


def test_two_newcomers_share_a_class_of_the_same_name(in_turn: Path) -> None:
    server = final(in_turn)
    assert names(server) == ["class-0", "class-1", "class-2", "class-3", "class-4"]
    assert [entry["origin"] for entry in server.info["classes"]][3:] == ["ann", "ben"]
    assert [found["classes"] for found in findings(in_turn, "discovery")] == [["class-3"], ["class-4"]]
    assert server.info["state"]["welcomed"] == ["ann", "ben"]
    metrics = events(in_turn, "end")[0]["metrics"]
    assert metrics["target_accuracy"] > 0.9
    assert metrics["source_accuracy"] > 0.9


def test_the_first_newcomer_is_a_member_when_the_second_arrives(in_turn: Path) -> None:
    members = [f"client-0{i}" for i in range(4)]
    taking_part = {event["phase"]: set(event["participants"]) for event in events(in_turn, "round")}
    assert taking_part["adapt-1"] == {*members, "ann"}
    assert taking_part["declare-2"] == taking_part["adapt-2"] == {*members, "ann", "ben"}
    # She is a source client now, and her anchor has four rows.
    assert {len(state.group("anchor")["head.weight"]) for state in states(in_turn).values()} == {4}
    assert set(states(in_turn)) == {*members, "ann"}


# --- who answers ----------------------------------------------------------------------------------------------


def test_a_newcomer_that_is_outside_does_not_influence_the_threshold() -> None:
    server = adapting("classes")
    assert list(method_of("gains").answers(server).clients) == ["bob", "cyd", "ann"]
    server.state.info["outside"] = ["ann"]
    assert list(method_of("gains").answers(server).clients) == ["bob", "cyd"]


def test_the_welcomed_newcomers_are_in_the_state() -> None:
    server, method = adapting("classes"), method_of("gains")
    assert method.welcomed(server) == []
    server.state.info["welcomed"] = ["ann"]
    assert method.welcomed(server) == ["ann"]


def test_the_mean_model_of_a_stage_answers_once_there_is_one() -> None:
    last, mean = (weights_of(PLAIN.build(3, Rng(seed))) for seed in (1, 2))
    method, x = method_of("gains"), torch.rand(5, 1, 8, 8)

    def logits_of(weights: dict[str, torch.Tensor]) -> torch.Tensor:
        return PLAIN.network(weights, 3, slot="expected").eval()(x).detach()

    for groups, expected in (({"model": last}, last), ({"model": last, "mean": mean}, mean)):
        answering = method.answers(adapting("classes", **groups))
        assert not answering.personal
        assert torch.equal(answering.predictor(None).predict(x).logits, logits_of(expected))


def test_discovered_classes_without_a_name_stand_for_those_that_they_cover() -> None:
    server = adapting("domain")
    server.classes.add("novel-1", "novel", 0)
    prediction = Prediction(torch.eye(3)[[0, 2, 2]], torch.zeros(3))
    outcome = Outcome(prediction, torch.tensor([0, 2, 2]), torch.tensor([0, -1, -1]), ["a", "x", "x"], (("x",),))
    assert method_of("gains").answers(server).truth(outcome).tolist() == [0, 2, 2]


# --- an output for unknown ------------------------------------------------------------------------------------


def test_an_output_for_unknown_stays_the_last_row(data: Dataset, tmp_path: Path) -> None:
    """Only the newcomer trains, in one round, so that all rows can be compared."""
    proser = {"objective": {"name": "proser"}}
    still: dict[str, Any] = {"rounds": 1, "epochs": 0, "new_rows": "newcomer", "rule": "fixed"}
    split = split_of(data, ann=rows_of(data, 3, 4))
    alone = run(tmp_path / "alone", data, split_of(data), parts=proser, **still, stages=0)
    before = alone.group("model")["head.weight"]
    after = run(tmp_path / "run", data, split, parts=proser, **still).group("model")["head.weight"]
    assert (len(before), len(after)) == (4, 6)
    assert torch.equal(after[[0, 1, 2, 5]], before)
    assert not torch.equal(after[3], after[4])
    trained = run(tmp_path / "trained", data, split, parts=proser)
    assert names(trained)[-1] == "class-4"
    assert events(tmp_path / "trained", "end")[0]["metrics"]["target_accuracy"] > 0.8
