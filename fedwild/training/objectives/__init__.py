"""Objectives: the losses that clients minimise."""

from fedwild.training.objectives.balanced import Balanced
from fedwild.training.objectives.base import OBJECTIVES, Objective
from fedwild.training.objectives.ce import CrossEntropy
from fedwild.training.objectives.outlier_aware import OutlierAware
from fedwild.training.objectives.proser import Proser
from fedwild.training.objectives.prototype_contrast import PrototypeContrast
