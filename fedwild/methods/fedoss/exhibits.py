"""What a report shows about FedOSS: figures of its boundary samples, and samples on which personal heads disagree."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fedwild.contract import BarExhibit, CurveExhibit, Exhibit, Record
from fedwild.core.errors import UserError
from fedwild.methods.fedoss.disputed import find_disputed, show_disputed
from fedwild.methods.fedoss.layout import Layouts
from fedwild.methods.fedoss.settings import FedOSSParams

SECTION = "Boundary samples"
PARTS = {"model_bytes": "model", "head_bytes": "personal head", "statistics_bytes": "statistics"}
OVER_CLIENTS: dict[str, Callable[[list[float]], float]] = {
    "mean over clients": lambda values: sum(values) / len(values),
    "minimum": min,
    "maximum": max,
}


def boundary_exhibits(record: Record, params: FedOSSParams, layouts: Layouts) -> list[Exhibit]:
    """Return the clients' figures by round, the sizes of their replies, and images of disputed samples."""
    shares, distances = (reported(record.events, key) for key in ("boundary", "displacement"))
    if not shares:
        return []
    sizes = {name: sum(map(sum, reported(record.events, key).values())) / 1e6 for key, name in PARTS.items()}
    about_shares = "Share of a client's samples that lie near a decision boundary."
    about_distances = "How far boundary samples are pushed, in units of their own length."
    return [
        CurveExhibit(SECTION, "Boundary samples", about_shares, "round", "share of samples", lines(shares), True),
        CurveExhibit(SECTION, "Displacement", about_distances, "round", "lengths", lines(distances)),
        BarExhibit(SECTION, "Replies", "Megabytes that all clients sent, by content.", sizes),
        disputed_exhibit(record, params, layouts),
    ]


def reported(events: Iterable[Mapping[str, Any]], key: str) -> dict[int, list[float]]:
    """Return the numbers that clients reported under a key, by number of the round."""
    # A resumed run may repeat a round: the last reply of a client counts.
    infos = {(e["index"] + 1, e["client"]): e.get("info") or {} for e in events if e["event"] == "client"}
    values: dict[int, list[float]] = {}
    for number, client in sorted(infos):
        value = infos[number, client].get(key)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            values.setdefault(number, []).append(float(value))
    return values


def lines(values: Mapping[int, list[float]]) -> dict[str, list[tuple[float, float]]]:
    """Return the mean, minimum and maximum over clients as lines over rounds."""
    return {name: [(float(x), of(found)) for x, found in values.items()] for name, of in OVER_CLIENTS.items()}


def disputed_exhibit(record: Record, params: FedOSSParams, layouts: Layouts) -> Exhibit:
    """Return images of disputed samples, or the reason why there are none."""
    title = "What clients disagree about"
    try:
        return show_disputed(find_disputed(record, params, layouts), record.server.classes.names, SECTION, title)
    except UserError as error:
        return Exhibit(SECTION, title, str(error))
