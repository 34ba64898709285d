"""A number of novel classes that somebody knows."""

from __future__ import annotations

from pydantic import Field

from fedwild.discovery.base import ESTIMATORS, Estimate, Estimator, with_prototypes
from fedwild.discovery.pool import Clusters, KnownClasses
from fedwild.hyper import Hyper
from fedwild.rng import Rng


@ESTIMATORS.add("given")
class Given(Estimator):
    """A given number of novel classes in every stage."""

    class Params(Hyper):
        classes: int = Field(1, ge=1, description="the number of novel classes")

    params: Params

    def _estimate(self, pool: Clusters, known: KnownClasses, rng: Rng) -> Estimate:
        number = self.params.classes
        return with_prototypes(pool, number, (number, number), [], rng.sklearn("prototypes"))
