"""FedPD's subnetworks: which weights clients keep for known classes, and which for unknown samples."""

from __future__ import annotations

from fedwild.methods.fedpd.method import FedPD
from fedwild.results.pictures.masks import PARTS, MaskFigures, mask_figures
from fedwild.results.pictures.masks import draw as draw_masks
from fedwild.results.report.charts.bars import stacked_bars
from fedwild.results.report.charts.raster import picture
from fedwild.results.report.facts import Facts
from fedwild.results.report.figure import figure, grid
from fedwild.results.report.markup import Html

MAX_LAYERS, MAX_CLIENTS = 6, 40


def concerns(facts: Facts) -> bool:
    return isinstance(facts.run.settings.make_method(), FedPD)


def draw(facts: Facts) -> Html:
    """How much of each layer is in which subnetwork, and neuron by neuron for a few layers."""
    masks = mask_figures(facts.run)
    named = [layer.name for layer in masks.layers[:MAX_LAYERS]]
    return grid(
        [
            figure("Parts of each layer", lambda: layer_parts(masks), "Shares of the weights, mean of the clients."),
            figure(
                "Subnetworks by neuron",
                lambda: picture(
                    draw_masks(mask_figures(facts.run, named, masks.clients[:MAX_CLIENTS])), "subnetworks by neuron"
                ),
                f"The first {len(named)} layers. `fedwild show masks` draws any of them.",
                wide=True,
            ),
        ]
    )


def layer_parts(masks: MaskFigures) -> Html:
    shares = [layer.parts.mean(axis=0).tolist() for layer in masks.layers]
    return stacked_bars([layer.name for layer in masks.layers], PARTS, shares, "parts of each layer")
