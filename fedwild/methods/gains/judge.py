"""Judge: compare validation accuracy before and after, then admit the newcomer or restore the federation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedwild.contract import Client, Replies, Server
from fedwild.core.payload import Payload
from fedwild.core.rng import Rng
from fedwild.methods.gains.margins import best_bias, check_margins, concatenate, correct, measure_margins
from fedwild.methods.gains.stage import Arrival, Stage

SIDES = ("sources", "newcomer")


class Judge(Stage):
    """One round with all members and the newcomer."""

    def send(self, server: Server, client: str) -> Payload:
        groups = {"model": server.state.group("model"), "before": server.state.group("before/model")}
        return Payload.of(self.about(server), **groups)

    def local(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        """Return the margins of validation samples under both models; of source clients, only for old classes."""
        known, samples = payload.info["known"], client.validation
        if client.name != payload.info["newcomer"]:
            samples = samples.take(torch.nonzero(samples.y < known).flatten())
        reply = Payload(info={"samples": len(samples)})
        for group, classes in (("before", known), ("model", len(client.classes))):
            outputs = self.method.outputs(classes)
            model = client.task.network(payload.group(group), outputs, self.method.bias, slot="judge")
            reply.put(group, measure_margins(model, samples, known, classes))
        return reply

    def check(self, server: Server, reply: Payload) -> None:
        super().check(server, reply)
        for group in ("before", "model"):
            check_margins(reply.group(group), reply.info["samples"])

    def merge(self, server: Server, replies: Replies) -> None:
        newcomer, known, limit = self.newcomer(server), Arrival.of(server).known, self.params.max_forgetting
        now = {side: concatenate(margins_of(replies, newcomer, side, "model")) for side in SIDES}
        before = {side: concatenate(margins_of(replies, newcomer, side, "before")) for side in SIDES}
        bias = 0.0
        if self.params.calibrate:
            bias = best_bias(concatenate(now.values()), known, len(server.classes) - known)
        self.lower_new_rows(server, known, bias)
        figures = {side: accuracies(before[side], now[side], bias) for side in SIDES}
        for side, row in figures.items():
            if row["samples"]:
                name = newcomer if side == "newcomer" else "source clients"
                server.note(f"{name}: validation accuracy {row['before']:.1%} before, {row['now']:.1%} now")
        forgotten = figures["sources"]["before"] - figures["sources"]["now"]
        # Without validation samples at source clients, forgetting is NaN, and any limit counts as exceeded.
        refused = limit is not None and not forgotten <= limit
        server.finding("judgement", client=newcomer, bias=bias, forgotten=forgotten, refused=refused, **figures)
        if refused:
            amount = "an unknown share" if math.isnan(forgotten) else f"{forgotten:.1%}"
            reason = f"source clients forgot {amount}, max_forgetting = {limit}"
            server.note(f"{newcomer} is not welcomed: {reason}. The federation from before is restored")
            self.restore(server, "refused")
            self.exclude(server)
        else:
            self.admit(server)

    def lower_new_rows(self, server: Server, known: int, bias: float) -> None:
        """Subtract the bias by which new rows must win from their biases."""
        weights = dict(server.state.group("model"))
        weights["head.bias"] = weights["head.bias"].clone()
        weights["head.bias"][known : len(server.classes)] -= bias
        server.state.put("model", weights)


def margins_of(replies: Replies, newcomer: str, side: str, group: str) -> Iterator[dict[str, Tensor]]:
    """Yield a group of the newcomer's reply, or of each source client's, copied out of the reply."""
    for reply in replies:
        if (reply.client == newcomer) == (side == "newcomer"):
            yield {name: reply.payload.group(group)[name].clone() for name in ("margin", "new", "right")}


def accuracies(before: dict[str, Tensor], now: dict[str, Tensor], bias: float) -> dict[str, Any]:
    """Return the number of samples of a side, and its accuracy before and now. NaN without samples."""
    then, after = correct(before, math.inf), correct(now, bias)
    return {"samples": len(after), "before": mean_of(then), "now": mean_of(after)}


def mean_of(flags: np.ndarray) -> float:
    """Return the share of flags that are set; NaN without flags."""
    return float(flags.mean()) if len(flags) else math.nan
