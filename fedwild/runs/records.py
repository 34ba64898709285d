"""What the JSON of a run folder must look like, so that a damaged or foreign folder is refused with a sentence."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

MAX_COUNT = 2**53
MAX_SIDE = 65_536
MAX_REFERENCE = 256
"""The largest number of quantiles of validation scores."""
MAX_SAMPLE = 2**28
"""The largest number of values in one sample."""


def _folder_name(name: str) -> str:
    """Reject a client's name that leads out of the run folder."""
    if name in {"", ".", ".."} or "/" in name or "\0" in name:
        raise ValueError(f"{name[:40]!r} is not the name of a client")
    return name


def _sample_shape(shape: list[int]) -> list[int]:
    if math.prod(shape) > MAX_SAMPLE:
        raise ValueError("the shape is too large")
    return shape


def _threshold(text: str) -> str:
    if math.isnan(float(text)):
        raise ValueError("a threshold is not a number")
    return text


Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
ClientName = Annotated[str, AfterValidator(_folder_name)]
Figures = dict[str, float | None]


class Record(BaseModel):
    """A table with known fields. Other fields are allowed: a method or a later version may add some."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)


class InputFacts(Record):
    shape: Annotated[
        list[Annotated[int, Field(ge=1, le=MAX_SIDE)]],
        Field(min_length=1, max_length=4),
        AfterValidator(_sample_shape),
    ]
    dtype: Literal["uint8", "float32"]


class PreviousRun(Record):
    run: str
    method: str
    rounds: Count


class Facts(Record):
    """run.json."""

    data: str = ""
    input: InputFacts | None = None
    config: dict[str, Any] = {}
    start_from: str | None = None
    history: list[PreviousRun] = []
    first_index: Count = 0
    inherited_bytes: Count = 0
    id: str = ""
    identities: dict[str, str] = {}
    files: dict[str, str] = {}
    versions: dict[str, str] = {}


class Result(Record):
    """result.json."""

    method: str
    data: str | list[str]
    seed: Count
    rounds: Count
    clients: Count
    classes: list[str]
    metrics: Figures
    by: dict[str, Figures]
    thresholds: Figures
    seconds: float
    bytes_up: Count
    bytes_down: Count
    log: str = ""


class StepRecord(Record):
    phase: str
    round: Count
    index: Count


class ClassRecord(Record):
    name: str
    origin: str
    since: Count
    stage: Count = 0
    samples: dict[str, Count] = {}


class ReferenceRecord(Record):
    name: str
    quantiles: Annotated[int, Field(ge=0, le=MAX_REFERENCE)]
    count: Count
    temperature: Annotated[float, Field(gt=0)]


class ServerRecord(Record):
    """The JSON part of a model or a checkpoint."""

    state: dict[str, Any]
    classes: list[ClassRecord]
    clients: list[ClientName]
    thresholds: dict[str, Annotated[str, AfterValidator(_threshold)]]
    step: StepRecord
    references: list[ReferenceRecord] = []


class LedgerRecord(Record):
    next_index: Count
    states: dict[ClientName, Count]
    bytes_up: Count
    bytes_down: Count
    seconds: float
    joined: dict[ClientName, dict[str, Any]]
    evaluation: dict[str, Any] | None
    log: str = ""


class CheckpointRecord(ServerRecord):
    ledger: LedgerRecord


class EventRecord(Record):
    """A line of events.jsonl."""

    event: str
    time: float
    index: Count = 0


class StartEvent(EventRecord):
    rounds: Count


class ResumeEvent(StartEvent):
    next_index: Count


class PhaseEvent(EventRecord):
    index: Count
    phase: str


class RoundEvent(PhaseEvent):
    loss: float | None
    seconds: float
    evaluation_seconds: float
    metrics: Figures | None
    by: dict[str, Figures] | None = None
    participants: list[str] = []


class ClientEvent(PhaseEvent):
    client: str
    bytes_up: Count
    bytes_down: Count
    seconds: float = 0.0
    info: dict[str, Any] = {}
    notes: list[str] = []
    reason: str = ""
    traceback: str | None = None


class NoteEvent(EventRecord):
    text: str


class FindingEvent(PhaseEvent):
    what: str


class JoinEvent(EventRecord):
    client: str


class NameEvent(EventRecord):
    old: str
    new: str


class EndEvent(EventRecord):
    metrics: Figures


EVENTS: dict[str, type[EventRecord]] = {
    "start": StartEvent,
    "resume": ResumeEvent,
    "round-start": PhaseEvent,
    "round": RoundEvent,
    "skip": PhaseEvent,
    "client": ClientEvent,
    "client-failed": ClientEvent,
    "note": NoteEvent,
    "finding": FindingEvent,
    "join": JoinEvent,
    "wait": JoinEvent,
    "name": NameEvent,
    "end": EndEvent,
}


def check_event(row: Any) -> None:
    """Raise `ValueError` unless a line of the log has the fields on which readers rely."""
    kind = row.get("event") if isinstance(row, dict) else None
    check_record(EVENTS.get(kind, EventRecord) if isinstance(kind, str) else EventRecord, row)


def check_record(kind: type[Record], table: Any) -> None:
    """Raise `ValueError` with the first problem of a table."""
    try:
        kind.model_validate(table)
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(str(part)[:40] for part in problem["loc"])
        raise ValueError(f"{place}: {problem['msg'].removeprefix('Value error, ')}") from None
