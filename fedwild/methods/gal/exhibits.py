"""What the report shows about the discovered classes."""

from __future__ import annotations

from collections.abc import Mapping

from torch.nn import functional as F

from fedwild.contract import CurveExhibit, Exhibit, MapExhibit, Record, TableExhibit
from fedwild.discovery import ClassCount, Estimator
from fedwild.methods.gal.records import class_counts

SECTION = "Discovered classes"
ACCURACY = {"known_accuracy": "known classes", "novel_accuracy": "novel classes", "all_accuracy": "all"}
AGREEMENT = {"novel_nmi": "NMI", "novel_ari": "ARI", "forgetting": "forgetting"}


def discovery_exhibits(record: Record, estimator: Estimator) -> list[Exhibit]:
    """Return the number of classes of each stage, their accuracy and their prototypes; nothing before a discovery."""
    counts = class_counts(record.server.state)
    if not counts:
        return []
    return [
        number_table(counts),
        *(
            estimate_curve(stage, estimator, count)
            for stage, count in enumerate(counts, start=1)
            if len(count.curve) > 1
        ),
        metric_curves(
            record,
            "Known and novel classes",
            "Accuracy on test data. Discovered classes are matched one-to-one with the true ones.",
            ACCURACY,
        ),
        metric_curves(
            record,
            "Agreement and forgetting",
            "Agreement of discovered with true classes; forgetting is the accuracy that known classes have lost.",
            AGREEMENT,
        ),
        prototype_map(record),
    ]


def number_table(counts: list[ClassCount]) -> TableExhibit:
    """Return the estimated number of novel classes by stage."""
    rows = [(str(stage), str(c.number), f"{c.low} to {c.high}") for stage, c in enumerate(counts, start=1)]
    text = "The number of novel classes found in each stage, and the range in which the true number probably lies."
    return TableExhibit(SECTION, "Number of novel classes", text, ("stage", "found", "range"), rows)


def estimate_curve(stage: int, estimator: Estimator, count: ClassCount) -> CurveExhibit:
    """Return what the estimator looked at in a stage."""
    x, y = estimator.curve_axes
    text = f"What the estimator `{estimator.name}` looked at to find {count.number}."
    return CurveExhibit(SECTION, f"Estimate in stage {stage}", text, x, y, {estimator.name: count.curve})


def metric_curves(record: Record, title: str, text: str, metrics: Mapping[str, str]) -> CurveExhibit:
    """Return metrics, given by key with their labels, over the evaluated rounds that have them."""
    # By index, since a round that was interrupted and repeated is in the log twice.
    rounds = {event["index"] + 1: event.get("metrics") or {} for event in record.events if event["event"] == "round"}
    lines = {
        label: [(float(number), values[key]) for number, values in rounds.items() if values.get(key) is not None]
        for key, label in metrics.items()
    }
    return CurveExhibit(SECTION, title, text, "round", "share", lines, percent=True)


def prototype_map(record: Record) -> MapExhibit:
    """Return the cosines between the rows of the head."""
    names = record.server.classes.names
    rows = F.normalize(record.server.state.group("model")["head.weight"].double()[: len(names)], dim=1)
    text = "Cosines between the rows of the head, class by class."
    return MapExhibit(SECTION, "Prototypes", text, rows @ rows.T, names, names)
