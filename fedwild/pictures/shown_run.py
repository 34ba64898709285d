"""Which model of which run a picture shows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedwild.pictures.drawing import counted, cut

if TYPE_CHECKING:
    from fedwild.api import Run

NAME_LENGTH = 40


@dataclass(frozen=True)
class ShownRun:
    """A finished run, or an unfinished one as of its last checkpoint."""

    run: str
    method: str
    client: str | None
    """Whose model, where each client has its own."""
    round: int
    """Rounds done."""
    known: tuple[str, ...]
    """The classes that the model knows, in the order of its outputs."""
    unknown: tuple[str, ...]
    """The other classes of the test data."""

    @classmethod
    def of(cls, run: Run, client: str | None) -> ShownRun:
        server, split = run.server(), run.experiment.split
        known = server.classes.names
        unknown = tuple(name for name in (*split.known, *split.novel, *split.unknown) if name not in known)
        return cls(str(run.path), run.config.method.name, client, server.step.index + 1, known, unknown)

    def described(self) -> dict[str, Any]:
        """For programs: plain values."""
        return {**vars(self), "known": list(self.known), "unknown": list(self.unknown)}

    def title(self, samples: int) -> str:
        """One line of text."""
        whose = "" if self.client is None else f"{self.client} of "
        name = cut(whose + Path(self.run).name, NAME_LENGTH)
        return f"{name}: {self.method}, round {self.round}, {counted(samples, 'test sample')}"
