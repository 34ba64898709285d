"""A predictor's answers with the truth, and the figures computed from them, on this machine or at a site."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedwild.contract import Method, Outcome, Payload, Prediction, Server
from fedwild.core.errors import BadReply
from fedwild.openset import decide
from fedwild.openset.metrics import UNKNOWN, open_set_report

MAX_FIGURES = 10_000
"""A report with more figures or classes is rejected."""


def outcome_of(
    server: Server,
    prediction: Prediction,
    threshold: float,
    true_names: Sequence[str],
    novel: tuple[tuple[str, ...], ...] = (),
) -> Outcome:
    """Return answers (n, ...) with decisions at a threshold and the names of the true classes (n,)."""
    ids = {name: i for i, name in enumerate(server.classes.names)}
    truth = torch.tensor([ids.get(name, UNKNOWN) for name in true_names], dtype=torch.int64)
    decision = decide(prediction.logits, prediction.unknown, threshold)
    return Outcome(prediction, decision, truth, true_names, novel)


def figures_of(method: Method, server: Server, outcome: Outcome) -> dict[str, float]:
    """Return the common open-set figures and the method's own."""
    common = open_set_report(
        outcome.prediction.logits.numpy(),
        outcome.prediction.unknown.numpy(),
        method.answers(server).truth(outcome).numpy(),
        outcome.decision.numpy(),
    )
    return {**common, **method.measure(server, outcome)}


def report_of(method: Method, server: Server, outcome: Outcome, min_count: int = 1) -> Payload:
    """Return a site's report on its own test samples: figures, and for each true class [correct, all].

    An answer is correct if the class with the largest logit is the true one, regardless of the threshold. Samples of a
    class with fewer than `min_count` of them are not measured, so that no figure tells about a few samples.
    """
    sizes = Counter(outcome.true_names)
    if min(sizes.values(), default=min_count) < min_count:
        kept = [i for i, name in enumerate(outcome.true_names) if sizes[name] >= min_count]
        outcome = select_rows(outcome, torch.tensor(kept, dtype=torch.int64))
    truth = method.answers(server).truth(outcome)
    right = outcome.prediction.logits.argmax(1) == truth if len(truth) else torch.zeros(0, dtype=torch.bool)
    counts: dict[str, list[int]] = {}
    for name, hit in zip(outcome.true_names, right.tolist(), strict=True):
        row = counts.setdefault(name, [0, 0])
        row[0] += hit
        row[1] += 1
    figures = figures_of(method, server, outcome) if len(truth) else {}
    finite = {key: float(value) if math.isfinite(value) else None for key, value in figures.items()}
    return Payload(info={"samples": len(truth), "figures": finite, "classes": counts})


MAX_FIGURE = 1e9
"""Figures of a method with a larger absolute value are rejected."""
SHARES = frozenset(open_set_report(np.zeros((0, 1)), [], [], []))
"""The common figures, all of which are from 0 to 1."""


def check_report(report: Payload) -> None:
    """Reject a report with impossible counts or figures by raising `BadReply`."""
    samples, figures, classes = (report.info.get(key) for key in ("samples", "figures", "classes"))
    if not _count(samples) or not isinstance(figures, dict) or not isinstance(classes, dict):
        raise BadReply("a report needs the keys samples, figures and classes")
    if len(figures) > MAX_FIGURES or len(classes) > MAX_FIGURES:
        raise BadReply(f"a report has more than {MAX_FIGURES} figures or classes")
    for key, value in figures.items():
        is_share = key in SHARES or key.endswith("accuracy")
        least, largest = (0.0, 1.0) if is_share else (-MAX_FIGURE, MAX_FIGURE)
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= largest
        if value is not None and not number:
            raise BadReply(f"figure {key[:40]!r} is {str(value)[:40]}, expected a number from {least:g} to {largest:g}")
    for name, row in classes.items():
        if not isinstance(row, list) or len(row) != 2 or not all(map(_count, row)) or row[0] > row[1]:
            raise BadReply(f"class {name[:40]!r} has counts {str(row)[:40]}, expected [correct, all]")
    if sum(row[1] for row in classes.values()) != samples:
        raise BadReply("the counts of all classes do not add up to info 'samples'")


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 2**53


def select_rows(outcome: Outcome, rows: Tensor) -> Outcome:
    """Return the outcome at some positions."""
    logits, unknown, details = outcome.prediction
    return Outcome(
        Prediction(logits[rows], unknown[rows], {name: tensor[rows] for name, tensor in details.items()}),
        outcome.decision[rows],
        outcome.truth[rows],
        [outcome.true_names[i] for i in rows.tolist()],
        outcome.novel,
    )
