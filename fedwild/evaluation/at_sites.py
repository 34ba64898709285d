"""Measuring where the data is: sites report figures on their own test samples, and nothing else leaves them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from fedwild.contract import EVERYONE, Payload, Server
from fedwild.contract.engine import Job
from fedwild.core.errors import BadReply, UserError
from fedwild.evaluation import newcomers
from fedwild.evaluation.calibration import read_answer
from fedwild.evaluation.examiner import Evaluation, Examiner
from fedwild.evaluation.outcomes import check_report


def evaluate_at_sites(examiner: Examiner, server: Server, snapshot: str, states: Mapping[str, int]) -> Evaluation:
    """Calibrate the thresholds on the sites' validation samples, then let every site measure itself.

    The figures are those on the coordinator's own test set if it has one and the model is shared, else the sites'.
    """
    answering = examiner.method.answers(server)
    names = list(answering.clients)
    examiner.calibrate(server, snapshot, states, names)
    reports = site_reports(examiner, server, snapshot, states, names if answering.personal else server.clients)
    by = {
        # Figures that are not defined at a site are NaN.
        name: {key: math.nan if value is None else float(value) for key, value in report.info["figures"].items()}
        for name, report in reports.items()
        if report.info["samples"]
    }
    if len(examiner.split.test) and not answering.personal:
        metrics = examiner.measure(server, examiner.test_outcome(server, snapshot))
    else:
        # A site's test samples are not declared, so they count at most as many as it has for training.
        tested = {name: reports[name].info["samples"] for name in by}
        counted = {name: min(count, examiner.claims.declared.get(name, count)) for name, count in tested.items()}
        sizes = dict.fromkeys(by, 1) if answering.personal else examiner.claims.cap(counted)
        metrics = mean_figures(by, sizes)
    counts = {name: report.info["classes"] for name, report in reports.items()}
    return Evaluation({**metrics, **newcomers.pooled_over_sites(server, counts)}, by)


def site_reports(
    examiner: Examiner, server: Server, snapshot: str, states: Mapping[str, int], names: Sequence[str]
) -> dict[str, Payload]:
    """Return each site's report on its own test samples; a site that fails is excluded, with a note."""
    everyone, classes = server.thresholds.get(EVERYONE, math.inf), server.classes.names
    thresholds = {name: server.thresholds.get(name, everyone) for name in names}
    jobs = [
        Job("measure", server.step, snapshot, name, classes, states.get(name), threshold=thresholds[name])
        for name in names
    ]
    reports = {}
    for answer in examiner.run(jobs):
        name = answer.job.client or ""
        try:
            report = read_answer(answer)
            check_report(report)
            reports[name] = report
        except (UserError, BadReply) as problem:
            server.note(f"{name} is excluded from the figures: {problem}")
    return dict(sorted(reports.items()))


def mean_figures(by: Mapping[str, Mapping[str, float]], sizes: Mapping[str, int]) -> dict[str, float]:
    """Return means over sites, weighted by `sizes`; a site where a figure is not defined does not count for it."""
    means = {}
    for key in dict.fromkeys(key for figures in by.values() for key in figures):
        defined = [name for name, figures in by.items() if not math.isnan(figures.get(key, math.nan))]
        values, weights = [by[name][key] for name in defined], [sizes[name] for name in defined]
        means[key] = float(np.average(values, weights=weights)) if defined else math.nan
    return means
