"""FedPD's divide-and-conquer aggregation (section 4.2): models whose parts are aligned one by one.

Weights of conv and linear layers follow the map of the part that they belong to. Biases and norms, statistics
included, belong to neurons and not to parts: they follow the map of the whole model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from fedwild.alignment.matching import Pieces, match, moved, whole
from fedwild.alignment.solvers import Solver
from fedwild.models.graph import LayerGraph
from fedwild.subnetworks import Masks, Parts

Rest = Literal["kept", "zero"]
Part = Literal["close", "open", "share", "rest"]
THREE: tuple[Part, ...] = ("close", "open", "share")
Maps = dict[str, Tensor]
Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Disentangled:
    """A client's model and its closed-set and open-set subnetworks."""

    state: Mapping[str, Tensor]
    close: Masks
    open: Masks

    def parts(self, name: str) -> Parts:
        return Parts.of(self.close[name], self.open[name])

    def part(self, part: Part) -> Callable[[str], Tensor]:
        """The masks of one part, by the name of a weight."""
        return lambda name: getattr(self.parts(name), part)

    def masked(self, mask: Callable[[str], Tensor]) -> Weights:
        """All weights that have masks, zero outside of `mask`."""
        return {name: mask(name).to(self.state[name].dtype).mul_(self.state[name]) for name in self.close}

    @cached_property
    def three(self) -> dict[Part, Weights]:
        """The weights of the parts, kept: every other client is aligned to those of the target."""
        return {part: self.masked(self.part(part)) for part in THREE}

    @cached_property
    def two(self) -> dict[Part, Weights]:
        """The weights of the two subnetworks, kept in the same way."""
        return {"close": self.masked(self.close.__getitem__), "open": self.masked(self.open.__getitem__)}


@dataclass(frozen=True)
class Alignment:
    """How the neurons of two models are matched."""

    graph: LayerGraph
    solve: Solver
    sweeps: int = 0

    def maps(self, ours: Pieces, theirs: Pieces) -> Maps:
        return match(self.graph, ours, theirs, self.solve, self.sweeps)


@dataclass(frozen=True)
class Aligned:
    """A model in the target's order of neurons, and the share of neurons that each map moved."""

    state: dict[str, Tensor]
    moved: dict[str, float]
    maps: Maps = field(default_factory=dict)
    """The map of each space, where one serves the whole model."""


def align_whole(alignment: Alignment, model: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> Aligned:
    """One map for each space, by whole weights."""
    maps = alignment.maps(whole(model), whole(target))
    return Aligned(alignment.graph.permute(model, maps), {"whole": moved(maps)}, maps)


def align_three(alignment: Alignment, model: Disentangled, target: Disentangled, rest: Rest) -> Aligned:
    """The close-only, open-only and shared parts, each by a map of its own, added up (Eq. 13 to 16).

    Weights in neither subnetwork, of which the paper says nothing, follow the shared part; or they are zero, as
    Eq. 16 has it by the letter.
    """
    aligned, moves, _ = _by_whole(alignment, model, target)
    for part in THREE:
        ours = model.masked(model.part(part))
        maps = alignment.maps(whole(ours), whole(target.three[part]))
        moves[part] = moved(maps)
        if part == "share" and rest == "kept":
            # In both subnetworks or in neither.
            ours = model.masked(lambda name: model.close[name] == model.open[name])
        _add(aligned, alignment.graph.permute(ours, maps))
    return Aligned(aligned, moves)


def align_two(alignment: Alignment, model: Disentangled, target: Disentangled, rest: Rest) -> Aligned:
    """The two subnetworks, each by a map of its own ("Ours w/o Divide").

    They overlap: where weights of both meet, their mean counts. Weights in neither follow the whole model, or are zero.
    """
    aligned, moves, maps = _by_whole(alignment, model, target)
    # A plan spreads a weight over several places; a permutation does not, and bytes are moved faster.
    kind = torch.uint8 if all(order.dim() == 1 for order in maps.values()) else torch.float32
    count: Weights = {}
    subnetworks: dict[Part, Masks] = {"close": model.close, "open": model.open}
    for part, masks in subnetworks.items():
        ours = model.masked(masks.__getitem__)
        own = alignment.maps(whole(ours), whole(target.two[part]))
        moves[part] = moved(own)
        _add(aligned, alignment.graph.permute(ours, own))
        _add(count, alignment.graph.permute({name: mask.to(kind) for name, mask in masks.items()}, own))
    if rest == "kept":
        _add(aligned, alignment.graph.permute(model.masked(model.part("rest")), maps))
        left_out = {name: model.parts(name).rest.to(kind) for name in model.close}
        _add(count, alignment.graph.permute(left_out, maps))
    for name, times in count.items():
        aligned[name] /= times.clamp_min(1)
    return Aligned(aligned, moves)


def unaligned(model: Disentangled, rest: Rest) -> Aligned:
    """The parts added up where they are ("Ours w/o Conquer"): all of the model, or what the subnetworks keep of it."""
    if rest == "kept":
        return Aligned(dict(model.state), {})
    return Aligned({**model.state, **model.masked(lambda name: model.close[name] | model.open[name])}, {})


def _by_whole(
    alignment: Alignment, model: Disentangled, target: Disentangled
) -> tuple[Weights, dict[str, float], Maps]:
    """Biases and norms in the whole model's order, no weights as yet; what it moved; its maps."""
    maps = alignment.maps(whole(model.state), whole(target.state))
    others = {name: tensor for name, tensor in model.state.items() if name not in model.close}
    return alignment.graph.permute(others, maps), {"whole": moved(maps)}, maps


def _add(sums: Weights, tensors: Weights) -> None:
    """In place; the first tensor of a name, which must be nobody else's, becomes the sum."""
    for name, tensor in tensors.items():
        sums[name] = sums[name].add_(tensor) if name in sums else tensor
