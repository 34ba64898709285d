"""Mutations of replies, as a client with a wrong program or bad intentions could send them.

Each takes a valid reply and returns bytes that may be anything. All draws come from one generator.
"""

from __future__ import annotations

import copy
import json
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from fedwild.core.payload import Payload

VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2**31, 2**53, 2**53 + 1, 2**63, 10**30, 10**400, 0.5, -1.5, 1e-320, 1e299, 1e308),
    *(float("nan"), float("inf"), -float("inf"), "", "x", "x" * 5000, "\x00", "\x1b[2J", "\u202e", "\ud800", "unknown"),
    *([], [None], [[]], [1, 2, 3], [0.5] * 300, ["a", "a"], {}, {"a": 1}, {"": {}}, {"unknown": 3}, {"a": [{"b": []}]}),
]
"""Values that a JSON part may hold in place of the right one."""
NUMBERS = (0.0, -0.0, 1.0, -1.0, 1e-45, 1e30, -1e30, 3e38, float("nan"), float("inf"), -float("inf"))
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.uint8, torch.bool)
Mutation = Callable[[Payload, np.random.Generator], bytes]


def pick(rng: np.random.Generator, choices: Any) -> Any:
    """Return one of some things at random."""
    return choices[int(rng.integers(len(choices)))]


def value_of(rng: np.random.Generator) -> Any:
    return copy.deepcopy(pick(rng, VALUES))


def copy_of(reply: Payload) -> Payload:
    return Payload.decode(bytes(reply.encode()))


def mutate(reply: Payload, rng: np.random.Generator) -> bytes:
    """Return a reply after one to three mutations of tensors or the JSON part, or one of its bytes."""
    if rng.random() < 0.3:
        return bytes(pick(rng, BYTES)(bytearray(reply.encode()), rng))
    changed = copy_of(reply)
    for _ in range(int(rng.integers(1, 4))):
        pick(rng, (change_tensor, change_tensor, change_info, change_names))(changed, rng)
    return changed.encode()


# --- tensors and names ---------------------------------------------------------------------------------------


def change_tensor(reply: Payload, rng: np.random.Generator) -> None:
    """Give one tensor other values, another type or another shape."""
    if not reply.tensors:
        return
    name = pick(rng, sorted(reply.tensors))
    tensor = reply.tensors[name].clone()
    kind = int(rng.integers(6))
    if kind == 0 and tensor.numel():
        number = pick(rng, NUMBERS)
        place = int(rng.integers(tensor.numel()))
        flat = tensor.reshape(-1)
        flat[place] = number if flat.is_floating_point() else int(np.clip(np.nan_to_num(number), -100, 100))
    elif kind == 1:
        tensor = torch.full_like(tensor, 1).mul(int(rng.integers(-(2**31), 2**31))) if tensor.numel() else tensor
    elif kind == 2:
        tensor = tensor.to(pick(rng, DTYPES))
    elif kind == 3:
        tensor = pick(
            rng,
            (
                tensor[None],
                tensor.reshape(-1),
                tensor[:0] if tensor.dim() else tensor[None],
                tensor.mT if tensor.dim() > 1 else tensor,
            ),
        )
    elif kind == 4:
        tensor = torch.zeros([int(side) for side in rng.integers(0, 4, int(rng.integers(0, 6)))], dtype=tensor.dtype)
    else:
        tensor = tensor * pick(rng, (0, -1, 1000, 10**6)) if tensor.dtype != torch.bool else ~tensor
    reply.tensors[name] = tensor


def change_names(reply: Payload, rng: np.random.Generator) -> None:
    """Drop, rename, swap or add tensors."""
    names = sorted(reply.tensors)
    kind = int(rng.integers(4))
    if kind == 0 or not names:
        added = pick(rng, ("x", "model/x", "classes/x", "bank/../x", "model/", "/", "\x00", "x" * 900))
        reply.tensors[added] = torch.ones(int(rng.integers(4)))
    elif kind == 1:
        del reply.tensors[pick(rng, names)]
    elif kind == 2:
        first, second = pick(rng, names), pick(rng, names)
        reply.tensors[first], reply.tensors[second] = reply.tensors[second], reply.tensors[first]
    else:
        group = pick(rng, names).partition("/")[0]
        reply.drop(group)


# --- the JSON part -------------------------------------------------------------------------------------------


def change_info(reply: Payload, rng: np.random.Generator) -> None:
    """Replace, drop or add a value at any depth."""
    table: Any = reply.info
    while True:
        keys = list(table) if isinstance(table, dict) else list(range(len(table)))
        if not keys:
            key: Any = "added"
            break
        key = pick(rng, keys)
        if isinstance(table[key], (dict, list)) and table[key] and rng.random() < 0.6:
            table = table[key]
            continue
        break
    kind = rng.random()
    if isinstance(table, dict) and kind < 0.15:
        table.pop(key, None)
    elif isinstance(table, dict) and kind < 0.3:
        table[pick(rng, ("added", "", "samples", "labels", "loss", "unknown", "x" * 200, "\x1b[0m"))] = pick(
            rng, VALUES
        )
    elif isinstance(table, list) and (kind < 0.3 or not table):
        table.append(value_of(rng))
    else:
        table[key] = value_of(rng)


# --- bytes ---------------------------------------------------------------------------------------------------


def flip_bits(data: bytearray, rng: np.random.Generator) -> bytearray:
    for _ in range(int(rng.integers(1, 20))):
        data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
    return data


def cut(data: bytearray, rng: np.random.Generator) -> bytearray:
    return data[: int(rng.integers(len(data)))]


def extend(data: bytearray, rng: np.random.Generator) -> bytearray:
    return data + rng.bytes(int(rng.integers(1, 100)))


def splice(data: bytearray, rng: np.random.Generator) -> bytearray:
    """Copy one range of bytes over another."""
    start, stop = sorted(int(place) for place in rng.integers(0, len(data), 2))
    place = int(rng.integers(len(data)))
    data[place : place + stop - start] = data[start:stop]
    return data


def other_length(data: bytearray, rng: np.random.Generator) -> bytearray:
    data[:8] = struct.pack("<Q", pick(rng, (0, 1, 7, len(data) - 8, len(data), 2**31, 2**63, int(rng.integers(2**20)))))
    return data


def other_header(data: bytearray, rng: np.random.Generator) -> bytearray:
    """Replace values in the header, and encode it in another way."""
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(bytes(data[8 : 8 + length]))
    entry = header[pick(rng, sorted(header))]
    entry[pick(rng, (*entry, "more"))] = pick(rng, (*VALUES, [-1], [0, 2**40], [2**62, 2**62], "F32", "I64", [0, 4]))
    text = json.dumps(header)
    if rng.random() < 0.3:
        text = text[:-1] + "," + text[1:]
    coded = text.encode(pick(rng, ("utf-8", "utf-8", "utf-8", "utf-16", "utf-8-sig", "utf-32")), "surrogatepass")
    return bytearray(struct.pack("<Q", len(coded)) + coded + data[8 + length :])


BYTES = (flip_bits, flip_bits, cut, extend, splice, other_length, other_header, other_header, other_header)
