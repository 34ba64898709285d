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
    clients = tuple(shares)
    # (clients, 3, neurons): the close-only, open-only and shared parts of each neuron's incoming weights.
    layers = {
        weight.removesuffix(".weight"): torch.stack([by_weight[weight].double() for by_weight in shares.values()])
        for weight in weights
    }
    about = (
        f"Shares of a layer's weights that belong to each part, mean over clients. Subnetworks keep {ratio:g} of a "
        f"layer's weights; training rounds so far: {rounds}."
    )
    means = torch.stack([part_shares(layer).mean(dim=0) for layer in layers.values()])
    exhibits: list[Exhibit] = [MapExhibit(SECTION, "Parts of each layer", about, means, tuple(layers), PARTS)]
    by_neuron = "Share of each neuron's incoming weights in the subnetwork. Rows are clients, columns are neurons."
    by_part = "Shares of the layer's weights that belong to each part. Rows are clients."
    for name, layer in layers.items():
        closed, open_, both = layer.unbind(dim=1)
        exhibits += [
            MapExhibit(SECTION, f"{name}: closed-set subnetwork", by_neuron, closed + both, clients),
            MapExhibit(SECTION, f"{name}: open-set subnetwork", by_neuron, open_ + both, clients),
            MapExhibit(SECTION, f"{name}: parts", by_part, part_shares(layer), clients, PARTS),
        ]
    return exhibits


def part_shares(shares: Tensor) -> Tensor:
    """Return the shares of a layer's weights in the four parts (clients, 4) from those by neuron (clients, 3, n)."""
    three = shares.mean(dim=2)
    # Rounding may make the sum slightly larger than 1.
    rest = (1 - three.sum(dim=1, keepdim=True)).clamp_min(0)
    return torch.cat([three, rest], dim=1)
