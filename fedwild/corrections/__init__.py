"""What bends local steps or the merge, for any objective."""

from fedwild.corrections.base import CORRECTIONS, Correction, Steering
from fedwild.corrections.moon import Moon
from fedwild.corrections.prox import Prox
from fedwild.corrections.scaffold import Scaffold

__all__ = ["CORRECTIONS", "Correction", "Moon", "Prox", "Scaffold", "Steering"]
