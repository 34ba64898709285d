"""Merging the replies of clients: means and robust rules."""

from fedwild.aggregation.base import AGGREGATIONS, Aggregation, Mean
from fedwild.aggregation.means import by_samples, equally, weighted_mean

__all__ = ["AGGREGATIONS", "Aggregation", "Mean", "by_samples", "equally", "weighted_mean"]
