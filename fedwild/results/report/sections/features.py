"""Where the model puts samples: a map of their embeddings."""

from __future__ import annotations

import colorsys
from inspect import signature
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from fedwild.core.classes import UNKNOWN_NAME
from fedwild.core.errors import UserError
from fedwild.results.pictures.features import MIN_SAMPLES, check_embeddings, drawn, perplexity_for
from fedwild.results.report.charts.scatter import Cloud, scatter
from fedwild.results.report.facts import Facts
from fedwild.results.report.figure import figure
from fedwild.results.report.markup import Html
from fedwild.results.report.seen import Seen
from fedwild.core.rng import Rng

if TYPE_CHECKING:
    from fedwild.api import Run

Real = NDArray[np.float64]

SAMPLES, ITERATIONS = 300, 500
PALETTE = 10
"""So many classes have a colour of the page's own."""
MAX_NAMED = 16
"""With more classes than this the key has one entry for all of them."""


def map_figure(facts: Facts, seen: Seen) -> Html:
    """The map, or why there is none."""
    about = (
        f"Embeddings of up to {SAMPLES} test samples by t-SNE: neighbours stay near each other, far distances mean "
        "nothing. Dots are known classes, triangles novel and crosses unknown ones."
    )
    return figure("Feature map", lambda: feature_map(facts.run, seen), about)


def feature_map(run: Run, seen: Seen) -> Html:
    places = drawn(np.arange(len(seen.rows)), SAMPLES, Rng(run.config.seed).child("report", "features"))
    if len(places) < MIN_SAMPLES:
        raise UserError(f"a map takes at least {MIN_SAMPLES} test samples, and there are {len(places)}.")
    embeddings = run.embed(run.experiment.dataset.x_test[seen.rows[places]], seen.client).flatten(1).double().numpy()
    check_embeddings(embeddings)
    return scatter(clouds(seen, places, on_a_map(embeddings, run.config.seed)), "feature map")


def on_a_map(embeddings: Real, seed: int) -> Real:
    """Points (n, 2) by a short t-SNE."""
    # The map does not depend on the scale, and at this one nothing overflows.
    scaled = embeddings / np.abs(embeddings).max()
    wide = np.pad(scaled, ((0, 0), (0, max(0, 2 - scaled.shape[1]))))
    # The name of this setting differs between versions of scikit-learn.
    iterations = "max_iter" if "max_iter" in signature(TSNE).parameters else "n_iter"
    tsne = TSNE(init="pca", perplexity=perplexity_for(len(wide)), random_state=seed % 2**32, **{iterations: ITERATIONS})
    with threadpool_limits(1):
        points: Real = tsne.fit_transform(wide).astype(np.float64)
    return points


def clouds(seen: Seen, places: NDArray[np.int64], points: Real) -> list[Cloud]:
    """Known classes as dots, novel ones as triangles, unknown ones as crosses, which come last and so on top."""
    names = np.array(seen.true_names, dtype=object)[places]
    known = [name for name in seen.classes if (names == name).any()]
    novel = np.array([name in seen.novel and name not in seen.classes for name in names])
    rest = ~novel & ~np.isin(names, list(seen.classes))
    made = [
        Cloud(name, points[names == name], "dot", colour(seen.classes.index(name), len(seen.classes))) for name in known
    ]
    if len(known) > MAX_NAMED:
        made = [Cloud("known classes", points[~novel & ~rest], "dot", "var(--s0)")]
    made.append(Cloud("novel", points[novel], "triangle", "var(--ink)"))
    made.append(Cloud(UNKNOWN_NAME, points[rest], "cross", "var(--ink)"))
    return [cloud for cloud in made if len(cloud.points)]


def colour(number: int, count: int) -> str:
    """A class's colour: the page's own for a few, else hues all around."""
    if count <= PALETTE:
        return f"var(--c{number})"
    red, green, blue = colorsys.hls_to_rgb(number / count, 0.5, 0.65)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"
