"""SCAFFOLD. Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: stochastic controlled averaging for federated
learning. ICML 2020.

Each client k keeps a control c_k, its own mean gradient, and the server the mean c of all of them. Local steps go along
g + (c - c_k), so that a client moves where all clients together would go, not towards the minimum of its own loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from fedwild.aggregation.means import weighted_mean
from fedwild.contract import Client, Groups, Replies, Server
from fedwild.contract.task import Task
from fedwild.core.payload import Payload
from fedwild.core.rng import Rng
from fedwild.core.settings import Settings
from fedwild.models import Network
from fedwild.training.corrections.base import CORRECTIONS, ClientCorrection, Correction

CONTROL, CHANGE = "control", "control_change"


@CORRECTIONS.add("scaffold")
class Scaffold(Correction):
    """SCAFFOLD: each step adds c - c_k, by which all clients' mean gradient differs from the client's own."""

    class Params(Settings):
        strength: float = Field(
            0.5, ge=0, le=1, description="how much of c - c_k is added; 1 is the published one, 0 corrects nothing"
        )

    params: Params

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
        """Which of the global weights are parameters: a state dict does not tell them from batch-norm's statistics.

        None, if these are not the weights of the task's network: then there is no common model to correct towards.
        """
        if "head.weight" not in weights:
            return ()
        bias = "head.bias" in weights
        key = (task.model, repr(task.model_params), task.input_shape, bias)
        if key not in self._names:
            # Names do not depend on the number of outputs, so this is built once in a run.
            network = task.build(len(weights["head.weight"]), Rng(0), bias)
            self._names[key] = tuple(name for name, _ in network.named_parameters())
        return tuple(name for name in self._names[key] if name in weights)

    def at_client(self, client: Client, model: Network, payload: Payload) -> ClientCorrection:
        # Without strength the steps are plain ones, to the last bit.
        names = self.names(client.task, payload.group("model")) if self.params.strength else ()
        if not names:
            return ClientCorrection()
        parameters = {name: model.get_parameter(name) for name in names}
        return Control(parameters, payload.group(CONTROL), client.state, self.params.strength)

    def merge(self, server: Server, replies: Replies) -> None:
        """c <- c + 1/N sum_k (c_k+ - c_k) over the replies, N being all clients: c stays the mean of all c_k."""
        if not self.params.strength:
            return
        changes = weighted_mean(replies, CHANGE, weight=lambda reply: 1.0)
        if not changes:
            if not self.names(server.task, server.state.group("model")):
                server.note("scaffold found no weights of the network in the server's group 'model': steps are plain")
            return
        present = len(server.clients)
        # Clients that came since the last round bring a control of zero into the mean.
        known = server.state.info.get("controls", present) / present
        old = server.state.group(CONTROL)
        share = len(replies) / present
        new = {name: padded(old.get(name), change) * known + change * share for name, change in changes.items()}
        server.state.put(CONTROL, new)
        server.state.info["controls"] = present


class Control(ClientCorrection):
    """Adds strength (c - c_k) to each gradient, and takes the mean of the raw ones for the client's next control.

    For plain SGD at full strength that mean is option II of the paper, c_k - c + (w_t - w_k) / (tau lr), exactly: the
    tau steps add up to w_t - w_k = lr sum (g + c - c_k). With momentum, weight decay or Adam w_t - w_k is no such sum,
    and option II would put the optimiser's scale into the control; the mean gradient remains what c_k stands for.
    """

    def __init__(
        self, parameters: Mapping[str, Tensor], common: Mapping[str, Tensor], kept: Payload, strength: float
    ) -> None:
        self.kept = kept
        """Where the client's control is between rounds."""
        own = kept.group(CONTROL)
        self.own = {name: padded(own.get(name), p.detach()) for name, p in parameters.items()}
        self.sums = {name: torch.zeros_like(p.detach()) for name, p in parameters.items()}
        # A frozen parameter has no gradient, so its control is zero, and it is never moved.
        names = [name for name, p in parameters.items() if p.requires_grad]
        self.trained = [parameters[name] for name in names]
        self.trained_sums = [self.sums[name] for name in names]
        c = [padded(common.get(name), self.sums[name]) for name in names]
        self.shift = torch._foreach_sub(c, [self.own[name] for name in names])
        torch._foreach_mul_(self.shift, strength)

    @torch.no_grad()
    def before_step(self) -> None:
        for parameter in self.trained:
            # The other clients' losses may depend on a weight that this batch's loss does not depend on.
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [p.grad for p in self.trained if p.grad is not None]
        torch._foreach_add_(self.trained_sums, gradients)
        torch._foreach_add_(gradients, self.shift)

    def after_training(self, steps: int, lr: float) -> Groups:
        """c_k+ - c_k (as the parameters); a client that took no step keeps its control."""
        if not steps:
            return {CHANGE: {name: torch.zeros_like(own).cpu() for name, own in self.own.items()}}
        new = {name: total / steps for name, total in self.sums.items()}
        self.kept.put(CONTROL, {name: control.cpu() for name, control in new.items()})
        return {CHANGE: {name: (control - self.own[name]).cpu() for name, control in new.items()}}


def padded(control: Tensor | None, like: Tensor) -> Tensor:
    """A control in the shape of `like`, with zero rows for classes that the head has got since.

    Zero throughout if there is none yet, or none of a like shape.
    """
    if control is not None and control.shape == like.shape:
        return control.to(like)
    full = torch.zeros_like(like)
    if control is not None and control.dim() == like.dim() > 0 and control.shape[1:] == like.shape[1:]:
        # A head never shrinks; if this one did, its first rows are still the same classes.
        rows = min(len(control), len(like))
        full[:rows] = control[:rows]
    return full
