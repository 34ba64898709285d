"""Curves over the rounds."""

from __future__ import annotations

from fedwild.core.errors import UserError
from fedwild.core.text import count
from fedwild.display.figures import OPEN_SET
from fedwild.results.report.charts.lines import Series, has_value, line_chart, many_lines
from fedwild.results.report.facts import Facts
from fedwild.results.report.figure import details, figure, grid
from fedwild.results.report.markup import Html, joined, tag

MAX_CLIENTS = 200
NEWCOMERS = {"target_accuracy": "newcomer", "source_accuracy": "others", "global_accuracy": "both"}


def draw(facts: Facts) -> Html:
    """Return loss and metrics by round, and the losses of all clients behind a summary."""
    rounds = facts.history.rounds
    if not rounds:
        raise UserError("no round is completed yet.")
    loss = Series("loss", [float(row.number) for row in rounds], [row.loss for row in rounds])
    figures = [
        figure(
            "Loss",
            lambda: line_chart([loss], "round", "loss", borders=facts.history.borders),
            "Mean training loss of the clients. Gaps are rounds without training or with a loss that is not finite.",
        ),
        figure(
            "Accuracy and open-set metrics", lambda: over_rounds(facts, OPEN_SET), "On test data, by evaluated round."
        ),
    ]
    if any(NEWCOMERS.keys() & row.metrics.keys() for row in facts.history.evaluated):
        about = "Accuracy on test data of the last newcomer (T-Acc), of all other clients (S-Acc), and of both (G-Acc)."
        figures.append(figure("Newcomer and other clients", lambda: over_rounds(facts, NEWCOMERS), about))
    return joined([grid(figures), clients_part(facts)])


def over_rounds(facts: Facts, names: dict[str, str]) -> Html:
    """Return curves of metrics, given by key with their labels, from the first round that has one of them."""
    rounds = [row for row in facts.history.evaluated if names.keys() & row.metrics.keys()]
    x = [float(row.number) for row in rounds]
    series = [Series(label, x, [row.metrics.get(key) for row in rounds]) for key, label in names.items()]
    borders = [border for border in facts.history.borders if x and border[0] >= x[0]]
    return line_chart(series, "round", "share", is_percent=True, borders=borders)


def clients_part(facts: Facts) -> Html:
    """Return the losses of all clients as thin lines, with a menu to highlight one of them."""
    losses = {
        name: client.losses
        for name, client in facts.history.clients.items()
        if any(map(has_value, client.losses.values()))
    }
    if not losses:
        return Html()
    names = list(losses)[:MAX_CLIENTS]
    series = [Series(name, list(map(float, losses[name])), list(losses[name].values())) for name in names]
    options = [tag("option", "all clients", value=""), *(tag("option", name, value=name) for name in names)]
    menu = tag("label", "Highlight ", tag("select", *options, class_="switch"), class_="needs-script")
    part = f" The first {MAX_CLIENTS} of {len(losses)} clients are shown." if len(losses) > MAX_CLIENTS else ""
    about = f"One line per client; its tooltip gives the name.{part}"
    chart = figure("Loss by client", lambda: many_lines(series, "round", "loss"), about, wide=True)
    return details(f"Loss by client ({count(len(losses), 'client')})", menu, chart, own_accuracy(facts))


def own_accuracy(facts: Facts) -> Html:
    """Return the closed accuracy of clients or domains on their own test data, if there is any."""
    rounds = [row for row in facts.history.evaluated if row.by]
    names = list(dict.fromkeys(name for row in rounds for name in row.by))[:MAX_CLIENTS]
    x = [float(row.number) for row in rounds]
    series = [Series(name, x, [row.by.get(name, {}).get("closed_accuracy") for row in rounds]) for name in names]
    if not any(has_value(y) for one in series for y in one.y):
        return Html()
    title, about = "Closed accuracy on own test data", "One line per client or domain."
    return figure(title, lambda: many_lines(series, "round", "closed accuracy"), about, wide=True)
