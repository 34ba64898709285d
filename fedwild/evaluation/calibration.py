"""Thresholds and references from sketches of the answers for the clients' own validation samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from fedwild.contract import EVERYONE, Payload, Server
from fedwild.contract.claims import NO_CLAIMS, Claims
from fedwild.contract.engine import Answer, Job
from fedwild.contract.reference import Reference
from fedwild.core.errors import BadReply, UserError
from fedwild.openset.sketch import Sketch, from_payload, pool, threshold_of
from fedwild.openset.temperature import best_temperature

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
    run: RunJobs,
    server: Server,
    snapshot: str,
    states: Mapping[str, int],
    names: Sequence[str],
    claims: Claims = NO_CLAIMS,
) -> dict[str, Sketch]:
    """Return a sketch of each client's answers for its own validation samples, without clients that fail."""
    classes = server.classes.names
    jobs = [Job("validate", server.step, snapshot, name, classes, states.get(name)) for name in names]
    scores: dict[str, Sketch] = {}
    for answer in run(jobs):
        name = answer.job.client or ""
        try:
            sketch = from_payload(read_answer(answer))
            claims.check(name, sketch.count, "info 'count'")
            if not np.isfinite(sketch.quantiles).all():
                raise BadReply("the quantiles of a sketch must be finite")
            scores[name] = sketch
        except (UserError, BadReply) as problem:
            server.note(f"{name} is excluded from the threshold: {problem}")
    return scores


def set_references(
    server: Server, sketches: Mapping[str, Sketch], personal: bool, claims: Claims = NO_CLAIMS
) -> dict[str, list[Sketch]]:
    """Set the common reference, or each client's own. Returns the sketches behind each of them.

    In the common one, no client counts with more than the share `claims.max_weight` of all samples.
    """
    if personal:
        groups = {name: [sketch] for name, sketch in sorted(sketches.items())}
    else:
        counts = claims.cap({name: sketch.count for name, sketch in sketches.items()})
        groups = {EVERYONE: [reweigh(sketches[name], counts[name]) for name in sorted(sketches)]}
    server.references = {name: reference_of(pool(members)) for name, members in groups.items() if members}
    return groups


def reweigh(sketch: Sketch, count: int) -> Sketch:
    """Return a sketch that counts as this number of samples."""
    return (
        sketch if count == sketch.count else replace(sketch, count=count, losses=sketch.losses * count / sketch.count)
    )


def reference_of(sketch: Sketch) -> Reference:
    """Return what answers are compared with."""
    return Reference(torch.from_numpy(sketch.quantiles), sketch.count, best_temperature(sketch.losses))


def set_thresholds(server: Server, groups: Mapping[str, Sequence[Sketch]], accept: float) -> None:
    """Set the threshold of each group to accept the share `accept` of its validation samples."""
    server.thresholds = {}
    for name, members in groups.items():
        server.thresholds[name] = threshold_of(members, accept)
        if not any(sketch.count for sketch in members):
            whose = "any client" if name == EVERYONE else name
            server.note(f"no validation samples at {whose}: the threshold accepts everything")
