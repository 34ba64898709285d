"""FedOSS's boundary samples: how many there are, and how far they are pushed."""

from __future__ import annotations

import numpy as np

from fedwild.console import size
from fedwild.report.charts.bars import bar_chart
from fedwild.report.charts.lines import Series, line_chart
from fedwild.report.facts import Facts
from fedwild.report.figure import figure, grid
from fedwild.report.history import number_or_none
from fedwild.report.markup import Html

KINDS = {"model_bytes": "model", "head_bytes": "personal head", "statistics_bytes": "statistics"}


def concerns(facts: Facts) -> bool:
    return any("boundary" in info for record in facts.history.clients.values() for info in record.infos.values())


def draw(facts: Facts) -> Html:
    """The clients' mean, least and largest, round by round, and what their replies consist of."""
    return grid(
        [
            figure(
                "Boundary samples",
                lambda: spread(facts, "boundary", "share of samples", True),
                "Share of a client's samples at which the clients' heads disagree.",
            ),
            figure(
                "Displacement",
                lambda: spread(facts, "displacement", "lengths", False),
                "How far boundary samples are pushed, in their own lengths.",
            ),
            figure("Replies", lambda: replies(facts), "Bytes of all clients' replies together."),
        ]
    )


def told(facts: Facts, key: str) -> dict[int, list[float]]:
    """What clients told under a key, by number of the round."""
    values: dict[int, list[float]] = {}
    for record in facts.history.clients.values():
        for number, info in record.infos.items():
            value = number_or_none(info.get(key))
            if value is not None:
                values.setdefault(number, []).append(value)
    return dict(sorted(values.items()))


def spread(facts: Facts, key: str, name: str, percent: bool) -> Html:
    rows = told(facts, key)
    x = [float(number) for number in rows]
    kinds = (("mean of the clients", np.mean), ("least", np.min), ("largest", np.max))
    series = [Series(label, x, [float(of(values)) for values in rows.values()]) for label, of in kinds]
    return line_chart(series, "round", name, percent=percent)


def replies(facts: Facts) -> Html:
    sums = {name: sum(sum(values) for values in told(facts, key).values()) for key, name in KINDS.items()}
    return bar_chart(list(sums), [("bytes up", list(sums.values()))], "bytes of replies by kind", size)
