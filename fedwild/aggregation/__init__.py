"""Merging the replies of clients: means and robust rules."""

from fedwild.aggregation.base import AGGREGATIONS, Aggregation, Mean
from fedwild.aggregation.clipping import CenteredClipping
from fedwild.aggregation.coordinates import Median, TrimmedMean
from fedwild.aggregation.geometric import GeometricMedian
from fedwild.aggregation.krum import Krum, MultiKrum
from fedwild.aggregation.means import by_samples, equally, weighted_mean
