"""Phase 2 of FedOSS: the network learns to answer "unknown" to virtual unknown samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from fedwild.contract import Client, Payload, Replies, Rng, Server
from fedwild.core.errors import BadReply
from fedwild.methods.fedoss import open_space
from fedwild.methods.fedoss.boundary import MAX_DISPLACEMENT
from fedwild.methods.fedoss.heads import Bank
from fedwild.methods.fedoss.pretrain import Pretrain, with_sizes
from fedwild.methods.fedoss.synthesis import PersonalTraining, Synthesis, Tally
from fedwild.models import Network
from fedwild.statistics import merge_by_class
from fedwild.training import LocalTraining

FIGURES = {"boundary": 1.0, "displacement": MAX_DISPLACEMENT}
"""What each client reports about its synthesis, with the largest allowed value."""


class Finetune(Pretrain):
    """Clients also train with virtual unknown samples, and share Gaussians of them through the server."""

    def local(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        model = self.network(payload, client)
        synthesis = self.synthesis(self.personal_training(model, client, rng), payload, client, model, rng)
        reply = self.train(model, synthesis, payload, client, rng)
        self.add_statistics(reply, synthesis.tally, client)
        return with_sizes(reply)

    def settings(self, round_: int) -> LocalTraining:
        update = {"optimizer": self.params.finetune_optimizer, "lr": self.params.finetune_lr}
        return self.params.model_copy(update=update)

    def synthesis(
        self, personal: PersonalTraining, payload: Payload, client: Client, model: Network, rng: Rng
    ) -> Synthesis:
        """Return the training of a batch with virtual unknown samples by DUSS and FOSS."""
        p, classes = self.params, len(client.classes)
        grid, device = self.layouts.of(client.task, classes).grid, next(model.parameters()).device
        rule = self.rule(p, personal.cut, Bank.received(payload, personal.head, classes))
        gaussians = open_space.load_gaussians(payload if p.aggregate else client.state)
        space = open_space.OpenSpace(gaussians, grid, p, rng.numpy("open space"), device)
        return Synthesis(personal, rule, space.sample if gaussians else None, p, grid)

    def add_statistics(self, reply: Payload, tally: Tally, client: Client) -> None:
        """Add the figures of the synthesis to the reply, and update the Gaussians if it is time."""
        reply.info.update(tally.info())
        if self.refreshes(client.step.round):
            moments = tally.moments(self.params.min_count)
            if self.params.aggregate:
                open_space.write_moments(reply, moments)
            else:
                open_space.store_gaussians(client.state, moments)

    def refreshes(self, round_: int) -> bool:
        """Return whether the Gaussians are updated in a round."""
        since = round_ - self.params.first_refresh
        return self.params.foss > 0 and since >= 0 and since % self.params.refresh == 0

    def send(self, server: Server, client: str) -> Payload:
        payload = super().send(server, client)
        payload.info["held"] = server.state.info.get("held", {})
        payload.add("bank", server.state.group("bank"))
        payload.add("gaussians", server.state.group("gaussians"))
        return payload

    def check(self, server: Server, reply: Payload) -> None:
        super().check(server, reply)
        for key, largest in FIGURES.items():
            value = reply.info.get(key)
            if not isinstance(value, float) or not 0 <= value <= largest:
                raise BadReply(f"info {key!r} is {str(value)[:40]}, expected a number from 0 to {largest:g}")
        classes = len(server.classes)
        dims = self.layouts.of(server.task, classes).grid.dims
        wanted = self.params.aggregate and self.refreshes(server.step.round)
        open_space.check_moments(reply, classes, dims, wanted)

    def merge(self, server: Server, replies: Replies) -> None:
        super().merge(server, replies)
        figures = mean_figures([reply.payload.info for reply in replies])
        server.state.info["synthesis"] = figures
        if figures and not figures["boundary"]:
            server.note("no client found a boundary sample in this round")
        merged = merge_by_class(open_space.read_moments(reply.payload) for reply in replies)
        for k in open_space.store_gaussians(server.state, merged):
            server.note(f"the merged matrix of class {server.classes.names[k]!r} is not a covariance and is ignored")

    def next_model(self, server: Server, mean: dict[str, Tensor]) -> dict[str, Tensor]:
        return mean

    def needs_bank(self, server: Server) -> bool:
        return server.step.round < self.rounds - 1


def mean_figures(infos: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean of each figure over replies, weighted by samples, or nothing without samples."""
    total = sum(info["samples"] for info in infos)
    return {key: sum(info["samples"] * info[key] for info in infos) / total for key in FIGURES} if total else {}
