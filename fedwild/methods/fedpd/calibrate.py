"""FedPD's last round: batch-norm statistics of the final weights, measured on the clients' own samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedwild.contract import Client, Groups, Payload, Phase, Replies, Rng, Server
from fedwild.contract.sums import NotSummable, Summable, Sums
from fedwild.models.norms import (
    from_second_moments,
    measure_statistics,
    norm_keys,
    pool_statistics,
    statistics_keys,
    to_second_moments,
)

if TYPE_CHECKING:
    from fedwild.methods.fedpd.method import FedPD

BATCH_SIZE = 64


class Calibrate(Summable, Phase):
    """Clients measure the statistics of their batch-norm layers; the server keeps them or pools them."""

    def __init__(self, name: str, rounds: int, method: FedPD) -> None:
        super().__init__(name, rounds)
        self.method = method

    def wants(self, server: Server) -> bool:
        return bool(norm_keys(server.state.group("model")))

    def send(self, server: Server, client: str) -> Payload:
        return self.method.request(server, client)

    def local(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        model = self.method.network(payload, client)
        device = next(model.parameters()).device
        # In random order: samples may be stored by class, and a batch of one class is not representative.
        batches = (x.to(device) for x, _ in client.train.batches(BATCH_SIZE, rng.torch("calibration")))
        is_measured = measure_statistics(model, batches)
        state = client.task.weights(model)
        statistics = {name: state[name] for name in statistics_keys(state)}
        return Payload.of({"samples": len(client.train) if is_measured else 0}, statistics=statistics)

    def expects(self, server: Server) -> Groups:
        spec = server.task.spec(self.method.outputs(len(server.classes)), self.method.bias)
        return {"statistics": {name: spec[name] for name in statistics_keys(spec)}}

    def sums(self) -> Sums:
        if self.method.params.norms != "merged":
            raise NotSummable("clients may get their own batch-norm; set method.norms = 'merged'")
        return Sums(means=("statistics",))

    def summands(self, reply: Payload) -> Payload:
        return Payload.of(reply.info, statistics=to_second_moments(reply.group("statistics")))

    def summed_groups(self, server: Server) -> Groups:
        spec = self.expects(server)["statistics"]
        return {"statistics": {name: tensor.double() for name, tensor in spec.items()}}

    def from_sums(self, combined: Payload) -> Payload:
        return Payload.of(combined.info, statistics=from_second_moments(combined.group("statistics")))

    def merge(self, server: Server, replies: Replies) -> None:
        found = ((reply, reply.payload.group("statistics")) for reply in replies if reply.samples)
        if self.method.has_own_norms(server):
            for reply, statistics in found:
                server.state.add(f"norms/{reply.client}", statistics)
        else:
            weighted = ((float(reply.samples), statistics) for reply, statistics in found)
            server.state.add("model", pool_statistics(weighted))
