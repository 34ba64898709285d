"""Adapt: contribution-driven aggregation (Gains, Eq. 2-7) with anti-forgetting at source clients (Eq. 8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedwild.aggregation.means import running_mean
from fedwild.contract import HEAD, Client, Draw, Groups, Payload, Replies, Rng, Server, Tensors, copy_tensors
from fedwild.methods.fedavg import AveragingRounds
from fedwild.methods.gains.anchors import grow_anchor, keep_anchor, keep_own
from fedwild.methods.gains.limits import kind_by_limits
from fedwild.methods.gains.probes import classifier_difference, probe_samples
from fedwild.methods.gains.stage import Arrival, Kind, Stage, members
from fedwild.methods.rehearsal import kept_answers, training_also_on
from fedwild.models import Network
from fedwild.training import ClientCorrection, Objective, RoundTraining

if TYPE_CHECKING:
    from fedwild.methods.gains.method import Gains


SHIFTS: dict[Kind, str] = {"nothing": "none, weights by samples", "domain": "domain", "classes": "classes"}


class Adapt(Stage, AveragingRounds):
    """Rounds in which the newcomer and a random share of the members train."""

    method: Gains
    params: Gains.Params

    def who(self, server: Server, present: Sequence[str], draw: Draw) -> Sequence[str]:
        newcomer, sources = self.newcomer(server), members(server, present)
        if newcomer not in present:
            return []
        return sorted([*(draw(sources) if sources else []), newcomer])

    def send(self, server: Server, client: str) -> Payload:
        payload = super().send(server, client)
        payload.info = self.about(server)
        return payload

    def local(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        """Train on labelled samples and, at source clients, on pool samples of discovered classes."""
        if client.name != payload.info["newcomer"]:
            client = training_also_on(client, kept_answers(client, held_out=False))
        reply = super().local(payload, client, rng)
        if self.method.keeps_own:
            keep_own(client, reply.group("model"), self.stage)
        return reply

    def training(self, payload: Payload, client: Client) -> tuple[RoundTraining, Objective]:
        """Return how a client trains; the newcomer trains `extra_epochs` more than the others."""
        settings, objective = super().training(payload, client)
        if client.name == payload.info["newcomer"]:
            settings = settings.model_copy(update={"epochs": settings.epochs + self.params.extra_epochs})
        return settings, objective

    def client_correction(self, client: Client, model: Network, payload: Payload) -> ClientCorrection:
        """Return the correction; at source clients it also pulls towards their model from before (Eq. 8)."""
        correction = super().client_correction(client, model, payload)
        if client.name == payload.info["newcomer"] or not self.params.keep:
            return correction
        new_rows = range(payload.info["known"], len(client.classes))
        return AntiForgetting(correction, model, self.anchor(client, payload), self.params.keep, new_rows)

    def anchor(self, client: Client, payload: Payload) -> dict[str, Tensor]:
        """Return W_n(0,0); the rows of new classes are those of the received model.

        A client that missed the start of the stage keeps the first model that it receives in it, or its own.
        """
        model = payload.group("model")
        if client.state.info.get("stage") != self.stage:
            keep_anchor(client, model, self.stage, payload.info.get("undone"))
        return grow_anchor(client.state.group("anchor"), model, self.method.outputs(0))

    def merge(self, server: Server, replies: Replies) -> None:
        self.aggregate(server, replies)
        self.average_tail(server)

    def aggregate(self, server: Server, replies: Replies) -> None:
        """Weight source clients by their similarity to the newcomer (Eq. 2, 3), and make the joint model (Eq. 4-7)."""
        newcomer = self.newcomer(server)
        own = next((copy_tensors(reply.payload.group("model")) for reply in replies if reply.client == newcomer), None)
        if own is None or len(replies) == 1:
            missing = newcomer if own is None else "any other client"
            server.note(f"no reply from {missing}: the model does not change in this round")
            return
        probes = probe_samples(server, self.stage, self.params.probes)
        target = self.embed(server, own, probes)
        differences = {}
        for reply in replies:
            if reply.client != newcomer:
                weights = reply.payload.group("model")
                diff_f = self.diff_f(self.embed(server, weights, probes), target)
                differences[reply.client] = diff_f, classifier_difference(weights, own)
        self.combine(server, replies, differences, len(differences), self.kind_of_round(server, differences))
        self.correction.merge(server, replies)

    def kind_of_round(self, server: Server, differences: Mapping[str, tuple[float, float]]) -> Kind:
        """Return what the newcomer brings: as decided in discovery, or by Diff of the last source client by name."""
        p = self.params
        if p.decide == "once":
            return "domain" if Arrival.of(server).kind == "domain" else "classes"
        last = max(differences)
        diff_f, diff_c = differences[last]
        kind = kind_by_limits(diff_f, diff_c, p.t_f, p.t_c, p.inclusive)
        figures = f"Diff^F {diff_f:.3g}, limit {p.t_f:.3g}; Diff^C {diff_c:.3g}, limit {p.t_c:.3g}"
        server.note(f"kind of shift in this round: {SHIFTS[kind]} ({figures}; from {last})")
        return kind

    def average_tail(self, server: Server) -> None:
        """Over the second half of the rounds, keep the mean of the models. The phase ends with it.

        If source clients have only old classes and the newcomer only new ones, each round's model favours one side.
        """
        count = server.step.round - self.params.adapt_rounds // 2 + 1
        if self.params.tail == "last" or count < 1:
            return
        model, mean = server.state.group("model"), server.state.group("mean")
        mean = running_mean(mean, model, count) if mean else model
        server.state.put("mean", mean)
        if server.step.round == self.params.adapt_rounds - 1:
            server.state.put("model", mean)
            server.state.drop("mean")


class AntiForgetting(ClientCorrection):
    """Adds the gradient of lambda ||W - W_n(0,0)||^2, 2 lambda (W - W_n(0,0)), to another correction (Eq. 8).

    Rows of the head for classes that are new (`new_rows`) are free.
    """

    def __init__(
        self, inner: ClientCorrection, model: Network, anchor: Tensors, strength: float, new_rows: Sequence[int]
    ) -> None:
        self.inner, self.strength, self.new_rows = inner, strength, list(new_rows)
        named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        self.parameters: list[Tensor] = list(named.values())
        self.anchors = [anchor[name].to(parameter.device) for name, parameter in named.items()]
        self.heads = [place for place, name in enumerate(named) if name in HEAD]

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
