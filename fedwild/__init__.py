"""Open-world federated learning: train together, say "unknown", discover, welcome."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Answers", "Run", "UserError", "__version__", "resume", "run", "welcome"]

if TYPE_CHECKING:
    from fedwild.api import Answers, Run, resume, run
    from fedwild.arrival import welcome
    from fedwild.errors import UserError


def __getattr__(name: str) -> Any:
    """Import torch and the rest only when something is asked for, so that `fedwild --help` answers at once."""
    if name in {"Answers", "Run", "resume", "run"}:
        from fedwild import api

        return getattr(api, name)
    if name == "welcome":
        from fedwild.arrival import welcome

        return welcome
    if name == "UserError":
        from fedwild.errors import UserError

        return UserError
    raise AttributeError(f"module 'fedwild' has no attribute {name!r}")
