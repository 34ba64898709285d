"""Networks with named cut points, embeddings, heads that can grow, and a layer graph for alignment."""

from fedwild.models.adapted import AdaptedNetwork
from fedwild.models.entry import ModelEntry
from fedwild.models.graph import Layer, LayerGraph, Wire, chain_wires, has_batch_norm
from fedwild.models.network import Network
from fedwild.models.registry import MODELS, build, model_names

__all__ = [
    "MODELS",
    "AdaptedNetwork",
    "Layer",
    "LayerGraph",
    "ModelEntry",
    "Network",
    "Wire",
    "build",
    "chain_wires",
    "has_batch_norm",
    "model_names",
]
