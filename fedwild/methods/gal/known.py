"""Phase `known`: the labelled classes are learnt as in FedAvg, with cross-entropy and prototype contrast."""

from __future__ import annotations

from fedwild.contract import Client, Payload, Rng, Server
from fedwild.methods.fedavg import AveragingRounds
from fedwild.methods.gal.stage import inherited_rows, request_info
from fedwild.methods.rehearsal import GROUP, keep_answers, kept_answers, training_also_on


class Known(AveragingRounds):
    """Rounds of known-class learning (Eq. 4). The rows of the head without bias are the class prototypes."""

    def send(self, server: Server, client: str) -> Payload:
        payload = super().send(server, client)
        payload.info = request_info(server)
        return payload

    def local(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        """Train on labelled samples and on pool samples of classes that an earlier run discovered."""
        inherited = inherited_rows(payload.info)
        if inherited and GROUP not in client.state:
            # In the client's first round, since later models have been trained on these answers.
            keep_answers(client, self.method.network(payload, client), inherited)
        return super().local(payload, training_also_on(client, kept_answers(client, held_out=False)), rng)
