"""Where a run's model puts test samples: their embeddings by t-SNE, as figures and as a PNG.

van der Maaten, Hinton: Visualizing data using t-SNE. JMLR 2008. Distances between far points on the map mean nothing,
so how far known and unknown samples are apart is measured in the embedding space itself: the share of each sample's
nearest neighbours that are of its kind, known or unknown.
"""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from sklearn.manifold import TSNE
from sklearn.neighbors import NearestNeighbors
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from fedwild.classes import UNKNOWN_NAME
from fedwild.errors import UserError
from fedwild.metrics import UNKNOWN
from fedwild.pictures.drawing import LINE, MARGIN, Font, counted, cut, text_width, write_png
from fedwild.pictures.shown_run import ShownRun
from fedwild.rng import Rng
from fedwild.watching import Tell, nobody

if TYPE_CHECKING:
    from fedwild.api import Run

Real = NDArray[np.float64]
Colour = tuple[int, int, int]

SAMPLES, NEIGHBOURS = 1500, 10
FEWEST = NEIGHBOURS + 1
PERPLEXITY = 30.0
DIGITS = 4

# The first ones can be told apart by those who do not see all colours (Okabe, Ito).
COLOURS: Sequence[Colour] = (
    (0, 114, 178),
    (230, 159, 0),
    (0, 158, 115),
    (213, 94, 0),
    (86, 180, 233),
    (204, 121, 167),
    (190, 175, 0),
    (140, 86, 75),
    (110, 60, 190),
    (160, 200, 60),
)
DARK: Colour = (40, 40, 40)
FONT: Font = ImageFont.load_default(size=12)
LARGE: Font = ImageFont.load_default(size=14)
SIDE, RIM, DOT, CROSS = 640, 12, 3, 4  # of the map; the last two are half the size of a mark
FINER = 3  # marks are drawn so many times larger and then reduced, for smooth edges
CLASS_NAME, NAME_LIST = 22, 30  # the most characters
KEY, GAP = 24, 12


@dataclass(frozen=True)
class Features:
    """Test samples on the map, with what they are and what the model answers."""

    shown: ShownRun
    seed: int
    rows: Sequence[int]
    """Of the data's test part."""
    points: Real
    """(n, 2), on the map."""
    true: Sequence[str]
    """The true classes, also those that the model does not know."""
    answers: Sequence[str]
    """Known classes, or "unknown"."""
    kin: Real
    """(n,): of each sample's nearest neighbours, the share that is known if it is known, unknown if it is unknown."""

    @cached_property
    def is_known(self) -> NDArray[np.bool_]:
        return np.isin(self.true, self.shown.known)

    def kin_of(self, name: str) -> float | None:
        """The mean share for the samples of a class; None if there are none."""
        return mean_of(self.kin, np.asarray(self.true) == name)

    def described(self) -> dict[str, Any]:
        """For programs: plain values, rounded."""
        kinds = {"known": self.is_known, UNKNOWN_NAME: ~self.is_known}
        classes = [name for name in (*self.shown.known, *self.shown.unknown) if name in self.true]
        return {
            **self.shown.described(),
            "samples": len(self.points),
            "seed": self.seed,
            "neighbours": {
                "count": NEIGHBOURS,
                "same_kind": {kind: rounded(mean_of(self.kin, members)) for kind, members in kinds.items()},
                "by_chance": {kind: rounded(by_chance(members)) for kind, members in kinds.items()},
                "by_class": {name: rounded(self.kin_of(name)) for name in classes},
            },
            "points": self.points.round(DIGITS).tolist(),
            "true": list(self.true),
            "answers": list(self.answers),
            "rows": list(self.rows),
        }


def figures(
    run: Run, samples: int = SAMPLES, seed: int = 0, client: str | None = None, workers: int | None = None
) -> dict[str, Any]:
    """A random sample of the run's test data on the t-SNE map of its embeddings, as plain values.

    `points`, `true`, `answers` and `rows` have an entry for each sample. `neighbours` says how far known and unknown
    are apart in the embedding space: of a sample's nearest neighbours, the mean share that are of its kind, and what
    that share would be by chance. For methods with a model per client, `client` says whose; it is asked about its own
    test data.
    """
    return feature_figures(run, samples, seed, client, workers).described()


def feature_figures(
    run: Run,
    samples: int = SAMPLES,
    seed: int = 0,
    client: str | None = None,
    workers: int | None = None,
    tell: Tell = nobody,
) -> Features:
    """The embeddings of a finished run, or of an unfinished one's last checkpoint, on a map."""
    if samples < FEWEST:
        raise UserError(f"samples = {samples} is not allowed: {NEIGHBOURS} neighbours each take at least {FEWEST}.")
    rng = Rng(seed).child("features")
    tell("loading the data", 0, None)
    rows = drawn(run.test_rows(client), samples, rng)
    if len(rows) < FEWEST:
        raise UserError(
            f"run {str(run.path)!r} has {counted(len(rows), 'test sample')} here: "
            f"{NEIGHBOURS} neighbours each take at least {FEWEST}."
        )
    tell("embedding test samples", 0, None)
    embeddings = run.embed(run.experiment.dataset.x_test[rows], client).flatten(1).double().numpy()
    check_embeddings(embeddings)
    outcome = run.outcome(client, rows, workers, tell)
    tell("making the map (t-SNE)", 0, None)
    shown = ShownRun.of(run, client)
    return Features(
        shown=shown,
        seed=seed,
        rows=rows.tolist(),
        points=on_a_map(embeddings, rng.sklearn("t-SNE")),
        true=outcome.true_names,
        answers=[UNKNOWN_NAME if i == UNKNOWN else shown.known[i] for i in outcome.decision.tolist()],
        kin=same_kind(embeddings, outcome.truth.numpy() != UNKNOWN),
    )


def drawn(rows: NDArray[np.int64], count: int, rng: Rng) -> NDArray[np.int64]:
    """So many of the rows by lot, in their order; all if there are no more."""
    if len(rows) <= count:
        return rows
    return np.sort(rng.numpy("samples").choice(rows, count, replace=False))


def check_embeddings(embeddings: Real) -> None:
    """Refuse what no map can be made of."""
    if not np.isfinite(embeddings).all():
        raise UserError("the model's embeddings hold NaN or infinite values: its training has diverged.")
    if (embeddings == embeddings[0]).all():
        raise UserError("the model's embeddings are equal for all samples: there is nothing to draw.")


def on_a_map(embeddings: Real, random_state: int) -> Real:
    """Points (n, 2) of embeddings (n, d) by t-SNE."""
    # A column of zeros changes no distance; the map's first guess takes at least two columns.
    wide = np.pad(embeddings, ((0, 0), (0, max(0, 2 - embeddings.shape[1]))))
    tsne = TSNE(init="pca", learning_rate="auto", perplexity=perplexity_for(len(wide)), random_state=random_state)
    # Several threads add up in the order in which they end, so that the map might not repeat bit for bit.
    with threadpool_limits(1):
        points: Real = tsne.fit_transform(wide).astype(np.float64)
    return points


def perplexity_for(samples: int) -> float:
    """How many neighbours count for t-SNE: fewer for small samples, since it looks at three times as many."""
    return min(PERPLEXITY, (samples - 1) / 3)


def same_kind(embeddings: Real, kinds: NDArray[np.bool_]) -> Real:
    """Of each sample's nearest neighbours in the embedding space, the share (n,) that are of its own kind."""
    search = NearestNeighbors(n_neighbors=NEIGHBOURS).fit(embeddings)
    # Without samples to look up, it is those it was fitted to, and none is its own neighbour.
    nearest = search.kneighbors(return_distance=False)
    shares: Real = (kinds[nearest] == kinds[:, None]).mean(axis=1)
    return shares


def by_chance(members: NDArray[np.bool_]) -> float | None:
    """The share of a kind among the others of a sample of that kind: what `same_kind` would be without any order."""
    count = int(members.sum())
    return (count - 1) / (len(members) - 1) if count else None


def mean_of(values: Real, members: NDArray[np.bool_]) -> float | None:
    return float(values[members].mean()) if members.any() else None


def rounded(share: float | None) -> float | None:
    return None if share is None else round(share, DIGITS)


def write(features: Features, path: Path) -> None:
    """Draw the map into a PNG file."""
    write_png(draw(features), path)


def draw(features: Features) -> Image.Image:
    """The map: known classes as coloured dots, unknown ones as dark crosses; at the right, the legend."""
    layout = Layout(features)
    image = Image.new("RGB", layout.size, "white")
    pen = ImageDraw.Draw(image)
    pen.text((MARGIN, MARGIN), layout.title, fill="black", font=LARGE)
    for number, line in enumerate(layout.lines):
        pen.text((MARGIN, MARGIN + LINE + GAP // 2 + number * LINE), line, fill="black", font=FONT)
    left, top = layout.corner
    pen.rectangle((left - 1, top - 1, left + SIDE, top + SIDE), outline="silver")
    image.paste(draw_points(features), layout.corner)
    for number, entry in enumerate(layout.entries):
        x, y = layout.entry(number)
        mark(pen, (x + KEY / 2, y + LINE / 2), entry.colour, 1)
        pen.text((x + KEY, y + LINE / 2), entry.name, fill="black", font=FONT, anchor="lm")
        pen.text((x + layout.pitch - GAP, y + LINE / 2), entry.share, fill="dimgray", font=FONT, anchor="rm")
    return image


def draw_points(features: Features) -> Image.Image:
    """The map alone, SIDE pixels wide and high."""
    fine = Image.new("RGB", (SIDE * FINER, SIDE * FINER), "white")
    pen = ImageDraw.Draw(fine)
    colours = colours_of(features)
    places = places_of(features.points)
    # Crosses come last, since dots show between their arms.
    for number in np.argsort(~features.is_known, kind="stable").tolist():
        x, y = places[number].tolist()
        mark(pen, (x * FINER, y * FINER), colours.get(features.true[number]), FINER)
    return fine.reduce(FINER)


def mark(pen: ImageDraw.ImageDraw, where: tuple[float, float], colour: Colour | None, scale: int) -> None:
    """A dot in the colour of a known class, or a dark cross."""
    x, y = where
    if colour is None:
        arm = CROSS * scale
        for slope in (1, -1):
            pen.line((x - arm, y - arm * slope, x + arm, y + arm * slope), fill=DARK, width=scale)
    else:
        radius = DOT * scale
        pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)


def places_of(points: Real) -> Real:
    """Points (n, 2) in pixels of the map: in its middle, with one scale for both directions."""
    low, high = points.min(axis=0), points.max(axis=0)
    scale = (SIDE - 1 - 2 * RIM) / (float((high - low).max()) or 1.0)
    places: Real = (SIDE - 1) / 2 + (points - (low + high) / 2) * scale
    return places


def colours_of(features: Features) -> dict[str, Colour]:
    """A colour for each known class, whether it is on the map or not, so that maps of a run agree."""
    return {name: colour(number) for number, name in enumerate(features.shown.known)}


def colour(number: int) -> Colour:
    """The chosen colours first; then hues by the golden ratio, which lie between all earlier ones."""
    if number < len(COLOURS):
        return COLOURS[number]
    red, green, blue = colorsys.hsv_to_rgb(number * 0.618034 % 1, 0.75, (0.85, 0.6)[number % 2])
    return round(red * 255), round(green * 255), round(blue * 255)


@dataclass(frozen=True)
class Entry:
    """A line of the legend."""

    name: str
    share: str
    colour: Colour | None
    """None for the unknown classes."""


@dataclass(frozen=True)
class Layout:
    """Where everything is on the page."""

    features: Features

    @property
    def title(self) -> str:
        return self.features.shown.title(len(self.features.points))

    @property
    def lines(self) -> list[str]:
        """What the picture and the shares in the legend are."""
        known = self.features.is_known
        kinds = {"known": known, UNKNOWN_NAME: ~known}
        chance = ", ".join(f"{kind} {percent(by_chance(members))}" for kind, members in kinds.items())
        return [
            "t-SNE of the embeddings, the input of the network's head",
            f"at the names: share of a sample's {NEIGHBOURS} nearest neighbours that are of its kind, known or unknown",
            f"by chance it would be: {chance}",
        ]

    @property
    def corner(self) -> tuple[int, int]:
        """Where the map begins."""
        return MARGIN, MARGIN + LINE + GAP + len(self.lines) * LINE

    @cached_property
    def entries(self) -> list[Entry]:
        """Known classes on the map, then the unknown ones in one line."""
        features = self.features
        entries = [
            Entry(cut(name, CLASS_NAME), percent(features.kin_of(name)), colour)
            for name, colour in colours_of(features).items()
            if name in features.true
        ]
        if features.is_known.all():
            return entries
        names = f"{UNKNOWN_NAME}: {cut(', '.join(features.shown.unknown), NAME_LIST)}"
        return [*entries, Entry(names, percent(mean_of(features.kin, ~features.is_known)), None)]

    @cached_property
    def pitch(self) -> int:
        """From one column of the legend to the next."""
        widest = max(text_width(FONT, f"{entry.name} {entry.share}") for entry in self.entries)
        return KEY + widest + 2 * GAP

    def entry(self, number: int) -> tuple[int, int]:
        """Where a line of the legend begins; the columns are as high as the map."""
        column, line = divmod(number, SIDE // LINE)
        left, top = self.corner
        return left + SIDE + GAP + column * self.pitch, top + line * LINE

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the whole."""
        right = self.entry(len(self.entries) - 1)[0] + self.pitch
        texts = max(text_width(LARGE, self.title), *(text_width(FONT, line) for line in self.lines))
        return max(right, MARGIN + texts) + MARGIN, self.corner[1] + SIDE + MARGIN


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"
