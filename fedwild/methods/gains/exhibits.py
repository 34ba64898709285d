"""What a report shows about newcomers: what they brought, what was forgotten, and how much each client contributed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedwild.contract import CurveExhibit, Exhibit, Record, TableExhibit
from fedwild.core.text import count, percent
from fedwild.methods.gains.discover import BRINGS

SECTION = "Newcomers"
MAX_LINES = 8
MISSING = "-"


def newcomer_exhibits(record: Record) -> list[Exhibit]:
    """Return a table per decision and per judgement, then the clients' weights over the rounds of adaptation."""
    rounds = [event for event in record.findings("weights") if event.get("phase", "").startswith("adapt-")]
    return [
        *map(discovery_table, record.findings("discovery")),
        *map(judgement_table, record.findings("judgement")),
        *(weight_curves(rounds, part) for part in ("encoder", "classifier") if any(part in event for event in rounds)),
    ]


def discovery_table(event: Mapping[str, Any]) -> TableExhibit:
    """Return the figures behind a decision with their limits, and the paper's Diff^F and Diff^C."""
    newcomer, decided = event["client"], event["decided"]
    names = f" ({', '.join(event['classes'])})" if event["classes"] else ""
    rows = [(name, number(value), number(limit)) for name, (value, limit) in decided.items()]
    paper = {"Diff^F": event["diff_f"], "Diff^C": event["diff_c"]}
    rows += [(name, number(value), MISSING) for name, value in paper.items() if name not in decided]
    text = f"{newcomer} brings {BRINGS[event['kind']]}{names}."
    return TableExhibit(SECTION, f"What {newcomer} brings", text, ("figure", "value", "limit"), rows)


def judgement_table(event: Mapping[str, Any]) -> TableExhibit:
    """Return the validation accuracy of both sides before and after a newcomer's welcome."""
    sides = {"source clients": event["sources"], str(event["client"]): event["newcomer"]}
    rows = [(name, str(side["samples"]), percent(side["before"]), percent(side["now"])) for name, side in sides.items()]
    forgotten = event["forgotten"]
    if forgotten is None:
        text = "Without validation samples, it is not known how much source clients forgot."
    else:
        text = f"Validation accuracy. Source clients forgot {percent(forgotten) if forgotten > 0 else 'nothing'}."
    if event["refused"]:
        text += f" This exceeds the limit, so the federation was restored without {event['client']}."
    return TableExhibit(SECTION, "Before and after", text, ("clients", "samples", "before", "now"), rows)


def weight_curves(events: Sequence[Mapping[str, Any]], part: str) -> CurveExhibit:
    """Return the weights of clients in the joint encoder or classifier: the largest, and all others as one line."""
    rounds = {float(event["index"] + 1): event[part] for event in events if part in event}
    names = sorted(
        {name for weights in rounds.values() for name in weights},
        key=lambda name: -sum(weights.get(name) or 0.0 for weights in rounds.values()),
    )
    most = len(names) if len(names) <= MAX_LINES else MAX_LINES - 1
    shown, rest = names[:most], names[most:]
    lines = {n: [(x, weights[n]) for x, weights in rounds.items() if weights.get(n) is not None] for n in shown}
    if rest:
        others = [(x, sum(weights.get(name) or 0.0 for name in rest)) for x, weights in rounds.items()]
        lines[count(len(rest), "other client")] = others
    text = "Weight of each client's model in the joint model."
    return CurveExhibit(SECTION, f"Contributions to the {part}", text, "round", "weight", lines)


def number(value: float | None) -> str:
    """Return a figure with three significant digits."""
    return MISSING if value is None else f"{value:.3g}"
