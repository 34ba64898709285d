"""The decision on what a newcomer brings: nothing new, a new domain or new classes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from shlex import quote
from typing import Any

from fedwild.methods.gains.stage import Kind

BRINGS: dict[Kind, str] = {"nothing": "nothing new", "domain": "a new domain", "classes": "new classes"}


@dataclass(frozen=True)
class Evidence:
    """The measurements behind the decision."""

    diff_f: float
    """Diff^F between the newcomer's model and the federation's (Eq. 1)."""
    diff_c: float
    """Diff^C between them."""
    shift: float
    """S: the shift of the newcomer's samples from source clients' samples of the same classes; NaN without any."""
    limit: float
    """T_D: the largest S that is not a new domain."""
    rows: Mapping[str, float] = field(default_factory=dict)
    """For each declared class, the largest cosine between its row's update and a known class's mean embedding."""
    alike: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    """For each declared class, the nearest known class and the shift from it."""


@dataclass(frozen=True)
class Discovery:
    """What the newcomer brings."""

    kind: Kind
    classes: tuple[str, ...] = ()
    """The declared classes that are new."""
    measured: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """The figures behind the decision, each with its limit."""

    def figures(self, evidence: Evidence) -> dict[str, Any]:
        """Return the decision and its evidence as plain values, for the log."""
        return {"kind": self.kind, "classes": list(self.classes), "decided": dict(self.measured), **vars(evidence)}

    def describe(self, newcomer: str, evidence: Evidence) -> str:
        """Return the decision as a sentence."""
        names = f" ({', '.join(self.classes)})" if self.classes else ""
        domain = ", in a new domain" if self.kind == "classes" and evidence.shift > evidence.limit else ""
        known = {name: pair for name, pair in self.measured.items() if not math.isnan(pair[0])}
        figures = "; ".join(f"{name} {value:.3g}, limit {limit:.3g}" for name, (value, limit) in known.items())
        figures = figures or "no source client has enough samples of these classes to compare with"
        return f"{newcomer} brings {BRINGS[self.kind]}{names}{domain} ({figures})"


def decide_by_federation(evidence: Evidence) -> Discovery:
    """Decide by limits from the source clients: S > T_D is a new domain, and a row drawn to samples is a new class.

    Without samples, a row only moves away from embeddings: its update has no positive cosine with any of them.
    """
    new = tuple(name for name, cosine in evidence.rows.items() if cosine > 0)
    # If no source client has labels of these classes, nothing can be compared, and there is much to learn.
    is_domain = math.isnan(evidence.shift) or evidence.shift > evidence.limit
    kind: Kind = "classes" if new else "domain" if is_domain else "nothing"
    measured = {f"cosine of {name}'s row": (cosine, 0.0) for name, cosine in evidence.rows.items()}
    return Discovery(kind, new, {"shift": (evidence.shift, evidence.limit), **measured})


def decide_by_limits(evidence: Evidence, t_f: float, t_c: float) -> Discovery:
    """Decide by the paper's rule: Diff^F > T_F means something new, and then Diff^C > T_C means new classes."""
    kind: Kind = "nothing"
    if not evidence.diff_f <= t_f:
        kind = "classes" if evidence.diff_c > t_c and evidence.rows else "domain"
    measured = {"Diff^F": (evidence.diff_f, t_f), "Diff^C": (evidence.diff_c, t_c)}
    return Discovery(kind, tuple(evidence.rows) if kind == "classes" else (), measured)


def synonym_notes(evidence: Evidence, max_shift: float) -> list[str]:
    """Return a sentence for each declared class that looks like a known class under another name."""
    return [
        f"class {name!r} looks like the known class {known!r} (shift {value:.2g}): if they are the same, use "
        f"--label {quote(f'{name}={known}')}"
        for name, (known, value) in evidence.alike.items()
        if value < max_shift
    ]
