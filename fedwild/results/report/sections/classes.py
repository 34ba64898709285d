"""Which classes are confused, a map of the embeddings, and which client holds which classes."""

from __future__ import annotations

import colorsys

import numpy as np
from numpy.typing import NDArray

from fedwild.core.errors import UserError
from fedwild.core.names import UNKNOWN_NAME
from fedwild.core.rng import Rng
from fedwild.lifecycle.run import Run
from fedwild.openset.metrics import UNKNOWN
from fedwild.results.pictures.features import MIN_SAMPLES, check_embeddings, drawn, map_embeddings
from fedwild.results.pictures.partition import Grid
from fedwild.results.report.answers import ModelAnswers
from fedwild.results.report.charts.heat import FEW, Heat, heat_map
from fedwild.results.report.charts.scatter import Cloud, scatter
from fedwild.results.report.facts import Facts
from fedwild.results.report.figure import figure, grid
from fedwild.results.report.markup import Html

MAX_BESIDE = 12
"""With more classes, the matrix takes the whole width of the page."""
Real = NDArray[np.float64]
SAMPLES, ITERATIONS = 300, 500
PALETTE = 10
"""The number of classes with a colour from the palette."""
MAX_NAMED = 16
"""With more classes, the legend has one entry for all known classes."""


def draw_answers(facts: Facts, answers: ModelAnswers) -> Html:
    """Return the confusion matrix and the feature map."""
    about_matrix = (
        "Rows are true classes, columns are answers; percentages of each row. All unknown classes share the row "
        f"{UNKNOWN_NAME}."
    )
    about_map = (
        f"Embeddings of up to {SAMPLES} test samples, projected by t-SNE. Neighbours stay close; large distances have "
        "no meaning. Dots are known classes, triangles novel classes, crosses unknown classes."
    )
    is_wide = len(answers.classes) > MAX_BESIDE
    return grid(
        [
            figure("Confusion matrix", lambda: confusion(answers), about_matrix, is_wide),
            figure("Feature map", lambda: feature_map(facts.run, answers), about_map),
        ]
    )


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


def feature_map(run: Run, answers: ModelAnswers) -> Html:
    places = drawn(np.arange(len(answers.rows)), SAMPLES, Rng(run.config.seed).child("report", "features"))
    if len(places) < MIN_SAMPLES:
        raise UserError(f"a map needs at least {MIN_SAMPLES} test samples, and there are {len(places)}.")
    x = run.experiment.dataset.x_test[answers.rows[places]]
    embeddings = run.embed(x, answers.client).flatten(1).double().numpy()
    check_embeddings(embeddings)
    # The map does not depend on the scale, and this scale avoids overflow.
    points = map_embeddings(embeddings / np.abs(embeddings).max(), run.config.seed % 2**32, ITERATIONS)
    return scatter(clouds(answers, places, points), "feature map")


def clouds(answers: ModelAnswers, places: NDArray[np.int64], points: Real) -> list[Cloud]:
    """Return known classes as dots, novel ones as triangles and unknown ones as crosses, which are drawn on top."""
    names = np.array(answers.true_names, dtype=object)[places]
    classes = answers.classes
    known = [name for name in classes if (names == name).any()]
    novel = np.array([name in answers.novel and name not in classes for name in names])
    rest = ~novel & ~np.isin(names, list(classes))
    found = [Cloud(name, points[names == name], "dot", colour(classes.index(name), len(classes))) for name in known]
    if len(known) > MAX_NAMED:
        found = [Cloud("known classes", points[~novel & ~rest], "dot", "var(--s0)")]
    found.append(Cloud("novel", points[novel], "triangle", "var(--ink)"))
    found.append(Cloud(UNKNOWN_NAME, points[rest], "cross", "var(--ink)"))
    return [cloud for cloud in found if len(cloud.points)]


def colour(number: int, count: int) -> str:
    """Return the colour of a class: from the palette, or one of `count` hues if there are more classes."""
    if count <= PALETTE:
        return f"var(--c{number})"
    red, green, blue = colorsys.hls_to_rgb(number / count, 0.5, 0.65)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"
