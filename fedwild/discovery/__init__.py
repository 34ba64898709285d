"""Estimators of the number of novel classes among unlabelled samples, and what several methods need for discovery."""

from fedwild.discovery.base import ESTIMATORS, ClassCount, Estimate, Estimator, Given
from fedwild.discovery.committee import Committee
from fedwild.discovery.macc import MaxAccuracy, MaxAccuracyPIM
from fedwild.discovery.pool import Clusters, KnownClasses, cluster_embeddings, row_noise
from fedwild.discovery.ppm import PotentialPrototypeMerge
