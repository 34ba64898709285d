"""How open-set classifiers vote: rules over the outputs (M, n, K + 1) of M models, the last output being "unknown".

FedOV adds the models' probabilities, so that a model counts by how little it believes a sample to be unknown to it
(Algorithm 1, "all"), or only those of the k most confident models (Appendix B.4). Both compare unknown channels of
models that were never trained to be comparable (Appendix A.3): 0.01 % may be much for one and nothing for another.

`calibrated_votes` puts them on one scale with what a client can tell alone. A model's evidence for class c is its log
odds of c against unknown. Held-out samples of c at that client show how large they are when c is right; their median is
subtracted. A class's score is the mean over the clients that hold it, weighted by how many samples of it they have:

    score_c(x) = sum_i n_ic / n_c * (z_ic(x) - z_iu(x) - m_ic)

Nothing is said about classes by models that never saw them, and a class that many clients hold has no advantage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedwild.data.samples import Samples
from fedwild.models import Network

FEWEST = 5
"""A median of fewer held-out samples of a class is not trusted; then all classes of the client serve together."""
NOBODY = -1e4
"""The score of a class that no client holds."""
CALIBRATION_BATCH = 256


class Calibration(NamedTuple):
    """What a client uploads with its model, or several clients' stacked (M, K)."""

    medians: Tensor
    """m_c (K,): the median log odds of class c against unknown on held-out samples of c."""
    counts: Tensor
    """n_c (K,): the client's training samples of each class."""


@torch.inference_mode()
def calibrate(model: Network, train: Samples, validation: Samples, classes: int) -> Calibration:
    """Median log odds per class, from validation samples; from training samples where there are none of those."""
    model.eval()
    counts = torch.bincount(train.y, minlength=classes)
    held_out = validation if len(validation) else train
    evidence, labels = torch.empty(0), torch.empty(0, dtype=torch.int64)
    if len(held_out):
        device = next(model.parameters()).device
        batches = [(log_odds(model(x.to(device))).cpu(), y) for x, y in held_out.batches(CALIBRATION_BATCH)]
        labels = torch.cat([y for _, y in batches])
        evidence = torch.cat([odds for odds, _ in batches]).gather(1, labels.unsqueeze(1)).squeeze(1)
    everyone = evidence.median() if len(evidence) else torch.zeros(())
    own = [evidence[labels == c] for c in range(classes)]
    medians = torch.stack([values.median() if len(values) >= FEWEST else everyone for values in own])
    return Calibration(medians, counts)


def stacked(calibrations: Sequence[Calibration], classes: int) -> Calibration:
    """Several clients' calibrations as one, each part (M, K)."""
    medians = [calibration.medians for calibration in calibrations] or [torch.zeros(0, classes)]
    counts = [calibration.counts for calibration in calibrations] or [torch.zeros(0, classes, dtype=torch.int64)]
    return Calibration(torch.vstack(medians), torch.vstack(counts))


def stacked_outputs(models: Sequence[Network], x: Tensor) -> Tensor:
    """The outputs (M, n, K + 1) of all models. One after the other: for small networks `vmap` is slower."""
    return torch.stack([model(x) for model in models])


def log_odds(outputs: Tensor) -> Tensor:
    """log p_c - log p_unknown, (..., K + 1) to (..., K)."""
    return outputs[..., :-1] - outputs[..., -1:]


def confident_votes(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Mean probabilities (M, n, K) of the 1, 2, ..., M most confident models, and of unknown (M, n).

    The last row is the vote of all. One sort serves every k.
    """
    probabilities = outputs.softmax(dim=-1)
    order = probabilities[..., -1].argsort(dim=0, stable=True)
    ranked = probabilities.gather(0, order.unsqueeze(-1).expand_as(probabilities))
    number = torch.arange(1, len(outputs) + 1, device=outputs.device).view(-1, 1, 1)
    means = ranked.cumsum(dim=0) / number
    return means[..., :-1], means[..., -1]


def calibrated_votes(outputs: Tensor, calibration: Calibration) -> Tensor:
    """Scores (n, K): the classes' calibrated log odds, averaged over the clients that hold them."""
    counts = calibration.counts.to(outputs.dtype)
    shares = counts / counts.sum(dim=0).clamp_min(1)
    evidence = log_odds(outputs) - calibration.medians.unsqueeze(1)
    scores = torch.einsum("mk,mnk->nk", shares, evidence)
    return scores.masked_fill(counts.sum(dim=0) == 0, NOBODY)
