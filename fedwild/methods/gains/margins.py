"""Validation accuracy before and after, and the bias by which rows of new classes must win.

Source clients with only old classes and a newcomer with only new classes never train old rows against new rows on the
same samples. The lead that a new row needs is therefore measured on validation samples of both sides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.special import expit
from torch import Tensor

from fedwild.core.errors import BadReply
from fedwild.data.samples import Samples
from fedwild.models import Network
from fedwild.models.inference import INFERENCE_BATCH

REACH = 50.0
"""At this distance beyond all margins, one side has lost every sample."""
MAX_MARGIN = 1e4
"""Larger margins are clipped. No honest margin comes near it, and the search ends in time."""


@torch.inference_mode()
def measure_margins(model: Network, samples: Samples, known: int, classes: int) -> dict[str, Tensor]:
    """Return three tensors (n,), sorted by margin.

    margin: the largest new logit minus the largest old one, or 0 without new classes. new: whether the sample's class
    is new. right: whether the best class of the same kind, old or new, is the true one.
    """
    model.eval()
    device = next(model.parameters()).device
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    for x, y in samples.batches(INFERENCE_BATCH):
        logits = model(x.to(device))[:, :classes].cpu()
        old, best_old = logits[:, :known].max(1)
        new, best_new = logits[:, known:].max(1) if classes > known else (old, best_old)
        is_new = y >= known
        right = torch.where(is_new, best_new + known == y, best_old == y)
        parts.append((new - old, is_new, right))
    if not parts:
        return no_margins()
    margins, is_new, right = (torch.cat(column) for column in zip(*parts, strict=True))
    # Sorted, so that they do not reveal the order of samples.
    order = margins.sort(stable=True).indices
    return {
        "margin": margins[order].float(),
        "new": is_new[order].to(torch.uint8),
        "right": right[order].to(torch.uint8),
    }


def no_margins() -> dict[str, Tensor]:
    """Return the margins of no samples."""
    flags = torch.empty(0, dtype=torch.uint8)
    return {"margin": torch.empty(0), "new": flags, "right": flags.clone()}


def concatenate(margins: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the margins of several clients as one."""
    parts = [no_margins(), *margins]
    return {name: torch.cat([part[name] for part in parts]) for name in no_margins()}


def check_margins(margins: Mapping[str, Tensor], samples: int) -> None:
    """Reject margins that are not those of so many samples."""
    for name, like in no_margins().items():
        tensor = margins.get(name)
        if tensor is None or tensor.dtype != like.dtype or tensor.shape != (samples,):
            raise BadReply(f"tensor {name!r} must be {like.dtype} of shape ({samples},), one value per sample")


def correct(margins: Mapping[str, Tensor], bias: float) -> np.ndarray:
    """Return whether each sample is classified correctly (n,) if new rows must win by more than `bias`."""
    margin, new, right = (margins[name].numpy() for name in ("margin", "new", "right"))
    return (right == 1) & ((margin > bias) == (new == 1))


def best_bias(margins: Mapping[str, Tensor], old_classes: int, new_classes: int) -> float:
    """Return the b of least cross-entropy of "old or new", in which all classes have the same weight:

        K_old mean_old log(1 + e^(m - b)) + K_new mean_new log(1 + e^(b - m))    over margins m.

    It is smooth, so that it can be estimated from few samples. 0 without samples of both kinds.
    """
    margin, new = margins["margin"].double().clamp(-MAX_MARGIN, MAX_MARGIN).numpy(), margins["new"].numpy() == 1
    if not new.any() or new.all() or not new_classes:
        return 0.0
    weight = np.where(new, new_classes / new.sum(), old_classes / (~new).sum())

    def slope(bias: float) -> float:
        """Return the derivative of the loss, which increases with the bias."""
        wins = expit(margin - bias)
        return float((weight * np.where(new, 1.0 - wins, -wins)).sum())

    return float(brentq(slope, margin.min() - REACH, margin.max() + REACH, maxiter=1000))
