"""Networks with named cut points, embeddings, heads that can grow, and a layer graph for alignment."""

from fedwild.models.adapted import AdaptedNetwork
from fedwild.models.builder import NetworkBuilder
from fedwild.models.cnn import DigitCnn, SimpleCnn, Vgg9
from fedwild.models.graph import Layer, LayerGraph, Wire, chain_wires, has_batch_norm
from fedwild.models.mlp import Mlp
from fedwild.models.network import Network
from fedwild.models.registry import MODELS, build
from fedwild.models.resnet import ResNet18, ResNet18For3d, ResNet34, ResNet50
from fedwild.models.wideresnet import WideResNet16x4, WideResNet28x10

__all__ = [
    "MODELS",
    "AdaptedNetwork",
    "DigitCnn",
    "Layer",
    "LayerGraph",
    "Mlp",
    "Network",
    "NetworkBuilder",
    "ResNet18",
    "ResNet18For3d",
    "ResNet34",
    "ResNet50",
    "SimpleCnn",
    "Vgg9",
    "WideResNet16x4",
    "WideResNet28x10",
    "Wire",
    "build",
    "chain_wires",
    "has_batch_norm",
]
