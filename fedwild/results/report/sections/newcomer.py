"""What a newcomer brought, how much each client contributed, and what was forgotten."""

from __future__ import annotations

from functools import partial
from typing import Any

from fedwild.methods.gains.evidence import BRINGS as IN_WORDS
from fedwild.results.report.charts.lines import Series, line_chart
from fedwild.results.report.facts import Facts
from fedwild.results.report.figure import figure, grid, table
from fedwild.results.report.markup import Html
from fedwild.results.report.sections.progress import over_rounds

MAX_LINES = 8
ACCURACY = {"target_accuracy": "newcomer", "source_accuracy": "others", "global_accuracy": "both"}
SHARES = f"Weight of every client's model in the joint one: the {MAX_LINES - 1} largest, and all others together."


def findings(facts: Facts, what: str) -> list[dict[str, Any]]:
    return [event for event in facts.history.of("finding") if event.get("what") == what]


def concerns(facts: Facts) -> bool:
    found = any(findings(facts, what) for what in ("discovery", "weights", "judgement"))
    return found or any(key in row.metrics for row in facts.history.rounds for key in ACCURACY)


def draw(facts: Facts) -> Html:
    """The verdict with its figures, contributions round by round, and accuracy before and after."""
    measured, borders = facts.history.measured, facts.history.borders
    about = "T-Acc, S-Acc and G-Acc: accuracy on the test data of the newcomer, of all others, and of both."
    kinds = [kind for kind in ("encoder", "classifier") if any(kind in e for e in findings(facts, "weights"))]
    parts = [figure("The verdict", partial(verdict, event), told(event)) for event in findings(facts, "discovery")]
    parts += [
        figure("Before and after", partial(judgement, event), lost(event)) for event in findings(facts, "judgement")
    ]
    parts.append(figure("The newcomer and the others", lambda: over_rounds(measured, ACCURACY, borders), about))
    parts += [figure(f"Contributions to the {kind}", partial(contributions, facts, kind), SHARES) for kind in kinds]
    return grid(parts)


def told(event: dict[str, Any]) -> str:
    """What a newcomer brings, in a sentence."""
    classes = ", ".join(map(str, event.get("classes") or []))
    words = next((text for kind, text in IN_WORDS.items() if kind == event.get("kind")), "something")
    return f"{event.get('client')} brings {words}{f' ({classes})' if classes else ''}."


def verdict(event: dict[str, Any]) -> Html:
    """The figures that decided, and those of the paper."""
    decided = event.get("decided") or {}
    rows = [(name, number(pair[0]), number(pair[1])) for name, pair in decided.items()]
    more = [(name, number(event.get(key)), "–") for key, name in (("diff_f", "Diff^F"), ("diff_c", "Diff^C"))]
    return table(["figure", "value", "limit"], [*rows, *(row for row in more if row[0] not in decided)])


def lost(event: dict[str, Any]) -> str:
    """What was forgotten, in a sentence."""
    refused = " That was too much: the federation went back to before." if event.get("refused") else ""
    amount = event.get("forgotten")
    if not isinstance(amount, (int, float)):
        return f"Nobody knows how much source clients forgot.{refused}"
    words = f"forgot {percent(amount)}" if amount > 0 else "forgot nothing"
    return f"Source clients {words}; accuracy on validation samples.{refused}"


def judgement(event: dict[str, Any]) -> Html:
    """Validation accuracy before and after."""
    rows = []
    for key, name in (("sources", "source clients"), ("newcomer", str(event.get("client")))):
        row = event.get(key) or {}
        rows.append((name, str(row.get("samples", "–")), percent(row.get("before")), percent(row.get("now"))))
    return table(["whose", "samples", "before", "now"], rows)


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
    shown = names if len(names) <= MAX_LINES else names[: MAX_LINES - 1]
    series = [Series(name, x, [row.get(name) for row in weights]) for name in shown]
    if len(names) > len(shown):
        rest = [sum(row.get(name) or 0 for name in names[len(shown) :]) for row in weights]
        series.append(Series(f"{len(names) - len(shown)} others", x, rest))
    return line_chart(series, "round", "weight")


def number(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, (int, float)) else "–"


def percent(value: Any) -> str:
    return f"{100 * value:.1f} %" if isinstance(value, (int, float)) else "–"
