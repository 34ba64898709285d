"""What a newcomer brings: nothing new, a new domain or new classes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from shlex import quote
from typing import Any, Literal

Kind = Literal["nothing", "domain", "classes"]
IN_WORDS: dict[Kind, str] = {"nothing": "nothing new", "domain": "a new domain", "classes": "new classes"}


@dataclass(frozen=True)
class Evidence:
    """What discovery measured."""

    diff_f: float
    """Diff^F between the newcomer's model and the federation's (Eq. 1)."""
    diff_c: float
    """Diff^C between them."""
    shift: float
    """S: how far its samples are from source clients' samples of the same classes; NaN if there are none."""
    limit: float
    """T_D: how far they would be if they were source clients' own."""
    rows: Mapping[str, float] = field(default_factory=dict)
    """By declared class, the largest cosine of its row's move and a known class's mean embedding."""
    alike: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    """By declared class, the nearest known class and how far it is."""


@dataclass(frozen=True)
class Verdict:
    """What it brings."""

    kind: Kind
    classes: tuple[str, ...] = ()
    """The declared classes that are new."""
    measured: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """The figures that decided, each with its limit."""

    def figures(self, evidence: Evidence) -> dict[str, Any]:
        """The decision with all that it rests on, as plain values."""
        return {"kind": self.kind, "classes": list(self.classes), "decided": dict(self.measured), **vars(evidence)}

    def told(self, newcomer: str, evidence: Evidence) -> str:
        """The decision in a sentence."""
        names = f" ({', '.join(self.classes)})" if self.classes else ""
        domain = ", in a new domain" if self.kind == "classes" and evidence.shift > evidence.limit else ""
        known = {name: pair for name, pair in self.measured.items() if not math.isnan(pair[0])}
        figures = "; ".join(f"{name} {value:.3g}, limit {limit:.3g}" for name, (value, limit) in known.items())
        figures = figures or "nobody has enough samples of these classes to compare with"
        return f"{newcomer} brings {IN_WORDS[self.kind]}{names}{domain} ({figures})"


def by_federation(evidence: Evidence) -> Verdict:
    """New classes are declared ones whose rows were drawn to samples; a new domain lies beyond what sources do.

    A row that no sample has drawn only moves away from embeddings: its move has no positive cosine with any of them.
    """
    new = tuple(name for name, cosine in evidence.rows.items() if cosine > 0)
    # Where nobody else has labels of its classes, there is nothing to compare with, and much to learn.
    unlike = math.isnan(evidence.shift) or evidence.shift > evidence.limit
    kind: Kind = "classes" if new else "domain" if unlike else "nothing"
    measured = {f"cosine of {name}'s row": (cosine, 0.0) for name, cosine in evidence.rows.items()}
    return Verdict(kind, new, {"shift": (evidence.shift, evidence.limit), **measured})


def by_fixed(evidence: Evidence, t_f: float, t_c: float) -> Verdict:
    """The paper's rule: Diff^F > T_F is new knowledge, and then Diff^C > T_C is new classes."""
    kind: Kind = "nothing"
    if not evidence.diff_f <= t_f:
        kind = "classes" if evidence.diff_c > t_c and evidence.rows else "domain"
    measured = {"Diff^F": (evidence.diff_f, t_f), "Diff^C": (evidence.diff_c, t_c)}
    return Verdict(kind, tuple(evidence.rows) if kind == "classes" else (), measured)


def synonyms(evidence: Evidence, nearer: float) -> list[str]:
    """Sentences on declared classes that look like a known one under another name."""
    return [
        f"its class {name!r} looks like {known!r} (shift {value:.2g}): if they are one, welcome it with "
        f"--label {quote(f'{name}={known}')}"
        for name, (known, value) in evidence.alike.items()
        if value < nearer
    ]
