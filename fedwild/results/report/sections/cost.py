"""Time and communication by phase."""

from __future__ import annotations

from fedwild.core.errors import UserError
from fedwild.core.text import duration, size
from fedwild.results.report.charts.bars import bar_chart
from fedwild.results.report.facts import Facts
from fedwild.results.report.figure import details, figure, grid, table
from fedwild.results.report.markup import Html, joined


def draw(facts: Facts) -> Html:
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
