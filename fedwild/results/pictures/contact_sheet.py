"""Contact sheets of outliers, as in Figure 3 of FedOV: samples x, outliers x' made from them, and enhanced ones x''."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedwild.contract import Rng, Server
from fedwild.core.errors import BadReply, UserError, unknown_name
from fedwild.core.payload import check_like
from fedwild.core.text import cut
from fedwild.data import Dataset, DataSettings, samples_of
from fedwild.data.samples import Normalisation
from fedwild.lifecycle.run import Run
from fedwild.models import Network
from fedwild.openset.adversarial import enhance
from fedwild.openset.outliers import MIN_SIDE, OUTLIERS
from fedwild.results.pictures.sheet import MAX_CAPTION, Pixels, Sheet, pixels
from fedwild.training.objectives.outlier_aware import OutlierAware

Weights = Mapping[str, Tensor]

ALL = "all"
MIXTURES = ("destruction", "uniform", "mixture")
EVERY = (*(name for name in OUTLIERS if name not in MIXTURES), *MIXTURES)
"""The columns of a sheet of all generators: those that do one thing, then those that choose among them."""
TRIPLE = ("x'", "x''", "|x''-x'|")


def data_sheet(dataset: Dataset, data: DataSettings, outliers: str, rows: int, columns: int, seed: int) -> Sheet:
    """Return training samples in the first column and, next to each, outliers that the generator makes from it.

    With "all", there is a column for each generator, and `columns` has no effect.
    """
    if outliers not in (*OUTLIERS, ALL):
        raise unknown_name("--outliers", outliers, (*OUTLIERS, ALL))
    check_images(dataset)
    rng = Rng(seed).child("contact sheet")
    places = draw_varied(dataset.y_train, rows, rng.torch("samples"))
    samples = samples_of(dataset, places, data=data)
    x = samples.all()[0]
    if outliers == ALL:
        made = [OUTLIERS[name](x, rng.torch(name), samples.normalisation) for name in EVERY]
        names, wide = ["real", *EVERY], [1, 1 + len(EVERY) - len(MIXTURES)]
        title = "an outlier of it by each generator"
    else:
        made = make_outliers(outliers, x, columns - 1, rng, samples.normalisation)
        names, wide = [""] * columns, [1]
        title = f"outliers of it by {outliers!r}"
    classes = [dataset.classes[label] for label in dataset.y_train[places].tolist()]
    return Sheet(
        caption=f"{cut(dataset.name, MAX_CAPTION)}: a training sample, and {title}",
        pictures=np.stack([pixels(column, data) for column in (x, *made)], axis=1),
        row_names=classes,
        column_names=names,
        wide=wide,
        about={
            "data": dataset.name,
            "outliers": outliers,
            "columns": ["real", *(EVERY if outliers == ALL else [outliers] * (columns - 1))],
            "samples": [{"row": row, "class": name} for row, name in zip(places.tolist(), classes, strict=True)],
        },
    )


def run_sheet(run: Run, client: str | None, rows: int, columns: int, seed: int) -> Sheet:
    """Return a client's samples x and, next to each, outliers x', the enhanced outliers x'' and their difference.

    `columns` is 1 plus 3 for each outlier. Below the images is the model's probability of "unknown".
    """
    if run.folder.result() is None:
        raise UserError(f"--run {str(run.path)!r} is unfinished: run `fedwild resume {run.path}` first.")
    server = run.server()
    models = models_with_unknown(run, server)
    dataset, data, settings = run.experiment.dataset, run.config.data, outlier_settings(run)
    check_images(dataset)
    client, held = choose_client(run, models, client)
    weights = models[client]
    model = run.task.network(weights, len(server.classes) + 1, "head.bias" in weights).eval()

    rng = Rng(seed).child("contact sheet")
    places = held[draw_varied(dataset.y_train[held], rows, rng.torch("samples"))]
    samples = samples_of(dataset, places, data=data)
    x = samples.all()[0].to(run.task.device)
    outliers = make_outliers(settings.outliers, x, columns // len(TRIPLE), rng, samples.normalisation)
    shown = enhanced_columns(model, x, outliers, data, settings, samples.normalisation)
    classes = [dataset.classes[label] for label in dataset.y_train[places].tolist()]
    return Sheet(
        caption=(
            f"{cut(f'{client} of run {run.path.name}', MAX_CAPTION)}: a training sample x, outliers x' by "
            f"{settings.outliers!r},\nenhanced x'' by {settings.steps} steps of {settings.step_size:g}; "
            "below each, its probability of unknown"
        ),
        pictures=np.stack([column.pictures for column in shown], axis=1),
        row_names=classes,
        column_names=[column.name for column in shown],
        wide=range(1, len(shown), len(TRIPLE)),
        about={
            "run": str(run.path),
            "client": client,
            "data": dataset.name,
            **{key: getattr(settings, key) for key in ("outliers", "steps", "step_size")},
            "samples": [
                {"row": row, "class": name, **describe_row(shown, number)}
                for number, (row, name) in enumerate(zip(places.tolist(), classes, strict=True))
            ],
        },
        notes=[[column.note(number) for column in shown] for number in range(len(x))],
    )


@dataclass(frozen=True)
class Column:
    """One column of a run's sheet: images (n, H, W, 3) and a figure for each."""

    name: str
    pictures: Pixels
    figures: list[float]
    """The probability of "unknown"; for |x''-x'|, the largest change of a pixel."""

    def note(self, number: int) -> str:
        return f"max {self.figures[number]:.2g}" if self.name == TRIPLE[2] else f"{self.figures[number]:.2f}"


def enhanced_columns(
    model: Network,
    x: Tensor,
    outliers: Sequence[Tensor],
    data: DataSettings,
    settings: OutlierAware.Params,
    normalisation: Normalisation | None,
) -> list[Column]:
    """Return x and, for each batch of outliers of it, x', x'' and |x''-x'| scaled to the full range."""
    columns = [Column("x", pixels(x, data), probabilities(model, x))]
    for before in outliers:
        after = enhance(model, before, settings.steps, settings.step_size, normalisation)
        change = (after - before).abs()
        columns += [
            Column(TRIPLE[0], pixels(before, data), probabilities(model, before)),
            Column(TRIPLE[1], pixels(after, data), probabilities(model, after)),
            Column(TRIPLE[2], pixels(to_full_range(change), DataSettings()), change.flatten(1).amax(1).tolist()),
        ]
    return columns


def describe_row(columns: Sequence[Column], number: int) -> dict[str, Any]:
    """Return the figures below the images of a row, for JSON."""
    own = [column.figures[number] for column in columns]
    return {"unknown": {"x": own[0], "x'": own[1::3], "x''": own[2::3]}, "largest_change": own[3::3]}


def check_images(dataset: Dataset) -> None:
    """Raise `UserError` for data from which no outliers can be made."""
    shape = dataset.input_shape
    if len(shape) < 3 or min(shape[-2:]) < MIN_SIDE:
        raise UserError(
            f"data.name = {dataset.name!r} cannot be shown: outliers are made from images or volumes with sides of at "
            f"least {MIN_SIDE} pixels, not from samples of shape {shape}."
        )


def draw_varied(labels: Tensor, number: int, generator: torch.Generator) -> Tensor:
    """Return the positions of random samples from as many classes as possible, sorted by class."""
    order = torch.randperm(len(labels), generator=generator)
    seen: Counter[int] = Counter()
    turns = []
    for label in labels[order].tolist():
        turns.append(seen[label])
        seen[label] += 1
    chosen = order[torch.tensor(turns, dtype=torch.int64).argsort(stable=True)[:number]]
    return chosen[labels[chosen].argsort(stable=True)]


def make_outliers(name: str, x: Tensor, times: int, rng: Rng, normalisation: Normalisation | None) -> list[Tensor]:
    generator = rng.torch(name)
    return [OUTLIERS[name](x, generator, normalisation) for _ in range(times)]


def models_with_unknown(run: Run, server: Server) -> Mapping[str, Weights]:
    """Return each client's weights, its own or those of the global model, if their network has an unknown output."""
    shared = server.state.group("model")
    models = server.state.subgroups("models") or dict.fromkeys(server.clients, shared)
    fitting = {}
    for name, weights in models.items():
        with suppress(BadReply):
            check_like(weights, server.task.spec(len(server.classes) + 1, "head.bias" in weights), "model")
            fitting[name] = weights
    if not fitting:
        raise UserError(
            f"--run {str(run.path)!r} has no model with an output for 'unknown': choose a run whose objective trains "
            "one, such as `--set objective.name=outlier-aware`."
        )
    return fitting


def outlier_settings(run: Run) -> OutlierAware.Params:
    """Return the settings of the run's outliers; the defaults if its objective makes none."""
    part = run.config.parts.get("objective")
    return part.params if part and isinstance(part.params, OutlierAware.Params) else OutlierAware.Params()


def choose_client(run: Run, models: Mapping[str, Weights], name: str | None) -> tuple[str, Tensor]:
    """Return a client that has a model and samples, by default the first, and its training rows."""
    held = {
        client.name: torch.from_numpy(client.train)
        for client in run.experiment.split.clients
        if client.name in models and len(client.train)
    }
    if not held:
        raise UserError(f"--run {str(run.path)!r} has no client with both a model and training samples.")
    name = next(iter(held)) if name is None else name
    if name not in held:
        raise UserError(
            f"--client {name!r} has no model or no training samples in run {str(run.path)!r}: "
            f"choose one of {', '.join(held)}."
        )
    return name, held[name]


@torch.inference_mode()
def probabilities(model: Network, x: Tensor) -> list[float]:
    """Return the model's probability of "unknown", its last output, for each sample."""
    values: list[float] = model(x).double().softmax(1)[:, -1].tolist()
    return values


def to_full_range(x: Tensor) -> Tensor:
    """Return each sample divided by its largest value; zeros stay zeros."""
    largest = x.flatten(1).amax(1).view(-1, *[1] * (x.ndim - 1))
    return x / torch.where(largest > 0, largest, 1)
