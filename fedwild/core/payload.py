"""Payloads: named tensors plus plain JSON, in one encoding for messages, checkpoints and models.

The bytes are the safetensors format (an 8-byte header length, a JSON header, the raw tensors), so any
safetensors reader opens a payload, a checkpoint or a model. The JSON part is in the header's metadata under the
key `fedwild`. A sealed payload also has the key `digest` there: the digest of the JSON part and of the name, type,
shape and bytes of every tensor, in the order of names. Files that last are sealed. Nothing is ever unpickled.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedwild.core.errors import BadReply
from fedwild.core.header import MAX_HEADER_BYTES, UNIQUE_KEYS, TensorEntry, read_header
from fedwild.core.seal import DIGEST, digest_of
from fedwild.core.storage import open_regular, write_atomically

_DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_ALIGN = 8

# Far above any valid payload: a malicious one must not cost more memory than its bytes.
MAX_INFO_BYTES = 4_000_000
MAX_DIMENSIONS = 8
MAX_UNCHECKED_BYTES = 100_000_000
"""The header of a larger file is read first: a file with a false size must not cost memory."""


@dataclass
class Payload:
    """Tensors named `group/name` and a JSON object.

    A *group* holds the tensors with a common prefix, usually a state dict: `payload.group("model")`. Groups may be
    nested: `bank/client-00` is a group inside `bank`.
    """

    tensors: dict[str, Tensor] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, info: Mapping[str, Any] | None = None, **groups: Mapping[str, Tensor]) -> Payload:
        """Return a payload of these groups: `Payload.of(model=weights, info={"samples": 12})`."""
        payload = cls(info=dict(info or {}))
        for name, group in groups.items():
            payload.put(name, group)
        return payload

    def put(self, group: str, tensors: Mapping[str, Tensor]) -> None:
        """Replace a group."""
        self.drop(group)
        self.add(group, tensors)

    def add(self, group: str, tensors: Mapping[str, Tensor]) -> None:
        """Add tensors to a group and keep those it has; unlike `put`, this does not search all tensors."""
        for name, tensor in tensors.items():
            self.tensors[f"{group}/{name}"] = tensor

    def drop(self, group: str) -> None:
        """Remove a group if it exists."""
        for name in [name for name in self.tensors if name.startswith(group + "/")]:
            del self.tensors[name]

    def group(self, group: str) -> dict[str, Tensor]:
        """Return the tensors of a group, without its prefix; empty if there is no such group."""
        cut = len(group) + 1
        return {name[cut:]: tensor for name, tensor in self.tensors.items() if name.startswith(group + "/")}

    def only(self, group: str, names: Iterable[str]) -> Payload:
        """Return a payload with only these tensors of one group and the same JSON part."""
        held = self.group(group)
        return Payload.of(self.info, **{group: {name: held[name] for name in names if name in held}})

    def subgroups(self, group: str) -> dict[str, dict[str, Tensor]]:
        """Return the groups directly inside `group`, sorted by name, in one pass over all tensors."""
        found: dict[str, dict[str, Tensor]] = {}
        for name, tensor in self.group(group).items():
            subgroup, slash, rest = name.partition("/")
            if slash:
                found.setdefault(subgroup, {})[rest] = tensor
        return dict(sorted(found.items()))

    def __contains__(self, group: str) -> bool:
        return any(name.startswith(group + "/") for name in self.tensors)

    def encode(self, sealed: bool = False) -> bytes:
        """Return safetensors bytes; equal payloads give equal bytes. Sealed bytes contain their digest."""
        info = json.dumps(self.info, sort_keys=True)
        metadata, entries = {"fedwild": info}, dict[str, TensorEntry]()
        offset = 0
        parts: dict[str, memoryview] = {}
        # The format requires wide types first, so that every tensor is aligned.
        for name in sorted(self.tensors, key=lambda name: (-self.tensors[name].element_size(), name)):
            tensor = self.tensors[name].detach().to("cpu").contiguous()
            entries[name] = TensorEntry(_NAMES[tensor.dtype], list(tensor.shape), offset, offset + tensor.nbytes)
            offset += tensor.nbytes
            # NumPy's empty arrays have strides that torch cannot view as bytes.
            if tensor.nbytes:
                parts[name] = tensor.reshape(-1).view(torch.uint8).numpy().data
        if sealed:
            metadata[DIGEST] = _digest(info, entries, parts)
        header = {"__metadata__": metadata, **{name: entry.to_json() for name, entry in entries.items()}}
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % _ALIGN)
        return b"".join([struct.pack("<Q", len(text)), text, *parts.values()])

    @classmethod
    def decode(cls, data: bytes | bytearray, sealed: bool = False, max_header_bytes: int = MAX_HEADER_BYTES) -> Payload:
        """Return the payload in `data`; raise `BadReply` unless `data` is exactly one valid payload.

        `sealed` requires a digest that matches. The tensors share memory with `data`, or with a copy of it if it is
        immutable.
        """
        buffer = data if isinstance(data, bytearray) else bytearray(data)
        entries, metadata, start = read_header(buffer, max_header_bytes)
        text = metadata.get("fedwild", "{}")
        if len(text) > MAX_INFO_BYTES:
            raise BadReply(f"the JSON part of the payload is too long ({len(text)} bytes)")
        try:
            info = UNIQUE_KEYS.decode(text)
        except (ValueError, RecursionError) as error:
            raise BadReply("the JSON part of the payload is invalid") from error
        if not isinstance(info, dict):
            raise BadReply("the JSON part of the payload is not an object")
        tensors = dict(_read_tensors(buffer, entries, start))
        if sealed:
            whole = memoryview(buffer)
            parts = {name: whole[start + entry.begin : start + entry.end] for name, entry in entries.items()}
            if metadata.get(DIGEST) != _digest(text, entries, parts):
                raise BadReply("its content does not match its digest")
        return cls(tensors, info)

    def write(self, path: Path, durable: bool = True) -> int:
        """Write the file atomically: a reader sees all of it or none. Return the number of bytes.

        A durable file is sealed and survives a power failure.
        """
        data = self.encode(sealed=durable)
        write_atomically(path, data, durable)
        return len(data)

    @classmethod
    def read(cls, path: Path, sealed: bool = True) -> Payload:
        """Return the payload of a file written by `write`; `sealed` as it was durable. Damage raises `BadReply`."""
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > MAX_UNCHECKED_BYTES:
                _check_size(file, size)
            data = bytearray(size)
            file.readinto(data)
        # A checkpoint may hold the tensors of many clients. Its own size bounds its header.
        return cls.decode(data, sealed, len(data))


def check_finite(payload: Payload) -> None:
    """Reject a payload with NaN or infinite values."""
    for name, tensor in payload.tensors.items():
        # A sum keeps NaN and infinity and is much cheaper than a test of every element.
        if not tensor.is_floating_point() or math.isfinite(tensor.sum()):
            continue
        if not bool(torch.isfinite(tensor).all()):
            raise BadReply(f"tensor {name!r} has NaN or infinite values")


def check_like(tensors: Mapping[str, Tensor], spec: Mapping[str, Tensor], what: str) -> None:
    """Reject a group whose names, shapes or types differ from those in `spec`."""
    missing = sorted(spec.keys() - tensors.keys())
    extra = sorted(tensors.keys() - spec.keys())
    if missing or extra:
        lacks = [f"lacks {missing[:3]}"] if missing else []
        has = [f"has unexpected tensors {extra[:3]}"] if extra else []
        raise BadReply(f"{what} {' and '.join(lacks + has)}")
    for name, expected in spec.items():
        tensor = tensors[name]
        if tensor.shape != expected.shape or tensor.dtype != expected.dtype:
            raise BadReply(
                f"{what} tensor {name!r} is {tensor.dtype} {tuple(tensor.shape)}, "
                f"expected {expected.dtype} {tuple(expected.shape)}"
            )


def _digest(info: str, entries: Mapping[str, TensorEntry], parts: Mapping[str, memoryview]) -> str:
    """Return the digest of a payload: its JSON part, then names, types and shapes, then the bytes, by name."""
    names = sorted(entries)
    described = [info, [[name, entries[name].dtype, entries[name].shape] for name in names]]
    return digest_of([json.dumps(described).encode(), *(parts[name] for name in names if name in parts)])


def _check_size(file: BufferedReader, size: int) -> None:
    """Reject a file that does not have the size that its header describes, and go back to its start."""
    (length,) = struct.unpack("<Q", file.read(8))
    entries, _, start = read_header(bytearray(struct.pack("<Q", length) + file.read(min(length, size))), size)
    described = start + max((entry.end for entry in entries.values()), default=0)
    if described != size:
        raise BadReply(f"payload has {size} bytes, its header describes {described}")
    file.seek(0)


def _read_tensors(buffer: bytearray, entries: Mapping[str, TensorEntry], start: int) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that a header describes; they must fill the rest of the buffer without gap or overlap."""
    position = start
    try:
        for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
            dtype, shape, begin, end = _DTYPES[entry.dtype], entry.shape, entry.begin, entry.end
            if len(shape) > MAX_DIMENSIONS or max(shape, default=0) > len(buffer):
                raise BadReply(f"tensor {name!r} has an impossible shape")
            count = math.prod(shape)
            if min(shape, default=0) < 0 or start + begin != position or end - begin != count * dtype.itemsize:
                raise BadReply(f"tensor {name!r} does not match its offsets in the payload header")
            if start + end > len(buffer):
                raise BadReply(f"payload is truncated: tensor {name!r} is incomplete")
            position = start + end
            if count:
                yield name, torch.frombuffer(buffer, dtype=dtype, count=count, offset=start + begin).view(shape)
            else:
                yield name, torch.empty(shape, dtype=dtype)
    except (KeyError, ValueError, OverflowError, RuntimeError) as error:
        raise BadReply("payload header does not describe tensors") from error
    if position != len(buffer):
        raise BadReply("payload has bytes after its last tensor")
