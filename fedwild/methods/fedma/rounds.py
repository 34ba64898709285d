"""FedMA's round: clients train what is not frozen, and the server matches the neurons of one layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import Tensor

from fedwild.aggregation.means import weighted_mean
from fedwild.contract import Client, Groups, Payload, Phase, Replies, Reply, Rng, Server, Tensors, weights_of
from fedwild.methods.fedma.bayes import Matching, Prior, match, mean_over_users
from fedwild.methods.fedma.layers import CurrentLayer, freeze, layer_of, neurons_of, remap_inputs, resize, tensors_of
from fedwild.methods.own_start import starts_alone
from fedwild.training import ClientCorrection, train

if TYPE_CHECKING:
    from fedwild.methods.fedma.method import FedMA


class MatchingRounds(Phase):
    """Each round matches one layer of the network, from the first to the head, and then starts again."""

    def __init__(self, name: str, rounds: int, method: FedMA) -> None:
        super().__init__(name, rounds)
        self.method, self.params = method, method.params

    def current(self, server: Server) -> CurrentLayer:
        """Return the layer that this round matches."""
        return CurrentLayer.at(self.method.graph(server), server.step)

    def send(self, server: Server, client: str) -> Payload:
        if starts_alone(self.params.start, server.step):
            return Payload()
        payload = Payload.of(model=server.state.group("model"))
        atoms = server.state.group("atoms").get(client)
        if atoms is not None and server.state.info["matched"] == server.step.index - 1:
            payload.put("own", {"atoms": atoms})
        return payload

    def local(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        model = client.task.build(self.method.outputs(len(client.classes)), rng)
        current = CurrentLayer.at(model.graph(), client.step)
        # No model is sent if every client starts from its own weights: those just drawn.
        if "model" in payload:
            resize(model, initial_state(payload, client, current))
        freeze(model, current.frozen)
        trained = train(model, client.train, self.params, self.method.objective, ClientCorrection(), rng)
        own = current.select_trainable(weights_of(model))
        client.state.put("model", own)
        client.state.info["round"] = client.step.index
        return Payload.of({"samples": len(client.train), **trained.info()}, model=own)

    def expects(self, server: Server) -> Groups:
        return {"model": self.current(server).select_trainable(server.state.group("model"))}

    def merge(self, server: Server, replies: Replies) -> None:
        server.state.drop("atoms")
        current = self.current(server)
        merged = weighted_mean(replies, "model") if current.is_head else self.match_neurons(server, current, replies)
        if merged is None:
            server.note("no client has a training sample: the model does not change")
        else:
            server.state.put("model", {**server.state.group("model"), **merged})

    def match_neurons(self, server: Server, current: CurrentLayer, replies: Replies) -> dict[str, Tensor] | None:
        """Return the merged layer and the mean of the layers after it, whose inputs follow the merged neurons."""
        neurons: dict[str, Tensor] = {}
        norms: dict[str, dict[str, Tensor]] = {}
        for reply in replies:
            if reply.samples:
                state = reply.payload.group("model")
                neurons[reply.client] = neurons_of(current.layer, state)
                for name, tensor in tensors_of(current.norms, state).items():
                    # A view would keep the whole reply in memory.
                    norms.setdefault(name, {})[reply.client] = tensor.clone()
        if not neurons:
            return None
        prior = Prior(self.params.sigma, self.params.sigma0, self.params.gamma)
        matching = match(neurons, prior, self.params.sweeps, server.rng.numpy("sweeps"))
        server.state.put("atoms", matching.atoms_of)
        server.state.info["matched"] = server.step.index
        mean = weighted_mean(remap_replies(replies, current, matching), "model")
        assert mean is not None
        layer = layer_of(current.layer, matching.atoms, like=server.state.group("model"))
        return {**mean, **layer, **{name: merge_norm(name, values, matching) for name, values in norms.items()}}


def initial_state(payload: Payload, client: Client, current: CurrentLayer) -> dict[str, Tensor]:
    """Return what a client begins a round with: the global model, with the client's own weights where it has any.

    It has its own weights if the server matched its neurons in the previous round and its model of that round is still
    there.
    """
    model, atoms = payload.group("model"), payload.group("own").get("atoms")
    if atoms is None or client.state.info.get("round") != client.step.index - 1:
        return model
    own = current.select_trainable(client.state.group("model"))
    count = len(model[f"{current.previous.name}.weight"])
    return {**model, **remap_inputs(own, current.graph, current.previous, atoms, count)}


def remap_replies(replies: Replies, current: CurrentLayer, matching: Matching) -> Iterator[Reply]:
    """Yield the replies of clients with samples without the matched layer, the layers after it reading its atoms."""
    for reply in replies:
        if reply.samples:
            state = reply.payload.group("model")
            own = tensors_of({current.layer.name, *current.norms}, state)
            rest = {name: tensor for name, tensor in state.items() if name not in own}
            atoms = matching.atoms_of[reply.client]
            rest = remap_inputs(rest, current.graph, current.layer, atoms, len(matching.atoms))
            yield Reply(reply.client, Payload.of(reply.payload.info, model=rest))


def merge_norm(name: str, values: Tensors, matching: Matching) -> Tensor:
    """Return a norm's tensor (atoms,) from those of the clients (n_k,). A counter () is the first client's."""
    first = next(iter(values.values()))
    if not first.dim():
        return first
    mean = mean_over_users(values, matching)
    # The prior makes atoms smaller than the neurons whose outputs these statistics describe.
    power = {"running_mean": 1, "running_var": 2}.get(name.rpartition(".")[2], 0)
    return (mean * matching.shrinkage**power).to(first.dtype)
