"""Curves over the rounds."""

from __future__ import annotations

from collections.abc import Sequence

from fedwild.core.errors import UserError
from fedwild.results.report.charts.lines import Series, has, line_chart, many_lines
from fedwild.results.report.facts import Facts
from fedwild.results.report.figure import details, figure, grid
from fedwild.results.report.history import Round
from fedwild.results.report.markup import Html, joined, tag

MAX_CLIENTS = 200
OPEN = {"closed_accuracy": "closed accuracy", "auroc": "AUROC", "oscr": "OSCR", "open_macro_f1": "open macro-F1"}


def draw(facts: Facts) -> Html:
    """Loss and figures per round; each client's loss on demand."""
    rounds, borders = facts.history.rounds, facts.history.borders
    if not rounds:
        raise UserError("no round is finished yet.")
    numbers = [float(row.number) for row in rounds]
    losses = [row.loss for row in rounds]
    figures = [
        figure(
            "Loss",
            lambda: line_chart([Series("loss", numbers, losses)], "round", "loss", borders=borders),
            "Mean of the clients' training losses. Gaps: rounds without training, or no finite loss.",
        ),
        figure(
            "Accuracy and open-set figures",
            lambda: over_rounds(facts.history.measured, OPEN, borders),
            "On the test data, after each round that was evaluated.",
        ),
    ]
    return joined([grid(figures), clients_part(facts)])


def over_rounds(rounds: Sequence[Round], names: dict[str, str], borders: Sequence[tuple[float, str]]) -> Html:
    """Figures of these names, since the first round that has any of them."""
    rounds = [row for row in rounds if names.keys() & row.metrics.keys()]
    x = [float(row.number) for row in rounds]
    series = [Series(label, x, [row.metrics.get(key) for row in rounds]) for key, label in names.items()]
    first = x[0] if x else 0.0
    return line_chart(series, "round", "share", percent=True, borders=[b for b in borders if b[0] >= first])


def clients_part(facts: Facts) -> Html:
    """All clients' losses as thin lines, with a switch to bring one out."""
    told = {
        name: record.losses
        for name, record in facts.history.clients.items()
        if any(has(loss) for loss in record.losses.values())
    }
    if not told:
        return Html()
    names = list(told)[:MAX_CLIENTS]
    series = [Series(name, list(map(float, told[name])), list(told[name].values())) for name in names]
    options = [tag("option", "all clients", value=""), *(tag("option", name, value=name) for name in names)]
    switch = tag("label", "Bring out ", tag("select", *options, class_="switch"), class_="needs-script")
    part = f" The first {MAX_CLIENTS} of {len(told)} are drawn." if len(told) > MAX_CLIENTS else ""
    about = f"One line for each client; its name shows when pointed at.{part}"
    chart = figure("Loss by client", lambda: many_lines(series, "round", "loss"), about, wide=True)
    return details(f"Loss of each of the {len(told)} clients", switch, chart, own_accuracy(facts))


def own_accuracy(facts: Facts) -> Html:
    """Closed accuracy on own test data, where clients or domains have some."""
    rounds = [row for row in facts.history.measured if row.by]
    names = list(dict.fromkeys(name for row in rounds for name in row.by))[:MAX_CLIENTS]
    x = [float(row.number) for row in rounds]
    series = [Series(name, x, [row.by.get(name, {}).get("closed_accuracy") for row in rounds]) for name in names]
    if not any(has(y) for one in series for y in one.y):
        return Html()
    title, about = "Closed accuracy on own test data", "Each client's, or each domain's."
    return figure(title, lambda: many_lines(series, "round", "closed accuracy"), about, wide=True)
