"""Client by client, and domain by domain where there are several."""

from __future__ import annotations

from fedwild.display.run_display import figure as shown_figure
from fedwild.display.run_display import size
from fedwild.core.errors import UserError
from fedwild.results.report.charts.lines import has
from fedwild.results.report.facts import Facts
from fedwild.results.report.figure import table
from fedwild.results.report.history import ClientRecord
from fedwild.results.report.markup import Html, joined, tag
from fedwild.results.report.sections.progress import OPEN

FEW = 12
"""Longer tables open on demand."""


def draw(facts: Facts) -> Html:
    """Tables of what each client trained and cost, and of its own figures."""
    records = facts.history.clients
    if not records:
        raise UserError("no client has answered yet.")
    headings = ["client", "samples", "rounds", "failures", "last loss", "time", "up", "down"]
    parts = [folded("What clients did", table(headings, [line(name, records[name]) for name in records]), len(records))]
    if facts.by:
        names = [key for key in OPEN if any(key in row for row in facts.by.values())]
        rows = [(part, *(shown_figure(key, row.get(key)) for key in names)) for part, row in facts.by.items()]
        own = table(["client or domain", *(OPEN[key] for key in names)], rows)
        parts.append(folded("Figures on own test data", own, len(rows)))
    return joined(parts)


def line(name: str, record: ClientRecord) -> tuple[str, ...]:
    """A client in a row of the table."""
    losses = [loss for loss in record.losses.values() if loss is not None and has(loss)]
    return (
        name,
        "–" if record.samples is None else str(record.samples),
        str(len(record.infos)),
        str(record.failures),
        f"{losses[-1]:.4g}" if losses else "–",
        f"{record.seconds:.1f} s",
        size(record.bytes_up),
        size(record.bytes_down),
    )


def folded(summary: str, content: Html, rows: int) -> Html:
    """A long table behind its heading."""
    return tag("details", tag("summary", f"{summary} ({rows})"), content, open=rows <= FEW)
