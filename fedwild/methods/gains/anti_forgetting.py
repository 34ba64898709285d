"""Anti-forgetting at source clients: a pull towards the model from before the newcomer came (Gains, Eq. 8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedwild.contract import Client, Groups
from fedwild.contract.initial import HEAD
from fedwild.core.payload import Payload
from fedwild.models import Network
from fedwild.training.corrections import ClientCorrection


def keep_anchor(client: Client, payload: Payload, stage: int) -> None:
    """Keep the model that a client received as its W_n(0,0) of a stage."""
    client.state.put("anchor", payload.group("model"))
    client.state.info["stage"] = stage


def anchor_of(client: Client, payload: Payload, stage: int, outputs: int) -> dict[str, Tensor]:
    """Return W_n(0,0) with a head of `outputs` rows; the new rows are those of the received model.

    A client that missed the start of the stage keeps the first model that it receives in it.
    """
    if client.state.info.get("stage") != stage:
        keep_anchor(client, payload, stage)
    model, anchor, known = payload.group("model"), client.state.group("anchor"), payload.info["known"]
    for name in HEAD:
        if name in anchor and len(anchor[name]) < outputs:
            new = model[name][known : known + outputs - len(anchor[name])]
            anchor[name] = torch.cat([anchor[name][:known], new, anchor[name][known:]])
    return anchor


class AntiForgetting(ClientCorrection):
    """Adds the gradient of lambda ||W - W_n(0,0)||^2, 2 lambda (W - W_n(0,0)), to another correction.

    Rows of the head for classes that are new (`new_rows`) are free.
    """

    def __init__(
        self,
        inner: ClientCorrection,
        model: Network,
        anchor: Mapping[str, Tensor],
        strength: float,
        new_rows: Sequence[int],
    ) -> None:
        self.inner, self.strength = inner, strength
        named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        self.parameters: list[Tensor] = list(named.values())
        self.anchors = [anchor[name].to(parameter.device) for name, parameter in named.items()]
        self.heads = [place for place, name in enumerate(named) if name in HEAD]
        self.new_rows = list(new_rows)

    def penalty(self, x: Tensor, y: Tensor) -> Tensor | None:
        return self.inner.penalty(x, y)

    @torch.no_grad()
    def before_step(self) -> None:
        self.inner.before_step()
        drift = torch._foreach_sub(self.parameters, self.anchors)
        for place in self.heads:
            drift[place][self.new_rows] = 0.0
        for parameter, change in zip(self.parameters, drift, strict=True):
            # The term applies to every weight, even if the loss of this batch does not depend on it.
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            parameter.grad.add_(change, alpha=2 * self.strength)

    def after_training(self, steps: int, lr: float) -> Groups:
        return self.inner.after_training(steps, lr)
