"""Phase 1 of FedOSS: the network and the personal heads learn the known classes."""

from __future__ import annotations

import torch
from torch import Tensor

from fedwild.aggregation import Aggregation
from fedwild.contract import HEAD, Client, Groups, Payload, Phase, Replies, Rng, Server, Tensors, weights_of
from fedwild.core.errors import BadReply
from fedwild.methods.fedoss.boundary import RULES, HeadRule
from fedwild.methods.fedoss.heads import Layouts, make_branch, merge_bank
from fedwild.methods.fedoss.settings import FedOSSParams
from fedwild.methods.fedoss.synthesis import PersonalTraining
from fedwild.models import Network
from fedwild.training import Correction, LocalTraining, train
from fedwild.training.objectives import CrossEntropy
from fedwild.training.objectives.balanced import log_shares


class Pretrain(Phase):
    """Clients train the network and their personal heads. The server averages the network only."""

    def __init__(
        self,
        name: str,
        rounds: int,
        params: FedOSSParams,
        correction: Correction,
        aggregation: Aggregation,
        layouts: Layouts,
    ) -> None:
        super().__init__(name, rounds)
        self.params, self.correction, self.aggregation, self.layouts = params, correction, aggregation, layouts
        self.rule = RULES[params.boundary]

    def local(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        model = self.network(payload, client)
        return with_sizes(self.train(model, self.personal_training(model, client, rng), payload, client, rng))

    def network(self, payload: Payload, client: Client) -> Network:
        """Return the network that the client received, with one output per known class and one for "unknown"."""
        return client.task.network(payload.group("model"), len(client.classes) + 1)

    def settings(self, round_: int) -> LocalTraining:
        """Return the training settings of a round."""
        return self.params.in_round(round_)

    def personal_training(self, model: Network, client: Client, rng: Rng) -> PersonalTraining:
        """Return the training of the client's personal head, as its last round left it or new."""
        classes, device = len(client.classes), next(model.parameters()).device
        layout = self.layouts.of(client.task, classes)
        with rng.seeded("head"):
            head = make_branch(self.params.branch, model, layout.cut, classes)
        head.to(device)
        kept = client.state.group("head")
        # A federation that has learnt new classes in the meantime needs a new head.
        if kept and kept["head.weight"].shape == layout.head["head.weight"].shape:
            head.load_state_dict(kept)
        log_prior = log_shares(client.train.y, classes) if self.params.prior else torch.zeros(classes)
        optimiser = self.settings(client.step.round).optimiser(head.train())
        all_outputs = self.params.pretrain_outputs == "all"
        return PersonalTraining(layout.cut, head, optimiser, log_prior.to(device), all_outputs)

    def train(self, model: Network, descent: PersonalTraining, payload: Payload, client: Client, rng: Rng) -> Payload:
        """Train the network and the personal head on the client's samples, and return the reply."""
        settings, objective = self.settings(client.step.round), CrossEntropy(CrossEntropy.Params())
        correction = self.correction.at_client(client, model, payload)
        trained = train(model, client.train, settings, objective, correction, rng, descent)
        client.state.put("head", weights_of(descent.head))
        return Payload.of(
            {"samples": len(client.train), "held": client.train.classes, **trained.info()},
            model=client.task.weights(model),
            head=client.state.group("head"),
            **correction.after_training(trained.steps, settings.lr),
        )

    def send(self, server: Server, client: str) -> Payload:
        return Payload.of(model=server.state.group("model"), **self.correction.to_clients(server))

    def expects(self, server: Server) -> Groups:
        classes = len(server.classes)
        head = self.layouts.of(server.task, classes).head
        return {"model": server.task.spec(classes + 1), "head": head, **self.correction.expects(server)}

    def check(self, server: Server, reply: Payload) -> None:
        super().check(server, reply)
        held, classes = reply.info.get("held", ()), range(len(server.classes))
        are_classes = isinstance(held, list) and all(type(k) is int and k in classes for k in held)
        if not are_classes or held != sorted(set(held)):
            raise BadReply("info 'held' must list the classes that the client holds, each once and in order")

    def merge(self, server: Server, replies: Replies) -> None:
        mean = self.aggregation.update(server, replies)
        if mean is not None:
            server.state.put("model", self.next_model(server, mean))
        self.correction.merge(server, replies)
        if not self.needs_bank(server):
            server.state.drop("bank")
            server.state.info.pop("held", None)
        elif issubclass(self.rule, HeadRule):
            merge_bank(server, replies, self.params.bank)

    def next_model(self, server: Server, mean: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the model of the next round, with a neutral unknown output if pre-training does not train it."""
        return mean if server.state.info["unknown_trained"] else with_neutral_unknown(mean)

    def needs_bank(self, server: Server) -> bool:
        """Return whether a later round uses the bank of heads."""
        return self.params.finetune_rounds > 0


def with_sizes(reply: Payload) -> Payload:
    """Return the reply with the bytes of each of its groups, for the log."""
    for group in ("model", "head", "statistics"):
        reply.info[f"{group}_bytes"] = sum(tensor.nbytes for tensor in reply.group(group).values())
    return reply


def with_neutral_unknown(weights: Tensors) -> dict[str, Tensor]:
    """Return the weights with the unknown output, the last row of the head, set to the mean of the known classes.

    Pre-training over the known classes does not train that output, so their logits drift away from it, and the first
    steps of fine-tuning would destroy the network. The mean is never the largest logit, and it is closest to the
    largest one where no class stands out.
    """
    neutral = dict(weights)
    for name in HEAD:
        neutral[name] = weights[name].clone()
        neutral[name][-1] = weights[name][:-1].mean(0)
    return neutral
