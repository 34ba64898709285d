"""The classes that a run discovered: the unlabelled samples nearest to each, for a person to look at.

Every class has a row of samples for each client that holds some. They come from the client's unlabelled pool of the
stage in which the class was discovered, the network answers them with the class, and they are sorted by the cosine of
embedding and row of the head. Labels are not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedwild.contract import Server
from fedwild.core.classes import ClassEntry
from fedwild.core.errors import UserError, unknown_name
from fedwild.core.text import count, cut
from fedwild.data import ClientSplit, Dataset, DataSettings, samples_of
from fedwild.evaluation.inference import embed, predict
from fedwild.lifecycle.name import nothing_found
from fedwild.lifecycle.run import Run
from fedwild.openset.predictors import ScoredModel
from fedwild.results.pictures.sheet import MAX_CAPTION, Sheet, fill_rows, pixels

COLUMNS, MAX_CLIENTS = 8, 6
DIGITS = 4
MAX_CLIENT_NAME, MAX_CLASS_NAME, MAX_ROW_NAME = 22, 40, 40  # characters


@dataclass(frozen=True)
class Held:
    """One client's samples of a class."""

    client: str
    pool: int
    """The number of its unlabelled samples of the stage."""
    answered: int
    """How many of them the network answers with the class."""
    rows: Sequence[int]
    """The nearest of these in the training data, and ..."""
    places: Sequence[int]
    """... in the client's unlabelled pool of all stages."""
    cosines: Sequence[float]


@dataclass(frozen=True)
class Pool:
    """A client's unlabelled samples of a stage, and the network's answers for them."""

    client: ClientSplit
    rows: np.ndarray
    """Rows of the training data (n,)."""
    answers: Tensor
    """Class ids (n,)."""
    embeddings: Tensor
    """(n, d)."""

    def held(self, number: int, row: Tensor, columns: int) -> Held:
        """Return the samples answered with a class, of which at most `columns` are listed: those nearest to its row."""
        mine = torch.nonzero(self.answers == number).flatten()
        cosines = F.cosine_similarity(self.embeddings[mine].double(), row.double()[None])
        # Stable, so that equal samples keep the order of the data.
        cosines, order = cosines.sort(descending=True, stable=True)
        rows = self.rows[mine[order].numpy()][:columns]
        places = np.searchsorted(self.client.unlabelled, rows).tolist()
        return Held(self.client.name, len(self.rows), len(mine), rows.tolist(), places, cosines[:columns].tolist())


@dataclass(frozen=True)
class NovelClass:
    """A discovered class, and the clients that hold samples of it, sorted by their number."""

    entry: ClassEntry
    held: Sequence[Held]

    @property
    def answered(self) -> int:
        return sum(held.answered for held in self.held)

    @property
    def drawn(self) -> Sequence[Held]:
        """The clients on the sheet; `figures` returns all of them."""
        return self.held[:MAX_CLIENTS]


@dataclass(frozen=True)
class NovelFigures:
    """All discovered classes of a run."""

    run: str
    method: str
    round: int
    """The number of completed rounds."""
    client: str | None
    """The client whose samples are shown; None for all clients."""
    classes: Sequence[NovelClass]

    def described(self) -> dict[str, Any]:
        """Return plain, rounded values, for JSON."""
        return {
            **{key: value for key, value in vars(self).items() if key != "classes"},
            "classes": [
                {
                    **vars(found.entry),
                    "answered": found.answered,
                    "clients": [
                        {**vars(held), "cosines": [round(value, DIGITS) for value in held.cosines]}
                        for held in found.held
                    ],
                }
                for found in self.classes
            ],
        }


def figures(run: Run, client: str | None = None, columns: int = COLUMNS) -> dict[str, Any]:
    """Return the unlabelled samples nearest to each class that a run discovered, as plain values.

    `classes` has the registry's entry of each class. Its `clients` has, for each client or for `client` alone, the
    number of samples answered with the class, and at most `columns` of them, nearest first: `rows` in the training
    data, `places` in the client's unlabelled pool, and `cosines` to the class's row of the head.
    """
    return novel_figures(run, client, columns).described()


def novel_figures(run: Run, client: str | None = None, columns: int = COLUMNS) -> NovelFigures:
    """Return what a finished run discovered, or an unfinished one until its last checkpoint."""
    server = run.server()
    if not server.classes.novel:
        raise nothing_found(run)
    predictor, clients = answering(run, server), choose_clients(run, client)
    head = predictor.model.head.weight.detach().cpu()
    stages = {entry.stage for entry in server.classes.novel}
    pools = {stage: pools_of(run, predictor, clients, stage) for stage in stages}
    classes = []
    for entry in server.classes.novel:
        number = server.classes.names.index(entry.name)
        held = [pool.held(number, head[number], columns) for pool in pools[entry.stage]]
        most_first = sorted((part for part in held if part.answered), key=lambda part: -part.answered)
        classes.append(NovelClass(entry, most_first))
    return NovelFigures(str(run.path), run.config.method.name, server.step.index + 1, client, classes)


def answering(run: Run, server: Server) -> ScoredModel:
    """Return the network that answers for everyone."""
    method = run.settings.make_method()
    answers = method.answers(server)
    predictor = None if answers.personal else answers.predictor(None)
    if not isinstance(predictor, ScoredModel):
        raise UserError(f"method {method.name!r} does not answer with one network: its classes have no common row.")
    return predictor


def choose_clients(run: Run, name: str | None) -> list[ClientSplit]:
    """Return all clients, or the one with this name."""
    clients = {client.name: client for client in run.experiment.split.clients}
    if name is not None and name not in clients:
        raise unknown_name("--client", name, clients)
    return list(clients.values()) if name is None else [clients[name]]


def pools_of(run: Run, predictor: ScoredModel, clients: Sequence[ClientSplit], stage: int) -> list[Pool]:
    """Return the pools of the clients that have unlabelled samples of a stage."""
    experiment, device = run.experiment, run.task.device
    pools = []
    for client in clients:
        rows = experiment.split.unlabelled_in(client, stage, experiment.dataset)
        if len(rows):
            samples = samples_of(experiment.dataset, rows, ids={}, data=run.config.data)
            answers = predict(predictor, samples, device).logits.argmax(1)
            pools.append(Pool(client, rows, answers, embed(predictor, samples, device)))
    return pools


def sheet_of(found: NovelFigures, dataset: Dataset, data: DataSettings) -> Sheet:
    """Return the sheet: a heading for each class, and below it a row of samples for each client."""
    shape = dataset.input_shape
    if len(shape) < 3:
        raise UserError(f"data.name = {dataset.name!r} cannot be shown: samples of shape {shape} are not images.")
    lines = [held for one in found.classes for held in one.drawn]
    starts = np.cumsum([0, *(len(one.drawn) for one in found.classes)]).tolist()
    images = [pixels(samples_of(dataset, np.array(held.rows), data=data).all()[0], data) for held in lines]
    about = cut(f"{Path(found.run).name}: {found.method}, round {found.round}", MAX_CAPTION)
    return Sheet(
        caption=f"{about}\nunlabelled samples answered with the discovered classes, nearest first;\n"
        "below each, its cosine to the class's row of the head",
        pictures=fill_rows(images, (shape[-2], shape[-1])),
        row_names=[f"{cut(held.client, MAX_CLIENT_NAME)}: {count(held.answered, 'sample')}" for held in lines],
        about=found.described(),
        notes=[[f"{value:.2f}" for value in held.cosines] for held in lines],
        filled=[len(held.rows) for held in lines],
        headings=[(start, heading(one)) for start, one in zip(starts, found.classes, strict=False)],
        max_name=MAX_ROW_NAME,
    )


def heading(found: NovelClass) -> str:
    """Return a class in one line: in which samples it was discovered, and for which it is the answer now."""
    entry = found.entry
    then = f"{count(sum(entry.samples.values()), 'sample')} of {count(len(entry.samples), 'client')}"
    now = f"{count(found.answered, 'sample')} of {count(len(found.held), 'client')}"
    more = f", {MAX_CLIENTS} clients shown" if len(found.held) > MAX_CLIENTS else ""
    return (
        f"{cut(entry.name, MAX_CLASS_NAME)}: discovered in stage {entry.stage} in {then}; "
        f"now the answer for {now if found.held else 'no sample'}{more}"
    )
