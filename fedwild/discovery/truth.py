"""Which true class a discovered class stands for in metrics, while it has no true name."""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fedwild.contract import Outcome, Server
from fedwild.core.classes import NOVEL


def covered_truth(server: Server, outcome: Outcome) -> Tensor:
    """Return the true ids (n,), with each discovered class matched one-to-one to the novel class that it covers best.

    A discovered class that was given its true name keeps it.
    """
    truth, names = outcome.truth.clone(), np.array(outcome.true_names)
    answers = outcome.prediction.logits.argmax(1).numpy()
    true_names = {name for stage in outcome.novel for name in stage}
    entries = enumerate(server.classes.entries)
    found = [i for i, entry in entries if entry.origin == NOVEL and entry.name not in true_names]
    open_names = sorted(true_names - set(server.classes.names))
    hits = np.array([[((answers == i) & (names == name)).sum() for name in open_names] for i in found])
    if hits.size:
        for row, column in zip(*linear_sum_assignment(-hits), strict=True):
            if hits[row, column]:
                truth[torch.as_tensor(names == open_names[column])] = found[row]
    return truth
