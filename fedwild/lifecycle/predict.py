"""Answers for files. Images of any size and number of channels are converted to the run's input shape."""

from __future__ import annotations

import glob
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedwild.core.errors import UserError
from fedwild.data.images import grey, resize, to_stored
from fedwild.data.npz import read_npy
from fedwild.data.sources.image_files import images_below, read_csv, read_images
from fedwild.lifecycle.model import Answers
from fedwild.lifecycle.run import Run

BATCH = 256
"""Files that are in memory at a time."""
TOP = 3
"""Classes that a row names with their probabilities."""


def find_files(inputs: Sequence[str | Path]) -> list[Path]:
    """Return the files that the inputs name: files, folders, patterns such as `'scans/*.png'`, and CSV lists."""
    return [file for given in inputs for file in _files_of(Path(given).expanduser())]


def _files_of(given: Path) -> list[Path]:
    if given.is_dir():
        found = [file for _, file in images_below(given)]
        if not found:
            raise UserError(f"folder {str(given)!r} has no images.")
        return found
    if given.exists():
        return _listed_in(given) if given.suffix == ".csv" else [given]
    matches = [Path(match) for match in sorted(glob.glob(str(given), recursive=True)) if Path(match).is_file()]
    if not matches:
        is_pattern = glob.has_magic(str(given))
        raise UserError(f"{str(given)!r} matches no file." if is_pattern else f"image {str(given)!r} does not exist.")
    return matches


def _listed_in(path: Path) -> list[Path]:
    """Return the files in the column `path` of a CSV, relative to the CSV."""
    names = [(row["path"] or "").strip() for row in read_csv(path, ("path",))]
    for number, name in enumerate(names, start=2):
        if not name:
            raise UserError(f"{path}, line {number}: path is empty.")
    return [path.parent / name for name in names]


def answer_files(
    run: Run,
    files: Sequence[Path],
    client: str | None = None,
    *,
    accept: float | None = None,
    threshold: float | None = None,
    workers: int = 1,
) -> Iterator[dict[str, Any]]:
    """Yield a row per file, in order. A file that cannot be used gets the key `error` in place of an answer.

    The model is loaded once. `workers` threads decode images; `client`, `accept` and `threshold` as for `Run.predict`.
    """
    model = run.model(client, accept=accept, threshold=threshold)
    read = partial(_read_or_explain, shape=run.input_shape, dtype=run.input_dtype)
    with ThreadPoolExecutor(max(1, workers)) as pool:
        for start in range(0, len(files), BATCH):
            batch = files[start : start + BATCH]
            samples = list(pool.map(read, batch))
            good = [sample for sample in samples if isinstance(sample, Tensor)]
            rows = iter(rows_of(model.answer(torch.cat(good))) if good else [])
            for file, sample in zip(batch, samples, strict=True):
                yield {"file": str(file), **({"error": sample} if isinstance(sample, str) else next(rows))}


def rows_of(answers: Answers) -> list[dict[str, Any]]:
    """Return the answers as plain values, one row per sample."""
    probabilities, percentiles = answers.probabilities, answers.percentiles.tolist()
    order = probabilities.argsort(dim=1, descending=True, stable=True)
    rows = []
    for i, label in enumerate(answers.labels):
        shares = probabilities[i].tolist()
        best = order[i].tolist()
        rows.append(
            {
                "answer": label,
                "best_class": answers.classes[best[0]],
                "probability": shares[best[0]],
                "unknown": float(answers.unknown[i]),
                "percentile": None if math.isnan(percentiles[i]) else percentiles[i],
                "threshold": answers.threshold if math.isfinite(answers.threshold) else None,
                "top": [{"class": answers.classes[k], "probability": shares[k]} for k in best[:TOP]],
                "scores": dict(zip(answers.classes, shares, strict=True)),
            }
        )
    return rows


def _read_or_explain(file: Path, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor | str:
    """Return the sample of a file, or why it cannot be used."""
    try:
        return read_sample(file, shape, dtype)
    except UserError as error:
        return " ".join(error.problems)


def read_sample(file: Path, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return one sample (1, *shape) as the run's data set stores it."""
    if not file.is_file():
        kind = "is a folder" if file.is_dir() else "is not a regular file" if file.exists() else "does not exist"
        raise UserError(f"image {str(file)!r} {kind}.")
    stored = read_array(file, shape) if file.suffix == ".npy" else read_images([file], None, None)
    if stored.dim() - 1 != len(shape):
        raise UserError(f"{str(file)!r} has shape {tuple(stored.shape[1:])}, the run was trained on {shape}.")
    if len(shape) == 1:
        if stored.shape[1:] != shape:
            raise UserError(f"{str(file)!r} has {stored.shape[1]} features, the run was trained on {shape[0]}.")
        return stored.to(dtype)
    if stored.shape[1] == 3 and shape[0] == 1:
        stored = grey(stored)
    if tuple(stored.shape[2:]) != shape[1:]:
        stored = resize(stored, shape[1:])
    stored = stored.expand(-1, shape[0], *([-1] * (len(shape) - 1)))
    if stored.dtype == torch.uint8 and dtype == torch.float32:
        return stored.float() / 255
    return (stored * 255).round().to(dtype) if stored.dtype != dtype else stored.contiguous()


def read_array(file: Path, shape: tuple[int, ...]) -> Tensor:
    """Return the sample of a .npy file."""
    array = read_npy(file)
    # Three grey images look like one image with three channels, so channels that come first must match the run.
    several = array.ndim == len(shape) + 1 or (array.ndim == len(shape) == 3 and array.shape[0] == 3 != shape[0])
    if several and array.shape[-1] != 3:
        raise UserError(f"{str(file)!r} has shape {array.shape}, the run was trained on {shape}: one sample per file.")
    return to_stored(array[None], str(file))
