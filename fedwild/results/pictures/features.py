"""A map of a run's embeddings of test samples by t-SNE: as plain values and as a figure.

van der Maaten, Hinton: Visualizing data using t-SNE. JMLR 2008. Large distances on the map mean nothing. The separation
of known and unknown samples is therefore measured in the embedding space: the share of each sample's nearest
neighbours that are of its kind, known or unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from inspect import signature
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.manifold import TSNE
from sklearn.neighbors import NearestNeighbors
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from fedwild.core.errors import UserError
from fedwild.core.names import UNKNOWN_NAME
from fedwild.core.rng import Rng
from fedwild.core.text import count, percent
from fedwild.evaluation.progress import OnProgress, ignore_progress
from fedwild.lifecycle.run import Run
from fedwild.openset.metrics import UNKNOWN
from fedwild.results.pictures.drawing import COLOURS, INK, LINE, MARKERS, MUTED, add_title, label, styled
from fedwild.results.pictures.member import embeddings_and_answers, outlier_embeddings
from fedwild.results.pictures.shown_run import ShownRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Real = NDArray[np.float64]

SAMPLES, NEIGHBOURS = 1500, 10
MIN_SAMPLES = NEIGHBOURS + 1
PERPLEXITY = 30.0
DIGITS = 4

SIDE = 5.6  # of the map, in inches
MAX_VECTOR_POINTS = 5000  # more points are one image in an SVG or a PDF
MAX_NAME_LIST = 34  # characters
OUTLIER_LOOKS: tuple[dict[str, Any], ...] = (
    {"marker": "+", "color": MUTED, "linewidths": 0.7},
    {"marker": "1", "color": "#8f99a5", "linewidths": 0.7},
)


@dataclass(frozen=True)
class Features:
    """Test samples on the map, with their classes and the model's answers."""

    shown: ShownRun
    seed: int
    rows: Sequence[int]
    """The samples' rows in the test data."""
    points: Real
    """(n, 2), on the map."""
    true: Sequence[str]
    """The true classes, also those that the model does not know."""
    answers: Sequence[str]
    """Known classes, or "unknown"."""
    same_kind: Real
    """(n,): the share of each sample's nearest neighbours that are of its kind, known or unknown."""
    outliers: dict[str, Real] = field(default_factory=dict)
    """Points (m, 2) of outliers of training samples, x' and x''."""

    @cached_property
    def is_known(self) -> NDArray[np.bool_]:
        return np.isin(self.true, self.shown.known)

    def mean_share(self, members: NDArray[np.bool_]) -> float | None:
        """Return the mean of `same_kind` over some samples."""
        return float(self.same_kind[members].mean()) if members.any() else None

    def described(self) -> dict[str, Any]:
        """Return plain, rounded values, for JSON."""
        true, kinds = np.asarray(self.true), {"known": self.is_known, UNKNOWN_NAME: ~self.is_known}
        classes = [name for name in (*self.shown.known, *self.shown.unknown) if name in self.true]
        return {
            **self.shown.described(),
            "samples": len(self.points),
            "seed": self.seed,
            "neighbours": {
                "count": NEIGHBOURS,
                "same_kind": {kind: rounded(self.mean_share(members)) for kind, members in kinds.items()},
                "by_chance": {kind: rounded(by_chance(members)) for kind, members in kinds.items()},
                "by_class": {name: rounded(self.mean_share(true == name)) for name in classes},
            },
            "points": self.points.round(DIGITS).tolist(),
            "outliers": {name: points.round(DIGITS).tolist() for name, points in self.outliers.items()},
            "true": list(self.true),
            "answers": list(self.answers),
            "rows": list(self.rows),
        }


def figures(
    run: Run,
    samples: int = SAMPLES,
    seed: int = 0,
    client: str | None = None,
    workers: int | None = None,
    member: str | None = None,
    outliers: bool = False,
) -> dict[str, Any]:
    """Return a random sample of the run's test data on the t-SNE map of its embeddings, as plain values.

    `points`, `true`, `answers` and `rows` have an entry for each sample. `neighbours` measures how well known and
    unknown samples are separated in the embedding space: the mean share of a sample's nearest neighbours that are of
    its kind, and what it would be by chance. `member` shows one network of an ensemble, for which the classes that its
    client does not hold are unknown; with `outliers`, those that it trained on are on the map, too.
    """
    return feature_figures(run, samples, seed, client, workers, member=member, outliers=outliers).described()


def feature_figures(
    run: Run,
    samples: int = SAMPLES,
    seed: int = 0,
    client: str | None = None,
    workers: int | None = None,
    on_progress: OnProgress = ignore_progress,
    member: str | None = None,
    outliers: bool = False,
) -> Features:
    """Return the map of a finished run, or of the last checkpoint of an unfinished one."""
    if samples < MIN_SAMPLES:
        raise UserError(
            f"samples = {samples} is not allowed: a map needs at least {MIN_SAMPLES}, since each sample has "
            f"{NEIGHBOURS} neighbours."
        )
    rng = Rng(seed).child("features")
    on_progress("loading the data", 0, None)
    rows = drawn(run.test_rows(client), samples, rng)
    if len(rows) < MIN_SAMPLES:
        raise UserError(
            f"run {str(run.path)!r} has only {count(len(rows), 'test sample')} to show: "
            f"a map needs at least {MIN_SAMPLES}, since each sample has {NEIGHBOURS} neighbours."
        )
    on_progress("embedding test samples", 0, None)
    made: dict[str, Real] = {}
    if member is None:
        embeddings = run.embed(run.experiment.dataset.x_test[rows], client).flatten(1).double().numpy()
        check_embeddings(embeddings)
        outcome, shown = run.outcome(client, rows, workers, on_progress), ShownRun.of(run, client)
        true: Sequence[str] = outcome.true_names
        answers = [UNKNOWN_NAME if i == UNKNOWN else shown.known[i] for i in outcome.decision.tolist()]
    else:
        network, dataset = run.member(member), run.experiment.dataset
        embeddings, answers = embeddings_and_answers(run, network, rows, run.server().classes.names)
        check_embeddings(embeddings)
        shown = ShownRun.of_member(run, member)
        true = [dataset.classes[label] for label in dataset.y_test[rows].tolist()]
        made = outlier_embeddings(run, network, member, rng) if outliers else {}
    on_progress("making the map (t-SNE)", 0, None)
    points = map_embeddings(np.concatenate([embeddings, *made.values()]), rng.sklearn("t-SNE"))
    ends = np.cumsum([len(embeddings), *(len(batch) for batch in made.values())])[:-1]
    own, *others = np.split(points, ends)
    return Features(
        shown=shown,
        seed=seed,
        rows=rows.tolist(),
        points=own,
        true=true,
        answers=answers,
        same_kind=same_kind_shares(embeddings, np.isin(true, shown.known)),
        outliers=dict(zip(made, others, strict=True)),
    )


def drawn(rows: NDArray[np.int64], number: int, rng: Rng) -> NDArray[np.int64]:
    """Return a random choice of the rows, in their order; all of them if there are no more."""
    if len(rows) <= number:
        return rows
    return np.sort(rng.numpy("samples").choice(rows, number, replace=False))


def check_embeddings(embeddings: Real) -> None:
    """Raise `UserError` for embeddings that cannot be mapped."""
    if not np.isfinite(embeddings).all():
        raise UserError("the model's embeddings hold NaN or infinite values: its training has diverged.")
    if (embeddings == embeddings[0]).all():
        raise UserError("the model's embeddings are equal for all samples: there is nothing to draw.")


def map_embeddings(embeddings: Real, random_state: int, iterations: int = 1000) -> Real:
    """Return the points (n, 2) of embeddings (n, d) by t-SNE."""
    # A column of zeros changes no distance; the initialisation by PCA needs at least two columns.
    wide = np.pad(embeddings, ((0, 0), (0, max(0, 2 - embeddings.shape[1]))))
    # The name of this setting depends on the version of scikit-learn.
    limit = {"max_iter" if "max_iter" in signature(TSNE).parameters else "n_iter": iterations}
    tsne = TSNE(init="pca", perplexity=perplexity_for(len(wide)), random_state=random_state, **limit)
    # Several threads add numbers in varying order, and the map would not be the same bit for bit.
    with threadpool_limits(1):
        points: Real = tsne.fit_transform(wide).astype(np.float64)
    return points


def perplexity_for(samples: int) -> float:
    """Return the perplexity of t-SNE: smaller for few samples, since it looks at three times as many neighbours."""
    return min(PERPLEXITY, (samples - 1) / 3)


def same_kind_shares(embeddings: Real, kinds: NDArray[np.bool_]) -> Real:
    """Return the share (n,) of each sample's nearest neighbours in the embedding space that are of its kind."""
    search = NearestNeighbors(n_neighbors=NEIGHBOURS).fit(embeddings)
    # Without an argument, kneighbors looks up the fitted samples and does not count a sample as its own neighbour.
    nearest = search.kneighbors(return_distance=False)
    shares: Real = (kinds[nearest] == kinds[:, None]).mean(axis=1)
    return shares


def by_chance(members: NDArray[np.bool_]) -> float | None:
    """Return what the share of neighbours of the same kind would be if the order of samples were random."""
    number = int(members.sum())
    return (number - 1) / (len(members) - 1) if number else None


def rounded(share: float | None) -> float | None:
    return None if share is None else round(share, DIGITS)


@styled()
def draw(features: Features) -> Figure:
    """Draw known classes as coloured marks and unknown ones as dark crosses, with a legend to the right."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(SIDE, SIDE))
    axes = figure.add_axes((0, 0, 1, 1), aspect="equal", adjustable="datalim", xticks=(), yticks=())
    axes.spines[:].set_visible(True)
    true, unknown = np.asarray(features.true), ~features.is_known
    for (name, points), look in zip(features.outliers.items(), OUTLIER_LOOKS, strict=False):
        axes.scatter(
            points[:, 0],
            points[:, 1],
            s=14,
            label=f"outliers {name}",
            rasterized=len(points) > MAX_VECTOR_POINTS,
            **look,
        )
    # A class keeps its colour whether or not the others are on the map, so that maps of a run agree.
    for number, name in enumerate(features.shown.known):
        look = {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number // len(COLOURS) % len(MARKERS)]}
        scatter(axes, features, true == name, label(name), linewidths=0, **look)
    names = label(f"{UNKNOWN_NAME}: {', '.join(features.shown.unknown)}", MAX_NAME_LIST)
    scatter(axes, features, unknown, names, linewidths=0.7, color=INK, marker="x")
    columns = -(-len(axes.collections) // int(SIDE / LINE))
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0, markerscale=1.6, ncols=columns)
    chance = f"known {percent(by_chance(~unknown))}, {UNKNOWN_NAME} {percent(by_chance(unknown))}"
    add_title(
        axes,
        features.shown.title(len(features.points)),
        "t-SNE of the embedding space, the input of the network's head.\n"
        f"After each name: of a sample's {NEIGHBOURS} nearest neighbours in it, the share that are of its kind, "
        f"known or unknown.\nBy chance it would be: {chance}.",
    )
    return figure


def scatter(axes: Axes, features: Features, members: NDArray[np.bool_], name: str, **look: Any) -> None:
    """Draw some of the points, if there are any, and enter them in the legend with their share."""
    if members.any():
        x, y = features.points[members].T
        entry = f"{name}  {percent(features.mean_share(members))}"
        axes.scatter(x, y, s=12, label=entry, rasterized=len(features.points) > MAX_VECTOR_POINTS, **look)
