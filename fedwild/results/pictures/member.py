"""One network of an ensemble, as in Figure 2 of FedOV: its embeddings, its answers, and the outliers it trained on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from fedwild.contract import Rng
from fedwild.core.errors import UserError
from fedwild.core.names import UNKNOWN_NAME
from fedwild.data import Samples, samples_of
from fedwild.lifecycle.run import Run
from fedwild.models import Network
from fedwild.models.inference import INFERENCE_BATCH
from fedwild.training.objectives.outlier_aware import OutlierAware

Real = NDArray[np.float64]

OUTLIERS = 300
"""Of at most so many training samples, outliers are shown."""


@torch.inference_mode()
def embeddings_and_answers(
    run: Run, network: Network, rows: NDArray[np.int64], classes: Sequence[str]
) -> tuple[Real, list[str]]:
    """Return the embeddings (n, d) of test samples, and the class of the largest output of each, or "unknown"."""
    batches = run.samples(run.experiment.dataset.x_test[rows]).batches(INFERENCE_BATCH)
    embeddings = torch.cat([network.embed(x.to(run.task.device)) for x, _ in batches])
    largest = network.head(embeddings).argmax(1).tolist()
    answers = [classes[i] if i < len(classes) else UNKNOWN_NAME for i in largest]
    return embeddings.flatten(1).double().cpu().numpy(), answers


def outlier_embeddings(run: Run, network: Network, client: str, rng: Rng) -> dict[str, Real]:
    """Return embeddings of outliers x' and x'' of the client's training samples, as its training makes them."""
    samples = _training_samples(run, client, rng)
    objective = getattr(run.settings.make_method(), "objective", None)
    if not isinstance(objective, OutlierAware):
        raise UserError("outliers cannot be shown: the run's objective makes no outliers of samples.")
    fitted = objective.on(samples, network)
    assert isinstance(fitted, OutlierAware)
    x = samples.all()[0].to(run.task.device)
    made = fitted.outliers(network, x, rng.torch("outliers"))
    names = [kind for kind, on in (("x'", fitted.params.destroyed), ("x''", fitted.params.enhanced)) if on]
    return {kind: _embed(network, batch) for kind, batch in zip(names, made, strict=True)}


def _training_samples(run: Run, name: str, rng: Rng) -> Samples:
    """Return some of the client's training samples."""
    e = run.experiment
    rows = next(client.train for client in e.split.clients if client.name == name)
    chosen = rng.numpy("training samples").permutation(rows)[:OUTLIERS]
    return samples_of(e.dataset, np.sort(chosen), data=e.config.data)


@torch.inference_mode()
def _embed(network: Network, x: torch.Tensor) -> Real:
    return network.eval().embed(x).flatten(1).double().cpu().numpy()
