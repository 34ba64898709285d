"""Batch-norm layers: their tensors, and statistics measured again for new weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

VARIANCE = ".running_var"
"""The ending of the names of running variances."""


def norm_layers(model: nn.Module) -> dict[str, _BatchNorm]:
    """Return the batch-norm layers by path."""
    return {path: module for path, module in model.named_modules() if isinstance(module, _BatchNorm)}


def norm_keys(state: Iterable[str]) -> list[str]:
    """Return the names in a state dict that belong to batch-norm layers: those beside a running mean."""
    names = list(state)
    paths = {name.rpartition(".")[0] for name in names if name.endswith(".running_mean")}
    return [name for name in names if name.rpartition(".")[0] in paths]


def statistics_keys(state: Iterable[str]) -> list[str]:
    """Return the names of the running means and variances in a state dict."""
    return [name for name in norm_keys(state) if name.endswith((".running_mean", ".running_var"))]


def trained_keys(state: Mapping[str, Tensor]) -> list[str]:
    """Return the names of the trained part of a state dict: no counters, no running statistics."""
    statistics = set(statistics_keys(state))
    return [name for name, tensor in state.items() if tensor.is_floating_point() and name not in statistics]


def comparable(name: str, tensor: Tensor) -> Tensor:
    """Return a tensor on the scale of weights, for norms: a running variance as a standard deviation.

    A last batch of two samples can make a running variance a thousand times as large.
    """
    return tensor.abs().sqrt() if name.endswith(VARIANCE) else tensor


@torch.no_grad()
def measure_statistics(model: nn.Module, batches: Iterable[Tensor]) -> bool:
    """Set all running statistics to their means over the samples of these batches.

    Return False if no batch has at least two samples. Weights that were merged or copied give activations other than
    those from which the statistics were computed.
    """
    layers = norm_layers(model).values()
    usual = [layer.momentum for layer in layers]
    model.train()
    seen = 0
    try:
        for x in batches:
            if len(x) < 2:
                continue
            seen += len(x)
            for layer in layers:
                # Weighted by the batch's share of all samples so far, a running mean is the mean of all of them.
                layer.momentum = len(x) / seen
            model(x)
    finally:
        for layer, momentum in zip(layers, usual, strict=True):
            layer.momentum = momentum
    return seen > 0


def pool_statistics(statistics: Iterable[tuple[float, Mapping[str, Tensor]]]) -> dict[str, Tensor]:
    """Return the statistics of all groups together, from weighted means of E[x] and of E[x^2]."""
    total = 0.0
    firsts: dict[str, Tensor] = {}
    seconds: dict[str, Tensor] = {}
    names: list[str] = []
    for weight, group in statistics:
        total += weight
        names = [name for name in group if name.endswith(".running_mean")]
        for name in names:
            mean, variance = group[name].double(), group[name.removesuffix("mean") + "var"].double()
            firsts[name] = firsts.get(name, torch.zeros_like(mean)) + weight * mean
            seconds[name] = seconds.get(name, torch.zeros_like(mean)) + weight * (variance + mean.square())
    found: dict[str, Tensor] = {}
    for name in names:
        mean = firsts[name] / total
        found[name] = mean.float()
        found[name.removesuffix("mean") + "var"] = (seconds[name] / total - mean.square()).clamp_min(0).float()
    return found


def to_second_moments(statistics: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return statistics in float64 with E[x^2] in place of variances, so that means over clients are meaningful."""
    return {
        name: value.double() + _mean_beside(statistics, name).double().square()
        if name.endswith(".running_var")
        else value.double()
        for name, value in statistics.items()
    }


def from_second_moments(statistics: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Undo `to_second_moments`; rounding never makes a variance negative."""
    return {
        name: (value - _mean_beside(statistics, name).square()).clamp_min(0) if name.endswith(".running_var") else value
        for name, value in statistics.items()
    }


def _mean_beside(statistics: Mapping[str, Tensor], variance: str) -> Tensor:
    """Return the running mean of the layer that has this variance."""
    return statistics[variance.removesuffix("var") + "mean"]


@contextmanager
def frozen_statistics(layers: Sequence[_BatchNorm]) -> Iterator[None]:
    """Let batch-norm use the statistics of batches without updating its running statistics."""
    for layer in layers:
        layer.track_running_stats = False
    try:
        yield
    finally:
        for layer in layers:
            layer.track_running_stats = True
