"""A predictor's answers beside the truth, and the figures made of them: the same wherever the test samples are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedwild.errors import BadReply
from fedwild.metrics import UNKNOWN, open_set_report
from fedwild.openset import decide
from fedwild.payload import Payload
from fedwild.protocol import Method, Outcome, Prediction, Server

MOST_FIGURES = 10_000
"""No honest site tells of more figures or classes."""


def outcome_of(
    server: Server,
    prediction: Prediction,
    threshold: float,
    true_names: Sequence[str],
    novel: tuple[tuple[str, ...], ...] = (),
) -> Outcome:
    """Answers (n, ...) decided at a threshold and set beside the true classes' names (n,)."""
    ids = {name: i for i, name in enumerate(server.classes.names)}
    truth = torch.tensor([ids.get(name, UNKNOWN) for name in true_names], dtype=torch.int64)
    decision = decide(prediction.logits, prediction.unknown, threshold)
    return Outcome(prediction, decision, truth, true_names, novel)


def figures_of(method: Method, server: Server, outcome: Outcome) -> dict[str, float]:
    """The common open-set figures and the method's own."""
    common = open_set_report(
        outcome.prediction.logits.numpy(),
        outcome.prediction.unknown.numpy(),
        method.truth(server, outcome).numpy(),
        outcome.decision.numpy(),
    )
    return {**common, **method.measure(server, outcome)}


def report_of(method: Method, server: Server, outcome: Outcome) -> Payload:
    """What a site tells of its own test samples: figures, and per true class how many it has and answers rightly.

    Right is the known class with the largest logit, whatever the threshold says.
    """
    truth = method.truth(server, outcome)
    right = outcome.prediction.logits.argmax(1) == truth if len(truth) else torch.zeros(0, dtype=torch.bool)
    counts: dict[str, list[int]] = {}
    for name, hit in zip(outcome.true_names, right.tolist(), strict=True):
        row = counts.setdefault(name, [0, 0])
        row[0] += hit
        row[1] += 1
    figures = figures_of(method, server, outcome) if len(truth) else {}
    told = {key: float(value) if math.isfinite(value) else None for key, value in figures.items()}
    return Payload(info={"samples": len(truth), "figures": told, "classes": counts})


LARGEST = 1e300
"""No figure is beyond it, and whatever is within can be a float."""


def check_report(report: Payload) -> None:
    """Refuse a report whose counts or figures cannot be."""
    samples, figures, classes = (report.info.get(key) for key in ("samples", "figures", "classes"))
    if not _count(samples) or not isinstance(figures, dict) or not isinstance(classes, dict):
        raise BadReply("a report needs samples, figures and classes")
    if len(figures) > MOST_FIGURES or len(classes) > MOST_FIGURES:
        raise BadReply(f"a report has more than {MOST_FIGURES} figures or classes")
    for key, value in figures.items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and -LARGEST <= value <= LARGEST
        if value is not None and not number:
            raise BadReply(f"figure {key[:40]!r} is {str(value)[:40]}, expected a number")
    for name, row in classes.items():
        if not isinstance(row, list) or len(row) != 2 or not all(map(_count, row)) or row[0] > row[1]:
            raise BadReply(f"class {name[:40]!r} has counts {str(row)[:40]}, expected [right, all]")
    if sum(row[1] for row in classes.values()) != samples:
        raise BadReply("the classes' samples do not add up to info 'samples'")


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 2**53


def rows_of(outcome: Outcome, rows: Tensor) -> Outcome:
    """The outcome at some positions."""
    logits, unknown, details = outcome.prediction
    return Outcome(
        Prediction(logits[rows], unknown[rows], {name: tensor[rows] for name, tensor in details.items()}),
        outcome.decision[rows],
        outcome.truth[rows],
        [outcome.true_names[i] for i in rows.tolist()],
        outcome.novel,
    )
