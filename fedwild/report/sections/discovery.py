"""Classes that the federation discovered: what they were found in, and samples of each."""

from __future__ import annotations

from torch.nn import functional as F

from fedwild.classes import ClassEntry, ClassRegistry
from fedwild.console import count
from fedwild.novel_picture import answering, novel_figures, sheet_of
from fedwild.report.charts.heat import Heat, heat_map
from fedwild.report.charts.lines import Series, line_chart
from fedwild.report.charts.raster import picture
from fedwild.report.facts import Facts
from fedwild.report.figure import figure, grid, table
from fedwild.report.markup import Html, joined, tag
from fedwild.sheet import draw as draw_sheet

COLUMNS = 8
TOLD = {
    "number_found": "classes found",
    "number_true": "classes there are",
    "known_accuracy": "known accuracy",
    "novel_accuracy": "novel accuracy",
    "forgetting": "forgetting",
    "novel_nmi": "NMI",
    "novel_ari": "ARI",
}


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
    about = "Mean embeddings as the head has them: cosine of every pair of classes, 0 and below is white."
    figures = [
        figure("Prototypes", lambda: prototypes(facts), about),
        figure("Figures of discovery", lambda: discovery_curves(facts), "Agreement of discovered with true classes."),
        figure(
            "Samples of the discovered classes",
            lambda: novel_sheet(facts),
            "Unlabelled samples that are answered with each class, nearest first; `fedwild name` gives classes names.",
            wide=True,
        ),
    ]
    return joined([table(["class", "stage", "found in samples", "of"], rows), grid(figures)])


def prototypes(facts: Facts) -> Html:
    """Cosines between the head's rows."""
    server = facts.run.server()
    names = server.classes.names
    rows = F.normalize(answering(facts.run, server).model.head.weight.detach().cpu().double()[: len(names)], dim=1)
    cosines = (rows @ rows.T).numpy()
    texts = [[f"{value:.2f}" for value in line] for line in cosines.tolist()]
    return heat_map(Heat(names, names, cosines.clip(0, 1), texts, "class", "class"), "cosines of prototypes")


def discovery_curves(facts: Facts) -> Html:
    rounds = [row for row in facts.history.measured if "novel_accuracy" in row.metrics]
    x = [float(row.number) for row in rounds]
    names = {"novel_accuracy": "novel accuracy", "novel_nmi": "NMI", "novel_ari": "ARI", "forgetting": "forgetting"}
    series = [Series(label, x, [row.metrics.get(key) for row in rounds]) for key, label in names.items()]
    return line_chart(series, "round", "share", percent=True)


def novel_sheet(facts: Facts) -> Html:
    dataset = facts.experiment.dataset
    return picture(
        draw_sheet(sheet_of(novel_figures(facts.run, None, COLUMNS), dataset, facts.run.config.data)),
        "samples of discovered classes",
    )
