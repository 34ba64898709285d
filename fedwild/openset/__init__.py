"""Unknown scores on logits and the thresholds that turn them into decisions."""

from fedwild.metrics import UNKNOWN
from fedwild.openset.calibration import (
    decide,
    decide_by_extra_class,
    dias_threshold,
    per_class_thresholds,
    threshold_at_acceptance,
)
from fedwild.openset.scores import (
    SCORES,
    Score,
    ScoreEntry,
    energy,
    entropy,
    make_score,
    maxlogit,
    msp,
    placeholder,
    unknown_probability,
)

__all__ = [
    "SCORES",
    "UNKNOWN",
    "Score",
    "ScoreEntry",
    "decide",
    "decide_by_extra_class",
    "dias_threshold",
    "energy",
    "entropy",
    "make_score",
    "maxlogit",
    "msp",
    "per_class_thresholds",
    "placeholder",
    "threshold_at_acceptance",
    "unknown_probability",
]
