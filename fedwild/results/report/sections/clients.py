"""Tables with a row for each client or domain."""

from __future__ import annotations

from fedwild.core.errors import UserError
from fedwild.core.text import size
from fedwild.display.figures import OPEN_SET, figure_text
from fedwild.results.report.charts.lines import has_value
from fedwild.results.report.facts import Facts
from fedwild.results.report.figure import details, table
from fedwild.results.report.history import ClientHistory
from fedwild.results.report.markup import Html, joined

MAX_OPEN = 12
"""Longer tables are closed at first."""
HEADER = ("client", "samples", "rounds", "failures", "last loss", "time", "up", "down")


def draw(facts: Facts) -> Html:
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
