"""Local training: the loop, objectives, corrections and distillation."""

from fedwild.training.corrections import ClientCorrection, Correction
from fedwild.training.loop import PLAIN, Descent, LocalTraining, RoundTraining, train
from fedwild.training.objectives import Objective
from fedwild.training.private import Protected
