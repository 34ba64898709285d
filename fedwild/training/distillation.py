"""Distillation: one network learns to imitate a predictor on unlabelled samples (FedOV, Appendix B.1)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedwild.contract import Predictor, Rng, Settings
from fedwild.data.samples import Samples
from fedwild.models import Network
from fedwild.models.inference import INFERENCE_BATCH
from fedwild.training.corrections import ClientCorrection
from fedwild.training.loop import LocalTraining, Trained, train
from fedwild.training.objectives import Objective


def distil(teacher: Predictor, student: Network, samples: Samples, settings: LocalTraining, rng: Rng) -> Trained:
    """Train `student`, which has one output per class, in place towards the teacher's probabilities."""
    numbered = Samples(samples.x, torch.arange(len(samples)), samples.index, samples.mean, samples.std)
    device = next(student.parameters()).device
    batches = (x.to(device) for x, _ in numbered.batches(INFERENCE_BATCH))
    targets = torch.cat([teacher.predict(x).logits.softmax(dim=1) for x in batches])
    return train(student, numbered, settings, Imitation(targets), ClientCorrection(), rng)


class Imitation(Objective):
    """KL(targets || student), where a sample's label is its row in the targets (m, K)."""

    name = "imitation"

    def __init__(self, targets: Tensor, params: Any = None) -> None:
        super().__init__(params or Settings())
        self.targets = targets

    def loss(self, model: Network, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        return F.kl_div(model(x).log_softmax(dim=1), self.targets[y], reduction="batchmean")
