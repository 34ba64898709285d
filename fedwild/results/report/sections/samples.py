"""Contact sheets: samples that were accepted and rejected, the most telling mistakes first."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fedwild.core.classes import UNKNOWN_NAME
from fedwild.data import samples_of
from fedwild.openset.metrics import UNKNOWN
from fedwild.core.text import cut
from fedwild.results.pictures.sheet import Pixels, pixels
from fedwild.results.report.facts import Facts
from fedwild.results.report.figure import figure
from fedwild.results.report.markup import Html, joined
from fedwild.results.report.sections.views import for_each_view
from fedwild.results.report.seen import Seen
from fedwild.results.report.thumbs import Thumb, check_pictures, thumbs

COLUMNS, NAME = 12, 12


def draw(facts: Facts) -> Html:
    """The sheets of each model that is shown."""
    facts.views_or_reason()
    check_pictures(facts.experiment.dataset.input_shape)
    return for_each_view(facts, sheets)


def sheets(facts: Facts, seen: Seen) -> Html:
    parts = []
    for title, about, places, total in chosen(seen):
        words = f"{about} {len(places)} of {total}." if total else f"{about} There are none."
        parts.append(figure(title, partial(sheet, facts, seen, places), words, wide=True))
    return joined(parts)


def chosen(seen: Seen) -> Iterator[tuple[str, str, NDArray[np.int64], int]]:
    """Of each kind of answer the most telling samples: positions, and how many there are in all."""
    accepted, known = seen.decision != UNKNOWN, seen.known
    right = accepted & (seen.decision == seen.truth)
    score = np.nan_to_num(seen.unknown, nan=np.inf)
    kinds = (
        ("Unknown but accepted", "Lowest unknown score first.", accepted & ~known, score),
        ("Known but rejected", "Highest unknown score first.", ~accepted & known, -score),
        ("Known, taken for another class", "Lowest unknown score first.", accepted & known & ~right, score),
        (
            "Accepted and right",
            "Classes in turn, lowest unknown score first.",
            right,
            in_turn(seen, right, score),
        ),
        ("Rejected and right", "Highest unknown score first.", ~accepted & ~known, -score),
    )
    for title, about, members, order in kinds:
        places = np.nonzero(members)[0]
        # Stable, so that equal scores come in the order of the data.
        best = places[np.argsort(order[places], kind="stable")][:COLUMNS]
        yield title, about, best, len(places)


def in_turn(seen: Seen, members: NDArray[np.bool_], score: NDArray[np.float64]) -> NDArray[np.float64]:
    """An order (n,) in which the first of every class come before all second ones."""
    turns = np.full(len(score), np.inf)
    for number in range(len(seen.classes)):
        places = np.nonzero(members & (seen.truth == number))[0]
        turns[places[np.argsort(score[places], kind="stable")]] = np.arange(len(places))
    return turns


def sheet(facts: Facts, seen: Seen, places: NDArray[np.int64]) -> Html:
    """Pictures in a row, under each its true class, the answer and the score."""
    if not len(places):
        return Html()
    data = facts.run.config.data
    samples = samples_of(facts.experiment.dataset, seen.rows[places], "test", data=data)
    pictures = pixels(samples.all()[0], data)
    return thumbs([thumb(seen, place, pictures[i]) for i, place in enumerate(places.tolist())])


def thumb(seen: Seen, place: int, picture: Pixels) -> Thumb:
    """One sample: its true class, the answer and the score."""
    answer = UNKNOWN_NAME if seen.decision[place] == UNKNOWN else seen.classes[seen.decision[place]]
    true, score = seen.true_names[place], f"{seen.unknown[place]:.3g}"
    about = f"true class {true}, answer {answer}, unknown score {score}, row {seen.rows[place]} of the test data"
    return Thumb(picture, f"{cut(true, NAME)} → {cut(answer, NAME)}", score, about)
