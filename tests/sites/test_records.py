"""Envelopes as Flower's messages relay them."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="needs fedwild[flower]")

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedwild.core.errors import BadReply
from fedwild.sites.envelope import Envelope
from fedwild.sites.records import from_record, to_record


def test_envelope_is_one_text_and_one_packed_array() -> None:
    records = to_record(Envelope({"kind": "job"}, b"\x01\x02\x03"))
    arrays = [array for record in records.array_records.values() for array in record.values()]
    assert [(array.dtype, array.shape, array.data) for array in arrays] == [("uint8", (3,), b"\x01\x02\x03")]
    assert from_record(records) == Envelope({"kind": "job"}, bytearray(b"\x01\x02\x03"))
    assert from_record(to_record(Envelope({"kind": "hello"}))) == Envelope({"kind": "hello"}, b"")


@pytest.mark.parametrize(
    "records",
    [
        RecordDict(),
        RecordDict({"head": ConfigRecord({"head": 3})}),
        RecordDict({"head": ConfigRecord({"head": "no json"})}),
        RecordDict({"head": ConfigRecord({"head": "{}"}), "body": ArrayRecord()}),
        RecordDict({"head": ConfigRecord({"head": "{}"}), "body": ArrayRecord({"body": Array(np.zeros(3))})}),
        RecordDict(
            {"head": ConfigRecord({"head": "{}"}), "body": ArrayRecord({"body": Array("uint8", (9,), "fedwild", b"1")})}
        ),
    ],
    ids=["nothing", "number", "no-json", "no-array", "numpy-array", "wrong-length"],
)
def test_message_without_an_envelope_is_rejected(records: RecordDict) -> None:
    with pytest.raises(BadReply):
        from_record(records)
