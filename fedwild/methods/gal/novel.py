"""Phases `novel-1`, `novel-2`, ...: the classes of a stage are learnt, and what is known is kept (GAL, stage U)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedwild.contract import HEAD, Client, Groups, Payload, Prediction, Rng, Server, Tensors
from fedwild.data.samples import Samples
from fedwild.methods.gal.known import Known
from fedwild.methods.gal.novelty import is_novel, nearest_prototype
from fedwild.methods.gal.objective import NovelObjective
from fedwild.methods.gal.stage import Discovery, class_counts, inherited_rows
from fedwild.models import Network
from fedwild.models.inference import embeddings
from fedwild.openset import Score, ScoredModel
from fedwild.openset.scores import signals_of
from fedwild.training import ClientCorrection, train

if TYPE_CHECKING:
    from fedwild.methods.gal.method import GAL


class Novel(Known):
    """Rounds of novel-class learning. They are skipped if no class was discovered."""

    params: GAL.Params

    def __init__(self, stage: int, method: GAL) -> None:
        super().__init__(f"novel-{stage}", method.params.novel_rounds, method)
        self.stage = stage

    def wants(self, server: Server) -> bool:
        return class_counts(server)[self.stage - 1].number > 0

    def send(self, server: Server, client: str) -> Payload:
        payload = super().send(server, client)
        Discovery.of(server.state).put(payload)
        return payload

    def local(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        """Train on the samples of the stage. With ema, the extractor then moves back towards the anchor."""
        discovery = Discovery.of(payload)
        before = client.task.network(discovery.anchor, discovery.known, self.method.bias, slot="before").eval()
        samples = self.stage_samples(before, discovery, client, payload.info)
        model = self.method.network(payload, client)
        correction = self.client_correction(client, model, payload)
        objective = NovelObjective(self.params, discovery, self.objective, before)
        params = self.params.in_round(client.step.round)
        trained = train(model, samples, params, objective, correction, rng)
        groups = correction.after_training(trained.steps, params.lr)
        weights = client.task.weights(model)
        if self.params.against_forgetting == "ema":
            weights = moving_average(weights, discovery.anchor, self.params.beta)
        return Payload.of({"samples": len(samples), **trained.info()}, model=weights, **groups)

    def stage_samples(self, before: Network, discovery: Discovery, client: Client, info: Mapping[str, Any]) -> Samples:
        """Return the novel samples of the stage and, depending on the settings, labelled and pseudo-labelled ones.

        Novel samples have the label -1, or with loss=labels the class of the nearest prototype.
        """
        pool = client.unlabelled_in(self.stage)
        z, rows = embeddings(before, pool), before.head.weight.detach().cpu()
        inherited = inherited_rows(info)
        novel, answers = is_novel(z, rows, info["novelty"], inherited, self.params.r), (z @ rows.T).argmax(1)
        labels = torch.full_like(pool.y, -1)
        if self.params.loss == "labels":
            labels = discovery.known + nearest_prototype(z, discovery.prototypes)
        samples = pool.with_labels(torch.where(novel, labels, answers))
        if not self.params.pseudo_labels:
            # Without labels, classes of an earlier run can only be rehearsed by their answers.
            rehearsed = (answers >= inherited.start) & (answers < inherited.stop) & self.params.rehearse
            samples = samples.take(torch.nonzero(novel | rehearsed).flatten())
        return client.train.join(samples) if self.params.rehearse else samples

    def client_correction(self, client: Client, model: Network, payload: Payload) -> ClientCorrection:
        correction = super().client_correction(client, model, payload)
        return correction if self.params.rehearse else FrozenRows(correction, model, Discovery.of(payload).known)


class FrozenRows(ClientCorrection):
    """Keeps the first rows of the head fixed, in addition to another correction."""

    def __init__(self, inner: ClientCorrection, model: Network, rows: int) -> None:
        self.inner, self.head, self.rows = inner, model.head, rows
        self.before = model.head.weight.detach()[:rows].clone()

    def penalty(self, x: Tensor, y: Tensor) -> Tensor | None:
        return self.inner.penalty(x, y)

    @torch.no_grad()
    def before_step(self) -> None:
        self.inner.before_step()
        if self.head.weight.grad is not None:
            self.head.weight.grad[: self.rows] = 0.0
        # Weight decay changes rows that have no gradient, too.
        self.head.weight[: self.rows] = self.before

    @torch.no_grad()
    def after_training(self, steps: int, lr: float) -> Groups:
        self.head.weight[: self.rows] = self.before
        return self.inner.after_training(steps, lr)


def moving_average(weights: Tensors, anchor: Tensors, beta: float) -> dict[str, Tensor]:
    """Return Eq. 10, beta * anchor + (1 - beta) * weights, for the extractor, including batch-norm statistics.

    The head stays as trained. Integers (the counters of batch norm) are those of the anchor.
    """
    averaged = dict(weights)
    for name in weights.keys() - HEAD:
        old, new = anchor[name], weights[name]
        averaged[name] = beta * old + (1 - beta) * new if new.is_floating_point() else old.clone()
    return averaged


class NovelModel(ScoredModel):
    """A scored network that answers with a novel class only if its logit is larger by more than a bias."""

    def __init__(
        self, model: Network, classes: int, score: Score, labelled: int, bias: float, origin: Network | None
    ) -> None:
        """`origin` is the network before the first discovery, if there was one."""
        super().__init__(model, classes, score)
        self.labelled, self.bias, self.origin = labelled, bias, origin

    @torch.inference_mode()
    def predict(self, x: Tensor) -> Prediction:
        signals = signals_of(self.model, x, self.classes, self.score)
        signals.outputs[:, self.labelled :] -= self.bias
        details = {} if self.origin is None else {"before": self.origin(x).argmax(1)}
        return Prediction(signals.logits, self.score.score(signals, self.fitted), details)
