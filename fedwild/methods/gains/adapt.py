"""Adapt: contribution-driven aggregation (Gains, Eq. 2-7) with anti-forgetting at source clients (Eq. 8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedwild.aggregation.means import running_mean
from fedwild.contract import Client, Draw, Replies, Server
from fedwild.contract.task import copied
from fedwild.core.payload import Payload
from fedwild.methods.fedavg import AveragingRounds
from fedwild.methods.gains.anti_forgetting import AntiForgetting, anchor_of
from fedwild.methods.gains.probes import classifier_difference, feature_difference, probe_samples
from fedwild.methods.gains.stage import Stage, members
from fedwild.models import Network
from fedwild.training.corrections import ClientCorrection

if TYPE_CHECKING:
    from fedwild.methods.gains.method import Gains


class Adapt(Stage, AveragingRounds):
    """Rounds in which the newcomer and a random share of the members train."""

    method: Gains
    params: Gains.Params

    def __init__(self, name: str, rounds: int, method: Gains, stage: int) -> None:
        AveragingRounds.__init__(self, name, rounds, method)
        self.stage = stage

    def who(self, server: Server, present: Sequence[str], draw: Draw) -> Sequence[str]:
        newcomer, sources = self.newcomer(server), members(server, present)
        if newcomer not in present:
            return []
        return sorted([*(draw(sources) if sources else []), newcomer])

    def send(self, server: Server, client: str) -> Payload:
        payload = super().send(server, client)
        payload.info = self.about(server)
        return payload

    def client_correction(self, client: Client, model: Network, payload: Payload) -> ClientCorrection:
        """Return the correction; at source clients it also pulls towards their model from before (Eq. 8)."""
        correction = super().client_correction(client, model, payload)
        if client.name == payload.info["newcomer"] or not self.params.keep:
            return correction
        anchor = anchor_of(client, payload, self.stage, self.method.outputs(len(client.classes)))
        new_rows = range(payload.info["known"], len(client.classes))
        return AntiForgetting(correction, model, anchor, self.params.keep, new_rows)

    def merge(self, server: Server, replies: Replies) -> None:
        self.aggregate(server, replies)
        self.average_tail(server)

    def aggregate(self, server: Server, replies: Replies) -> None:
        """Weight source clients by their similarity to the newcomer (Eq. 2, 3), and make the joint model (Eq. 4-7)."""
        newcomer = self.newcomer(server)
        own = next((copied(reply.payload.group("model")) for reply in replies if reply.client == newcomer), None)
        if own is None or len(replies) == 1:
            missing = newcomer if own is None else "any other client"
            server.note(f"no reply from {missing}: the model does not change in this round")
            return
        probes = probe_samples(server, self.stage, self.params.probes)
        target = self.embed(server, own, probes)
        diff_f, diff_c = {}, {}
        for reply in replies:
            if reply.client != newcomer:
                weights = reply.payload.group("model")
                diff_f[reply.client] = feature_difference(self.embed(server, weights, probes), target)
                diff_c[reply.client] = classifier_difference(weights, own)
        self.combine(server, replies, diff_f, diff_c, len(diff_f))
        self.correction.merge(server, replies)

    def average_tail(self, server: Server) -> None:
        """Over the second half of the rounds, keep the mean of the models. The phase ends with it.

        If source clients have only old classes and the newcomer only new ones, each round's model favours one side.
        """
        half = self.params.adapt_rounds // 2
        count = server.step.round - half + 1
        if self.params.tail == "last" or count < 1:
            return
        model, mean = server.state.group("model"), server.state.group("mean")
        mean = running_mean(mean, model, count) if mean else model
        server.state.put("mean", mean)
        if server.step.round == self.params.adapt_rounds - 1:
            server.state.put("model", mean)
            server.state.drop("mean")
