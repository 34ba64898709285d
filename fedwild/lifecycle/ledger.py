"""The progress of a run beside its server. It is part of every checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fedwild.evaluation.examiner import Evaluation


@dataclass
class Ledger:
    """Which round is next, what the rounds so far cost, and who joined."""

    next_index: int = 0
    states: dict[str, int] = field(default_factory=dict)
    """The version of each client's durable state."""
    bytes_up: int = 0
    bytes_down: int = 0
    seconds: float = 0.0
    joined: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The clients that joined during the run: since which round, their identity, and whether they are newcomers."""
    evaluation: Evaluation | None = None
    """The figures of the last round, if it was evaluated."""
    privacy: dict[str, list[list[float]]] = field(default_factory=dict)
    """The mechanisms of differential privacy so far: (rate, noise, times) by unit, counted by `lifecycle.privacy`."""
    log: str = ""
    """The check of the log's last line."""
    declared: dict[str, int] = field(default_factory=dict)
    """The number of samples that each site declared when it first connected."""

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "evaluation": vars(self.evaluation) if self.evaluation else None}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Ledger:
        evaluation = values["evaluation"]
        return cls(**{**values, "evaluation": Evaluation(**evaluation) if evaluation else None})
