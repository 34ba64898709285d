"""The discovered classes of the registry, and samples of each."""

from __future__ import annotations

import numpy as np

from fedwild.contract import Discovers
from fedwild.core.classes import ClassEntry, ClassRegistry
from fedwild.core.errors import UserError
from fedwild.core.text import count, cut
from fedwild.data import samples_of
from fedwild.results.pictures.novel import NovelClass, novel_figures
from fedwild.results.pictures.sheet import pixels
from fedwild.results.report.answers import MAX_SAMPLES
from fedwild.results.report.charts.raster import Thumb, check_images, labelled, thumbs
from fedwild.results.report.facts import Facts
from fedwild.results.report.figure import figure, grid, reason, table
from fedwild.results.report.markup import Html, joined

COLUMNS, MAX_NAME = 12, 14


def is_relevant(facts: Facts) -> bool:
    return bool(entries_of(facts)) or isinstance(facts.run.settings.make_method(), Discovers)


def entries_of(facts: Facts) -> list[ClassEntry]:
    """Return the discovered classes; nothing while the run has no model."""
    if not facts.run.folder.model.exists() and facts.run.folder.last_checkpoint() is None:
        return []
    return ClassRegistry.from_json(facts.run.folder.server().info["classes"]).novel


def draw(facts: Facts) -> Html:
    """Return the registry's discovered classes and the samples nearest to each."""
    entries = entries_of(facts)
    if not entries:
        return reason("No class has been discovered.")
    rows = [
        (entry.name, str(entry.stage), str(sum(entry.samples.values())), str(len(entry.samples))) for entry in entries
    ]
    return grid(
        [
            figure(
                "Registry",
                lambda: table(["class", "stage", "samples", "clients"], rows),
                "In how many samples of how many clients each class was discovered. Rename classes with "
                "`fedwild name`.",
            ),
            figure(
                "Samples of the discovered classes",
                lambda: samples(facts),
                "Unlabelled samples that the model answers with each class, nearest first. Below each: its client, "
                "and the cosine to the row of the class in the head.",
                wide=True,
            ),
        ]
    )


def samples(facts: Facts) -> Html:
    """Return a row of samples for each discovered class."""
    check_images(facts.experiment.dataset.input_shape)
    held = sum(len(client.unlabelled) for client in facts.experiment.split.clients)
    if held > MAX_SAMPLES:
        raise UserError(
            f"{count(held, 'unlabelled sample')} take too long for a report: use `fedwild show novel {facts.run.path}`."
        )
    found = novel_figures(facts.run, None, COLUMNS).classes
    return joined([labelled(one.entry.name, nearest(facts, one)) for one in found])


def nearest(facts: Facts, found: NovelClass) -> Html:
    """Return the samples nearest to a class, over all clients."""
    held = [(*pair, part.client) for part in found.held for pair in zip(part.cosines, part.rows, strict=True)]
    if not held:
        return reason("The model answers no unlabelled sample with this class.")
    best = sorted(held, key=lambda one: -one[0])[:COLUMNS]
    dataset, data = facts.experiment.dataset, facts.run.config.data
    pictures = pixels(samples_of(dataset, np.array([row for _, row, _ in best]), data=data).all()[0], data)
    return thumbs(
        [
            Thumb(picture, cut(client, MAX_NAME), f"{cosine:.2f}", f"row {row} of the training data, at {client}")
            for picture, (cosine, row, client) in zip(pictures, best, strict=True)
        ]
    )
