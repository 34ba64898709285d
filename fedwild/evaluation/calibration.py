"""Thresholds from the unknown scores of the clients' own validation samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from fedwild.contract import EVERYONE, Payload, Server
from fedwild.contract.engine import Answer, Job
from fedwild.core.errors import BadReply, UserError
from fedwild.openset import threshold_at_acceptance

RunJobs = Callable[[Iterable[Job]], Iterator[Answer]]
"""An engine's `run`."""


def read_answer(answer: Answer) -> Payload:
    """Return the payload of an evaluation job. Unlike a client's reply in a round, it is required."""
    if answer.disk_failed:
        raise OSError(answer.error)
    if answer.error is not None:
        raise UserError(f"evaluation failed at {answer.job.client or 'the server'}: {answer.error}")
    return answer.read()


def validation_scores(
    run: RunJobs, server: Server, snapshot: str, states: Mapping[str, int], names: Sequence[str]
) -> dict[str, np.ndarray]:
    """Return each client's unknown scores on its own validation samples, without the clients that fail."""
    classes = server.classes.names
    jobs = [Job("validate", server.step, snapshot, name, classes, states.get(name)) for name in names]
    scores: dict[str, np.ndarray] = {}
    for answer in run(jobs):
        name = answer.job.client or ""
        try:
            values = read_answer(answer).tensors["unknown"].double().numpy()
            if values.ndim != 1 or np.isnan(values).any():
                raise UserError(f"the validation scores of {name} are not a list of numbers")
            scores[name] = values
        except (UserError, BadReply, KeyError, TypeError, ValueError) as problem:
            server.note(f"{name} is excluded from the threshold: {problem}")
    return scores


def set_thresholds(server: Server, scores: Mapping[str, np.ndarray], accept: float, personal: bool) -> None:
    """Set the common threshold, or each client's own, to accept the share `accept` of validation samples."""
    if personal:
        groups = {name: [values] for name, values in sorted(scores.items())}
    else:
        groups = {EVERYONE: [scores[name] for name in sorted(scores)]}
    server.thresholds = {}
    for name, members in groups.items():
        pooled = np.concatenate([np.empty(0), *members])
        server.thresholds[name] = threshold_at_acceptance(pooled, accept)
        if not len(pooled):
            whose = "any client" if name == EVERYONE else name
            server.note(f"no validation samples at {whose}: the threshold accepts everything")
