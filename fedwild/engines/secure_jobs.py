"""A client's steps of a secure sum: what it answers to each job, and which secrets it keeps for the next one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from fedwild.aggregation.secure.fixed_point import FixedPoint
from fedwild.aggregation.secure.protocol import ClientRound, PublicKeys
from fedwild.aggregation.secure.vectors import Layout
from fedwild.contract import Payload, Phase, Reply
from fedwild.contract.engine import Job
from fedwild.contract.sums import Summable, sums_of
from fedwild.core.errors import BadReply

ABOUT = "secure"
"""The key in the info of a request that holds what a step needs to know."""
Train = Callable[[Payload, int], Payload]
"""The client half of a phase: from the request, and the smallest number of clients in the sum, to the reply."""


def take_step(job: Job, request: Payload, kept: bytes | None, phase: Phase, train: Train) -> tuple[Payload, bytes]:
    """Return the reply to a job and the secrets to keep until the next step; none after the last."""
    assert job.client is not None
    about: dict[str, Any] = request.info[ABOUT]
    if job.kind == "advertise":
        secrets = ClientRound(str(about["round"]), job.client)
        return Payload({"keys": to_tensor([secrets.keys.to_bytes()])}), secrets.to_json()
    if kept is None:
        raise BadReply(f"{job.client} has no secrets of this round: they were deleted, or it did not take part")
    secrets = ClientRound.from_json(kept)
    if secrets.round != about["round"]:
        raise BadReply(f"a message of another round of secure sums was sent to {job.client}")
    if job.kind == "share":
        reply = share(secrets, request, about)
    elif job.kind == "masked":
        reply = mask(secrets, request, about, phase, train)
    else:
        return reveal(secrets, request, about), b""
    return reply, secrets.to_json()


def share(secrets: ClientRound, request: Payload, about: dict[str, Any]) -> Payload:
    """Return sealed shares for the other members, in the order of their names, and the commitment."""
    names = [str(name) for name in about["members"]]
    keys = [PublicKeys.from_bytes(row) for row in to_rows(request.tensors["keys"])]
    sent = secrets.share(dict(zip(names, keys, strict=True)), int(about["threshold"]))
    sealed = [sent.sealed[name] for name in sorted(sent.sealed)]
    return Payload({"sealed": to_tensor(sealed), "commitment": to_tensor([sent.commitment])})


def mask(secrets: ClientRound, request: Payload, about: dict[str, Any], phase: Phase, train: Train) -> Payload:
    """Train, and return the masked vector of what the phase adds. No other figure of the reply leaves the client."""
    info = {key: value for key, value in request.info.items() if key != ABOUT}
    reply = train(Payload(dict(request.tensors), info), secrets.threshold)
    vector = to_vector(phase, Reply(secrets.client, reply), about)
    sharers = [str(name) for name in about["sharers"]]
    if len(sharers) > int(about["clients"]):
        raise BadReply("the agreed numbers have no room for the sum of all clients")
    code = FixedPoint(float(about["limit"]), int(about["clients"]))
    masked = secrets.mask(code.encode(vector), sharers)
    return Payload({"masked": torch.from_numpy(masked.view(np.int64))})


def to_vector(phase: Phase, reply: Reply, about: dict[str, Any]) -> np.ndarray:
    """Return what a client adds, float64 (d,), in the layout that the server asked for."""
    sums = sums_of(phase)
    assert isinstance(phase, Summable)
    summands = phase.summands(reply.payload)
    layout = Layout.of(sums, {group: summands.group(group) for group in sums.groups})
    if layout.digest() != about["layout"]:
        raise BadReply("its reply has other tensors than the server expects")
    vector = layout.to_vector(summands, phase.weigh(reply))
    layout.check_range(vector, float(about["limit"]))
    return vector


def reveal(secrets: ClientRound, request: Payload, about: dict[str, Any]) -> Payload:
    """Return the shares that the server needs to unmask the sum."""
    sealed = dict(zip(map(str, about["senders"]), to_rows(request.tensors["sealed"]), strict=True))
    shares = secrets.reveal([str(name) for name in about["survivors"]], sealed)
    return Payload({"shares": to_tensor(list(shares.values()))}, {"names": list(shares)})


def to_tensor(rows: list[bytes]) -> torch.Tensor:
    """Return byte strings of one length as a tensor uint8 (n, length)."""
    data = np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), -1)
    return torch.from_numpy(data.copy())


def to_rows(tensor: torch.Tensor) -> list[bytes]:
    """Return the rows of a tensor uint8 (n, length)."""
    if tensor.dtype != torch.uint8 or tensor.dim() != 2:
        raise BadReply(f"a tensor of bytes is {tensor.dtype} {tuple(tensor.shape)}, expected uint8 in two dimensions")
    return [row.tobytes() for row in tensor.numpy()]
