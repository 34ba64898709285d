"""The parts of a report, in the order in which they appear; each says itself whether it concerns a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fedwild.results.report.facts import Facts
from fedwild.results.report.markup import Html
from fedwild.results.report.sections import (
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


def nothing(facts: Facts) -> str:
    return ""


def no_views(facts: Facts) -> str:
    return "" if facts.views else facts.no_views


def no_data(facts: Facts) -> str:
    return facts.no_data


@dataclass(frozen=True)
class Section:
    """One part of the page."""

    id: str
    title: str
    draw: Callable[[Facts], Html]
    concerns: Callable[[Facts], bool] = always
    missing: Callable[[Facts], str] = nothing
    """Why there is nothing to draw it from; an empty text if there is."""


SECTIONS = (
    Section("run", "What was run", overview.draw),
    Section("progress", "Round by round", progress.draw),
    Section("newcomer", "The newcomer", newcomer.draw, newcomer.concerns),
    Section("discovery", "Discovered classes", discovery.draw, discovery.concerns),
    Section("open-set", "Known and unknown", openset.draw, missing=no_views),
    Section("answers", "Answers by class", classes.draw_answers, missing=no_views),
    Section("samples", "Samples", samples.draw, missing=no_views),
    Section("masks", "Subnetworks", masks.draw, masks.concerns),
    Section("outliers", "Outliers", outliers.draw, outliers.concerns),
    Section("boundary", "Boundary samples", boundary.draw, boundary.concerns),
    Section("data", "Who holds what", classes.draw_data, missing=no_data),
    Section("cost", "Time and bytes", cost.draw),
    Section("clients", "Clients", clients.draw),
    Section("log", "Log", log.draw),
)
