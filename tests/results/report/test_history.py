"""The log of a run by rounds, clients and phases."""

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


def test_rounds_count_from_1_and_only_evaluated_ones_have_metrics() -> None:
    history = History(EVENTS)
    assert [row.number for row in history.rounds] == [1, 2]
    assert [row.number for row in history.evaluated] == [2]
    assert (history.done, history.planned) == (3, 3)
    assert history.borders == [(1.0, "train"), (2.0, "tune")]


def test_clients_are_sorted_and_have_losses_and_costs() -> None:
    clients = History(EVENTS).clients
    assert list(clients) == ["a", "b"]
    assert clients["a"].losses == {1: None}
    assert clients["a"].failures == 1
    assert clients["a"].bytes_down == 7
    assert clients["b"].losses == {1: 2.0, 2: None}, "a loss that is not a number is ignored"
    assert (clients["a"].rounds, clients["b"].rounds) == ({1}, {1, 2})


def test_costs_add_up_by_phase() -> None:
    costs = History(EVENTS).costs
    assert (costs["train"].training_seconds, costs["train"].evaluation_seconds) == (2, 1)
    assert (costs["train"].bytes_up, costs["train"].bytes_down) == (11, 22)
    assert (costs["tune"].bytes_up, costs["tune"].bytes_down) == (100, 205)


def test_empty_log() -> None:
    history = History([])
    assert (history.rounds, history.clients, history.done, history.planned, history.borders) == ([], {}, 0, 0, [])


def test_costs_exclude_rounds_of_the_run_that_is_continued() -> None:
    costs = History(EVENTS, first_index=1).costs
    assert list(costs) == ["tune"]
    assert (costs["tune"].rounds, costs["tune"].training_seconds) == (1, 4)
    assert (costs["tune"].bytes_up, costs["tune"].bytes_down) == (100, 205)


def test_costs_of_clients_exclude_rounds_of_the_run_that_is_continued() -> None:
    clients = History(EVENTS, first_index=1).clients
    assert (clients["b"].bytes_up, clients["b"].seconds) == (100, 0)
    assert clients["b"].losses[1] == 2.0
    assert (clients["a"].bytes_down, clients["a"].failures) == (5, 1)
