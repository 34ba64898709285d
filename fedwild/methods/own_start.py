"""The setting `start` of methods that align neurons: clients may begin with their own random weights."""

from __future__ import annotations

from typing import Literal

from fedwild.contract import Step
from fedwild.core.errors import UserError

Start = Literal["shared", "own"]
START = "own: in the first round, every client starts from its own random weights"


def starts_alone(start: Start, step: Step) -> bool:
    """Whether clients ignore the server's model in this round and draw their own weights."""
    return start == "own" and step.index == 0


def check_start(start: Start, start_from: str | None) -> None:
    """Reject an earlier run's model that no client would use."""
    if start == "own" and start_from is not None:
        raise UserError(
            f"federation.start_from = {start_from!r} is not allowed with method.start = 'own': "
            "no client would begin with its model."
        )
