"""Digests reveal any change of a payload file or a JSON file, and other readers still open the files."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from fedwild.core.errors import BadReply
from fedwild.core.payload import MAX_UNCHECKED_BYTES, Payload
from fedwild.core.seal import open_json, seal_json


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    generator = torch.Generator().manual_seed(0)
    tensors = {"b": torch.arange(5), "a": torch.randn(3, 4, generator=generator), "none": torch.zeros(0, 3)}
    path = tmp_path / "payload.safetensors"
    Payload.of({"samples": 3, "name": "é"}, model=tensors).write(path)
    return path


def test_a_flipped_bit_in_any_byte_of_a_payload_file_is_found_or_changes_nothing(sealed: Path) -> None:
    data, before = sealed.read_bytes(), Payload.read(sealed)
    missed, draw = [], random.Random(0)
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1 << draw.randrange(8)
        sealed.write_bytes(changed)
        try:
            after = Payload.read(sealed)
        except BadReply:
            continue
        if after.info != before.info or after.encode() != before.encode():
            missed.append(place)
    assert not missed


@pytest.mark.parametrize("change", ["missing", "renamed", "reshaped", "other type", "other info"])
def test_a_valid_file_of_other_content_fails_its_digest(sealed: Path, change: str) -> None:
    digest = metadata(sealed)["digest"]
    payload = Payload.read(sealed)
    if change == "missing":
        del payload.tensors["model/none"]
    elif change == "renamed":
        payload.tensors["model/c"] = payload.tensors.pop("model/b")
    elif change == "reshaped":
        payload.tensors["model/a"] = payload.tensors["model/a"].reshape(4, 3)
    elif change == "other type":
        payload.tensors["model/b"] = payload.tensors["model/b"].view(torch.float64)
    else:
        payload.info["samples"] = 4
    data = payload.encode(sealed=True)
    sealed.write_bytes(data.replace(json.loads(header(data))["__metadata__"]["digest"].encode(), digest.encode()))
    with pytest.raises(BadReply, match="does not match its digest"):
        Payload.read(sealed)


def test_a_file_without_a_digest_is_not_read_as_a_sealed_one(sealed: Path) -> None:
    Payload.read(sealed).write(sealed, durable=False)
    assert Payload.read(sealed, sealed=False).info["samples"] == 3
    with pytest.raises(BadReply, match="does not match its digest"):
        Payload.read(sealed)


def test_other_readers_open_a_sealed_file(sealed: Path) -> None:
    with safe_open(str(sealed), "pt") as file:
        assert torch.equal(file.get_tensor("model/b"), torch.arange(5))
        assert json.loads(file.metadata()["fedwild"])["samples"] == 3


def test_a_file_of_a_false_size_costs_no_memory(sealed: Path) -> None:
    with sealed.open("r+b") as file:
        file.truncate(1 << 42)
    assert sealed.stat().st_size > MAX_UNCHECKED_BYTES
    with pytest.raises(BadReply, match="its header describes"):
        Payload.read(sealed)


def test_json_gives_back_what_was_sealed_and_finds_flipped_bits() -> None:
    table = {"b": [1, 2.5, None], "a": {"x": "é"}}
    data = seal_json(table)
    assert open_json(data) == table
    draw = random.Random(0)
    for _ in range(300):
        changed = bytearray(data)
        changed[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        try:
            assert open_json(bytes(changed)) == table
        except ValueError:
            continue


@pytest.mark.parametrize("text", ["", "[]", "3", "{}", '{"digest": 3}', "[" * 100_000, '{"a": ' + "9" * 5000 + "}"])
def test_other_json_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"it is not JSON|not a JSON object|does not match its digest"):
        open_json(text.encode())


def header(data: bytes) -> bytes:
    return data[8 : 8 + int.from_bytes(data[:8], "little")]


def metadata(path: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads(header(path.read_bytes()))["__metadata__"]
    return found
