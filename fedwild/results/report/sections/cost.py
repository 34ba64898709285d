"""What the run cost: time and bytes, phase by phase."""

from __future__ import annotations

from fedwild.display.run_display import size
from fedwild.core.errors import UserError
from fedwild.display.progress import duration
from fedwild.results.report.charts.bars import bar_chart
from fedwild.results.report.facts import Facts
from fedwild.results.report.figure import details, figure, grid, table
from fedwild.results.report.markup import Html, joined


def draw(facts: Facts) -> Html:
    """Bars of seconds and of bytes for each phase, and the figures behind them."""
    costs = facts.history.costs
    if not costs:
        raise UserError("no round is finished yet.")
    phases, rows = list(costs), list(costs.values())
    seconds = [
        ("training", [cost.train_seconds for cost in rows]),
        ("evaluation", [cost.evaluation_seconds for cost in rows]),
    ]
    sent = [
        ("up, to the server", [float(cost.bytes_up) for cost in rows]),
        ("down, to clients", [float(cost.bytes_down) for cost in rows]),
    ]
    about = "All rounds of a phase together; training is with sending and merging."
    if facts.history.first_index:
        about += " Rounds of the run that this one goes on from are not counted."
    figures = [
        figure("Time by phase", lambda: bar_chart(phases, seconds, "seconds by phase", duration), about),
        figure("Bytes by phase", lambda: bar_chart(phases, sent, "bytes by phase", size), "As payloads are sent."),
    ]
    lines = [
        (
            phase,
            str(cost.rounds),
            f"{cost.train_seconds:.2f} s",
            f"{cost.evaluation_seconds:.2f} s",
            size(cost.bytes_up),
            size(cost.bytes_down),
        )
        for phase, cost in costs.items()
    ]
    headings = ["phase", "rounds", "training", "evaluation", "up", "down"]
    return joined([grid(figures), details("The same in figures", table(headings, lines))])
