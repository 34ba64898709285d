"""Checks of input shapes, with errors that give the model and the shapes it accepts."""

from __future__ import annotations

import math

from fedwild.core.errors import UserError

Shape = tuple[int, ...]

_SPATIAL = {2: "images (channels, height, width)", 3: "volumes (channels, depth, height, width)"}


def check_spatial(model: str, shape: Shape, dims: int, smallest: int = 1) -> None:
    """Reject all shapes but (channels, *sides) with `dims` sides of at least `smallest`."""
    if len(shape) != dims + 1 or min(shape) < 1 or min(shape[1:]) < smallest:
        sides = "x".join([str(smallest)] * dims)
        raise UserError(f"model {model!r} accepts {_SPATIAL[dims]} of at least {sides}, not inputs of shape {shape}.")


def flat_size(model: str, shape: Shape) -> int:
    """Return the number of values in one input; reject an empty shape."""
    if not shape or min(shape) < 1:
        raise UserError(f"model {model!r} accepts feature vectors (d,) or images, not inputs of shape {shape}.")
    return math.prod(shape)
