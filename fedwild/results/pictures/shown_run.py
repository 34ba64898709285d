"""Which model of which run a picture shows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedwild.core.text import count, cut
from fedwild.lifecycle.run import Run

MAX_NAME = 40


@dataclass(frozen=True)
class ShownRun:
    """A finished run, or an unfinished one as of its last checkpoint."""

    run: str
    method: str
    client: str | None
    """The client whose model is shown, where each client has its own, or whose network of an ensemble is shown."""
    round: int
    """The number of completed rounds."""
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

    @classmethod
    def of_member(cls, run: Run, client: str) -> ShownRun:
        """Return one network of an ensemble, which knows the classes of its client's training samples."""
        everyone, e = cls.of(run, client), run.experiment
        rows = next(c.train for c in e.split.clients if c.name == client)
        held = {e.dataset.classes[label] for label in e.dataset.y_train[rows].unique().tolist()}
        known = tuple(name for name in everyone.known if name in held)
        others = tuple(name for name in (*everyone.known, *everyone.unknown) if name not in held)
        return replace(everyone, known=known, unknown=others)

    def described(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {**vars(self), "known": list(self.known), "unknown": list(self.unknown)}

    def title(self, samples: int) -> str:
        """Return one line of text."""
        owner = "" if self.client is None else f"{self.client} of "
        name = cut(owner + Path(self.run).name, MAX_NAME)
        return f"{name}: {self.method}, round {self.round}, {count(samples, 'test sample')}"
