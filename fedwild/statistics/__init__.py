"""Statistics that clients send and the server merges: counts, means and covariances of features."""

from fedwild.statistics.gaussians import Gaussian, draw_any, draw_below_density, draw_least_likely
from fedwild.statistics.moments import Moments, compute_moments, merge_by_class, merge_moments, moments_by_class
