"""Local training: the loop, objectives, corrections and distillation."""

from fedwild.training.corrections import ClientCorrection, Correction
from fedwild.training.loop import PLAIN, Descent, LocalTraining, train
from fedwild.training.objectives import Objective

__all__ = ["PLAIN", "ClientCorrection", "Correction", "Descent", "LocalTraining", "Objective", "train"]
