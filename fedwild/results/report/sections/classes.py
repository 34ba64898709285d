"""Which classes are confused, and which client holds which classes."""

from __future__ import annotations

import numpy as np

from fedwild.core.names import UNKNOWN_NAME
from fedwild.openset.metrics import UNKNOWN
from fedwild.results.pictures.partition import Grid
from fedwild.results.report.answers import ModelAnswers
from fedwild.results.report.charts.heat import FEW, Heat, heat_map
from fedwild.results.report.facts import Facts
from fedwild.results.report.figure import figure, grid
from fedwild.results.report.markup import Html
from fedwild.results.report.sections.features import map_figure
from fedwild.results.report.sections.views import for_each_view

MAX_BESIDE = 12
"""With more classes, the matrix takes the whole width of the page."""


def draw_answers(facts: Facts) -> Html:
    """Return the confusion matrix and the feature map of each model that is shown."""
    return for_each_view(facts, lambda answers: grid([confusion_figure(answers), map_figure(facts, answers)]))


def confusion_figure(answers: ModelAnswers) -> Html:
    about = (
        "Rows are true classes, columns are answers; percentages of each row. All unknown classes share the row "
        f"{UNKNOWN_NAME}."
    )
    return figure("Confusion matrix", lambda: confusion(answers), about, wide=len(answers.classes) > MAX_BESIDE)


def confusion(answers: ModelAnswers) -> Html:
    rows, counts = confusion_counts(answers)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    digits = 1 if len(answers.classes) < FEW else 0
    texts = [[f"{100 * share:.{digits}f}" if share else "" for share in line] for line in shares.tolist()]
    columns = [*answers.classes, UNKNOWN_NAME]
    return heat_map(Heat(rows, columns, shares, texts, "true class / answer", last_apart=True), "confusion matrix")


def confusion_counts(answers: ModelAnswers) -> tuple[list[str], np.ndarray]:
    """Return the names of rows and the counts (rows, K + 1) of true classes by answer.

    Novel classes have rows under their true names.
    """
    tested = set(answers.true_names)
    known = [name for name in answers.classes if name in tested]
    novel = sorted(tested & answers.novel - set(answers.classes))
    rows = [*known, *novel, UNKNOWN_NAME]
    places = {name: number for number, name in enumerate(rows[:-1])}
    true = np.array([places.get(name, len(rows) - 1) for name in answers.true_names], dtype=np.int64)
    answer = np.where(answers.decision == UNKNOWN, len(answers.classes), answers.decision)
    width = len(answers.classes) + 1
    counts = np.bincount(true * width + answer, minlength=len(rows) * width)
    return rows, counts.reshape(len(rows), width)


def draw_data(facts: Facts) -> Html:
    """Return the number of samples of each class that each client holds."""
    about = "Training, validation and unlabelled samples. ? marks novel classes, + classes that newcomers bring."
    return grid([figure("Samples by class and client", lambda: data_map(facts), about, wide=True)])


def data_map(facts: Facts) -> Html:
    held = Grid.of(facts.experiment.dataset, facts.experiment.split)
    # The square root keeps small counts visible.
    shades = (held.counts / max(1, int(held.counts.max(initial=0)))) ** 0.5
    texts = [[str(count) if count else "" for count in row] for row in held.counts.tolist()]
    return heat_map(Heat(held.rows, held.columns, shades, texts, "client / class"), "samples by class and client")
