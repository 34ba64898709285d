"""Answers for files. Images of any size and number of channels are converted to the run's input shape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedwild.core.errors import UserError
from fedwild.data.images import grey, resize, to_stored
from fedwild.data.npz import read_npy
from fedwild.data.sources.image_files import read_images
from fedwild.lifecycle.run import Run


def answer_files(run: Run, files: Sequence[Path], client: str | None = None) -> list[dict[str, Any]]:
    """Return a row per file: the answer, the best known class with its probability, the unknown score, all scores."""
    x = torch.cat([read_sample(file, run.input_shape, run.input_dtype) for file in files])
    answers = run.predict(x, client)
    probabilities = answers.logits.softmax(dim=1)
    rows = []
    for i, file in enumerate(files):
        best = int(probabilities[i].argmax())
        rows.append(
            {
                "file": str(file),
                "answer": answers.labels[i],
                "best_class": answers.classes[best],
                "probability": float(probabilities[i, best]),
                "unknown": float(answers.unknown[i]),
                "threshold": answers.threshold if math.isfinite(answers.threshold) else None,
                "scores": dict(zip(answers.classes, probabilities[i].tolist(), strict=True)),
            }
        )
    return rows


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
