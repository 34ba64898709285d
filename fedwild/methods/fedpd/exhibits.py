"""What FedPD shows: which weights the clients keep in which subnetwork, as in the paper's Figures 3, 4 and 6."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from fedwild.contract import Exhibit, MapExhibit, Server

SECTION = "Subnetworks"
PARTS = ("closed only", "open only", "both", "neither")


def mask_exhibits(server: Server, weights: Iterable[str], ratio: float, rounds: int) -> list[Exhibit]:
    """Return a map of the parts of all layers and, for every layer, maps of both subnetworks and of the parts.

    A client's masks are those of the last round that it took part in. Returns nothing if no client has masks yet.
    """
    shares = server.state.subgroups("shares")
    if not shares:
        return []
    # (clients, 3, neurons): the close-only, open-only and shared parts of each neuron's incoming weights.
    layers = {
        weight.removesuffix(".weight"): torch.stack([by_weight[weight].double() for by_weight in shares.values()])
        for weight in weights
    }
    overview = MapExhibit(
        SECTION,
        "Parts of each layer",
        f"Shares of a layer's weights that belong to each part, mean over clients. Subnetworks keep {ratio:g} of a "
        f"layer's weights; training rounds so far: {rounds}.",
        values=torch.stack([part_shares(layer).mean(dim=0) for layer in layers.values()]),
        rows=tuple(layers),
        columns=PARTS,
    )
    clients = tuple(shares)
    return [overview, *(exhibit for name, layer in layers.items() for exhibit in layer_exhibits(name, layer, clients))]


def layer_exhibits(name: str, shares: Tensor, clients: tuple[str, ...]) -> list[Exhibit]:
    """Return the maps of one layer from shares (clients, 3, neurons)."""
    closed, open_, both = shares.unbind(dim=1)
    by_neuron = "Share of each neuron's incoming weights in the subnetwork. Rows are clients, columns are neurons."
    by_part = "Shares of the layer's weights that belong to each part. Rows are clients."
    return [
        MapExhibit(SECTION, f"{name}: closed-set subnetwork", by_neuron, values=closed + both, rows=clients),
        MapExhibit(SECTION, f"{name}: open-set subnetwork", by_neuron, values=open_ + both, rows=clients),
        MapExhibit(SECTION, f"{name}: parts", by_part, values=part_shares(shares), rows=clients, columns=PARTS),
    ]


def part_shares(shares: Tensor) -> Tensor:
    """Return the shares of a layer's weights in the four parts (clients, 4) from those by neuron (clients, 3, n)."""
    three = shares.mean(dim=2)
    # Rounding may make the sum slightly larger than 1.
    rest = (1 - three.sum(dim=1, keepdim=True)).clamp_min(0)
    return torch.cat([three, rest], dim=1)
