"""A map of the model's embeddings of test samples."""

from __future__ import annotations

import colorsys
from inspect import signature

import numpy as np
from numpy.typing import NDArray
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from fedwild.core.errors import UserError
from fedwild.core.names import UNKNOWN_NAME
from fedwild.core.rng import Rng
from fedwild.lifecycle.run import Run
from fedwild.results.pictures.features import MIN_SAMPLES, check_embeddings, drawn, perplexity_for
from fedwild.results.report.answers import ModelAnswers
from fedwild.results.report.charts.scatter import Cloud, scatter
from fedwild.results.report.facts import Facts
from fedwild.results.report.figure import figure
from fedwild.results.report.markup import Html

Real = NDArray[np.float64]

SAMPLES, ITERATIONS = 300, 500
PALETTE = 10
"""The number of classes with a colour from the palette."""
MAX_NAMED = 16
"""With more classes, the legend has one entry for all known classes."""


def map_figure(facts: Facts, answers: ModelAnswers) -> Html:
    about = (
        f"Embeddings of up to {SAMPLES} test samples, projected by t-SNE. Neighbours stay close; large distances have "
        "no meaning. Dots are known classes, triangles novel classes, crosses unknown classes."
    )
    return figure("Feature map", lambda: feature_map(facts.run, answers), about)


def feature_map(run: Run, answers: ModelAnswers) -> Html:
    places = drawn(np.arange(len(answers.rows)), SAMPLES, Rng(run.config.seed).child("report", "features"))
    if len(places) < MIN_SAMPLES:
        raise UserError(f"a map needs at least {MIN_SAMPLES} test samples, and there are {len(places)}.")
    x = run.experiment.dataset.x_test[answers.rows[places]]
    embeddings = run.embed(x, answers.client).flatten(1).double().numpy()
    check_embeddings(embeddings)
    return scatter(clouds(answers, places, project(embeddings, run.config.seed)), "feature map")


def project(embeddings: Real, seed: int) -> Real:
    """Return points (n, 2) by a short t-SNE."""
    # The map does not depend on the scale, and this scale avoids overflow.
    scaled = embeddings / np.abs(embeddings).max()
    wide = np.pad(scaled, ((0, 0), (0, max(0, 2 - scaled.shape[1]))))
    # The name of this setting depends on the version of scikit-learn.
    iterations = "max_iter" if "max_iter" in signature(TSNE).parameters else "n_iter"
    tsne = TSNE(init="pca", perplexity=perplexity_for(len(wide)), random_state=seed % 2**32, **{iterations: ITERATIONS})
    with threadpool_limits(1):
        points: Real = tsne.fit_transform(wide).astype(np.float64)
    return points


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
