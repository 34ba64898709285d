"""FedMA. Wang, Yurochkin, Sun, Papailiopoulos, Khazaeni: Federated learning with matched averaging. ICLR 2020.

Neurons have no order, so the mean of two models may mix unrelated neurons. FedMA processes the network layer by layer:
the server matches the neurons of all clients and merges those that correspond; the clients take the merged layer,
freeze it, and train the layers after it. Each round matches one layer.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from fedwild.contract import Answering, Client, Method, Outcome, Phase, Rng, Server, Traits, initial_weights
from fedwild.core.errors import UserError
from fedwild.methods.fedma.layers import resize
from fedwild.methods.fedma.rounds import MatchingRounds
from fedwild.methods.own_start import START, Start, check_start
from fedwild.methods.registry import METHODS
from fedwild.models import LayerGraph, Network
from fedwild.openset import DecisionSettings, Score, ScoredModel
from fedwild.training import LocalTraining, Objective


@METHODS.add("fedma")
class FedMA(Method):
    """Matches and merges the neurons of all clients, one layer per round (FedMA)."""

    class Params(DecisionSettings, LocalTraining):
        epochs: int = Field(20, ge=0, description="passes over the client's own data per round, that is per layer")
        rounds: int = Field(12, ge=1, description="communication rounds, each of which matches one layer")
        sigma: float = Field(1.0, gt=0, description="standard deviation of a client's neuron from its global neuron")
        sigma0: float = Field(1.0, gt=0, description="standard deviation of a global neuron from zero")
        gamma: float = Field(7.0, gt=0, description="tendency to open new global neurons")
        sweeps: int = Field(5, ge=0, description="times that every client is matched again after the first time")
        start: Start = Field("shared", description=START)

    parts = {"objective": {}, "score": {}}
    traits = Traits(starts_from=True)
    objective: Objective
    score: Score
    params: Params

    def check(self, network: Network | None, start_from: str | None) -> None:
        check_start(self.params.start, start_from)
        if network is None:
            return
        written: set[str] = set()
        for layer in network.graph().weighted:
            if layer.outputs in written:
                raise UserError(
                    f"method.name = 'fedma' cannot match the layer {layer.name!r} of {network.name!r}: a skip "
                    "connection adds its neurons to those of another layer. Use a network without skip connections, "
                    "such as model.name=vgg-9."
                )
            if layer.outputs is not None:
                written.add(layer.outputs)

    def phases(self) -> Sequence[Phase]:
        return [MatchingRounds("train", self.params.rounds, self)]

    def outputs(self, classes: int) -> int:
        """Return the rows of the head: the known classes and what the objective adds."""
        return classes + self.objective.extra_outputs

    def graph(self, server: Server) -> LayerGraph:
        return server.task.graph(self.outputs(len(server.classes)))

    def start(self, server: Server) -> None:
        server.state.put("model", initial_weights(server, self.outputs(len(server.classes))))

    def answers(self, server: Server) -> Answering:
        classes = len(server.classes)

        def predictor(_: Client | None) -> ScoredModel:
            model = resize(server.task.build(self.outputs(classes), Rng(0)), server.state.group("model"))
            return ScoredModel(model, classes, self.score)

        return Answering(predictor, server.clients, threshold=self.params.threshold)

    def measure(self, server: Server, outcome: Outcome) -> dict[str, float]:
        """Return the number of neurons of the global network, relative to that of the architecture."""
        graph, state = self.graph(server), server.state.group("model")
        neurons = sum(len(state[f"{layer.name}.weight"]) for layer in graph.weighted if layer.outputs is not None)
        return {"width": neurons / sum(graph.spaces.values())}
