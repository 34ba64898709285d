"""The fit step of an unknown score: clients send sums over their training samples once, and the server adds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from fedwild.contract import Client, Draw, Groups, Payload, Phase, Replies, Rng, Server
from fedwild.contract.sums import Summable, Sums
from fedwild.models import Network
from fedwild.models.inference import INFERENCE_BATCH
from fedwild.openset.scores import Score, Signals, signals_of

FITTED = "score"
"""The group of the server's state that holds what was fitted."""


class FitScore(Summable, Phase):
    """One round after training in which every client present sends its sums."""

    def __init__(self, score: Score, outputs: Callable[[int], int], bias: bool = True) -> None:
        super().__init__("fit-score", 1)
        self.score, self.outputs, self.bias = score, outputs, bias

    def who(self, server: Server, present: Sequence[str], draw: Draw) -> Sequence[str]:
        return present

    def send(self, server: Server, client: str) -> Payload:
        return Payload.of(model=server.state.group("model"))

    @torch.inference_mode()
    def local(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        classes = len(client.classes)
        model = client.task.network(payload.group("model"), self.outputs(classes), self.bias).eval()
        total = self.score.sums(*self.empty(model, client.task.input_shape, classes))
        for x, y in client.train.batches(INFERENCE_BATCH):
            x = x.to(client.task.device)
            sums = self.score.sums(signals_of(model, x, classes, self.score), y.to(x.device))
            total = {name: total[name] + value for name, value in sums.items()}
        reply = Payload.of(sums={name: value.cpu() for name, value in total.items()})
        reply.info = {"samples": len(client.train)}
        return reply

    def empty(self, model: Network, shape: tuple[int, ...], classes: int) -> tuple[Signals, torch.Tensor]:
        """Return the signals and labels of no samples: what `sums` gives for them has the shapes of a reply."""
        device = next(model.parameters()).device
        x = torch.zeros(1, *shape, device=device)
        signals = signals_of(model, x, classes, self.score)
        embeddings = None if signals.embeddings is None else signals.embeddings[:0]
        return Signals(signals.outputs[:0], classes, embeddings), torch.zeros(0, dtype=torch.int64, device=device)

    @torch.inference_mode()
    def expects(self, server: Server) -> Groups:
        classes = len(server.classes)
        model = server.task.network(server.state.group("model"), self.outputs(classes), self.bias, slot="fit").eval()
        return {"sums": self.score.sums(*self.empty(model, server.task.input_shape, classes))}

    def sums(self) -> Sums:
        return Sums(totals=("sums",))

    def merge(self, server: Server, replies: Replies) -> None:
        total: dict[str, torch.Tensor] = {}
        for reply in replies:
            for name, value in reply.payload.group("sums").items():
                total[name] = total[name] + value.double() if name in total else value.double()
        server.state.put(FITTED, self.score.fit(total))
