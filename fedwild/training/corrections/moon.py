"""MOON. Li, He, Song: Model-contrastive federated learning. CVPR 2021.

Each client minimises its loss + mu * l_con, where for a sample's representations h by the local model, h_g by the
weights that the server sent and h_p by the client's own model after its last round

    l_con = -log( exp(cos(h, h_g) / T) / (exp(cos(h, h_g) / T) + exp(cos(h, h_p) / T)) )
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedwild.contract import HEAD, Client, Groups, Payload, Settings, Task
from fedwild.models import Network
from fedwild.models.norms import frozen_statistics, norm_layers
from fedwild.training.corrections.base import CORRECTIONS, ClientCorrection, Correction

PREVIOUS = "previous"


@CORRECTIONS.add("moon")
class Moon(Correction):
    """MOON: pulls representations towards the received model's and away from the client's previous ones.

    The representation is the network's embedding. The authors insert a projection to 256 dimensions between it and the
    head, which would change every network here.
    """

    class Params(Settings):
        mu: float = Field(1.0, ge=0, description="weight of the contrastive loss; 0 corrects nothing")
        temperature: float = Field(0.5, gt=0, description="T, divides the cosine similarities")

    params: Params
    protects = ("client",)

    def at_client(self, client: Client, model: Network, payload: Payload) -> ClientCorrection:
        mu, temperature = self.params.mu, self.params.temperature
        # Without a contrast, the steps are bit-equal to plain ones.
        return Contrast(client, model, mu, temperature) if mu else ClientCorrection()


class Contrast(ClientCorrection):
    """The penalty mu * mean(l_con) of a batch. A client in its first round has no previous model and no penalty."""

    def __init__(self, client: Client, model: Network, mu: float, temperature: float) -> None:
        self.client, self.model = client, model
        self.mu, self.temperature = mu, temperature
        self.norms = [layer for layer in norm_layers(model).values() if layer.track_running_stats]
        self.pair: tuple[Network, Network] | None = None
        """The received model and the client's previous one."""
        received, previous = client.task.weights(model), client.state.group(PREVIOUS)
        if shapes_of(previous) == shapes_of(without_head(received)):
            self.pair = (
                frozen_copy(model, received, client.task, "moon-global"),
                frozen_copy(model, {**received, **previous}, client.task, "moon-previous"),
            )

    def penalty(self, x: Tensor, y: Tensor) -> Tensor | None:
        if self.pair is None:
            return None
        with torch.no_grad():
            h_g, h_p = (network.embed(x) for network in self.pair)
        # The objective's forward pass has already updated batch-norm with these samples.
        with frozen_statistics(self.norms):
            h = self.model.embed(x)
        towards, away = F.cosine_similarity(h, h_g), F.cosine_similarity(h, h_p)
        # -log(e^a / (e^a + e^b)) = log(1 + e^(b - a))
        return self.mu * F.softplus((away - towards) / self.temperature).mean()

    def after_training(self, steps: int, lr: float) -> Groups:
        """Keep the trained model at the client for its next round; nothing is sent."""
        if steps:
            self.client.state.put(PREVIOUS, without_head(self.client.task.weights(self.model)))
        return {}


def without_head(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights that compute the embedding. The head may have grown by the next round."""
    return {name: tensor for name, tensor in weights.items() if name not in HEAD}


def frozen_copy(model: Network, weights: Mapping[str, Tensor], task: Task, slot: str) -> Network:
    """Return a network like `model` with other weights, in evaluation mode."""
    outputs, bias = model.head.out_features, model.head.bias is not None
    if shapes_of(task.spec(outputs, bias)) == shapes_of(weights):
        return task.network(weights, outputs, bias, slot).eval()
    # The method has added tensors to the network.
    network = copy.deepcopy(model)
    network.load_state_dict(weights)
    return network.eval()


def shapes_of(tensors: Mapping[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Return the shape and type of each tensor."""
    return {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
