"""Classes that the federation discovered: what they were found in, and samples of each."""

from __future__ import annotations

import numpy as np
from torch.nn import functional as F

from fedwild.core.classes import ClassEntry, ClassRegistry
from fedwild.display.run_display import count
from fedwild.data import samples_of
from fedwild.core.errors import UserError
from fedwild.core.text import cut
from fedwild.results.pictures.novel import NovelClass, answering, novel_figures
from fedwild.results.pictures.sheet import pixels
from fedwild.results.report.charts.heat import Heat, heat_map
from fedwild.results.report.facts import Facts
from fedwild.results.report.figure import figure, grid, table
from fedwild.results.report.markup import Html, joined, tag
from fedwild.results.report.sections.progress import over_rounds
from fedwild.results.report.seen import MAX_SAMPLES
from fedwild.results.report.thumbs import Thumb, check_pictures, thumbs

COLUMNS, NAME = 12, 14
NEAREST = "Unlabelled samples answered with each class, nearest first; below, whose, and the cosine to the head's row."
ACCURACY = {"known_accuracy": "known classes", "novel_accuracy": "novel classes", "all_accuracy": "all"}
AGREEMENT = {"novel_nmi": "NMI", "novel_ari": "ARI", "forgetting": "forgetting"}


def concerns(facts: Facts) -> bool:
    return "number_found" in facts.metrics or bool(found(facts))


def found(facts: Facts) -> list[ClassEntry]:
    """The discovered classes; none while there is no model."""
    if not facts.run.folder.model.exists() and facts.run.folder.last_checkpoint() is None:
        return []
    return ClassRegistry.from_json(facts.run.folder.server().info["classes"]).novel


def draw(facts: Facts) -> Html:
    """The registry's novel classes, prototypes, and the samples that are most like each."""
    entries = found(facts)
    if not entries:
        return tag("p", "No class has been discovered.", class_="why")
    rows = [
        (entry.name, str(entry.stage), str(sum(entry.samples.values())), count(len(entry.samples), "client"))
        for entry in entries
    ]
    measured, borders = facts.history.measured, facts.history.borders
    figures = [
        figure(
            "Known and novel classes",
            lambda: over_rounds(measured, ACCURACY, borders),
            "Accuracy on test data; discovered classes are matched with the true ones, one for one.",
        ),
        figure(
            "Agreement and forgetting",
            lambda: over_rounds(measured, AGREEMENT, borders),
            "Of discovered with true classes; forgetting is what known classes have lost.",
        ),
        figure("Prototypes", lambda: prototypes(facts), "Cosine of the head's rows, class by class; white: 0 or less."),
        figure(
            "Registry",
            lambda: table(["class", "stage", "found in samples", "of"], rows),
            "`fedwild name` gives them names.",
        ),
        figure("Samples of the discovered classes", lambda: samples(facts), NEAREST, wide=True),
    ]
    return grid(figures)


def prototypes(facts: Facts) -> Html:
    """Cosines between the head's rows."""
    server = facts.run.server()
    names = server.classes.names
    rows = F.normalize(answering(facts.run, server).model.head.weight.detach().cpu().double()[: len(names)], dim=1)
    cosines = (rows @ rows.T).numpy()
    texts = [[f"{value:.2f}" for value in line] for line in cosines.tolist()]
    return heat_map(Heat(names, names, cosines.clip(0, 1), texts, "class", "class"), "cosines of prototypes")


def samples(facts: Facts) -> Html:
    """For each discovered class a row of samples."""
    check_pictures(facts.experiment.dataset.input_shape)
    held = sum(len(client.unlabelled) for client in facts.experiment.split.clients)
    if held > MAX_SAMPLES:
        raise UserError(f"to look through {held} unlabelled samples takes long: `fedwild show novel` draws them.")
    classes = novel_figures(facts.run, None, COLUMNS).classes
    return joined([joined([tag("h4", one.entry.name), nearest(facts, one)]) for one in classes])


def nearest(facts: Facts, found: NovelClass) -> Html:
    """The samples that are most like a class, whoever holds them."""
    held = [(*pair, part.client) for part in found.held for pair in zip(part.cosines, part.rows, strict=True)]
    if not held:
        return tag("p", "No unlabelled sample is answered with it now.", class_="why")
    best = sorted(held, key=lambda one: -one[0])[:COLUMNS]
    dataset, data = facts.experiment.dataset, facts.run.config.data
    pictures = pixels(samples_of(dataset, np.array([row for _, row, _ in best]), data=data).all()[0], data)
    return thumbs(
        [
            Thumb(picture, cut(client, NAME), f"{cosine:.2f}", f"row {row} of the training data, at {client}")
            for picture, (cosine, row, client) in zip(pictures, best, strict=True)
        ]
    )
