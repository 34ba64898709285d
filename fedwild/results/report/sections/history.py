"""What the log says: time and communication by phase, a row for each client, and events worth reading."""

from __future__ import annotations

from typing import Any

from fedwild.core.errors import UserError
from fedwild.core.text import duration, size
from fedwild.display.figures import OPEN_SET, figure_text
from fedwild.results.report.charts.bars import bar_chart
from fedwild.results.report.charts.lines import has_value
from fedwild.results.report.facts import Facts
from fedwild.results.report.figure import details, figure, grid, reason, table
from fedwild.results.report.history import ClientHistory
from fedwild.results.report.markup import Html, joined, tag
from fedwild.results.report.sections.overview import time_text

MAX_LINES = 200
MAX_OPEN = 12
"""Longer tables are closed at first."""
HEADER = ("client", "samples", "rounds", "failures", "last loss", "time", "up", "down")


def draw_costs(facts: Facts) -> Html:
    """Return bars of seconds and bytes for each phase, and a table of the numbers."""
    costs = facts.history.costs
    if not costs:
        raise UserError("no round is completed yet.")
    phases, rows = list(costs), list(costs.values())
    seconds = [
        ("training", [cost.training_seconds for cost in rows]),
        ("evaluation", [cost.evaluation_seconds for cost in rows]),
    ]
    sent = [
        ("up, to the server", [float(cost.bytes_up) for cost in rows]),
        ("down, to clients", [float(cost.bytes_down) for cost in rows]),
    ]
    about = "All rounds of a phase. Training includes sending and merging."
    if facts.history.first_index:
        about += " Rounds of the run that this one continues are not counted."
    figures = [
        figure("Time by phase", lambda: bar_chart(phases, seconds, "seconds by phase", duration), about),
        figure("Bytes by phase", lambda: bar_chart(phases, sent, "bytes by phase", size), "Size of the messages."),
    ]
    lines = [
        (
            phase,
            str(cost.rounds),
            f"{cost.training_seconds:.2f} s",
            f"{cost.evaluation_seconds:.2f} s",
            size(cost.bytes_up),
            size(cost.bytes_down),
        )
        for phase, cost in costs.items()
    ]
    header = ["phase", "rounds", "training", "evaluation", "up", "down"]
    return joined([grid(figures), details("Numbers", table(header, lines))])


def draw_events(facts: Facts) -> Html:
    """Return a table of the last events."""
    lines = [line for event in facts.history.events for line in lines_of(event)]
    if not lines:
        return reason("No notes and no failures; no client joined.")
    part = f"The last {MAX_LINES} of {len(lines)}; see events.jsonl for all." if len(lines) > MAX_LINES else ""
    rows = table(["time (UTC)", "round", "event"], lines[-MAX_LINES:], text_columns=3)
    return joined([tag("p", part, class_="note") if part else None, rows])


def lines_of(event: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return an event as lines of time, round and text; nothing for most events."""
    client, kind = event.get("client"), event.get("event")
    texts = {
        "note": [f"{event.get('text')}"],
        "client-failed": [f"{client} is excluded from this round: {event.get('reason')}"],
        "join": [f"{client} joins{' as a newcomer' if event.get('newcomer') else ''}"],
        "site-left": [f"{client} is disconnected"],
        "site-refused": [f"a site is rejected: {event.get('reason')}"],
        "skip": [f"{event.get('phase')} is skipped"],
        "resume": [f"resumed with round {int(event.get('next_index') or 0) + 1}"],
        "client": [f"{client}: {note}" for note in event.get("notes", [])],
    }.get(str(kind), [])
    number = str(event["index"] + 1) if isinstance(event.get("index"), int) else ""
    return [(time_text(event.get("time")), number, text) for text in texts]


def draw_clients(facts: Facts) -> Html:
    """Return tables of each client's training and costs, and of its metrics."""
    clients = facts.history.clients
    if not clients:
        raise UserError("no client has replied yet.")
    rows = [row_of(name, client) for name, client in clients.items()]
    parts = [details(f"Training and costs ({len(rows)})", table(HEADER, rows), is_open=len(rows) <= MAX_OPEN)]
    if facts.by:
        keys = [key for key in OPEN_SET if any(key in row for row in facts.by.values())]
        own = [(part, *(figure_text(key, row.get(key)) for key in keys)) for part, row in facts.by.items()]
        content = table(["client or domain", *(OPEN_SET[key] for key in keys)], own)
        parts.append(details(f"Metrics on own test data ({len(own)})", content, is_open=len(own) <= MAX_OPEN))
    return joined(parts)


def row_of(name: str, client: ClientHistory) -> tuple[str, ...]:
    losses = [loss for loss in client.losses.values() if has_value(loss)]
    return (
        name,
        "-" if client.samples is None else str(client.samples),
        str(len(client.rounds)),
        str(client.failures),
        f"{losses[-1]:.4g}" if losses else "-",
        f"{client.seconds:.1f} s",
        size(client.bytes_up),
        size(client.bytes_down),
    )
