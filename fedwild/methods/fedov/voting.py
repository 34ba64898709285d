"""How open-set classifiers vote: rules over the outputs (M, n, K + 1) of M models, the last output being "unknown".

FedOV adds the models' probabilities, so that a model has less weight the more it considers a sample unknown
(Algorithm 1, "all"), or only those of the k most confident models (Appendix B.4). Both compare the unknown outputs of
models that were not trained to be comparable (Appendix A.3): 0.01 % may be large for one and small for another.

`calibrated_votes` brings them to one scale with data of each client alone. A model's evidence for class c is its log
odds s_ic of c against unknown. Held-out samples of the client show how large they are for the true class: m_ic is the
mean of their median for class c and their median over all classes. Half of it is subtracted, since a large median is
partly a difference of scale and partly real confidence. A class's score is a soft maximum over the clients that hold
it, with weights w_ic proportional to the fourth root of their numbers of samples:

    score_c(x) = 4 log( sum_i w_ic exp((s_ic(x) - m_ic / 2) / 4) ) + log N_c,    N_c = 1 / sum_i w_ic^2

Models do not vote on classes without training samples. N_c is the effective number of clients that hold the class: a
sum over them would favour common classes, a mean rare ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedwild.data.samples import Samples
from fedwild.models import Network
from fedwild.models.inference import INFERENCE_BATCH

SHRINKAGE = 0.5
"""The share of a median that is considered a difference of scale."""
SHARPNESS = 0.25
"""0 would be the mean over the clients of a class, infinity the most confident one."""
WEIGHT_POWER = 0.25
"""0 would weight all clients of a class equally, 1 by their numbers of samples."""
MIN_SAMPLES = 5
"""With fewer held-out samples of a class, the median over all classes of the client is used instead."""
NOBODY = -1e4
"""The score of a class that no client holds."""


class Calibration(NamedTuple):
    """What a client uploads with its model, or that of several clients stacked (M, K)."""

    medians: Tensor
    """m_c (K,): how large the log odds of class c against unknown are on held-out samples of c."""
    counts: Tensor
    """n_c (K,): the client's training samples of each class."""


@torch.inference_mode()
def calibrate(model: Network, train: Samples, validation: Samples, classes: int) -> Calibration:
    """Return the medians of log odds on validation samples, else on training samples; 0 without samples."""
    model.eval()
    counts = torch.bincount(train.y, minlength=classes)
    held_out = validation if len(validation) else train
    if not len(held_out):
        return Calibration(torch.zeros(classes), counts)
    device = next(model.parameters()).device
    batches = [(log_odds(model(x.to(device))).cpu(), y) for x, y in held_out.batches(INFERENCE_BATCH)]
    evidence = torch.cat([odds.gather(1, y.unsqueeze(1)).squeeze(1) for odds, y in batches])
    labels = torch.cat([y for _, y in batches])
    everyone = evidence.median()
    own = [evidence[labels == c] for c in range(classes)]
    medians = torch.stack([values.median() if len(values) >= MIN_SAMPLES else everyone for values in own])
    return Calibration((medians + everyone) / 2, counts)


def stack_calibrations(calibrations: Sequence[Calibration]) -> Calibration:
    """Return the calibrations of M >= 1 clients as one."""
    medians, counts = zip(*calibrations, strict=True)
    return Calibration(torch.stack(medians), torch.stack(counts))


def stacked_outputs(models: Sequence[Network], x: Tensor) -> Tensor:
    """Return the outputs (M, n, K + 1) of all models, one after the other: for small networks `vmap` is slower."""
    return torch.stack([model(x) for model in models])


def log_odds(outputs: Tensor) -> Tensor:
    """Return log p_c - log p_unknown, (..., K + 1) to (..., K)."""
    return outputs[..., :-1] - outputs[..., -1:]


def confident_votes(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean probabilities (M, n, K) of the 1, 2, ..., M most confident models, and of unknown (M, n).

    The last row is the vote of all models.
    """
    probabilities = outputs.softmax(dim=-1)
    order = probabilities[..., -1].argsort(dim=0, stable=True)
    ranked = probabilities.gather(0, order.unsqueeze(-1).expand_as(probabilities))
    number = torch.arange(1, len(outputs) + 1, device=outputs.device).view(-1, 1, 1)
    means = ranked.cumsum(dim=0) / number
    return means[..., :-1], means[..., -1]


def calibrated_votes(outputs: Tensor, calibration: Calibration) -> Tensor:
    """Return scores (n, K): soft maxima of calibrated log odds over the clients that hold each class."""
    medians, counts = (part.to(outputs) for part in calibration)
    held = counts > 0
    # The power of 0 is 0 only for powers above 0, hence the mask.
    weights = counts.pow(WEIGHT_POWER) * held
    weights = weights / weights.sum(dim=0).clamp_min(1)
    holders = 1 / weights.square().sum(dim=0)
    evidence = log_odds(outputs) - SHRINKAGE * medians.unsqueeze(1)
    # The logarithm of a weight of 0 is -inf: such a model does not vote.
    combined = (weights.log().unsqueeze(1) + SHARPNESS * evidence).logsumexp(dim=0) / SHARPNESS
    return (combined + holders.log()).masked_fill(~held.any(dim=0), NOBODY)
