"""Unknown scores, and the thresholds that turn them into decisions."""

from fedwild.openset.calibration import decide, threshold_at_acceptance
from fedwild.openset.metrics import UNKNOWN
from fedwild.openset.scores import SCORES, Score

__all__ = ["SCORES", "UNKNOWN", "Score", "decide", "threshold_at_acceptance"]
