"""Measuring where the data is: sites report figures on their own test samples, and nothing else leaves them."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from fedwild.engines.base import Job
from fedwild.errors import BadReply, UserError
from fedwild.evaluation import Evaluation, Examiner, read
from fedwild.outcomes import check_report
from fedwild.payload import Payload
from fedwild.protocol import EVERYONE, Server

Reports = Mapping[str, Payload]


def evaluated_at_sites(examiner: Examiner, server: Server, snapshot: str, states: dict[str, int]) -> Evaluation:
    """Set the thresholds on the sites' validation samples, then have every site measure itself.

    Figures are those on the coordinator's own test set if it has one and the model is everybody's, else the sites'.
    """
    method, personal = examiner.method, examiner.method.is_personal(server)
    names = list(method.owners(server) if personal else method.members(server))
    examiner.calibrate(server, snapshot, states, names)
    asked = names if personal else list(server.clients)
    reports = site_reports(examiner, server, snapshot, states, asked)
    by = {name: figures_in(report) for name, report in reports.items() if report.info["samples"]}
    if len(examiner.split.test) and not personal:
        outcome = examiner.test_outcome(server, snapshot)
        metrics = examiner.measure(server, outcome)
    else:
        sizes = {name: 1 if personal else reports[name].info["samples"] for name in by}
        metrics = weighted_figures(by, sizes)
    return Evaluation({**metrics, **newcomer_figures(server, reports)}, by)


def site_reports(
    examiner: Examiner, server: Server, snapshot: str, states: dict[str, int], names: list[str]
) -> dict[str, Payload]:
    """Each site's report on its own test samples; one that fails is left out, with a note."""
    everyone = server.thresholds.get(EVERYONE, math.inf)
    jobs = [
        Job(
            "measure",
            server.step,
            snapshot,
            name,
            server.classes.names,
            states.get(name),
            threshold=server.thresholds.get(name, everyone),
        )
        for name in names
    ]
    reports = {}
    for answer in examiner.run(jobs):
        name = answer.job.client or ""
        try:
            report = read(answer)
            check_report(report)
            reports[name] = report
        except (UserError, BadReply) as problem:
            server.note(f"{name} is left out of the figures: {problem}")
    return dict(sorted(reports.items()))


def figures_in(report: Payload) -> dict[str, float]:
    """A site's figures; what is not defined there is NaN."""
    return {key: math.nan if value is None else float(value) for key, value in report.info["figures"].items()}


def weighted_figures(by: Mapping[str, Mapping[str, float]], sizes: Mapping[str, int]) -> dict[str, float]:
    """Means over sites, weighted by `sizes`; a site where a figure is not defined has no say in it."""
    keys = dict.fromkeys(key for figures in by.values() for key in figures)
    means = {}
    for key in keys:
        told = [
            (figures[key], sizes[name]) for name, figures in by.items() if not math.isnan(figures.get(key, math.nan))
        ]
        values, weights = [value for value, _ in told], [weight for _, weight in told]
        means[key] = float(np.average(values, weights=weights)) if told else math.nan
    return means


def newcomer_figures(server: Server, reports: Reports) -> dict[str, float]:
    """Accuracy at the last newcomer's site, at all others, and at both (T-Acc, S-Acc, G-Acc), from the sites' counts.

    The newcomer's classes that are not in the registry count as mistakes; at other sites only classes count that were
    there before the newcomer came.
    """
    arrived = [name for name in server.newcomers if name in reports]
    if not arrived:
        return {}
    old = {entry.name for entry in server.classes.entries if entry.origin != arrived[-1]}
    theirs, others = np.zeros(2), np.zeros(2)
    for name, report in reports.items():
        for label, counts in report.info["classes"].items():
            if name == arrived[-1]:
                theirs += counts
            elif label in old:
                others += counts

    def share(counts: np.ndarray) -> float:
        return float(counts[0] / counts[1]) if counts[1] else math.nan

    return {
        "target_accuracy": share(theirs),
        "source_accuracy": share(others),
        "global_accuracy": share(theirs + others),
    }
