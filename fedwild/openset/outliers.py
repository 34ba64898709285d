"""Named generators that turn training images into outliers (FedOV, section 3.4, Appendix B.3, B.7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedwild.core.errors import UserError
from fedwild.data.samples import Normalisation
from fedwild.openset import cutpaste
from fedwild.openset.destruction import AUTHORS, OPERATIONS, UNIFORM, Choice, Destruction, Operation

MIN_SIDE = 4


@dataclass(frozen=True)
class Outliers:
    """A named generator, with a one-line summary and its function of images."""

    name: str
    summary: str
    function: Operation

    def __call__(self, x: Tensor, generator: torch.Generator, normalisation: Normalisation | None = None) -> Tensor:
        """Return outliers made from images (n, C, H, W), or from volumes (n, C, D, H, W), alike in every slice.

        If the inputs are normalised, operations work on pixels, so that an erased box is black.
        """
        self.check(x.shape[1:])
        if normalisation is not None:
            return normalisation.to_inputs(self(normalisation.to_pixels(x), generator))
        if x.ndim == 4:
            return self.function(x, generator)
        return self.function(x.flatten(1, 2), generator).view(x.shape)

    def check(self, shape: Sequence[int]) -> None:
        """Reject samples that are not images (C, H, W) or volumes (C, D, H, W) by raising `UserError`."""
        if len(shape) not in (3, 4) or min(shape[-2:]) < MIN_SIDE:
            raise UserError(
                f"objective.outliers = {self.name!r} needs images (C, H, W) with sides of at least {MIN_SIDE}, not "
                f"samples of shape {tuple(shape)}: use objective.name = proser, which needs no images."
            )


_destruction = Destruction(AUTHORS)

OUTLIERS: dict[str, Outliers] = {
    outliers.name: outliers
    for outliers in (
        Outliers(
            "destruction", "One of six destructive operations per image, with the authors' weights.", _destruction
        ),
        Outliers("uniform", "One of six destructive operations per image, all equally likely.", Destruction(UNIFORM)),
        Outliers("crop", "A small part of the image enlarged to the whole image.", OPERATIONS["crop"]),
        Outliers("blur", "Gaussian blur with a large sigma.", OPERATIONS["blur"]),
        Outliers("erase", "A large box of the image set to 0.", OPERATIONS["erase"]),
        Outliers("paste", "Half of the image copied over another part of it.", OPERATIONS["paste"]),
        Outliers("swap", "Two halves of the image exchanged.", OPERATIONS["swap"]),
        Outliers("rotate", "Two squares of the image rotated by a multiple of 90 degrees.", OPERATIONS["rotate"]),
        Outliers("cutpaste", "A small patch or a rotated strip pasted elsewhere in the image.", cutpaste.union),
        Outliers(
            "mixture",
            "Destruction for half of the images, cutpaste for the others.",
            Choice([_destruction, cutpaste.union], [1, 1]),
        ),
    )
}
