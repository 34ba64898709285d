"""Envelopes as Flower's records: one text and one packed array of bytes."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedwild.core.errors import BadReply
from fedwild.sites.envelope import Envelope

HEAD, BODY = "head", "body"


def to_record(envelope: Envelope) -> RecordDict:
    """Return the content of a Flower message that holds an envelope."""
    records = RecordDict()
    records[HEAD] = ConfigRecord({HEAD: envelope.head_text()})
    if envelope.body:
        # Built by hand, since Flower's own conversion of a NumPy array would first copy it into another format.
        array = Array(dtype="uint8", shape=(len(envelope.body),), stype="fedwild", data=bytes(envelope.body))
        records[BODY] = ArrayRecord({BODY: array})
    return records


def from_record(records: RecordDict) -> Envelope:
    """Return the envelope in a Flower message. Raises `BadReply` if there is none."""
    heads, bodies = records.config_records, records.array_records
    text = heads[HEAD].get(HEAD) if HEAD in heads else None
    if not isinstance(text, str):
        raise BadReply("message has no head")
    if BODY not in bodies:
        return Envelope.parse(text, b"")
    array = bodies[BODY].get(BODY)
    if array is None or array.dtype != "uint8" or array.stype != "fedwild" or tuple(array.shape) != (len(array.data),):
        raise BadReply("message body is not one packed array of bytes")
    return Envelope.parse(text, bytearray(array.data))
