"""Networks with named cut points, embeddings, heads that can grow, and a layer graph for alignment."""

from fedwild.models import chains, recurrent, resnet, wideresnet
from fedwild.models.adapted import AdaptedNetwork
from fedwild.models.builder import NetworkBuilder
from fedwild.models.graph import Layer, LayerGraph, Wire, chain_wires, has_batch_norm
from fedwild.models.network import Network
from fedwild.models.registry import MODELS, build
