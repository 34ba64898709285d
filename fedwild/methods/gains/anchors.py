"""W_n(0,0), the model that anti-forgetting holds a source client near (Gains, Eq. 8), in the client's durable state.

Group `anchor` is W_n(0,0) of the stage in info `stage`. Group `own` is the client's model after its last training, in
the stage of info `trained` (0: before the first newcomer); it becomes the anchor of the next stage.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from fedwild.contract import HEAD, Client, Tensors


def keep_own(client: Client, model: Tensors, stage: int) -> None:
    """Keep the model that a client has just trained."""
    client.state.put("own", model)
    client.state.info["trained"] = stage


def keep_anchor(client: Client, received: Tensors, stage: int, undone: Collection[int] | None = None) -> None:
    """Keep the received model as W_n(0,0) of a stage or, given the stages that were `undone`, the client's own model.

    If the last training was in a stage that was undone, the anchor of that stage is the client's model from before it.
    A client that has not trained in this run keeps the received model.
    """
    own = client.state.group("own") if undone is not None else {}
    if own and client.state.info["trained"] in (undone or ()):
        own = client.state.group("anchor")
        keep_own(client, own, 0)
    client.state.put("anchor", own or received)
    client.state.info["stage"] = stage


def grow_anchor(anchor: Tensors, model: Tensors, extra_outputs: int) -> dict[str, Tensor]:
    """Return the anchor with the received model's rows for the classes that it lacks.

    They follow its own classes; the last `extra_outputs` rows of a head, such as "unknown", stay the last.
    """
    grown = dict(anchor)
    for name in HEAD:
        if name in anchor and len(anchor[name]) < len(model[name]):
            classes = len(anchor[name]) - extra_outputs
            new = model[name][classes : len(model[name]) - extra_outputs]
            grown[name] = torch.cat([anchor[name][:classes], new, anchor[name][classes:]])
    return grown
