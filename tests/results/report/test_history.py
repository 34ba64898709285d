"""What a log says, put in order."""

from __future__ import annotations

from typing import Any

from fedwild.results.report.history import History


def client(index: int, name: str, loss: Any, phase: str = "train", **more: Any) -> dict[str, Any]:
    info = {"samples": 10, "loss": loss}
    return {"event": "client", "index": index, "client": name, "phase": phase, "info": info, **more}


EVENTS: list[dict[str, Any]] = [
    {"event": "start", "next_index": 0, "rounds": 3},
    client(0, "b", 2.0, seconds=1.5, bytes_up=10, bytes_down=20),
    client(0, "a", None, seconds=0.5, bytes_up=1, bytes_down=2),
    {"event": "round", "index": 0, "phase": "train", "loss": 2.0, "seconds": 2, "evaluation_seconds": 1},
    {"event": "client-failed", "index": 1, "client": "a", "phase": "tune", "seconds": 1, "bytes_down": 5},
    client(1, "b", "hostile", "tune", bytes_up=100, bytes_down=200),
    {"event": "round", "index": 1, "phase": "tune", "loss": None, "seconds": 4, "metrics": {"auroc": 0.5}, "by": {}},
    {"event": "skip", "index": 2, "phase": "judge"},
]


def test_rounds_count_from_one_and_only_measured_ones_have_figures() -> None:
    history = History(EVENTS)
    assert [row.number for row in history.rounds] == [1, 2]
    assert [row.number for row in history.measured] == [2]
    assert (history.done, history.planned) == (3, 3)
    assert history.borders == [(1.0, "train"), (2.0, "tune")]


def test_clients_come_by_name_with_their_losses_and_costs() -> None:
    clients = History(EVENTS).clients
    assert list(clients) == ["a", "b"]
    assert clients["a"].losses == {1: None}
    assert clients["a"].failures == 1
    assert clients["a"].bytes_down == 7
    assert clients["b"].losses == {1: 2.0, 2: None}, "what is no number is no loss"


def test_costs_add_up_by_phase() -> None:
    costs = History(EVENTS).costs
    assert (costs["train"].train_seconds, costs["train"].evaluation_seconds) == (2, 1)
    assert (costs["train"].bytes_up, costs["train"].bytes_down) == (11, 22)
    assert (costs["tune"].bytes_up, costs["tune"].bytes_down) == (100, 205)


def test_an_empty_log_is_no_error() -> None:
    history = History([])
    assert (history.rounds, history.clients, history.done, history.planned, history.borders) == ([], {}, 0, 0, [])


def test_rounds_of_the_run_before_cost_this_one_nothing() -> None:
    costs = History(EVENTS, first_index=1).costs
    assert list(costs) == ["tune"]
    assert (costs["tune"].rounds, costs["tune"].train_seconds) == (1, 4)
    assert (costs["tune"].bytes_up, costs["tune"].bytes_down) == (100, 205)


def test_rounds_of_the_run_before_cost_its_clients_nothing() -> None:
    clients = History(EVENTS, first_index=1).clients
    assert (clients["b"].bytes_up, clients["b"].seconds) == (100, 0)
    assert clients["b"].losses[1] == 2.0
    assert (clients["a"].bytes_down, clients["a"].failures) == (5, 1)
