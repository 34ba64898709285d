"""What the report shows about the discovered classes."""

from __future__ import annotations

from collections.abc import Mapping

from torch.nn import functional as F

from fedwild.contract import CurveExhibit, Exhibit, MapExhibit, Record, TableExhibit
from fedwild.discovery import Estimator
from fedwild.methods.gal.stage import class_counts, head_of

SECTION = "Discovered classes"
ACCURACY = {"known_accuracy": "known classes", "novel_accuracy": "novel classes", "all_accuracy": "all"}
AGREEMENT = {"novel_nmi": "NMI", "novel_ari": "ARI", "forgetting": "forgetting"}
ABOUT_NUMBERS = "The number of novel classes found in each stage, and the range in which the true number probably lies."
ABOUT_ACCURACY = "Accuracy on test data. Discovered classes are matched one-to-one with the true ones."
ABOUT_AGREEMENT = "Agreement of discovered with true classes; forgetting is the accuracy that known classes have lost."


def discovery_exhibits(record: Record, estimator: Estimator) -> list[Exhibit]:
    """Return the number of classes of each stage, their accuracy and their prototypes; nothing before a discovery."""
    stages = list(enumerate(class_counts(record.server), start=1))
    if not stages:
        return []
    numbers = [(str(stage), str(count.number), f"{count.low} to {count.high}") for stage, count in stages]
    curves = [
        CurveExhibit(
            SECTION,
            f"Estimate in stage {stage}",
            f"What the estimator `{estimator.name}` looked at to find {count.number}.",
            *estimator.curve_axes,
            {estimator.name: count.curve},
        )
        for stage, count in stages
        if len(count.curve) > 1
    ]
    names = record.server.classes.names
    rows = F.normalize(head_of(record.server).double()[: len(names)], dim=1)
    cosines, about_cosines = rows @ rows.T, "Cosines between the rows of the head, class by class."
    return [
        TableExhibit(SECTION, "Number of novel classes", ABOUT_NUMBERS, ("stage", "found", "range"), numbers),
        *curves,
        metric_curves(record, "Known and novel classes", ABOUT_ACCURACY, ACCURACY),
        metric_curves(record, "Agreement and forgetting", ABOUT_AGREEMENT, AGREEMENT),
        MapExhibit(SECTION, "Prototypes", about_cosines, cosines, names, names),
    ]


def metric_curves(record: Record, title: str, text: str, metrics: Mapping[str, str]) -> CurveExhibit:
    """Return metrics, given by key with their labels, over the evaluated rounds that have them."""
    # By index, since a round that was interrupted and repeated is in the log twice.
    rounds = {event["index"] + 1: event.get("metrics") or {} for event in record.events if event["event"] == "round"}
    lines = {
        label: [(float(number), values[key]) for number, values in rounds.items() if values.get(key) is not None]
        for key, label in metrics.items()
    }
    return CurveExhibit(SECTION, title, text, "round", "share", lines, percent=True)
