"""Which classes are taken for which, and who holds which."""

from __future__ import annotations

import numpy as np

from fedwild.core.classes import UNKNOWN_NAME
from fedwild.results.pictures.dealing import class_counts
from fedwild.openset.metrics import UNKNOWN
from fedwild.results.report.charts.heat import FEW, Heat, heat_map
from fedwild.results.report.facts import Facts
from fedwild.results.report.figure import figure, grid
from fedwild.results.report.markup import Html
from fedwild.results.report.sections.features import map_figure
from fedwild.results.report.sections.views import for_each_view
from fedwild.results.report.seen import Seen

MAX_BESIDE = 12
"""With more classes than this the matrix needs the page's whole width."""


def draw_answers(facts: Facts) -> Html:
    """The confusion matrix of each model that is shown, and the map of its embeddings."""
    return for_each_view(facts, lambda _, seen: grid([confusion_figure(seen), map_figure(facts, seen)]))


def confusion_figure(seen: Seen) -> Html:
    about = (
        "Rows are true classes, columns answers; per cent of the row. Unknown classes are one row; the answer "
        f"{UNKNOWN_NAME} is what scores above the threshold."
    )
    return figure("Confusion matrix", lambda: confusion(seen), about, wide=len(seen.classes) > MAX_BESIDE)


def confusion(seen: Seen) -> Html:
    rows, counts = confusion_counts(seen)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    digits = 1 if len(seen.classes) < FEW else 0
    texts = [[f"{100 * share:.{digits}f}" if share else "" for share in line] for line in shares.tolist()]
    heat = Heat(rows, [*seen.classes, UNKNOWN_NAME], shares, texts, "true class", "answer", apart=True)
    return heat_map(heat, "confusion matrix")


def confusion_counts(seen: Seen) -> tuple[list[str], np.ndarray]:
    """Names of rows, and how often each true class got which answer; novel classes have rows under their true names."""
    there = set(seen.true_names)
    known = [name for name in seen.classes if name in there]
    novel = sorted(there & seen.novel - set(seen.classes))
    rows = [*known, *novel, UNKNOWN_NAME]
    places = {name: number for number, name in enumerate(rows[:-1])}
    true = np.array([places.get(name, len(rows) - 1) for name in seen.true_names], dtype=np.int64)
    answer = np.where(seen.decision == UNKNOWN, len(seen.classes), seen.decision)
    width = len(seen.classes) + 1
    counts = np.bincount(true * width + answer, minlength=len(rows) * width)
    return rows, counts.reshape(len(rows), width)


def draw_data(facts: Facts) -> Html:
    """Who holds how many samples of which class."""
    about = "Training, validation and unlabelled samples. ? marks novel classes, + those that newcomers bring."
    return grid([figure("Samples by class and client", lambda: data_picture(facts), about, wide=True)])


def data_picture(facts: Facts) -> Html:
    dataset, split = facts.experiment.dataset, facts.experiment.split
    held = dict.fromkeys(name for client in split.clients for name in client.known)
    brought = [name for name in held if name not in split.known and name not in split.novel]
    names = [*split.known, *split.novel, *brought]
    counts = class_counts(dataset, split)[:, [dataset.classes.index(name) for name in names]]
    # The square root shows small counts beside large ones.
    shades = (counts / max(1, int(counts.max(initial=0)))) ** 0.5
    columns = [*split.known, *(f"{name}?" for name in split.novel), *(f"{name}+" for name in brought)]
    texts = [[str(count) if count else "" for count in row] for row in counts.tolist()]
    rows = [client.name for client in split.clients]
    return heat_map(Heat(rows, columns, shades, texts, "client", "class"), "samples by class and client")
