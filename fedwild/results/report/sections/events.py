"""Events that are worth reading: notes, failures of clients, clients that join."""

from __future__ import annotations

from typing import Any

from fedwild.results.report.facts import Facts
from fedwild.results.report.figure import table
from fedwild.results.report.guard import reason
from fedwild.results.report.markup import Html, joined, tag
from fedwild.results.report.sections.overview import time_text

MAX_LINES = 200


def draw(facts: Facts) -> Html:
    """Return a table of the last events."""
    lines = [line for event in facts.history.events for line in lines_of(event)]
    if not lines:
        return reason("No notes and no failures; no client joined.")
    part = f"The last {MAX_LINES} of {len(lines)}; see events.jsonl for all." if len(lines) > MAX_LINES else ""
    rows = table(["time (UTC)", "round", "event"], lines[-MAX_LINES:], text_columns=3)
    return joined([tag("p", part, class_="note") if part else None, rows])


def lines_of(event: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return an event as lines of time, round and text; nothing for most events."""
    client, kind = event.get("client"), event.get("event")
    texts = {
        "note": [f"{event.get('text')}"],
        "client-failed": [f"{client} is excluded from this round: {event.get('reason')}"],
        "join": [f"{client} joins{' as a newcomer' if event.get('newcomer') else ''}"],
        "site-left": [f"{client} is disconnected"],
        "site-refused": [f"a site is rejected: {event.get('reason')}"],
        "skip": [f"{event.get('phase')} is skipped"],
        "resume": [f"resumed with round {int(event.get('next_index') or 0) + 1}"],
        "client": [f"{client}: {note}" for note in event.get("notes", [])],
    }.get(str(kind), [])
    number = str(event["index"] + 1) if isinstance(event.get("index"), int) else ""
    return [(time_text(event.get("time")), number, text) for text in texts]
