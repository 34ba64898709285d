"""Judge: compare validation accuracy before and after, then admit the newcomer or restore the federation.

Source clients with only old classes and a newcomer with only new classes never train old rows against new rows on the
same samples. The lead that a new row needs is therefore measured on validation samples of both sides.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.special import expit
from torch import Tensor

from fedwild.contract import Client, Payload, Replies, Rng, Server, Tensors
from fedwild.core.errors import BadReply
from fedwild.core.payload import check_like
from fedwild.data.samples import Samples
from fedwild.methods.gains.stage import Arrival, Stage
from fedwild.methods.rehearsal import kept_answers
from fedwild.models import Network
from fedwild.models.inference import INFERENCE_BATCH

SIDES = ("sources", "newcomer", "discovered")
"""Whose samples are judged: labelled ones of source clients and of the newcomer, and source clients' pool samples that
the model from before answers with a discovered class."""


class Judge(Stage):
    """One round with all members and the newcomer."""

    def send(self, server: Server, client: str) -> Payload:
        groups = {"model": server.state.group("model"), "before": server.state.group("before/model")}
        return Payload.of(self.about(server), **groups)

    def local(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        """Return the margins of validation samples under both models; of source clients, only for old classes."""
        known, samples, found = payload.info["known"], client.validation, None
        if client.name != payload.info["newcomer"]:
            samples = samples.take(torch.nonzero(samples.y < known).flatten())
            found = kept_answers(client, held_out=True)
        reply = Payload(info={"samples": len(samples)})
        if found:
            reply.info["discovered"] = len(found)
        for group, classes in (("before", known), ("model", len(client.classes))):
            outputs = self.method.outputs(classes)
            model = client.task.network(payload.group(group), outputs, self.method.bias, slot="judge")
            reply.put(group, measure_margins(model, samples, known, classes))
            if found:
                reply.put(f"discovered-{group}", measure_margins(model, found, known, classes))
        return reply

    def check(self, server: Server, reply: Payload) -> None:
        super().check(server, reply)
        found = reply.info.get("discovered", 0)
        if not isinstance(found, int) or isinstance(found, bool) or found < 0:
            raise BadReply(f"info 'discovered' is {str(found)[:40]!r}, expected a number of samples")
        for group in ("before", "model"):
            check_margins(reply.group(group), reply.info["samples"])
            if found or f"discovered-{group}" in reply:
                check_margins(reply.group(f"discovered-{group}"), found)

    def merge(self, server: Server, replies: Replies) -> None:
        newcomer, known, limit = self.newcomer(server), Arrival.of(server).known, self.params.max_forgetting
        now = {side: concatenate(margins_of(replies, newcomer, side, "model")) for side in SIDES}
        before = {side: concatenate(margins_of(replies, newcomer, side, "before")) for side in SIDES}
        bias = 0.0
        if self.params.calibrate:
            bias = best_bias(concatenate(now.values()), known, len(server.classes) - known)
        self.lower_new_rows(server, known, bias)
        figures: dict[str, Any] = {}
        for side, name in zip(SIDES, ("source clients", newcomer, None), strict=True):
            old, new, samples = accuracy(before[side], math.inf), accuracy(now[side], bias), len(now[side]["margin"])
            figures[side] = {"samples": samples, "before": old, "now": new}
            if samples and name:
                server.note(f"{name}: validation accuracy {old:.1%} before, {new:.1%} now")
        lost = self.lost_answers(server, figures.pop("discovered"), figures)
        forgotten = figures["sources"]["before"] - figures["sources"]["now"]
        # Without validation samples at source clients, forgetting is NaN, and any limit counts as exceeded.
        refused = limit is not None and not (forgotten <= limit and lost <= limit)
        server.finding("judgement", client=newcomer, bias=bias, forgotten=forgotten, refused=refused, **figures)
        if refused:
            amount = "an unknown share" if math.isnan(forgotten) else f"{forgotten:.1%}"
            found = f" and {lost:.1%} of their answers with discovered classes" if lost else ""
            reason = f"source clients forgot {amount}{found}, max_forgetting = {limit}"
            server.note(f"{newcomer} is not welcomed: {reason}. The federation from before is restored")
            self.restore(server, "refused")
            self.exclude(server)
        else:
            self.admit(server)

    def lost_answers(self, server: Server, judged: dict[str, Any], figures: dict[str, Any]) -> float:
        """Log what happened to discovered classes, and return the share of their answers that was lost."""
        names = ", ".join(entry.name for entry in server.classes.novel)
        if not names:
            return 0.0
        if not judged["samples"]:
            server.note(f"discovered classes ({names}): no unlabelled samples to rehearse or judge them by")
            return 0.0
        figures["discovered"] = judged
        kept = f"{judged['now']:.1%} of {judged['samples']} held-out unlabelled samples keep their answer"
        server.note(f"discovered classes ({names}): {kept}")
        return float(judged["before"] - judged["now"])

    def lower_new_rows(self, server: Server, known: int, bias: float) -> None:
        """Subtract the bias by which new rows must win from their biases."""
        weights = dict(server.state.group("model"))
        weights["head.bias"] = weights["head.bias"].clone()
        weights["head.bias"][known : len(server.classes)] -= bias
        server.state.put("model", weights)


REACH = 50.0
"""At this distance beyond all margins, one side has lost every sample."""
MAX_MARGIN = 1e4
"""Larger margins are clipped. No honest margin comes near it, and the search ends in time."""


@torch.inference_mode()
def measure_margins(model: Network, samples: Samples, known: int, classes: int) -> dict[str, Tensor]:
    """Return three tensors (n,), sorted by margin.

    margin: the largest new logit minus the largest old one, or 0 without new classes. new: whether the sample's class
    is new. right: whether the best class of the same kind, old or new, is the true one.
    """
    model.eval()
    device = next(model.parameters()).device
    parts: list[dict[str, Tensor]] = []
    for x, y in samples.batches(INFERENCE_BATCH):
        logits = model(x.to(device))[:, :classes].cpu()
        old, best_old = logits[:, :known].max(1)
        new, best_new = logits[:, known:].max(1) if classes > known else (old, best_old)
        is_new = y >= known
        right = torch.where(is_new, best_new + known == y, best_old == y)
        parts.append({"margin": (new - old).float(), "new": is_new.to(torch.uint8), "right": right.to(torch.uint8)})
    margins = concatenate(parts)
    # Sorted, so that they do not reveal the order of samples.
    order = margins["margin"].sort(stable=True).indices
    return {name: tensor[order] for name, tensor in margins.items()}


def margins_of(replies: Replies, newcomer: str, side: str, group: str) -> Iterator[dict[str, Tensor]]:
    """Yield a group of the newcomer's reply, or of each source client's, copied out of the reply."""
    group = f"discovered-{group}" if side == "discovered" else group
    for reply in replies:
        if (reply.client == newcomer) == (side == "newcomer") and group in reply.payload:
            yield {name: reply.payload.group(group)[name].clone() for name in no_margins()}


def no_margins() -> dict[str, Tensor]:
    """Return the margins of no samples."""
    flags = torch.empty(0, dtype=torch.uint8)
    return {"margin": torch.empty(0), "new": flags, "right": flags.clone()}


def concatenate(margins: Iterable[Tensors]) -> dict[str, Tensor]:
    """Return the margins of several clients as one."""
    parts = [no_margins(), *margins]
    return {name: torch.cat([part[name] for part in parts]) for name in no_margins()}


def check_margins(margins: Tensors, samples: int) -> None:
    """Reject margins that are not those of so many samples."""
    spec = {name: torch.empty(samples, dtype=like.dtype, device="meta") for name, like in no_margins().items()}
    check_like(margins, spec, "margins")


def accuracy(margins: Tensors, bias: float) -> float:
    """Return the share of samples that are classified correctly if new rows must win by more than `bias`, or NaN."""
    margin, new, right = (margins[name].numpy() for name in ("margin", "new", "right"))
    return float(((right == 1) & ((margin > bias) == (new == 1))).mean()) if len(margin) else math.nan


def best_bias(margins: Tensors, old_classes: int, new_classes: int) -> float:
    """Return the b of least cross-entropy of "old or new", in which all classes have the same weight:

        K_old mean_old log(1 + e^(m - b)) + K_new mean_new log(1 + e^(b - m))    over margins m.

    It is smooth, so that it can be estimated from few samples. 0 without samples of both kinds.
    """
    margin, new = margins["margin"].double().clamp(-MAX_MARGIN, MAX_MARGIN).numpy(), margins["new"].numpy() == 1
    if not new.any() or new.all() or not new_classes:
        return 0.0
    weight = np.where(new, new_classes / new.sum(), old_classes / (~new).sum())

    def slope(bias: float) -> float:
        """Return the derivative of the loss, which increases with the bias."""
        wins = expit(margin - bias)
        return float((weight * np.where(new, 1.0 - wins, -wins)).sum())

    return float(brentq(slope, margin.min() - REACH, margin.max() + REACH, maxiter=1000))
