"""Running a predictor over many samples."""

from __future__ import annotations

import torch
from torch import Tensor

from fedwild.contract import Prediction, Predictor
from fedwild.data import Samples
from fedwild.models.inference import INFERENCE_BATCH


def predict(predictor: Predictor, samples: Samples, device: str) -> Prediction:
    """Return a predictor's answers for all samples, in order, on the CPU. No samples give empty answers."""
    answers = [predictor.predict(x.to(device)) for x, _ in samples.batches(INFERENCE_BATCH)]
    if not answers:
        return Prediction(torch.empty(0, 0), torch.empty(0, dtype=torch.float64))
    return Prediction(
        torch.cat([answer.logits for answer in answers]).cpu(),
        torch.cat([answer.unknown for answer in answers]).cpu(),
        {name: torch.cat([answer.details[name] for answer in answers]).cpu() for name in answers[0].details},
    )


def embed(predictor: Predictor, samples: Samples, device: str) -> Tensor:
    """Return the embeddings (n, d) of n > 0 samples, in order, on the CPU."""
    return torch.cat([predictor.embed(x.to(device)) for x, _ in samples.batches(INFERENCE_BATCH)]).cpu()
