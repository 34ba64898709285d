"""Test samples that were accepted and rejected, the most informative mistakes first."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fedwild.core.names import UNKNOWN_NAME
from fedwild.core.text import cut
from fedwild.data import samples_of
from fedwild.openset.metrics import UNKNOWN
from fedwild.results.pictures.sheet import Pixels, pixels
from fedwild.results.report.answers import ModelAnswers
from fedwild.results.report.charts.raster import Thumb, check_images, thumbs
from fedwild.results.report.facts import Facts
from fedwild.results.report.figure import figure
from fedwild.results.report.markup import Html, joined

COLUMNS, MAX_NAME = 12, 12


def draw(facts: Facts, answers: ModelAnswers) -> Html:
    """Return a sheet for each kind of answer."""
    check_images(facts.experiment.dataset.input_shape)
    parts = []
    for title, about, places, total in chosen(answers):
        text = f"{about} {len(places)} of {total}." if total else "There are none."
        parts.append(figure(title, partial(sheet, facts, answers, places), text, wide=True))
    return joined(parts)


def chosen(answers: ModelAnswers) -> Iterator[tuple[str, str, NDArray[np.int64], int]]:
    """Yield, for each kind of answer, title, order, the positions of the first samples, and the number of all."""
    accepted, known = answers.decision != UNKNOWN, answers.is_known
    correct = accepted & (answers.decision == answers.truth)
    score = np.nan_to_num(answers.unknown, nan=np.inf)
    lowest, highest = "Lowest unknown score first.", "Highest unknown score first."
    alternating = "Classes in turn, lowest unknown score first."
    kinds = (
        ("Unknown but accepted", lowest, accepted & ~known, score),
        ("Known but rejected", highest, ~accepted & known, -score),
        ("Known but confused with another class", lowest, accepted & known & ~correct, score),
        ("Accepted with the correct class", alternating, correct, rank_in_class(answers, correct, score)),
        ("Unknown and rejected", highest, ~accepted & ~known, -score),
    )
    for title, about, members, order in kinds:
        places = np.nonzero(members)[0]
        # Stable, so that samples with equal scores keep the order of the data.
        first = places[np.argsort(order[places], kind="stable")][:COLUMNS]
        yield title, about, first, len(places)


def rank_in_class(answers: ModelAnswers, members: NDArray[np.bool_], score: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rank (n,) of each member within its class by score; infinity for other samples."""
    ranks = np.full(len(score), np.inf)
    for number in range(len(answers.classes)):
        places = np.nonzero(members & (answers.truth == number))[0]
        ranks[places[np.argsort(score[places], kind="stable")]] = np.arange(len(places))
    return ranks


def sheet(facts: Facts, answers: ModelAnswers, places: NDArray[np.int64]) -> Html:
    """Return a row of images, each with its true class, the answer and the score."""
    if not len(places):
        return Html()
    data = facts.run.config.data
    samples = samples_of(facts.experiment.dataset, answers.rows[places], "test", data=data)
    pictures = pixels(samples.all()[0], data)
    return thumbs([thumb(answers, place, pictures[i]) for i, place in enumerate(places.tolist())])


def thumb(answers: ModelAnswers, place: int, picture: Pixels) -> Thumb:
    answer = UNKNOWN_NAME if answers.decision[place] == UNKNOWN else answers.classes[answers.decision[place]]
    true, score = answers.true_names[place], f"{answers.unknown[place]:.3g}"
    about = f"true class {true}, answer {answer}, unknown score {score}, row {answers.rows[place]} of the test data"
    return Thumb(picture, f"{cut(true, MAX_NAME)} → {cut(answer, MAX_NAME)}", score, about)
