"""Named outlier generators: training images in, images of no class out (FedOV, section 3.4, Appendix B.3, B.7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedwild.core.errors import UserError
from fedwild.openset import cutpaste
from fedwild.openset.destruction import AUTHORS, OPERATIONS, UNIFORM, Choice, Destruction, Operation

SMALLEST_SIDE = 4


@dataclass(frozen=True)
class Outliers:
    """One registered generator: its name, one line about it and its function of images."""

    name: str
    summary: str
    function: Operation

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Outliers made from images (n, C, H, W), or from volumes (n, C, D, H, W): the same in every slice."""
        self.check(x.shape[1:])
        if x.ndim == 4:
            return self.function(x, generator)
        return self.function(x.flatten(1, 2), generator).view(x.shape)

    def check(self, shape: Sequence[int]) -> None:
        """Refuse samples of a shape that is not an image's (C, H, W) or a volume's (C, D, H, W)."""
        if len(shape) not in (3, 4) or min(shape[-2:]) < SMALLEST_SIDE:
            raise UserError(
                f"objective.outliers = {self.name!r} makes outliers from images (C, H, W) with sides of at least "
                f"{SMALLEST_SIDE}, not from samples of shape {tuple(shape)}: objective.name = proser needs no images."
            )


_destruction = Destruction(AUTHORS)

OUTLIERS: dict[str, Outliers] = {
    outliers.name: outliers
    for outliers in (
        Outliers(
            "destruction", "One of six destructive operations per image, weighted as by the authors.", _destruction
        ),
        Outliers("uniform", "One of six destructive operations per image, all equally likely.", Destruction(UNIFORM)),
        Outliers("crop", "A small part of the image enlarged to all of it.", OPERATIONS["crop"]),
        Outliers("blur", "Gaussian blur with a large sigma.", OPERATIONS["blur"]),
        Outliers("erase", "A large box of the image set to 0.", OPERATIONS["erase"]),
        Outliers("paste", "Half of the image copied over another part of it.", OPERATIONS["paste"]),
        Outliers("swap", "Two halves of the image exchanged.", OPERATIONS["swap"]),
        Outliers("rotate", "Two squares of the image turned by a multiple of 90 degrees.", OPERATIONS["rotate"]),
        Outliers("cutpaste", "A small patch or a turned strip pasted elsewhere in the image.", cutpaste.union),
        Outliers(
            "mixture",
            "Destruction or cutpaste, either for half of the images.",
            Choice([_destruction, cutpaste.union], [1, 1]),
        ),
    )
}
