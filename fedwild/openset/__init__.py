"""Unknown scores, predictors that use them, and the thresholds that turn scores into decisions."""

from fedwild.openset.calibration import decide, threshold_at_acceptance
from fedwild.openset.decisions import DecisionSettings, check_decision
from fedwild.openset.fitting import FITTED, FitScore
from fedwild.openset.metrics import UNKNOWN
from fedwild.openset.predictors import ScoredModel
from fedwild.openset.scores import SCORES, Score
