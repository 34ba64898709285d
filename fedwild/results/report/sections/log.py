"""What happened on the way: notes, failures of clients, arrivals."""

from __future__ import annotations

from typing import Any

from fedwild.results.report.facts import Facts
from fedwild.results.report.figure import table
from fedwild.results.report.markup import Html, joined, tag
from fedwild.results.report.sections.overview import moment

MAX_LINES = 200


def draw(facts: Facts) -> Html:
    """A table of events that are worth reading."""
    lines = [line for event in facts.history.events for line in lines_of(event)]
    if not lines:
        return tag("p", "Nothing out of the ordinary: no notes, no failures, nobody joined.", class_="why")
    part = f"The last {MAX_LINES} of {len(lines)}; events.jsonl has all." if len(lines) > MAX_LINES else ""
    rows = table(["time (UTC)", "round", "what"], lines[-MAX_LINES:], text_columns=3)
    return joined([tag("p", part, class_="note") if part else None, rows])


def lines_of(event: dict[str, Any]) -> list[tuple[str, str, str]]:
    """An event as lines of time, round and text; most events say nothing here."""
    client, kind = event.get("client"), event.get("event")
    texts = {
        "note": [f"{event.get('text')}"],
        "client-failed": [f"{client} is left out of this round: {event.get('reason')}"],
        "join": [f"{client} joins{', to be welcomed' if event.get('newcomer') else ''}"],
        "site-left": [f"{client} is not connected any more"],
        "site-refused": [f"a site is refused: {event.get('reason')}"],
        "skip": [f"{event.get('phase')}: not needed"],
        "resume": [f"resumed with round {int(event.get('next_index') or 0) + 1}"],
        "client": [f"{client}: {note}" for note in event.get("notes", [])],
    }.get(str(kind), [])
    number = str(event["index"] + 1) if isinstance(event.get("index"), int) else ""
    return [(moment(event.get("time")), number, text) for text in texts]
