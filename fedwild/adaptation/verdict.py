"""What a newcomer brings: nothing new, a new domain or new classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

Kind = Literal["nothing", "domain", "classes"]


@dataclass(frozen=True)
class Evidence:
    """What discovery measured."""

    diff_f: float
    """Diff^F between the newcomer's model and the federation's."""
    diff_c: float
    """Diff^C between them."""
    sources_f: Mapping[str, float]
    """Diff^F of each source client that trained from the same model on the newcomer's mix of classes."""
    rows: Mapping[str, float]
    """By declared class, how far its row of the head moved, over how far the median old row did."""


@dataclass(frozen=True)
class Verdict:
    """What it brings, and the figures behind the decision."""

    kind: Kind
    classes: tuple[str, ...] = ()
    """The declared classes that are new."""
    limits: dict[str, float] = field(default_factory=dict)
    """The thresholds that decided."""

    def figures(self, evidence: Evidence) -> dict[str, Any]:
        """The decision with all that it rests on, as plain values."""
        return {
            "kind": self.kind,
            "classes": list(self.classes),
            **self.limits,
            "diff_f": evidence.diff_f,
            "diff_c": evidence.diff_c,
            "sources_f": dict(evidence.sources_f),
            "rows": dict(evidence.rows),
        }

    def told(self, newcomer: str, evidence: Evidence) -> str:
        """The decision in a sentence."""
        brings = {"nothing": "nothing new", "domain": "a new domain", "classes": "new classes"}[self.kind]
        names = f" ({', '.join(self.classes)})" if self.classes else ""
        limits = ", ".join(f"{name} {value:.3g}" for name, value in self.limits.items())
        rows = "".join(f", row of {name} {change:.2g}x" for name, change in evidence.rows.items())
        measured = f"Diff^F {evidence.diff_f:.3g}, Diff^C {evidence.diff_c:.3g}{rows}"
        return f"{newcomer} brings {brings}{names}: {measured}; limits {limits}"


def by_federation(evidence: Evidence, deviations: float, least_spread: float, row_ratio: float) -> Verdict:
    """New classes are declared ones whose row moved; a new domain is what moves features more than sources would."""
    new = tuple(name for name, change in evidence.rows.items() if change > row_ratio)
    threshold = spread_threshold(list(evidence.sources_f.values()), deviations, least_spread)
    kind: Kind = "classes" if new else "domain" if evidence.diff_f > threshold else "nothing"
    return Verdict(kind, new, {"t_f": threshold, "row_ratio": row_ratio})


def spread_threshold(differences: list[float], deviations: float, least_spread: float) -> float:
    """What source clients may differ by: median * exp(k max(s, s_0)), s the standard deviation of the logarithms."""
    logs = np.log(np.maximum(differences, 1e-12)) if differences else np.zeros(0)
    if not len(logs):
        return 0.0
    spread = max(float(np.std(logs, ddof=1)) if len(logs) > 1 else 0.0, least_spread)
    return float(np.exp(np.median(logs) + deviations * spread))


def by_fixed(evidence: Evidence, t_f: float, t_c: float) -> Verdict:
    """The paper's rule: Diff^F > T_F is new knowledge, and then Diff^C > T_C is new classes."""
    kind: Kind = "nothing"
    if evidence.diff_f > t_f:
        kind = "classes" if evidence.diff_c > t_c and evidence.rows else "domain"
    return Verdict(kind, tuple(evidence.rows) if kind == "classes" else (), {"t_f": t_f, "t_c": t_c})
