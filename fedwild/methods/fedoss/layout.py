"""Where the network is cut, and the shapes that follow from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedwild.contract import Task
from fedwild.core.errors import unknown_name
from fedwild.core.rng import Rng
from fedwild.methods.fedoss.branches import cut_shape, make_branch
from fedwild.methods.fedoss.grids import Grid
from fedwild.methods.fedoss.settings import AUTO, FedOSSParams
from fedwild.models import Network


@dataclass(frozen=True)
class Layout:
    """The cut of a network, and what is attached to it."""

    cut: str
    grid: Grid
    head: dict[str, Tensor]
    """Names, shapes and types of a personal head's tensors, without values."""


class Layouts:
    """The layout of each network, computed once."""

    def __init__(self, params: FedOSSParams) -> None:
        self.params = params
        self._found: dict[Any, Layout] = {}

    def of(self, task: Task, classes: int) -> Layout:
        """Return the layout for a number of known classes."""
        key = (task.model, repr(task.model_params), task.input_shape, classes)
        if key not in self._found:
            network = task.build(classes + 1, Rng(0))
            cut = choose_cut(network, self.params.cut)
            # Seeded, so that the first job of a worker draws the same numbers as any other.
            with Rng(0).seeded("layout"):
                head = make_branch(self.params.branch, network, cut, classes).state_dict()
            grid = Grid.within(cut_shape(network, cut), self.params.dims)
            self._found[key] = Layout(cut, grid, {name: tensor.to("meta") for name, tensor in head.items()})
        return self._found[key]


def choose_cut(network: Network, cut: str) -> str:
    """Return the stage named `cut`. "auto" is the last stage before dense layers, or the last but one without any."""
    if cut != AUTO:
        if cut not in network.cuts:
            raise unknown_name("method.cut", cut, (AUTO, *network.cuts))
        return cut
    dense = network.first_dense()
    end = len(network.cuts) - 1 if dense is None else network.cuts.index(dense)
    return network.cuts[max(0, end - 1)]
