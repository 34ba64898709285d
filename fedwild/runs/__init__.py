"""Run folders: everything a run leaves behind, and everything it needs to go on."""

from fedwild.runs.events import read_events
from fedwild.runs.folder import RunFolder

__all__ = ["RunFolder", "read_events"]
