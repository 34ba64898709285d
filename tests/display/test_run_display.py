"""The display of a run: figures, tables and progress."""

from __future__ import annotations

import io
import math
from typing import Any

import pytest
from rich.console import Console

from fedwild.display.figures import figure_text, shown_figures
from fedwild.display.run_display import RunDisplay, metrics_table, result_figures, result_table

RESULT = {
    "method": "fedavg",
    "data": "digits",
    "clients": 10,
    "rounds": 20,
    "metrics": {"closed_accuracy": 0.953, "auroc": None, "oscr": math.nan, "open_macro_f1": 0.5},
    "seconds": 12.34,
    "bytes_up": 1_234_567,
    "bytes_down": 999,
}


def printed(thing: Any, width: int = 200) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width).print(thing)
    return stream.getvalue()


def events(clients: int = 2, rounds: int = 2) -> list[dict[str, Any]]:
    log: list[dict[str, Any]] = [
        {"event": "folder", "path": "runs/[x]-001"},
        {"event": "start", "next_index": 0, "rounds": rounds, "phases": [["train", rounds]]},
    ]
    for index in range(rounds):
        log.append({"event": "round-start", "phase": "train", "round": index, "index": index, "clients": clients})
        for number in range(clients):
            log.append({"event": "client-start", "client": f"c{number}", "index": index})
            log.append({"event": "client", "client": f"c{number}", "seconds": 0.5, "info": {"samples": 7, "loss": 1.5}})
        log.append({"event": "note", "index": index, "text": "no problems"})
        log.append(
            {
                "event": "round",
                "phase": "train",
                "index": index,
                "loss": 0.25,
                "metrics": {"closed_accuracy": 0.5, "auroc": None},
                "seconds": 1.0,
                "evaluation_seconds": 0.5,
            }
        )
    log.append({"event": "end", "metrics": {}})
    return log


def displayed(log: list[dict[str, Any]], quiet: bool = False, terminal: bool = False) -> str:
    stream = io.StringIO()
    with RunDisplay(Console(file=stream, force_terminal=terminal, width=120), quiet) as display:
        for event in log:
            display(event)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("auroc", 0.12345, "12.3 %"),
        ("auroc", None, "-"),
        ("auroc", math.nan, "-"),
        ("novel_accuracy", 0.25, "25.0 %"),
        ("accuracy_top_3", 0.25, "25.0 %"),
        ("number_found", 3.0, "3"),
        ("number_found", None, "-"),
        ("width", 1.234, "1.23"),
        ("some_method_figure", 0.5, "0.50"),
    ],
)
def test_shares_are_percentages_and_other_figures_plain_numbers(key: str, value: float | None, text: str) -> None:
    assert figure_text(key, value) == text


def test_figures_of_discovery_and_newcomers_are_shown_only_where_they_are_measured() -> None:
    usual = ["closed_accuracy", "auroc", "oscr", "open_macro_f1"]
    assert list(shown_figures({"auroc": 0.5, "hos": 0.1})) == usual
    assert list(shown_figures({"number_found": 2.0, "target_accuracy": 0.5})) == [
        *usual,
        "number_found",
        "target_accuracy",
    ]
    assert "newcomer" in result_figures({**RESULT, "metrics": {"target_accuracy": 0.5}})


def test_result_table_shows_the_figures_with_dashes_for_undefined_ones() -> None:
    text = printed(result_table(RESULT))
    assert "fedavg on digits, 10 clients, 20 rounds" in text
    for figure in ("95.3 %", "50.0 %", "12.3 s", "1.2 MB", "999 B", "closed accuracy", "AUROC", "OSCR"):
        assert figure in text
    assert text.count(" - ") == 2
    assert "nan" not in text.lower()


def test_result_table_shows_names_with_brackets_as_they_are() -> None:
    assert "my[bold]data.npz" in printed(result_table({**RESULT, "data": "my[bold]data.npz"}))


def test_metrics_table_has_a_column_per_client_and_dashes_for_undefined_figures() -> None:
    text = printed(metrics_table({"auroc": math.nan, "oscr": 0.25}, {"site-a": {"auroc": 0.5}, "site-b": {}}))
    assert "site-a" in text and "site-b" in text
    row = next(line for line in text.splitlines() if "auroc" in line)
    assert "50.0 %" in row
    assert row.count(" - ") == 2
    assert "nan" not in text.lower()


def test_metrics_table_of_many_clients_shows_only_the_figures_of_all() -> None:
    text = printed(metrics_table({"oscr": 0.25}, {f"site-{i}": {"oscr": 0.5} for i in range(9)}))
    assert "site-0" not in text
    assert "25.0 %" in text


def test_metrics_table_shows_client_names_with_brackets_as_they_are() -> None:
    text = printed(metrics_table({"oscr": 0.25}, {"[bold]": {"oscr": 0.5}, "[/x]": {}}))
    assert "[bold]" in text
    assert "[/x]" in text


def test_without_a_terminal_there_is_a_line_per_round_and_per_client() -> None:
    lines = displayed(events(clients=2, rounds=3)).splitlines()
    assert lines[0] == "run folder runs/[x]-001"
    rounds = [line for line in lines if line.startswith("round ")]
    assert rounds == [f"round {i}/3 train: loss 0.2500, closed accuracy 50.0 %, AUROC - (1.5 s)" for i in (1, 2, 3)]
    clients = [line for line in lines if line.startswith("  c")]
    assert clients[:2] == ["  c0: 7 samples, loss 1.500, 0.50 s (1/2)", "  c1: 7 samples, loss 1.500, 0.50 s (2/2)"]
    assert len(clients) == 6
    assert lines.count("  note: no problems") == 3


def test_without_a_terminal_nothing_moves_the_cursor() -> None:
    assert "\x1b" not in displayed(events())


def test_with_many_clients_only_the_rounds_are_printed() -> None:
    lines = displayed(events(clients=21, rounds=2)).splitlines()
    assert not [line for line in lines if line.startswith("  c")]
    assert len([line for line in lines if line.startswith("round ")]) == 2


def test_quiet_prints_nothing() -> None:
    assert displayed(events(), quiet=True) == ""
    assert displayed(events(), quiet=True, terminal=True) == ""


def test_a_terminal_gets_a_line_of_progress_and_still_a_line_per_round() -> None:
    text = displayed(events(), terminal=True)
    assert "round 2/2 train: loss 0.2500" in text
    assert "\x1b[" in text
    assert " left" in text
    assert "c0: 7 samples" not in text


def test_waiting_for_sites_is_a_line_of_progress_on_a_terminal_and_a_plain_line_elsewhere() -> None:
    log = [{"event": "waiting", "sites": 2}]
    assert displayed(log) == "waiting for 2 sites\n"
    assert "waiting for 2 sites" in displayed(log, terminal=True)
    assert " left" in displayed(log, terminal=True)


def test_an_excluded_client_is_shown_with_the_reason() -> None:
    log = events()
    log[4] = {"event": "client-failed", "client": "c0", "index": 0, "reason": "bad reply: [nonsense]"}
    assert "  c0 is excluded from this round: bad reply: [nonsense]" in displayed(log)


def test_a_clients_notes_are_shown() -> None:
    log = events()
    log[4]["notes"] = ["nothing to learn from"]
    assert "  c0: nothing to learn from" in displayed(log).splitlines()


def test_a_resumed_run_shows_its_next_round() -> None:
    assert "resuming at round 6 of 9" in displayed(
        [{"event": "resume", "next_index": 5, "rounds": 9, "phases": [["train", 4]]}]
    )


def test_a_skipped_round_is_shown() -> None:
    log: list[dict[str, Any]] = [{"event": "start", "next_index": 0, "rounds": 3, "phases": [["distil", 3]]}]
    log.append({"event": "skip", "index": 1, "phase": "distil"})
    assert "round 2/3 distil: not needed" in displayed(log)


def test_a_client_without_a_loss_and_a_round_without_figures_are_shown() -> None:
    log = events(clients=1, rounds=1)
    log[4]["info"]["loss"] = None
    log[6].update(loss=None, metrics=None)
    lines = displayed(log).splitlines()
    assert "  c0: 7 samples, 0.50 s (1/1)" in lines
    assert "round 1/1 train: done (1.5 s)" in lines


def test_an_unknown_event_is_ignored() -> None:
    assert displayed([{"event": "moon-phase"}]) == ""
