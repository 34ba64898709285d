"""FedMA. Wang, Yurochkin, Sun, Papailiopoulos, Khazaeni: Federated learning with matched averaging. ICLR 2020.

Neurons have no order, so the mean of two models may mix neurons that have nothing to do with each other. FedMA goes
through the network layer by layer. The server finds out which neurons of the clients belong together and merges those;
the clients take the merged layer over, freeze it, and train the layers behind it on top of it. A round is one layer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fedwild.aggregation import weighted_mean
from fedwild.alignment.bayes import Matching, Prior, match, mean_over_users, with_atoms
from fedwild.corrections import Steering
from fedwild.errors import UserError
from fedwild.initial import initial_weights
from fedwild.methods.base import METHODS
from fedwild.models import Layer, LayerGraph, Network
from fedwild.models.widths import with_widths
from fedwild.objectives import Objective
from fedwild.openset import Score
from fedwild.payload import Payload
from fedwild.predictors import ScoredModel
from fedwild.protocol import Client, Method, Outcome, Phase, Predictor, Replies, Reply, Server, Step
from fedwild.rng import Rng
from fedwild.task import weights_of
from fedwild.training import LocalTraining, train


@METHODS.add("fedma")
class FedMA(Method):
    """Neurons of all clients matched and merged layer by layer, one layer a round (FedMA)."""

    class Params(LocalTraining):
        epochs: int = Field(20, ge=0, description="passes over the client's own data per round, that is per layer")
        rounds: int = Field(12, ge=1, description="communication rounds, each of which matches one layer")
        sigma: float = Field(1.0, gt=0, description="deviation of a client's neuron from its global neuron")
        sigma0: float = Field(1.0, gt=0, description="deviation of a global neuron from zero")
        gamma: float = Field(7.0, gt=0, description="how readily new global neurons open")
        sweeps: int = Field(5, ge=0, description="times that every client is matched again after the first time")
        start: Literal["shared", "own"] = Field(
            "shared", description="own: in the first round every client starts from random weights of its own"
        )

    composes = ("objective", "score")
    starts_from = True
    digits = {"method": {"rounds": 10, "epochs": 8, "batch_size": 16}}
    objective: Objective
    score: Score
    params: Params

    def check_network(self, network: Network) -> None:
        written: set[str] = set()
        for layer in network.graph().weighted:
            if layer.outputs in written:
                raise UserError(
                    f"method.name = 'fedma' cannot match the layer {layer.name!r} of {network.name!r}: a skip "
                    "connection adds its neurons to those of another layer. Take a network without, such as "
                    "model.name=vgg-9."
                )
            if layer.outputs is not None:
                written.add(layer.outputs)

    def phases(self) -> Sequence[Phase]:
        return [Phase("train", self.params.rounds)]

    def outputs(self, classes: int) -> int:
        """Rows of the head: the known classes and what the objective adds."""
        return classes + self.objective.extra_outputs

    def start(self, server: Server) -> None:
        server.state.put("model", initial_weights(server, self.outputs(len(server.classes))))

    # --- at the client ------------------------------------------------------------------------------------

    def local(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        model = client.task.build(self.outputs(len(client.classes)), rng)
        turn = Turn.of(model.graph(), client.step)
        # Nothing comes down where every client is to start from weights of its own: those just drawn.
        if "model" in payload:
            with_widths(model, beginning(payload, client, turn))
        freeze(model, turn.settled)
        trained = train(model, client.train, self.params, self.objective, Steering(), rng)
        own = turn.open(weights_of(model))
        client.state.put("model", own)
        client.state.info["round"] = client.step.index
        return Payload.of({"samples": len(client.train), **trained.info()}, model=own)

    # --- at the server ------------------------------------------------------------------------------------

    def turn(self, server: Server) -> Turn:
        """The layer that this round is about."""
        return Turn.of(server.task.graph(self.outputs(len(server.classes))), server.step)

    def send(self, server: Server, client: str) -> Payload:
        if self.params.start == "own" and server.step.index == 0:
            return Payload()
        payload = Payload.of(model=server.state.group("model"))
        atoms = server.state.group("atoms").get(client)
        if atoms is not None and server.state.info["matched"] == server.step.index - 1:
            payload.put("own", {"atoms": atoms})
        return payload

    def expects(self, server: Server) -> dict[str, Mapping[str, Tensor]]:
        return {"model": self.turn(server).open(server.state.group("model"))}

    def merge(self, server: Server, replies: Replies) -> None:
        server.state.drop("atoms")
        turn = self.turn(server)
        merged = weighted_mean(replies, "model") if turn.is_head else self.matched(server, turn, replies)
        if merged is None:
            server.note("no client had a training sample: the model stays as it is")
        else:
            server.state.put("model", {**server.state.group("model"), **merged})

    def matched(self, server: Server, turn: Turn, replies: Replies) -> dict[str, Tensor] | None:
        """The merged layer, and the mean of the layers behind it, its readers' inputs put in order."""
        neurons: dict[str, Tensor] = {}
        norms: dict[str, dict[str, Tensor]] = {}
        for reply in replies:
            if reply.samples:
                state = reply.payload.group("model")
                neurons[reply.client] = neurons_of(turn.layer, state)
                for name, tensor in within(state, turn.norms).items():
                    # A view would keep the whole reply in memory.
                    norms.setdefault(name, {})[reply.client] = tensor.clone()
        if not neurons:
            return None
        prior = Prior(self.params.sigma, self.params.sigma0, self.params.gamma)
        matching = match(neurons, prior, self.params.sweeps, server.rng.numpy("sweeps"))
        server.state.put("atoms", matching.atoms_of)
        server.state.info["matched"] = server.step.index
        mean = weighted_mean(in_order(replies, turn, matching), "model")
        assert mean is not None
        layer = layer_of(turn.layer, matching.atoms, like=server.state.group("model"))
        return {**mean, **layer, **{name: of_atoms(name, values, matching) for name, values in norms.items()}}

    def predictor(self, server: Server, client: Client | None = None) -> Predictor:
        classes = len(server.classes)
        model = with_widths(server.task.build(self.outputs(classes), Rng(0)), server.state.group("model"))
        return ScoredModel(model, classes, self.score)

    def measure(self, server: Server, outcome: Outcome) -> dict[str, float]:
        """How many times as many neurons the global network has as the architecture."""
        graph, state = self.turn(server).graph, server.state.group("model")
        neurons = sum(len(state[f"{layer.name}.weight"]) for layer in graph.weighted if layer.outputs is not None)
        return {"width": neurons / sum(graph.spaces.values())}


@dataclass(frozen=True)
class Turn:
    """The layer that a round is about. Those before it are settled, those behind it are still each client's own."""

    graph: LayerGraph
    number: int

    @classmethod
    def of(cls, graph: LayerGraph, step: Step) -> Turn:
        """One layer a round, and after the last one the first again."""
        return cls(graph, step.index % len(graph.weighted))

    @property
    def layer(self) -> Layer:
        return self.graph.weighted[self.number]

    @property
    def before(self) -> Layer:
        """The layer of the round before."""
        return self.graph.weighted[self.number - 1]

    @property
    def is_head(self) -> bool:
        return self.layer.outputs is None

    @property
    def norms(self) -> set[str]:
        """The norms of the layer's neurons."""
        return norms_of(self.graph, self.layer)

    @cached_property
    def settled(self) -> set[str]:
        """The layers that have been matched in this pass through the network, and the norms of their neurons."""
        past = self.graph.weighted[: self.number]
        return {layer.name for layer in past}.union(*(norms_of(self.graph, layer) for layer in past))

    def open(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of a state that are not settled."""
        settled = within(state, self.settled)
        return {name: tensor for name, tensor in state.items() if name not in settled}


def norms_of(graph: LayerGraph, layer: Layer) -> set[str]:
    return {norm.name for norm in graph.layers if norm.kind == "norm" and norm.outputs == layer.outputs}


def within(state: Mapping[str, Tensor], layers: Collection[str]) -> dict[str, Tensor]:
    """The tensors of a state that belong to these layers."""
    return {name: tensor for name, tensor in state.items() if name.rpartition(".")[0] in layers}


def beginning(payload: Payload, client: Client, turn: Turn) -> dict[str, Tensor]:
    """What a client begins a round with: the global model, but for the layers in which it has weights of its own.

    It has such if the server matched its neurons in the round before, and if it still has its model of that round.
    """
    model, atoms = payload.group("model"), payload.group("own").get("atoms")
    if atoms is None or client.state.info.get("round") != client.step.index - 1:
        return model
    own = turn.open(client.state.group("model"))
    return {**model, **reordered_inputs(own, turn.graph, turn.before, atoms, len(model[f"{turn.before.name}.weight"]))}


def reordered_inputs(
    state: Mapping[str, Tensor], graph: LayerGraph, layer: Layer, atoms: Tensor, count: int
) -> dict[str, Tensor]:
    """A state whose layers read `count` atoms where they read the neurons of `layer`, neuron j being `atoms[j]`."""
    readers = [f"{reader.name}.weight" for reader in graph.weighted if reader.inputs == layer.outputs]
    return {**state, **{name: with_atoms(state[name], atoms, count) for name in readers}}


def freeze(network: Network, layers: Collection[str]) -> None:
    """Keep these layers as they are: no gradients, and norms that go by the statistics they have."""
    for path in layers:
        module = network.get_submodule(path).requires_grad_(False)
        # Training puts all modules into training mode, so a norm has to be told at every call.
        module.register_forward_pre_hook(_leave_training)


def _leave_training(module: nn.Module, inputs: Any) -> None:
    module.training = False


def neurons_of(layer: Layer, state: Mapping[str, Tensor]) -> Tensor:
    """A layer's neurons (n, d): for each its weights and, if the layer has one, its bias. A copy."""
    columns = [state[f"{layer.name}.weight"].flatten(1)]
    if f"{layer.name}.bias" in state:
        columns.append(state[f"{layer.name}.bias"][:, None])
    # Of one tensor, too, this makes a copy.
    return torch.cat(columns, dim=1)


def layer_of(layer: Layer, neurons: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A layer's tensors from its neurons (n, d): `neurons_of` turned round."""
    weight = like[f"{layer.name}.weight"]
    size = weight[0].numel()
    tensors = {f"{layer.name}.weight": neurons[:, :size].reshape(-1, *weight.shape[1:]).to(weight.dtype)}
    if f"{layer.name}.bias" in like:
        tensors[f"{layer.name}.bias"] = neurons[:, size].to(weight.dtype)
    return tensors


def of_atoms(name: str, values: Mapping[str, Tensor], matching: Matching) -> Tensor:
    """A norm's tensor (atoms,) from those of the clients (n_k,); of a counter (), the first client's."""
    first = next(iter(values.values()))
    if not first.dim():
        return first
    mean = mean_over_users(values, matching)
    # The prior makes atoms smaller than the neurons were whose outputs these statistics are of.
    power = {"running_mean": 1, "running_var": 2}.get(name.rpartition(".")[2], 0)
    return (mean * matching.shrinkage**power).to(first.dtype)


def in_order(replies: Replies, turn: Turn, matching: Matching) -> Iterator[Reply]:
    """The replies of clients with samples without the layer just matched, the layers behind it reading its atoms."""
    for reply in replies:
        if reply.samples:
            state = reply.payload.group("model")
            own = within(state, {turn.layer.name, *turn.norms})
            rest = {name: tensor for name, tensor in state.items() if name not in own}
            atoms = matching.atoms_of[reply.client]
            rest = reordered_inputs(rest, turn.graph, turn.layer, atoms, len(matching.atoms))
            yield Reply(reply.client, Payload.of(reply.payload.info, model=rest))
