"""What a newcomer brought, how much each client contributed, and what was forgotten."""

from __future__ import annotations

from typing import Any

from fedwild.adaptation.verdict import IN_WORDS
from fedwild.report.charts.lines import Series, line_chart
from fedwild.report.facts import Facts
from fedwild.report.figure import figure, grid, table
from fedwild.report.markup import Html, joined, tag

MOST_LINES = 8


def findings(facts: Facts, what: str) -> list[dict[str, Any]]:
    return [event for event in facts.history.of("finding") if event.get("what") == what]


def concerns(facts: Facts) -> bool:
    return any(findings(facts, what) for what in ("discovery", "weights", "judgement"))


def draw(facts: Facts) -> Html:
    """The verdict with its figures, contributions round by round, and accuracy before and after."""
    parts = [verdict(event) for event in findings(facts, "discovery")]
    parts += [judgement(event) for event in findings(facts, "judgement")]
    kinds = [kind for kind in ("encoder", "classifier") if any(kind in e for e in findings(facts, "weights"))]
    figures = [
        figure(
            f"Contributions to the {kind}",
            lambda k=kind: contributions(facts, k),  # type: ignore[misc]
            f"Weight of every client's model in the joint one; the {MOST_LINES} largest, and all others together.",
        )
        for kind in kinds
    ]
    return joined([*parts, grid(figures)])


def verdict(event: dict[str, Any]) -> Html:
    """What a newcomer brings, and the figures that decided."""
    classes = ", ".join(map(str, event.get("classes") or []))
    words = next((text for kind, text in IN_WORDS.items() if kind == event.get("kind")), "something")
    text = f"{event.get('client')} brings {words}{f' ({classes})' if classes else ''}."
    rows = [(name, number(pair[0]), number(pair[1])) for name, pair in (event.get("decided") or {}).items()]
    rows += [(name, number(event.get(key)), "–") for key, name in (("diff_f", "Diff^F"), ("diff_c", "Diff^C"))]
    return joined([tag("p", tag("b", text)), table(["figure", "value", "limit"], rows)])


def judgement(event: dict[str, Any]) -> Html:
    """Validation accuracy before and after."""
    rows = []
    for key, name in (("sources", "source clients"), ("newcomer", str(event.get("client")))):
        row = event.get(key) or {}
        rows.append((name, str(row.get("samples", "–")), percent(row.get("before")), percent(row.get("now"))))
    refused = " It was too much: the federation went back to before." if event.get("refused") else ""
    text = f"Forgotten by source clients: {percent(event.get('forgotten'))} of their validation samples.{refused}"
    return joined([table(["accuracy on validation samples", "samples", "before", "now"], rows), tag("p", text)])


def contributions(facts: Facts, kind: str) -> Html:
    """Weights over rounds; in the first joint model the sources count as one, which is left out."""
    events = [
        event for event in findings(facts, "weights") if kind in event and event.get("phase", "").startswith("adapt")
    ]
    x = [float(event["index"] + 1) for event in events]
    weights = [event[kind] for event in events]
    names = sorted(
        {name for row in weights for name in row}, key=lambda name: -sum(row.get(name) or 0 for row in weights)
    )
    shown = names if len(names) <= MOST_LINES else names[: MOST_LINES - 1]
    series = [Series(name, x, [row.get(name) for row in weights]) for name in shown]
    if len(names) > len(shown):
        rest = [sum(row.get(name) or 0 for name in names[len(shown) :]) for row in weights]
        series.append(Series(f"{len(names) - len(shown)} others", x, rest))
    return line_chart(series, "round", "weight")


def number(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, (int, float)) else "–"


def percent(value: Any) -> str:
    return f"{100 * value:.1f} %" if isinstance(value, (int, float)) else "–"
