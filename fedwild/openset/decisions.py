"""How methods with an output for "unknown" decide: by a calibrated threshold, or by the largest of K + 1 outputs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedwild.core.errors import UserError
from fedwild.core.settings import Settings
from fedwild.openset.scores import Placeholder, Score


class DecisionSettings(Settings):
    """The rule that decides between a class and "unknown"."""

    decision: Literal["calibrated", "argmax"] = Field(
        "calibrated",
        description="a threshold that accepts most validation samples, or argmax over K + 1 outputs",
    )

    @property
    def threshold(self) -> float | None:
        """The threshold of the rule; None if it is calibrated."""
        # The scores that `argmax` allows are above 0 exactly where the unknown output is the largest.
        return 0.0 if self.decision == "argmax" else None


def check_decision(settings: Settings, score: Score | None, has_unknown_output: bool) -> None:
    """Reject `decision = "argmax"` for a network or a score that cannot compare "unknown" with the classes."""
    if not isinstance(settings, DecisionSettings) or settings.decision != "argmax":
        return
    if not has_unknown_output:
        raise UserError(
            "method.decision = 'argmax' is not allowed here: the network that answers has no unknown output. Set "
            "objective.name = proser or outlier-aware to train one (a distilled student never has one)."
        )
    if score is not None and not isinstance(score, Placeholder):
        raise UserError(
            f"score.name = {score.name!r} is not allowed with method.decision = 'argmax', "
            "which compares the unknown output with the others: use score.name = 'proser'."
        )
