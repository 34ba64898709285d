"""Whether old and new are both answered rightly, and what new classes' rows must win by.

Clients that hold only old classes and a newcomer that holds only new ones never train old rows against new ones on the
same samples. How far a new row must be ahead is therefore measured: on validation samples of both sides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.special import expit
from torch import Tensor

from fedwild.data.samples import Samples
from fedwild.errors import BadReply
from fedwild.models import Network

JUDGED_AT_ONCE = 256
REACH = 50.0
"""So far beyond all margins one side has lost everything."""
FARTHEST = 1e4
"""Margins beyond it count as this one: no honest one comes near it, and the search ends in time."""


@torch.inference_mode()
def judged(model: Network, samples: Samples, known: int, classes: int) -> dict[str, Tensor]:
    """For every sample, by margin: the largest new logit minus the largest old one, whether the sample's class is new,
    and whether the best class of its own kind, old or new, is the right one; each (n,).

    Without new classes all margins are 0.
    """
    model.eval()
    device = next(model.parameters()).device
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    for x, y in samples.batches(JUDGED_AT_ONCE):
        logits = model(x.to(device))[:, :classes].cpu()
        old, best_old = logits[:, :known].max(1)
        new, best_new = logits[:, known:].max(1) if classes > known else (old, best_old)
        is_new = y >= known
        right = torch.where(is_new, best_new + known == y, best_old == y)
        parts.append((new - old, is_new, right))
    if not parts:
        return empty()
    margins, is_new, right = (torch.cat(column) for column in zip(*parts, strict=True))
    # Sorted, so that they tell nothing about the order of samples.
    order = margins.sort(stable=True).indices
    return {
        "margin": margins[order].float(),
        "new": is_new[order].to(torch.uint8),
        "right": right[order].to(torch.uint8),
    }


def empty() -> dict[str, Tensor]:
    """The judgement of nobody."""
    flags = torch.empty(0, dtype=torch.uint8)
    return {"margin": torch.empty(0), "new": flags, "right": flags.clone()}


def joined(replies: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Several clients' judgements as one."""
    parts = [empty(), *replies]
    return {name: torch.cat([part[name] for part in parts]) for name in empty()}


def check_judged(reply: Mapping[str, Tensor], samples: int) -> None:
    """Refuse what `judged` cannot have made of so many samples."""
    for name, like in empty().items():
        tensor = reply.get(name)
        if tensor is None or tensor.dtype != like.dtype or tensor.shape != (samples,):
            raise BadReply(f"judged tensor {name!r} is not {like.dtype} of {samples} samples")


def accuracy(reply: Mapping[str, Tensor], bias: float) -> np.ndarray:
    """Whether each sample is answered rightly if new rows must win by more than `bias` (n,)."""
    margin, new, right = (reply[name].numpy() for name in ("margin", "new", "right"))
    return (right == 1) & ((margin > bias) == (new == 1))


def best_bias(reply: Mapping[str, Tensor], old_classes: int, new_classes: int) -> float:
    """What new rows should win by: the b of least cross-entropy of "old or new", every class counting the same,

        K_old mean_old log(1 + e^(m - b)) + K_new mean_new log(1 + e^(b - m))    over margins m.

    Few samples decide it smoothly, and neither side is given up for the other. Without samples of both kinds, 0.
    """
    margin, new = reply["margin"].double().clamp(-FARTHEST, FARTHEST).numpy(), reply["new"].numpy() == 1
    if not new.any() or new.all() or not new_classes:
        return 0.0
    weight = np.where(new, new_classes / new.sum(), old_classes / (~new).sum())

    def slope(bias: float) -> float:
        """The derivative of the loss: it grows with the bias."""
        wins = expit(margin - bias)
        return float((weight * np.where(new, 1.0 - wins, -wins)).sum())

    return float(brentq(slope, margin.min() - REACH, margin.max() + REACH, maxiter=1000))
