"""Open-world federated learning: train together, say "unknown", discover, welcome."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedwild.core.version import __version__

__all__ = ["Answers", "Run", "UserError", "__version__", "resume", "run", "welcome"]

if TYPE_CHECKING:
    from fedwild.api import Answers, Run, resume, run, welcome
    from fedwild.core.errors import UserError


def __getattr__(name: str) -> Any:
    """Import torch and the rest on demand, so that `fedwild --help` answers at once."""
    if name in {"Answers", "Run", "resume", "run", "welcome"}:
        from fedwild import api

        return getattr(api, name)
    if name == "UserError":
        from fedwild.core.errors import UserError

        return UserError
    raise AttributeError(f"module 'fedwild' has no attribute {name!r}")
