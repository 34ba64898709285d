"""The parts of a report, in the order in which they appear; each says itself whether it concerns a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fedwild.report.facts import Facts
from fedwild.report.markup import Html
from fedwild.report.sections import (
    boundary,
    classes,
    clients,
    cost,
    discovery,
    log,
    masks,
    newcomer,
    openset,
    outliers,
    overview,
    progress,
    samples,
)


def always(facts: Facts) -> bool:
    return True


@dataclass(frozen=True)
class Section:
    """One part of the page."""

    id: str
    title: str
    draw: Callable[[Facts], Html]
    concerns: Callable[[Facts], bool] = always


SECTIONS = (
    Section("run", "What was run", overview.draw),
    Section("progress", "Round by round", progress.draw),
    Section("newcomer", "The newcomer", newcomer.draw, newcomer.concerns),
    Section("discovery", "Discovered classes", discovery.draw, discovery.concerns),
    Section("open-set", "Known and unknown", openset.draw),
    Section("answers", "Answers by class", classes.draw_answers),
    Section("samples", "Samples", samples.draw),
    Section("masks", "Subnetworks", masks.draw, masks.concerns),
    Section("outliers", "Outliers", outliers.draw, outliers.concerns),
    Section("boundary", "Boundary samples", boundary.draw, boundary.concerns),
    Section("data", "Who holds what", classes.draw_data),
    Section("cost", "Time and bytes", cost.draw),
    Section("clients", "Clients", clients.draw),
    Section("log", "Log", log.draw),
)
