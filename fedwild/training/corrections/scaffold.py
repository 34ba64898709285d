"""SCAFFOLD. Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: stochastic controlled averaging for federated
learning. ICML 2020.

Each client k keeps a control c_k, its own mean gradient, and the server keeps the mean c of all of them. Local steps
follow g + (c - c_k), so that a client moves in the direction of all clients, not towards the minimum of its own loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from fedwild.aggregation.means import weighted_mean
from fedwild.contract import Client, Groups, Payload, Replies, Rng, Server, Settings, Task
from fedwild.contract.sums import Sums
from fedwild.models import Network
from fedwild.training.corrections.base import CORRECTIONS, ClientCorrection, Correction

CONTROL, CHANGE = "control", "control_change"


@CORRECTIONS.add("scaffold")
class Scaffold(Correction):
    """SCAFFOLD: adds to each gradient c - c_k, the mean gradient of all clients minus the client's own."""

    class Params(Settings):
        strength: float = Field(0.5, ge=0, le=1, description="factor of c - c_k; 1 as published, 0 corrects nothing")

    params: Params
    protects = ("sample",)

    def __init__(self, params: Any) -> None:
        super().__init__(params)
        self._names: dict[Any, tuple[str, ...]] = {}

    def to_clients(self, server: Server) -> Groups:
        return {CONTROL: server.state.group(CONTROL)}

    def expects(self, server: Server) -> Groups:
        if not self.params.strength:
            return {}
        weights = server.state.group("model")
        names = self.names(server.task, weights)
        return {CHANGE: {name: weights[name] for name in names}} if names else {}

    def names(self, task: Task, weights: Mapping[str, Tensor]) -> tuple[str, ...]:
        """Return which of the global weights are parameters, not statistics of batch-norm.

        Empty if these are not the weights of the task's network: then there is no common model to correct towards.
        """
        if "head.weight" not in weights:
            return ()
        bias = "head.bias" in weights
        key = (task.model, repr(task.model_params), task.input_shape, bias)
        if key not in self._names:
            # Names do not depend on the number of outputs, so the network is built once per run.
            network = task.build(len(weights["head.weight"]), Rng(0), bias)
            self._names[key] = tuple(name for name, _ in network.named_parameters())
        return tuple(name for name in self._names[key] if name in weights)

    def at_client(self, client: Client, model: Network, payload: Payload) -> ClientCorrection:
        # With strength 0, the steps are bit-equal to plain ones.
        names = self.names(client.task, payload.group("model")) if self.params.strength else ()
        if not names:
            return ClientCorrection()
        parameters = {name: model.get_parameter(name) for name in names}
        return Control(parameters, payload.group(CONTROL), client.state, self.params.strength)

    def sums(self) -> Sums:
        return Sums(plain_means=(CHANGE,)) if self.params.strength else Sums()

    def merge(self, server: Server, replies: Replies) -> None:
        """c <- c + 1/N sum_k (c_k+ - c_k) over the replies, N being all clients: c stays the mean of all c_k."""
        if not self.params.strength:
            return
        changes = weighted_mean(replies, CHANGE, weight=lambda reply: 1.0)
        if not changes:
            if not self.names(server.task, server.state.group("model")):
                server.note("scaffold has no effect: the server's group 'model' does not hold the network's weights")
            return
        present = len(server.clients)
        # Clients that arrived since the last round have a control of zero.
        known = server.state.info.get("controls", present) / present
        old = server.state.group(CONTROL)
        share = len(replies) / present
        new = {name: pad_rows(old.get(name), change) * known + change * share for name, change in changes.items()}
        server.state.put(CONTROL, new)
        server.state.info["controls"] = present


class Control(ClientCorrection):
    """Adds strength (c - c_k) to each gradient; the mean of the raw gradients is the client's next control.

    For plain SGD at strength 1, that mean is exactly option II of the paper, c_k - c + (w_t - w_k) / (tau lr), since
    the tau steps add up to w_t - w_k = lr sum (g + c - c_k). With momentum, weight decay or Adam they do not, and
    option II would mix the optimiser's scale into the control, while the mean gradient keeps its meaning.
    """

    def __init__(
        self, parameters: Mapping[str, Tensor], common: Mapping[str, Tensor], kept: Payload, strength: float
    ) -> None:
        self.kept = kept
        """The client's durable state, which holds its control between rounds."""
        own = kept.group(CONTROL)
        self.own = {name: pad_rows(own.get(name), p.detach()) for name, p in parameters.items()}
        self.sums = {name: torch.zeros_like(p.detach()) for name, p in parameters.items()}
        # A frozen parameter has no gradient: its control is zero and it does not change.
        names = [name for name, p in parameters.items() if p.requires_grad]
        self.trained = [parameters[name] for name in names]
        self.trained_sums = [self.sums[name] for name in names]
        c = [pad_rows(common.get(name), self.sums[name]) for name in names]
        self.shift = torch._foreach_sub(c, [self.own[name] for name in names])
        torch._foreach_mul_(self.shift, strength)

    @torch.no_grad()
    def before_step(self) -> None:
        for parameter in self.trained:
            # Other clients' losses may depend on a weight that this batch's loss does not depend on.
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [p.grad for p in self.trained if p.grad is not None]
        torch._foreach_add_(self.trained_sums, gradients)
        torch._foreach_add_(gradients, self.shift)

    def after_training(self, steps: int, lr: float) -> Groups:
        """Return c_k+ - c_k, shaped like the parameters. A client that took no step keeps its control."""
        if not steps:
            return {CHANGE: {name: torch.zeros_like(own).cpu() for name, own in self.own.items()}}
        new = {name: total / steps for name, total in self.sums.items()}
        self.kept.put(CONTROL, {name: control.cpu() for name, control in new.items()})
        return {CHANGE: {name: (control - self.own[name]).cpu() for name, control in new.items()}}


def pad_rows(control: Tensor | None, like: Tensor) -> Tensor:
    """Return a control in the shape of `like`, with zero rows for classes that were added to the head since.

    It is zero if there is no control yet, or if its rows have another shape.
    """
    if control is not None and control.shape == like.shape:
        return control.to(like)
    full = torch.zeros_like(like)
    if control is not None and control.dim() == like.dim() > 0 and control.shape[1:] == like.shape[1:]:
        # A head never shrinks; if it did, its first rows would still be the same classes.
        rows = min(len(control), len(like))
        full[:rows] = control[:rows]
    return full
