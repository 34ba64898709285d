"""A partition with a class mix for every client."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from fedwild.core.settings import Settings
from fedwild.data.partitions.base import PARTITIONS, Partition, Rows


class ClassMixParams(Settings):
    """Settings of `class-mix`."""

    beta: float = Field(
        0.5, gt=0, description="Concentration of the Dirichlet distribution per class; smaller is more uneven."
    )


@PARTITIONS.add("class-mix")
class ClassMix(Partition):
    """Label skew: each client draws its own class mix from Dirichlet(beta); client sizes are equal.

    Hsu, Qi, Brown: Measuring the effects of non-identical data distribution for federated visual classification. 2019.
    A mix over known and novel classes, restricted to either, is again a Dirichlet draw, and the two are independent:
    dividing known and novel samples one after the other draws the same mixes as dividing them together.
    """

    Params = ClassMixParams
    short_setting = "beta"

    def assign(self, rows: Rows, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        names, sizes = np.unique(rows.labels, return_counts=True)
        # beta if all classes have one size: Hsu et al. write it as a factor of the shares of classes.
        concentrations = self.params.beta * sizes / sizes.mean()
        counts = draw_by_mix(rng.dirichlet(concentrations, size=clients), concentrations, sizes, rng)
        pieces = [
            np.split(rng.permutation(np.nonzero(rows.labels == name)[0]), np.cumsum(column)[:-1])
            for name, column in zip(names, counts.T, strict=True)
        ]
        return [np.concatenate(part) for part in zip(*pieces, strict=True)]


def draw_by_mix(
    mixes: np.ndarray, concentrations: np.ndarray, sizes: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Return how many samples of each class each client gets: (clients, classes), columns summing to `sizes`.

    All clients draw at once, by their mixes (clients, classes). If they want more of a class than there is, chance
    decides who gets it, and the others draw again from the classes that are left.
    """
    left, counts = sizes.copy(), np.zeros(mixes.shape, dtype=np.int64)
    missing = np.array([len(part) for part in np.array_split(np.arange(sizes.sum()), len(mixes))])
    while missing.any():
        mixes = np.stack([restrict(mix, concentrations, left > 0, rng) for mix in mixes])
        wanted = np.stack([rng.multinomial(n, mix) for n, mix in zip(missing, mixes, strict=True)])
        for number, column in enumerate(wanted.T):
            got = column if column.sum() <= left[number] else rng.multivariate_hypergeometric(column, left[number])
            counts[:, number] += got
            missing -= got
            left[number] -= got.sum()
    return counts


def restrict(mix: np.ndarray, concentrations: np.ndarray, left: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return a mix (classes,) of only the classes that are left, scaled to sum to 1.

    If it has none of them (small shares become 0), the mix of the others is drawn: it is a Dirichlet draw, too.
    """
    mix = mix * left
    if mix.sum() == 0:
        mix[left] = rng.dirichlet(concentrations[left])
    return mix / mix.sum()
