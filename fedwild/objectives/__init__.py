"""Local losses: what a client minimises."""

from fedwild.objectives.balanced import Balanced
from fedwild.objectives.base import OBJECTIVES, Objective
from fedwild.objectives.ce import CrossEntropy
from fedwild.objectives.outlier_aware import OutlierAware
from fedwild.objectives.proser import Proser
from fedwild.objectives.prototype_contrast import PrototypeContrast

__all__ = ["OBJECTIVES", "Balanced", "CrossEntropy", "Objective", "OutlierAware", "Proser", "PrototypeContrast"]
