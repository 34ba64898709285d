"""Checks of input shapes, with errors that name the model and what it takes."""

from __future__ import annotations

import math

from fedwild.errors import UserError

Shape = tuple[int, ...]

_SPATIAL = {2: "images (channels, height, width)", 3: "volumes (channels, depth, height, width)"}


def check_spatial(model: str, shape: Shape, dims: int, smallest: int = 1) -> None:
    """Refuse anything but (channels, *sides) with `dims` sides of at least `smallest`."""
    if len(shape) != dims + 1 or min(shape) < 1 or min(shape[1:]) < smallest:
        sides = "x".join([str(smallest)] * dims)
        raise UserError(
            f"model.name {model!r} takes {_SPATIAL[dims]} of at least {sides}, not inputs of shape {shape}."
        )


def flat_size(model: str, shape: Shape) -> int:
    """The number of values in one input, of any shape but an empty one."""
    if not shape or min(shape) < 1:
        raise UserError(f"model.name {model!r} takes feature vectors (d,) or images, not inputs of shape {shape}.")
    return math.prod(shape)
