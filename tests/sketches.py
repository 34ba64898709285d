"""Toy methods, one for each requirement on the contract, in as few lines as possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from fedwild.aggregation.means import weighted_mean
from fedwild.contract import (
    Answering,
    Client,
    Draw,
    Method,
    Phase,
    Prediction,
    Predictor,
    Replies,
    Rounds,
    Server,
    Traits,
)
from fedwild.contract.task import weights_of
from fedwild.core.payload import Payload
from fedwild.core.rng import Rng
from fedwild.core.settings import Settings
from fedwild.methods.fedavg import AveragingRounds, FedAvg
from fedwild.models import Network
from fedwild.training.corrections import CORRECTIONS, ClientCorrection, Correction


@CORRECTIONS.add("toy-prox")
class ToyProx(Correction):
    """FedProx: (mu/2)|w - w_t|^2 is added to any objective."""

    class Params(Settings):
        mu: float = Field(0.1, ge=0, description="weight of the proximal term")

    def at_client(self, client: Client, model: Network, payload: Payload) -> ClientCorrection:
        anchor, mu = [p.detach().clone() for p in model.parameters()], self.params.mu

        class Proximal(ClientCorrection):
            def penalty(self, x: Tensor, y: Tensor) -> Tensor:
                pairs = zip(model.parameters(), anchor, strict=True)
                return mu / 2 * sum((p - a).pow(2).sum() for p, a in pairs)

        return Proximal()


@CORRECTIONS.add("toy-scaffold")
class ToyScaffold(Correction):
    """SCAFFOLD: control variates at the server, and at clients in their durable state."""

    def to_clients(self, server: Server) -> dict[str, dict[str, Tensor]]:
        return {"control": server.state.group("control")}

    def expects(self, server: Server) -> dict[str, Mapping[str, Tensor]]:
        weights = server.state.group("model")
        return {"control_change": {name: weights[name] for name in weights}}

    def at_client(self, client: Client, model: Network, payload: Payload) -> ClientCorrection:
        zero = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
        server_control = payload.group("control") or zero
        own = client.state.group("control") or zero
        start = {name: p.detach().clone() for name, p in model.named_parameters()}

        class Controlled(ClientCorrection):
            def before_step(self) -> None:
                for name, p in model.named_parameters():
                    assert p.grad is not None
                    p.grad += server_control[name] - own[name]

            def after_training(self, steps: int, lr: float) -> dict[str, dict[str, Tensor]]:
                fresh = {
                    name: own[name] - server_control[name] + (start[name] - p.detach()) / (max(1, steps) * lr)
                    for name, p in model.named_parameters()
                }
                client.state.put("control", fresh)
                return {"control_change": {name: fresh[name] - own[name] for name in fresh}}

        return Controlled()

    def merge(self, server: Server, replies: Replies) -> None:
        share = len(replies) / len(server.clients)
        change = weighted_mean(replies, "control_change", weight=lambda reply: 1.0) or {}
        old = server.state.group("control")
        server.state.put("control", {n: old.get(n, torch.zeros_like(c)) + share * c for n, c in change.items()})


class Exchange(Phase):
    """One exchange about unlabelled samples, after which the head grows."""

    def send(self, server: Server, client: str) -> Payload:
        return Payload.of(model=server.state.group("model"))

    def local(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        model = client.task.network(payload.group("model"), len(client.classes))
        with torch.no_grad():
            centre = model.eval().embed(client.unlabelled.all()[0]).mean(0)
        return Payload({"prototype/0": centre}, {"samples": len(client.unlabelled)})

    def merge(self, server: Server, replies: Replies) -> None:
        found = weighted_mean(replies, "prototype")
        assert found is not None
        model = server.task.network(server.state.group("model"), len(server.classes))
        server.classes.add("novel-1", origin="discovered", since=server.step.index)
        model.grow_head(len(server.classes), found["0"][None])
        server.state.put("model", weights_of(model))


class GrowingHead(FedAvg):
    """Like GAL: learn known classes, exchange once about unlabelled samples, grow the head, continue to learn."""

    def phases(self) -> Sequence[Phase]:
        return [AveragingRounds("known", 2, self), Exchange("exchange", 1), AveragingRounds("novel", 2, self)]


class HeadBankRounds(AveragingRounds):
    def send(self, server: Server, client: str) -> Payload:
        payload = super().send(server, client)
        payload.put("bank", server.state.group("bank"))
        return payload

    def local(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        reply = super().local(payload, client, rng)
        own = client.state.group("head")
        own = {"weight": own["weight"] + 1 if own else torch.zeros(2)}
        client.state.put("head", own)
        reply.put("head", own)
        reply.info["bank"] = list(payload.subgroups("bank"))
        return reply

    def merge(self, server: Server, replies: Replies) -> None:
        super().merge(server, replies)
        for reply in replies:
            server.state.put(f"bank/{reply.client}", reply.payload.group("head"))


class HeadBank(FedAvg):
    """Like FedOSS: each client keeps a personal head; a snapshot of all heads is sent to every client."""

    round_type = HeadBankRounds


class PrototypesOnly(Method):
    """Like FedProto: only class means are exchanged; each client answers with the nearest one."""

    traits = Traits(personal=True)

    def phases(self) -> Sequence[Phase]:
        return [Rounds("train", 2, self)]

    def send(self, server: Server, client: str) -> Payload:
        return Payload.of(prototypes=server.state.group("prototypes"))

    def local(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        x, y = client.train.all()
        means = {str(c): x[y == c].flatten(1).mean(0) for c in client.train.classes}
        client.state.put("own", means)
        return Payload.of(prototypes=means, info={"samples": len(client.train)})

    def merge(self, server: Server, replies: Replies) -> None:
        sums: dict[str, list[Tensor]] = {}
        for reply in replies:
            for name, mean in reply.payload.group("prototypes").items():
                sums.setdefault(name, []).append(mean.clone())
        server.state.put("prototypes", {name: torch.stack(means).mean(0) for name, means in sums.items()})

    def answers(self, server: Server) -> Answering:
        def predictor(client: Client | None) -> Predictor:
            assert client is not None
            return Nearest({**server.state.group("prototypes"), **client.state.group("own")}, len(server.classes))

        return Answering(predictor, server.clients, personal=True)


class Nearest(Predictor):
    """The logit of a class is minus the distance to its prototype."""

    def __init__(self, prototypes: dict[str, Tensor], classes: int) -> None:
        self.prototypes, self.classes = prototypes, classes

    def predict(self, x: Tensor) -> Prediction:
        logits = torch.full((len(x), self.classes), -1e6)
        for name, mean in self.prototypes.items():
            logits[:, int(name)] = -(x.flatten(1) - mean).norm(dim=1)
        return Prediction(logits, -logits.amax(1).double())


class Declare(Phase):
    """The newcomer declares its labels by name, and the head grows."""

    def who(self, server: Server, present: Sequence[str], draw: Draw) -> Sequence[str]:
        return present[-1:]

    def local(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        declared = [name for name in client.labels if name not in client.classes]
        return Payload(info={"samples": len(client.train), "declares": declared})

    def merge(self, server: Server, replies: Replies) -> None:
        for reply in replies:
            for name in reply.payload.info["declares"]:
                server.classes.add(name, origin=reply.client, since=server.step.index)
        model = server.task.network(server.state.group("model"), len(server.state.group("model")["head.bias"]))
        model.grow_head(len(server.classes))
        server.state.put("model", weights_of(model))


class Newcomer(FedAvg):
    """Like Gains: a client arrives later and declares, by name, labels that the server does not know."""

    def phases(self) -> Sequence[Phase]:
        return [AveragingRounds("source", 2, self), Declare("declare", 1), AveragingRounds("adapt", 2, self)]


class MaskedRounds(AveragingRounds):
    def local(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        reply = super().local(payload, client, rng)
        reply.put("mask", {"bits": torch.arange(16, dtype=torch.uint8)})
        return reply

    def merge(self, server: Server, replies: Replies) -> None:
        super().merge(server, replies)
        server.state.put("mask", {r.client: r.payload.group("mask")["bits"].clone() for r in replies})


class Masked(FedAvg):
    """Like FedPD: packed bits are sent beside the weights."""

    round_type = MaskedRounds


class MischiefRounds(AveragingRounds):
    def local(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        reply = super().local(payload, client, rng)
        return {
            "client-00": lambda: reply,
            "client-01": lambda: 1 / 0,
            "client-02": lambda: with_nan(reply),
            "client-03": lambda: Payload.of(model={"wrong": torch.zeros(3)}, info=reply.info),
            "client-04": lambda: Payload.of(model=reply.group("model"), info={"samples": -5}),
            "client-05": _die,
            "client-06": lambda: Payload(info={"samples": 10**6}),
            "client-07": lambda: Payload.of(model=reply.group("model"), info={"samples": 10**30}),
            "client-08": lambda: Payload.of(model=reply.group("model"), info={"samples": 3, "loss": "low"}),
        }[client.name]()


class Mischief(FedAvg):
    """Clients that fail in every way: client-00 is honest, the others are not."""

    round_type = MischiefRounds


def with_nan(reply: Payload) -> Payload:
    next(iter(reply.tensors.values())).view(-1)[0] = float("nan")
    return reply


def _die() -> Any:
    import os

    os._exit(7)


class NoisyRounds(AveragingRounds):
    def local(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        reply = super().local(payload, client, rng)
        for tensor in reply.group("model").values():
            tensor.add_(torch.randn_like(tensor), alpha=0.01)
        return reply

    def merge(self, server: Server, replies: Replies) -> None:
        super().merge(server, replies)
        server.state.put("extra", {"z": torch.zeros(2), "a": torch.zeros(2)})
        for tensor in server.state.tensors.values():
            tensor.add_(torch.randn_like(tensor), alpha=0.01)
        counts = server.state.info.setdefault("rounds", {})
        counts[str(server.step.round)] = len(replies)


class Noisy(FedAvg):
    """Draws from torch's global generator in both halves, and counts in the server's JSON part."""

    round_type = NoisyRounds


class DrawingRounds(AveragingRounds):
    def merge(self, server: Server, replies: Replies) -> None:
        super().merge(server, replies)
        server.state.info.setdefault("draws", []).append(server.rng.number("draw"))


class Stages(FedAvg):
    """Phases that share a name; each keeps the number it drew."""

    def phases(self) -> Sequence[Phase]:
        return [DrawingRounds(name, 1, self) for name in ("stage", "between", "stage")]


class ScribblerRounds(AveragingRounds):
    def local(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        for tensor in payload.tensors.values():
            tensor.mul_(0.9)
        return super().local(payload, client, rng)


class Scribbler(FedAvg):
    """Changes its payload in place."""

    round_type = ScribblerRounds


class TwoPassesRounds(AveragingRounds):
    def merge(self, server: Server, replies: Replies) -> None:
        for reply in replies:
            for tensor in reply.payload.tensors.values():
                tensor.zero_()
        super().merge(server, replies)


class TwoPasses(FedAvg):
    """Changes replies in a first pass and averages them in a second."""

    round_type = TwoPassesRounds


class UnencodableRounds(AveragingRounds):
    def local(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        reply = super().local(payload, client, rng)
        if client.name == "client-01":
            reply.info["count"] = {1, 2}
        return reply


class Unencodable(FedAvg):
    """A client sends a value that JSON cannot represent."""

    round_type = UnencodableRounds


class DiesOnceRounds(AveragingRounds):
    def local(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        import os
        from pathlib import Path

        mark = Path(os.environ["FEDWILD_TEST_MARK"])
        if client.name == "client-00" and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), 9)
        return super().local(payload, client, rng)


class DiesOnce(FedAvg):
    """Its first client is killed once, as by a system that runs out of memory."""

    round_type = DiesOnceRounds
