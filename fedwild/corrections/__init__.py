"""What bends local steps or the merge, for any objective."""

from fedwild.corrections.base import CORRECTIONS, Correction, Steering

__all__ = ["CORRECTIONS", "Correction", "Steering"]
