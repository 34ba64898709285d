"""Which runs differential privacy can protect, and the noise and delta of a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from fedwild.aggregation import AGGREGATIONS
from fedwild.contract import Method, Phase, Rng, Task
from fedwild.core.declared import declared
from fedwild.core.defaults import DEFAULT_METHOD
from fedwild.core.errors import UserError
from fedwild.core.layers import Table
from fedwild.core.registry import Registry
from fedwild.models import Network, has_batch_norm
from fedwild.runs.accountant import Mechanism, largest_epsilon, noise_for
from fedwild.runs.settings import PrivacySettings
from fedwild.training.corrections import CORRECTIONS
from fedwild.training.objectives import OBJECTIVES
from fedwild.training.private import Protected, clipped_sum, sampling_rate, steps_per_epoch

MIN_EXPECTED = 20
"""With this number of expected participants, a round has fewer than two with a probability below 5e-8."""
WITHOUT_BATCH_NORM = "mlp, simple-cnn or vgg-9"


def planned_privacy(
    privacy: PrivacySettings, phases: Sequence[Phase], participation: float, sizes: Sequence[int]
) -> Table:
    """Return noise and delta of a run whose clients have these numbers of samples.

    Raises `UserError` if delta is too large, or if the planned rounds cost more than `epsilon`.
    """
    unit, count = ("clients", len(sizes)) if privacy.level == "client" else ("training samples", sum(sizes))
    if count < 2:
        raise UserError(f"privacy.level = {privacy.level!r} is not allowed for {count} {unit}: at least 2 are needed.")
    delta = count**-1.1 if privacy.delta is None else privacy.delta
    if delta >= 1 / count:
        raise UserError(
            f"privacy.delta = {delta:g} is not allowed: it must be below 1/n = {1 / count:g} for n = {count} {unit}."
        )
    plans = planned_mechanisms(privacy.level, phases, participation, sizes)
    if privacy.noise is None:
        assert privacy.epsilon is not None
        return {"noise": noise_for(privacy.epsilon, delta, plans), "delta": delta}
    cost = largest_epsilon((Mechanism(rate, privacy.noise, times) for rate, times in plans), delta)
    if privacy.epsilon is not None and cost > privacy.epsilon * (1 + 1e-9):
        raise UserError(
            f"privacy.noise = {privacy.noise:g} is not allowed with privacy.epsilon = {privacy.epsilon:g}: the planned "
            f"rounds would cost {cost:.4g}. Omit noise, or reduce the number of rounds."
        )
    return {"noise": privacy.noise, "delta": delta}


def check_secure(privacy: PrivacySettings, participation: float, clients: int) -> None:
    """Reject secure sums at client level if a round may well have fewer than the two clients that a sum needs."""
    expected = participation * clients
    if privacy.level == "client" and participation < 1 and expected < MIN_EXPECTED:
        raise UserError(
            f"federation.participation = {participation:g} is not allowed with privacy.level = 'client' and secure "
            f"sums for {clients} clients: a round could have fewer than two clients. Set it to 1, or use at least "
            f"{math.ceil(MIN_EXPECTED / participation)} clients."
        )


def planned_mechanisms(
    level: str, phases: Sequence[Phase], participation: float, sizes: Sequence[int]
) -> list[tuple[float, int]]:
    """Return the sampling rate and the number of applications, at sample level for clients of each size.

    At sample level, all clients are assumed to take part in every round. Small clients have the largest rate, so that
    their samples cost most.
    """
    protected = [phase for phase in phases if isinstance(phase, Protected)]
    if level == "client":
        return [(participation, sum(phase.rounds for phase in protected))]
    plans = []
    for samples in sorted({size for size in sizes if size}):
        by_rate: dict[float, int] = {}
        for phase in protected:
            size, rounds = phase.params.batch_size, phase.rounds
            steps = rounds * phase.params.epochs * steps_per_epoch(size, samples)
            rate = sampling_rate(size, samples)
            by_rate[rate] = by_rate.get(rate, 0) + steps
        # Phases with different batch sizes: all their steps at the largest rate cost at least as much.
        plans.append((max(by_rate), sum(by_rate.values())))
    return plans


def check_method(method: Method, level: str) -> None:
    """Reject a method or a component that the level cannot protect."""
    if level == "none":
        return
    refusal = f"privacy.level = {level!r} is not allowed with"
    for phase in method.phases():
        if level not in declared(type(phase), "protects", ()):
            what = {
                "client": "does more than replace the model by a mean of the clients' models",
                "sample": "uses the clients' samples for more than private training steps",
            }[level]
            raise UserError(
                f"{refusal} method {method.name!r}: its phase {phase.name!r} {what}. Use method {DEFAULT_METHOD!r}."
            )
    if "correction" in method.parts:
        reason = "it sends more than the model" if level == "client" else "it uses samples outside private steps"
        _check_part(refusal, method.correction, CORRECTIONS, level, reason)  # type: ignore[attr-defined]
    if "aggregation" in method.parts and level == "client":
        reason = "its sensitivity to one client is not known"
        _check_part(refusal, method.aggregation, AGGREGATIONS, level, reason)  # type: ignore[attr-defined]
        if getattr(method.aggregation.params, "clip", None):  # type: ignore[attr-defined]
            raise UserError(f"{refusal} aggregation.clip, which would clip the mean: set privacy.clip instead.")
    if "objective" in method.parts and level == "sample":
        reason = "the loss of a sample depends on other samples"
        _check_part(refusal, method.objective, OBJECTIVES, level, reason)  # type: ignore[attr-defined]


def _check_part(refusal: str, part: Any, registry: Registry[Any], level: str, reason: str) -> None:
    if level not in declared(type(part), "protects", ()):
        names = [name for name in registry.names() if level in declared(registry.get(name), "protects", ())]
        raise UserError(f"{refusal} {registry.kind}.name = {part.name!r}: {reason}. Use {' or '.join(names)}.")


def check_network(network: Network, task: Task, method: Method, level: str) -> None:
    """Reject a network that the level cannot protect."""
    if level == "none":
        return
    refusal = f"model.name = {task.model!r} is not allowed with privacy.level = {level!r}"
    if has_batch_norm(network):
        raise UserError(
            f"{refusal}: noise cannot protect the statistics of its batch norm. Use a network without batch norm, such "
            f"as {WITHOUT_BATCH_NORM}."
        )
    if level == "sample":
        x = torch.zeros(1, *task.input_shape, device=task.device)
        y = torch.zeros(1, dtype=torch.int64, device=task.device)
        try:
            clipped_sum(network, method.objective, x, y, 1.0, Rng(0).torch("trial"))  # type: ignore[attr-defined]
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise UserError(
                f"{refusal}: its gradients cannot be computed per sample ({reason}). Use a network such as "
                f"{WITHOUT_BATCH_NORM}."
            ) from None
