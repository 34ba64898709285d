"""Training samples that FedOSS's clients disagree about: its boundary samples, by the heads that they ended with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from fedwild.data import samples_of
from fedwild.core.errors import UserError
from fedwild.methods.fedoss.method import FedOSS
from fedwild.methods.fedoss.bank import Bank
from fedwild.methods.fedoss.branches import make_branch
from fedwild.core.rng import Rng

if TYPE_CHECKING:
    from fedwild.api import Run

LOOKED_AT = 1000
"""Training samples that the heads are asked about, drawn by lot."""


@dataclass(frozen=True)
class Disputed:
    """Boundary samples, those that the heads are most divided about first."""

    rows: NDArray[np.int64]
    """In the training data (n,)."""
    shares: NDArray[np.float64]
    """Of the heads that are asked, how many are right (n,)."""
    looked_at: int


def disputed(run: Run, method: FedOSS) -> Disputed:
    """Ask the heads that clients keep; the final network gives the activations."""
    server, experiment = run.server(), run.experiment
    classes = server.classes.names
    model = run.task.network(server.state.group("model"), len(classes) + 1).eval()
    layout = method.layout(run.task, len(classes))
    members = [client for client in experiment.split.clients if len(client.train)]
    heads = {client.name: run.state_of(client.name).group("head") for client in members}
    asked = [client for client in members if heads[client.name]]
    if len(asked) < 2:
        raise UserError("fewer than two clients have a head of their own, so there is nobody to disagree.")
    bank = Bank(
        make_branch(method.params.branch, model, layout.cut, len(classes)), [heads[client.name] for client in asked]
    )
    number = {name: place for place, name in enumerate(classes)}
    labels = torch.tensor([number.get(name, -1) for name in experiment.dataset.classes])[experiment.dataset.y_train]
    held = torch.zeros(len(asked), len(classes), dtype=torch.bool)
    for row, client in enumerate(asked):
        held[row, labels[client.train].unique()] = True
    every = np.unique(np.concatenate([client.train for client in members]))
    rows = np.sort(Rng(0).numpy("disputed").permutation(every)[:LOOKED_AT])
    x = samples_of(experiment.dataset, rows, data=run.config.data).all()[0]
    with torch.no_grad():
        answers = bank.logits(model.upto(x.to(run.task.device), layout.cut)).cpu()
    share = method.agreed(answers, labels[rows], held)
    at_boundary = method.between(share).numpy()
    rows, shares = rows[at_boundary], share.numpy()[at_boundary]
    order = np.argsort(np.abs(shares - 0.5), kind="stable")
    return Disputed(rows[order], shares[order], min(LOOKED_AT, len(every)))
