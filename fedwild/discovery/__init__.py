"""Finding novel classes: which unlabelled samples are new, how many classes they are, and where these lie."""

from fedwild.discovery.base import ESTIMATORS, Estimate, Estimator
from fedwild.discovery.committee import Committee
from fedwild.discovery.given import Given
from fedwild.discovery.macc import MaxAccuracy, MaxAccuracyPIM
from fedwild.discovery.pool import Clusters, KnownClasses, clusters_of
from fedwild.discovery.ppm import PotentialPrototypeMerge

__all__ = [
    "ESTIMATORS",
    "Clusters",
    "Committee",
    "Estimate",
    "Estimator",
    "Given",
    "KnownClasses",
    "MaxAccuracy",
    "MaxAccuracyPIM",
    "PotentialPrototypeMerge",
    "clusters_of",
]
