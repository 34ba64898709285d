"""The paper's rule: what Diff^F and Diff^C say about a newcomer (Gains, Algorithm 1, lines 8-13)."""

from __future__ import annotations

from fedwild.methods.gains.stage import Kind


def kind_by_limits(diff_f: float, diff_c: float, t_f: float, t_c: float, inclusive: bool = False) -> Kind:
    """Return "nothing" unless Diff^F > T_F, then "classes" if Diff^C > T_C, else "domain"; `inclusive` means >=.

    A Diff^F that is NaN counts as new.
    """
    if diff_f < t_f or (diff_f == t_f and not inclusive):
        return "nothing"
    return "classes" if diff_c > t_c or (diff_c == t_c and inclusive) else "domain"
