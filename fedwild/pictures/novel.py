"""What a run discovered, for a person to look at: the unlabelled samples that are most like each novel class.

For every class there is a row of samples for each client that holds some. They are of the client's unlabelled pool of
the stage in which the class was discovered, and the network answers them with the class; nearest first, by the cosine
of embedding and row of the head. Labels take no part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedwild.classes import ClassEntry
from fedwild.data import ClientSplit, Dataset, DataSettings, samples_of
from fedwild.engines.site import embed, predict
from fedwild.errors import UserError, unknown_name
from fedwild.naming import nothing_found
from fedwild.pictures.drawing import Pixels, counted, cut, write_png
from fedwild.pictures.sheet import CAPTION_LENGTH, Sheet, draw, pixels
from fedwild.predictors import ScoredModel
from fedwild.protocol import Server

if TYPE_CHECKING:
    from fedwild.api import Run

COLUMNS, MOST_CLIENTS = 8, 6
DIGITS = 4
CLIENT_NAME, CLASS_NAME, ROW_NAME = 22, 40, 40  # the most characters


@dataclass(frozen=True)
class Pool:
    """A client's unlabelled samples of a stage, and what the network makes of them."""

    client: ClientSplit
    rows: np.ndarray
    """Of the training data (n,)."""
    answers: Tensor
    """Class ids (n,)."""
    embeddings: Tensor
    """(n, d)."""

    def nearest(self, number: int, row: Tensor) -> tuple[np.ndarray, Tensor]:
        """The rows (m,) of the samples answered with a class and their cosines to its row (d,) of the head."""
        mine = torch.nonzero(self.answers == number).flatten()
        cosines = F.cosine_similarity(self.embeddings[mine].double(), row.double()[None])
        # Stable, so that equal samples come in the order of the data.
        cosines, order = cosines.sort(descending=True, stable=True)
        return self.rows[mine[order].numpy()], cosines


@dataclass(frozen=True)
class Held:
    """What one client holds of a class."""

    client: str
    pool: int
    """Its unlabelled samples of the stage."""
    answered: int
    """How many of them the network answers with the class."""
    rows: Sequence[int]
    """The nearest of these in the training data, and ..."""
    places: Sequence[int]
    """... in the client's unlabelled pool, all stages together."""
    cosines: Sequence[float]


@dataclass(frozen=True)
class NovelClass:
    """A discovered class, and the clients that hold samples of it, most first."""

    entry: ClassEntry
    held: Sequence[Held]

    @property
    def answered(self) -> int:
        return sum(held.answered for held in self.held)

    @property
    def drawn(self) -> Sequence[Held]:
        """Those on the sheet; `figures` tells of all."""
        return self.held[:MOST_CLIENTS]


@dataclass(frozen=True)
class NovelFigures:
    """All discovered classes of a run."""

    run: str
    method: str
    round: int
    """Rounds done."""
    client: str | None
    """Whose samples, if only one client's."""
    classes: Sequence[NovelClass]

    def described(self) -> dict[str, Any]:
        """For programs: plain values, rounded."""
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
    """The unlabelled samples most like each class that a run discovered, as plain values.

    `classes` has what the registry knows of each class, and `clients` in it, for each client or for `client` alone,
    how many samples are answered with the class, and at most `columns` of them, nearest first: `rows` in the training
    data, `places` in the client's unlabelled pool, and `cosines` to the class's row of the head.
    """
    return novel_figures(run, client, columns).described()


def novel_figures(run: Run, client: str | None = None, columns: int = COLUMNS) -> NovelFigures:
    """What a finished run discovered, or an unfinished one until its last checkpoint."""
    server = run.server()
    if not server.classes.novel:
        raise nothing_found(run)
    predictor, clients = answering(run, server), chosen(run, client)
    head = predictor.model.head.weight.detach().cpu()
    stages = {entry.stage for entry in server.classes.novel}
    pools = {stage: pools_of(run, predictor, clients, stage) for stage in stages}
    classes = []
    for entry in server.classes.novel:
        number = server.classes.names.index(entry.name)
        held = [holding(pool, number, head[number], columns) for pool in pools[entry.stage]]
        most_first = sorted((part for part in held if part.answered), key=lambda part: -part.answered)
        classes.append(NovelClass(entry, most_first))
    return NovelFigures(str(run.path), run.config.method.name, server.step.index + 1, client, classes)


def answering(run: Run, server: Server) -> ScoredModel:
    """The network that answers for everyone."""
    method = run.settings.make_method()
    predictor = None if method.is_personal(server) else method.predictor(server)
    if not isinstance(predictor, ScoredModel):
        raise UserError(f"method {method.name!r} does not answer with one network: its classes have no common row.")
    return predictor


def chosen(run: Run, name: str | None) -> list[ClientSplit]:
    """All clients, or the one that is asked for."""
    clients = {client.name: client for client in run.experiment.split.clients}
    if name is None:
        return list(clients.values())
    if name not in clients:
        raise unknown_name("--client", name, clients)
    return [clients[name]]


def pools_of(run: Run, predictor: ScoredModel, clients: Sequence[ClientSplit], stage: int) -> list[Pool]:
    """What the network makes of clients' unlabelled samples of a stage; clients without any are left out."""
    experiment, device = run.experiment, run.task.device
    pools = []
    for client in clients:
        rows = experiment.split.unlabelled_in(client, stage, experiment.dataset)
        if len(rows):
            samples = samples_of(experiment.dataset, rows, ids={}, data=run.config.data)
            answers = predict(predictor, samples, device).logits.argmax(1)
            pools.append(Pool(client, rows, answers, embed(predictor, samples, device)))
    return pools


def holding(pool: Pool, number: int, row: Tensor, columns: int) -> Held:
    """What a pool has of a class, with so many samples of it at most."""
    rows, cosines = pool.nearest(number, row)
    return Held(
        client=pool.client.name,
        pool=len(pool.rows),
        answered=len(rows),
        rows=rows[:columns].tolist(),
        places=np.searchsorted(pool.client.unlabelled, rows[:columns]).tolist(),
        cosines=cosines[:columns].tolist(),
    )


def write(found: NovelFigures, run: Run, path: Path) -> None:
    """Draw the sheet into a PNG file."""
    write_png(draw(sheet_of(found, run.experiment.dataset, run.config.data)), path)


def sheet_of(found: NovelFigures, dataset: Dataset, data: DataSettings) -> Sheet:
    """The sheet: a heading for each class, and below it a row of samples for each client."""
    if len(dataset.input_shape) < 3:
        raise UserError(
            f"data.name = {dataset.name!r} cannot be shown: samples of shape {dataset.input_shape} are no images."
        )
    lines = [held for one in found.classes for held in one.drawn]
    starts = np.cumsum([0, *(len(one.drawn) for one in found.classes)]).tolist()
    return Sheet(
        caption=caption(found),
        pictures=pictures_of(lines, dataset, data),
        row_names=[f"{cut(held.client, CLIENT_NAME)}: {counted(held.answered, 'sample')}" for held in lines],
        column_names=(),
        wide=(),
        about=found.described(),
        notes=[[f"{value:.2f}" for value in held.cosines] for held in lines],
        filled=[len(held.rows) for held in lines],
        headings=[(start, heading(one)) for start, one in zip(starts, found.classes, strict=False)],
        name_length=ROW_NAME,
    )


def caption(found: NovelFigures) -> str:
    about = f"{Path(found.run).name}: {found.method}, round {found.round}"
    return (
        f"{cut(about, CAPTION_LENGTH)}\n"
        "unlabelled samples answered with the classes that were discovered, nearest first;\n"
        "below each, its cosine to the class's row of the head"
    )


def heading(found: NovelClass) -> str:
    """A class in one line: what it was found in, and what is answered with it now."""
    entry = found.entry
    then = f"{counted(sum(entry.samples.values()), 'sample')} of {counted(len(entry.samples), 'client')}"
    now = f"{counted(found.answered, 'sample')} of {counted(len(found.held), 'client')}"
    more = f", {MOST_CLIENTS} clients here" if len(found.held) > MOST_CLIENTS else ""
    return (
        f"{cut(entry.name, CLASS_NAME)}: discovered in stage {entry.stage} in {then}; "
        f"now the answer for {now if found.held else 'none'}{more}"
    )


def pictures_of(lines: Sequence[Held], dataset: Dataset, data: DataSettings) -> Pixels:
    """The samples (rows, columns, H, W, 3); rows with fewer than others end in white."""
    height, width = dataset.input_shape[-2:]
    columns = max((len(held.rows) for held in lines), default=1)
    pictures = np.full((len(lines), columns, height, width, 3), 255, dtype=np.uint8)
    for number, held in enumerate(lines):
        samples = samples_of(dataset, np.array(held.rows), data=data)
        pictures[number, : len(held.rows)] = pixels(samples.all()[0], data)
    return pictures
