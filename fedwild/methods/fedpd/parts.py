"""FedPD's divide-and-conquer aggregation (section 4.2): models whose parts are aligned separately.

Weights of conv and linear layers follow the map of the part that they belong to. Biases and norms, including their
statistics, belong to neurons rather than parts: they follow the map of the whole model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from fedwild.contract import Payload, Tensors
from fedwild.core.bits import unpack_bits
from fedwild.methods.fedpd.matching import Maps, match_layers, moved_share
from fedwild.methods.fedpd.solvers import Solver
from fedwild.methods.fedpd.subnetworks import Masks, Parts
from fedwild.models import LayerGraph

Rest = Literal["kept", "zero"]
Part = Literal["close", "open", "share", "rest"]
THREE: tuple[Part, ...] = ("close", "open", "share")
SUBNETWORKS = ("close", "open")
Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Disentangled:
    """A client's model with its closed-set and open-set subnetworks."""

    state: Tensors
    close: Masks
    open: Masks

    @classmethod
    def from_payload(cls, payload: Payload) -> Disentangled:
        """Return the model of a payload. Its subnetworks are empty where the payload has no masks."""
        state = payload.group("model")
        close, open_ = (unpack_bits(payload.group(name), state) for name in SUBNETWORKS)
        return cls(state, close, open_)

    def parts(self, name: str) -> Parts:
        return Parts.of(self.close[name], self.open[name])

    def part(self, part: Part) -> Callable[[str], Tensor]:
        """Return the masks of one part, by the name of a weight."""
        return lambda name: getattr(self.parts(name), part)

    def masked(self, mask: Callable[[str], Tensor]) -> Weights:
        """Return all weights that have masks, zero outside of `mask`."""
        return {name: mask(name).to(self.state[name].dtype).mul_(self.state[name]) for name in self.close}

    @cached_property
    def three(self) -> dict[Part, Weights]:
        """The weights of the three parts, cached because all other clients are aligned to those of the target."""
        return {part: self.masked(self.part(part)) for part in THREE}

    @cached_property
    def two(self) -> dict[Part, Weights]:
        """The weights of the two subnetworks, cached for the same reason."""
        return {"close": self.masked(self.close.__getitem__), "open": self.masked(self.open.__getitem__)}


@dataclass(frozen=True)
class Alignment:
    """How the neurons of two models are matched."""

    graph: LayerGraph
    solve: Solver
    sweeps: int = 0

    def maps(self, ours: Tensors, theirs: Tensors) -> Maps:
        return match_layers(self.graph, ours, theirs, self.solve, self.sweeps)


@dataclass(frozen=True)
class Aligned:
    """A model with the target's order of neurons, and the share of neurons that each map moved."""

    state: dict[str, Tensor]
    moved: dict[str, float]
    maps: Maps = field(default_factory=dict)
    """The map of each space, if one map is used for the whole model."""


def align(
    alignment: Alignment, model: Disentangled, target: Disentangled, maps: Literal["one", "three", "two"], rest: Rest
) -> Aligned:
    """Return a client's model with its neurons in the order of the target's."""
    if maps == "one" or not model.close:
        return align_whole(alignment, keep_order(model, rest).state, target.state)
    return (align_three if maps == "three" else align_two)(alignment, model, target, rest)


def align_whole(alignment: Alignment, model: Tensors, target: Tensors) -> Aligned:
    """Align by one map per space, found from whole weights."""
    maps = alignment.maps(model, target)
    return Aligned(alignment.graph.permute(model, maps), {"whole": moved_share(maps)}, maps)


def align_three(alignment: Alignment, model: Disentangled, target: Disentangled, rest: Rest) -> Aligned:
    """Align the close-only, open-only and shared parts by separate maps and add them up (Eq. 13 to 16).

    The paper does not say what happens to weights in neither subnetwork. They follow the shared part, or are zero, as
    Eq. 16 implies.
    """
    aligned, moves, _ = _align_neurons(alignment, model, target)
    for part in THREE:
        ours = model.masked(model.part(part))
        maps = alignment.maps(ours, target.three[part])
        moves[part] = moved_share(maps)
        if part == "share" and rest == "kept":
            # The weights in both subnetworks or in neither.
            ours = model.masked(lambda name: model.close[name] == model.open[name])
        _add(aligned, alignment.graph.permute(ours, maps))
    return Aligned(aligned, moves)


def align_two(alignment: Alignment, model: Disentangled, target: Disentangled, rest: Rest) -> Aligned:
    """Align the two subnetworks by separate maps ("Ours w/o Divide").

    They overlap: where weights of both end up at one place, their mean is used. Weights in neither subnetwork follow
    the whole model, or are zero.
    """
    aligned, moves, maps = _align_neurons(alignment, model, target)
    # A plan spreads a weight over several places. A permutation does not, and moving bytes is faster.
    kind = torch.uint8 if all(order.dim() == 1 for order in maps.values()) else torch.float32
    count: Weights = {}
    subnetworks: dict[Part, Masks] = {"close": model.close, "open": model.open}
    for part, masks in subnetworks.items():
        ours = model.masked(masks.__getitem__)
        own = alignment.maps(ours, target.two[part])
        moves[part] = moved_share(own)
        _add(aligned, alignment.graph.permute(ours, own))
        _add(count, alignment.graph.permute({name: mask.to(kind) for name, mask in masks.items()}, own))
    if rest == "kept":
        _add(aligned, alignment.graph.permute(model.masked(model.part("rest")), maps))
        in_neither = {name: model.parts(name).rest.to(kind) for name in model.close}
        _add(count, alignment.graph.permute(in_neither, maps))
    for name, times in count.items():
        aligned[name] /= times.clamp_min(1)
    return Aligned(aligned, moves)


def keep_order(model: Disentangled, rest: Rest) -> Aligned:
    """Return the model without alignment ("Ours w/o Conquer"): all of it, or only what the subnetworks keep."""
    if rest == "kept":
        return Aligned(dict(model.state), {})
    return Aligned({**model.state, **model.masked(lambda name: model.close[name] | model.open[name])}, {})


def _align_neurons(
    alignment: Alignment, model: Disentangled, target: Disentangled
) -> tuple[Weights, dict[str, float], Maps]:
    """Return biases and norms in the whole model's order, without masked weights; the moved share; and the maps."""
    maps = alignment.maps(model.state, target.state)
    others = {name: tensor for name, tensor in model.state.items() if name not in model.close}
    return alignment.graph.permute(others, maps), {"whole": moved_share(maps)}, maps


def _add(sums: Weights, tensors: Weights) -> None:
    """Add tensors in place. The first tensor of a name becomes the sum, so nothing else may hold it."""
    for name, tensor in tensors.items():
        sums[name] = sums[name].add_(tensor) if name in sums else tensor


class PartMeans:
    """For every weight and each of its four parts, the mean over the clients for which it belongs to that part."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._weights: dict[str, Tensor] = {}

    def add(self, model: Disentangled, weight: float) -> None:
        for name in model.close:
            for part, mask in model.parts(name)._asdict().items():
                key = f"{part}/{name}"
                if key not in self._sums:
                    self._sums[key] = torch.zeros(mask.shape, dtype=torch.float64)
                    self._weights[key] = torch.zeros(mask.shape)
                self._sums[key].add_(model.state[name] * mask, alpha=weight)
                self._weights[key].add_(mask, alpha=weight)

    def means(self, common: Tensors) -> dict[str, Tensor]:
        """Return the means by part/name. Where no client has a weight in a part, `common` has its mean over all."""
        found = {}
        for key, total in self._sums.items():
            weights = self._weights[key]
            own = (total / weights).float()
            found[key] = torch.where(weights > 0, own, common[key.partition("/")[2]])
        return found


def select_means(means: Mapping[str, Tensors], model: Disentangled) -> dict[str, Tensor]:
    """Return, for every weight with masks, the mean of the part that each of its elements belongs to in `model`."""
    chosen: dict[str, Tensor] = {}
    for name in model.close:
        chosen[name] = means["rest"][name]
        for part, mask in model.parts(name)._asdict().items():
            chosen[name] = torch.where(mask, means[part][name], chosen[name])
    return chosen


class RunningMean:
    """The plain mean of the models added so far."""

    def __init__(self) -> None:
        self._count = 0
        self._sums: dict[str, Tensor] = {}

    def add(self, state: Tensors) -> None:
        self._count += 1
        for name, tensor in state.items():
            self._sums[name] = tensor.clone() if name not in self._sums else self._sums[name].add_(tensor)

    def mean(self) -> dict[str, Tensor]:
        return {name: total / self._count for name, total in self._sums.items()}
