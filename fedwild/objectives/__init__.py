"""Local losses: what a client minimises."""

from fedwild.objectives.base import OBJECTIVES, Objective
from fedwild.objectives.ce import CrossEntropy

__all__ = ["OBJECTIVES", "CrossEntropy", "Objective"]
