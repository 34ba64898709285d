"""FedOSS's boundary samples: how many there are, how far they are pushed, and what they look like."""

from __future__ import annotations

import numpy as np

from fedwild.display.run_display import size
from fedwild.data import samples_of
from fedwild.core.errors import UserError
from fedwild.methods.fedoss.method import FedOSS
from fedwild.core.text import cut
from fedwild.results.pictures.sheet import pixels
from fedwild.results.report.charts.bars import bar_chart
from fedwild.results.report.charts.lines import Series, line_chart
from fedwild.results.report.disputed import disputed
from fedwild.results.report.facts import Facts
from fedwild.results.report.figure import figure, grid
from fedwild.results.report.history import number_or_none
from fedwild.results.report.markup import Html
from fedwild.results.report.thumbs import Thumb, check_pictures, thumbs

PICTURES, NAME = 24, 12
SHEET = (
    "Training samples and the share of clients' heads that call them by their class; those that the heads are most "
    "divided about first. Found with the heads that clients ended with, among 1,000 samples at most."
)
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
            figure("What clients disagree about", lambda: sheet(facts), SHEET, wide=True),
        ]
    )


def sheet(facts: Facts) -> Html:
    """Training samples that the clients' last heads are divided about."""
    method, experiment = facts.experiment.method, facts.experiment
    if not isinstance(method, FedOSS) or not method.asks_heads:
        raise UserError("boundary samples are found without asking heads here, so there is no disagreement to show.")
    check_pictures(experiment.dataset.input_shape)
    found = disputed(facts.run, method)
    rows = found.rows[:PICTURES]
    if not len(rows):
        raise UserError(f"the clients' last heads are not divided about any of {found.looked_at} samples.")
    samples = samples_of(experiment.dataset, rows, data=facts.run.config.data)
    names = [experiment.dataset.classes[label] for label in experiment.dataset.y_train[rows].tolist()]
    shown = pixels(samples.all()[0], facts.run.config.data)
    return thumbs(
        [
            Thumb(picture, cut(name, NAME), f"{100 * share:.0f} % right", f"{name}, row {row} of the training data")
            for picture, name, row, share in zip(shown, names, rows.tolist(), found.shares, strict=False)
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
