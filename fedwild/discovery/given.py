"""A number of novel classes that the user sets."""

from __future__ import annotations

from pydantic import Field

from fedwild.core.rng import Rng
from fedwild.core.settings import Settings
from fedwild.discovery.base import ESTIMATORS, Estimate, Estimator, find_prototypes
from fedwild.discovery.pool import Clusters, KnownClasses


@ESTIMATORS.add("given")
class Given(Estimator):
    """A given number of novel classes in every stage."""

    class Params(Settings):
        classes: int = Field(1, ge=1, description="number of novel classes")

    params: Params

    def _estimate(self, pool: Clusters, known: KnownClasses, rng: Rng) -> Estimate:
        number = self.params.classes
        return find_prototypes(pool, number, (number, number), [], rng.sklearn("prototypes"))
