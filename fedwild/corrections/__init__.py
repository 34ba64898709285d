"""What bends local steps or the merge, for any objective."""

from fedwild.corrections.base import CORRECTIONS, Correction, Steering
from fedwild.corrections.prox import Prox

__all__ = ["CORRECTIONS", "Correction", "Prox", "Steering"]
