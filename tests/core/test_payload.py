"""Payloads: one encoding, readable by any safetensors reader; invalid bytes are rejected."""

from __future__ import annotations

import contextlib
import json
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors

from fedwild.core.errors import BadReply
from fedwild.core.payload import Payload, check_finite, check_like

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


def example() -> Payload:
    weights = {"a.weight": torch.arange(6.0).view(2, 3), "a.count": torch.tensor(7), "empty": torch.empty(0, 4)}
    return Payload.of(model=weights, mask={"bits": torch.tensor([1, 0, 1], dtype=torch.bool)}, info={"samples": 3})


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_survives_a_round_trip(dtype: torch.dtype) -> None:
    tensor = torch.tensor([[0, 1, 1], [1, 0, 1]]).to(dtype)
    copy = Payload.decode(Payload({"t": tensor}).encode())
    assert copy.tensors["t"].dtype == dtype
    assert torch.equal(copy.tensors["t"], tensor)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.dictionaries(st.text(min_size=1, max_size=8), st.lists(st.integers(0, 4), max_size=3), max_size=5))
def test_any_names_and_shapes_survive_a_round_trip(shapes: dict[str, list[int]]) -> None:
    payload = Payload({name: torch.rand(shape) for name, shape in shapes.items() if name != "__metadata__"})
    copy = Payload.decode(payload.encode())
    assert copy.tensors.keys() == payload.tensors.keys()
    assert all(torch.equal(copy.tensors[name], payload.tensors[name]) for name in copy.tensors)


def test_the_bytes_are_safetensors(tmp_path: Path) -> None:
    payload = example()
    theirs = load_safetensors(bytes(payload.encode()))
    assert theirs.keys() == payload.tensors.keys()
    assert all(torch.equal(theirs[name], payload.tensors[name]) for name in theirs)
    payload.write(tmp_path / "p.safetensors")
    with safe_open(tmp_path / "p.safetensors", framework="pt") as file:
        assert json.loads(file.metadata()["fedwild"]) == {"samples": 3}


def test_bytes_of_the_safetensors_library_can_be_read() -> None:
    tensors = {"b": torch.rand(3, 2), "a": torch.arange(5)}
    copy = Payload.decode(save_safetensors(tensors))
    assert all(torch.equal(copy.tensors[name], tensors[name]) for name in tensors)


def test_equal_payloads_give_equal_bytes_in_any_order() -> None:
    one = Payload({"a": torch.ones(2), "b": torch.zeros(1)}, {"x": 1, "y": 2})
    two = Payload({"b": torch.zeros(1), "a": torch.ones(2)}, {"y": 2, "x": 1})
    assert one.encode() == two.encode()


def test_views_and_gradients_are_encoded_by_value() -> None:
    base = torch.arange(12.0).view(3, 4).requires_grad_()
    copy = Payload.decode(Payload({"t": base.t()[1:]}).encode())
    assert torch.equal(copy.tensors["t"], base.detach().t()[1:])
    assert not copy.tensors["t"].requires_grad


def test_groups_can_be_nested_and_replaced() -> None:
    payload = Payload.of(model={"w": torch.ones(1), "b": torch.ones(1)})
    payload.put("bank/client-b", {"w": torch.ones(1)})
    payload.put("bank/client-a", {"w": torch.zeros(1)})
    assert list(payload.subgroups("bank")) == ["client-a", "client-b"]
    assert payload.subgroups("bank")["client-a"]["w"].tolist() == [0.0]
    payload.put("model", {"w": torch.zeros(1)})
    assert list(payload.group("model")) == ["w"]
    assert "bank" in payload
    assert "ban" not in payload


@pytest.mark.parametrize("length", [0, 4, 8, 30, 100, -1])
def test_a_truncated_payload_is_rejected(length: int) -> None:
    data = example().encode()
    with pytest.raises(BadReply):
        Payload.decode(data[:length])


ENTRY = '{"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}'


def framed(header: bytes, body: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header)) + header + body


def corrupted(change: dict[str, object], extra: bytes = b"") -> bytes:
    """One float32 tensor of shape (2,) whose header entry is changed."""
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **change}
    header = json.dumps({"t": entry}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(8) + extra


@pytest.mark.parametrize(
    "data",
    [
        corrupted({"dtype": "PICKLE"}),
        corrupted({"shape": [3]}),
        corrupted({"shape": [-2]}),
        corrupted({"shape": "two"}),
        corrupted({"data_offsets": [0, 80], "shape": [20]}),
        corrupted({"data_offsets": [4, 12]}),
        corrupted({"data_offsets": [8, 0]}),
        corrupted({"data_offsets": None}),
        corrupted({}, extra=b"tail"),
        corrupted({"shape": [float("inf")]}),
        corrupted({"shape": [0, 2**62, 2**62], "data_offsets": [0, 0]}),
        corrupted({"shape": [1] * 50 + [2]}),
        corrupted({"shape": [2.0]}),
        corrupted({"shape": ["2"]}),
        corrupted({"shape": [True, 2]}),
        corrupted({"data_offsets": [0.0, 8.0]}),
        corrupted({"data_offsets": [0, 8, 8]}),
        corrupted({"dtype": ["F32"]}),
        corrupted({"more": 1}),
        framed(b'{"t": {"dtype": "F32", "shape": [2], "shape": [2], "data_offsets": [0, 8]}}', bytes(8)),
        framed(f'{{"t": {ENTRY}, "t": {ENTRY}}}'.encode(), bytes(8)),
        framed(f'{{"t":{ENTRY},"t":{ENTRY}}}'.replace(" ", "").encode(), bytes(8)),
        framed(f'{{"t": {ENTRY}}}'.encode("utf-16"), bytes(8)),
        framed(f'{{"t": {ENTRY}}}'.encode("utf-16-le"), bytes(8)),
        framed(f'{{"t": {ENTRY}}}'.encode("utf-8-sig"), bytes(8)),
        framed(f'{{"t": {ENTRY}}} {{}}'.encode(), bytes(8)),
        framed(f'{{"t": {ENTRY},}}'.encode(), bytes(8)),
        framed(f'{{"{"x" * 1001}": {ENTRY}}}'.encode(), bytes(8)),
        framed(f'{{"\\ud800": {ENTRY}}}'.encode(), bytes(8)),
        framed(b"{"),
        framed(b'{"'),
        framed(b'{"t":'),
        struct.pack("<Q", 200_000) + b"[" * 200_000,
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 3) + b"{x}",
        struct.pack("<Q", 2**62) + b"{}",
        b"\x80\x04\x95" + bytes(20),
    ],
)
def test_an_invalid_header_is_rejected(data: bytes) -> None:
    with pytest.raises(BadReply):
        Payload.decode(data)


@pytest.mark.parametrize(
    "metadata",
    [
        {"fedwild": "[1]"},
        {"fedwild": "{"},
        {"fedwild": 3},
        [1],
        {"fedwild": "[" * 100_000},
        {"fedwild": " " * 5_000_000},
        {"fedwild": '{"samples": 1, "samples": 2}'},
        {"fedwild": '{"nested": {"a": 1, "a": 2}}'},
        {"fedwild": f'{{"samples": {"9" * 400}}}'},
        {"fedwild": f'{{"samples": {"9" * 5000}}}'},
    ],
)
def test_an_invalid_json_part_is_rejected(metadata: object) -> None:
    header = json.dumps({"__metadata__": metadata}).encode()
    with pytest.raises(BadReply):
        Payload.decode(struct.pack("<Q", len(header)) + header)


@pytest.mark.parametrize(
    "header",
    [
        b'{"t":' + b"[]," * 5_000_000,
        b"{" + b'"a":{},' * 2_000_000 + b"}",
        b'{"t":{"dtype":"F32","shape":[' + b"0," * 7_000_000 + b"0]}}",
        b'{"__metadata__":{"fedwild":[' + b"{}," * 5_000_000 + b"{}]}}",
        b"{" + b" " * 15_000_000,
        b" " * 17_000_000,
    ],
    ids=["lists", "entries", "shape", "metadata", "space", "too long"],
)
def test_a_large_invalid_header_costs_little_memory(header: bytes) -> None:
    data = bytearray(framed(header))
    tracemalloc.start()
    with pytest.raises(BadReply):
        Payload.decode(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * len(header) + 1_000_000


def test_headers_of_other_writers_are_read() -> None:
    spaced = f' {{ "t" : {ENTRY} ,\n "__metadata__" : {{ "format" : "pt" , "fedwild" : "{{}}" }} }} '
    assert Payload.decode(framed(spaced.encode(), bytes(8))).tensors["t"].tolist() == [0.0, 0.0]
    named = Payload({'a "quoted" \\ name\n': torch.ones(1), "ü北": torch.zeros(1)})
    assert Payload.decode(named.encode()).tensors.keys() == named.tensors.keys()
    unescaped = f'{{"ü北":{ENTRY}}}'.replace(" ", "")
    assert list(Payload.decode(framed(unescaped.encode(), bytes(8))).tensors) == ["ü北"]


def test_a_file_may_have_a_longer_header_than_a_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    payload = Payload({f"bank/client-{number}/w": torch.zeros(1) for number in range(100)})
    payload.write(tmp_path / "checkpoint")
    with pytest.raises(BadReply, match="too long"):
        Payload.decode(payload.encode(), max_header_bytes=1000)
    monkeypatch.setattr("fedwild.core.header.MAX_HEADER_BYTES", 1000)
    assert len(Payload.read(tmp_path / "checkpoint").tensors) == 100


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.binary(max_size=64), st.integers(0, 200))
def test_random_damage_raises_no_other_error(noise: bytes, at: int) -> None:
    data = bytearray(example().encode())
    data[at : at + len(noise)] = noise
    with contextlib.suppress(BadReply):
        Payload.decode(data)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_tensor_with_non_finite_values_is_rejected_by_name(value: float) -> None:
    with pytest.raises(BadReply, match="model/w"):
        check_finite(Payload.of(model={"w": torch.tensor([1.0, value])}))


def test_large_but_finite_values_pass() -> None:
    check_finite(Payload.of(model={"w": torch.full((4,), 3e38), "n": torch.tensor([2**62])}))


@pytest.mark.parametrize(
    "tensors",
    [{}, {"w": torch.ones(3)}, {"w": torch.ones(2).double()}, {"w": torch.ones(2), "extra": torch.ones(1)}],
)
def test_a_group_that_differs_from_the_expected_one_is_rejected(tensors: dict[str, torch.Tensor]) -> None:
    with pytest.raises(BadReply, match="model"):
        check_like(tensors, {"w": torch.ones(2)}, "model")


def test_a_failed_write_keeps_the_old_file_and_leaves_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.safetensors"
    example().write(path)
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError):
        Payload().write(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["file.safetensors"]


def test_empty_numpy_arrays_survive_a_round_trip() -> None:
    # Their strides are 0, and torch cannot view those as bytes.
    tensors = {"counts": torch.as_tensor(np.empty(0, dtype=np.int64)), "rows": torch.as_tensor(np.empty((0, 3)))}
    copy = Payload.decode(Payload(tensors).encode())
    assert {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in copy.tensors.items()} == {
        "counts": ((0,), torch.int64),
        "rows": ((0, 3), torch.float64),
    }
