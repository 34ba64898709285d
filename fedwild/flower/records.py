"""Letters as Flower's records: one text and one packed array of bytes."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedwild.errors import BadReply
from fedwild.flower.letters import Letter, letter_of

HEAD, BODY = "head", "body"


def record_of(letter: Letter) -> RecordDict:
    """The content of a Flower message that carries a letter."""
    records = RecordDict()
    records[HEAD] = ConfigRecord({HEAD: letter.head_text()})
    if letter.body:
        # Made by hand: Flower's own conversion of a NumPy array would copy it into another format first.
        array = Array(dtype="uint8", shape=(len(letter.body),), stype="fedwild", data=bytes(letter.body))
        records[BODY] = ArrayRecord({BODY: array})
    return records


def letter_in(records: RecordDict) -> Letter:
    """The letter that a Flower message carries; a message of another kind raises `BadReply`."""
    heads, bodies = records.config_records, records.array_records
    text = heads[HEAD].get(HEAD) if HEAD in heads else None
    if not isinstance(text, str):
        raise BadReply("a message has no letter in it")
    if BODY not in bodies:
        return letter_of(text, b"")
    array = bodies[BODY].get(BODY)
    if array is None or array.dtype != "uint8" or array.stype != "fedwild" or tuple(array.shape) != (len(array.data),):
        raise BadReply("a letter's body is not one packed array of bytes")
    return letter_of(text, bytearray(array.data))
