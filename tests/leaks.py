"""Searches what a client sends for its samples: tensors, bytes and text, in many encodings.

A sample counts as found if one of its quarters occurs contiguously: with its axes in any order (channels first or last,
transposed, as a column), as any kind of number, and after any map that keeps or reverses the order of values (scaled,
shifted, negated, squared). Compressed, encrypted or scattered samples are not found, nor what could be computed from
gradients and embeddings, which also reveal samples.
"""

from __future__ import annotations

import ast
import base64
import binascii
import dataclasses
import itertools
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedwild.contract.engine import Job
from fedwild.core.payload import Payload
from fedwild.engines.executor import Done, Executor

Floats = NDArray[np.float64]
Ranks = NDArray[np.float32]

PIECES = 4
"""The number of pieces of a sample, each of which is searched for."""
ALIKE = 0.99
"""The rank correlation at which a piece counts as found; 36 random numbers reach 0.7 twice in a million times."""
FEW = 8
"""This many consecutive values of a sample, printed with three or more digits, count as found."""
ROUNDED = 6e-4
"""The largest rounding error of printed values: half of their last digit, and a little more."""
SEARCH_BATCH = 512
NOT_SENT = {"state", "traceback", "secrets"}
"""The fields of a job's result that are not sent: the client's durable state, its secrets and the traceback."""

_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_ENCODED = re.compile(r"[A-Za-z0-9+/_=-]{40,}")
_BYTES_LITERAL = re.compile(r"""b(['"])(?:\\.|(?!\1)[^\\])*\1""")
_KINDS = (np.uint8, np.float16, np.float32, np.float64)


@dataclass(frozen=True)
class Sent:
    """Everything that a client sends in answer to one job."""

    client: str
    kind: str
    phase: str
    reply: bytes = b""
    texts: tuple[str, ...] = ()
    """Notes and errors."""

    @property
    def where(self) -> str:
        return f"{self.client}, {self.kind}, {self.phase}"


def record(monkeypatch: pytest.MonkeyPatch) -> list[Sent]:
    """Return a list to which everything that clients send is added from now on."""
    everything: list[Sent] = []
    answer = Executor.answer

    def recording(
        executor: Executor, job: Job, payload: Payload, state: Payload | None, kept: bytes | None = None
    ) -> Done:
        done = answer(executor, job, payload, state, kept)
        fields = {field.name for field in dataclasses.fields(done)} - NOT_SENT
        assert fields == {"reply", "notes", "error"}, "a new field that is sent: search it as well"
        texts = (*done.notes, *([] if done.error is None else [done.error]))
        everything.append(Sent(job.client or "", job.kind, job.step.phase, bytes(done.reply), texts))
        return done

    monkeypatch.setattr(Executor, "answer", recording)
    return everything


class Search:
    """A search for the samples of one client.

    stored: (n, C, H, W) as stored; inputs: (n, C, H, W) as a network sees them.
    """

    def __init__(self, stored: Tensor, inputs: Tensor) -> None:
        raw, seen = stored.numpy(), inputs.numpy().astype(np.float64)
        self.width = raw[0].size // PIECES
        # Squares are not a monotonic map of normalised inputs, which have both signs.
        kinds = (raw.astype(np.float64), raw / 255.0, seen, seen**2)
        rows = np.concatenate([order for kind in kinds for order in orders_of(kind)])
        self._pieces = np.unique(ranks_of(rows.reshape(-1, self.width)), axis=0)
        self._encoded: dict[int, list[bytes]] = {}
        for piece in encodings_of(rows.reshape(-1, self.width)):
            self._encoded.setdefault(int.from_bytes(piece[:8], sys.byteorder), []).append(piece)
        self._heads = np.array(sorted(self._encoded), dtype=np.uint64)
        values = windows(rows, FEW).reshape(-1, FEW)
        self._values = values[values[:, 0].argsort()]

    def found_in(self, sent: Sent) -> list[str]:
        """Return descriptions of where samples are found."""
        found = [f"{sent.where}: in {place}" for place in self._in_reply(sent.reply)] if sent.reply else []
        return found + [f"{sent.where}: in {text[:60]!r}" for text in sent.texts if self.in_text(text)]

    def _in_reply(self, reply: bytes) -> Iterator[str]:
        if self.in_bytes(reply):
            yield "the reply's bytes"
        payload = Payload.decode(reply)
        for name in self.in_tensors(payload.tensors):
            yield f"tensor {name!r}"
        if self.in_numbers(numbers_in(payload.info)):
            yield "the numbers of info"
        for text in (*payload.tensors, *strings_in(payload.info)):
            if self.in_text(text):
                yield f"the text {text[:40]!r}"

    def in_tensors(self, tensors: dict[str, Tensor]) -> list[str]:
        """Return the names of the tensors that hold a piece of a sample, as numbers or as bytes of other numbers."""
        lines = [(name, line) for name, tensor in tensors.items() for line in lines_of(tensor)]
        return list(dict.fromkeys(lines[place][0] for place in self._find_pieces([line for _, line in lines])))

    def in_bytes(self, data: bytes) -> bool:
        """Return whether the bytes contain a piece as any kind of number."""
        if len(data) < self.width:
            return False
        heads = np.ascontiguousarray(windows(np.frombuffer(data, np.uint8)[None], 8)[0]).view(np.uint64).reshape(-1)
        nearest = self._heads[np.searchsorted(self._heads, heads).clip(max=len(self._heads) - 1)]
        hits = set(heads[nearest == heads].tolist())
        return any(piece in data for head in hits for piece in self._encoded[head])

    def in_numbers(self, numbers: Sequence[float]) -> bool:
        """Return whether consecutive numbers, or every second one, are a piece or a few values of a sample."""
        line = np.array(numbers, dtype=np.float64)
        lines = [line, line[::2], line[1::2]]
        return bool(list(self._find_pieces(lines))) or any(self._has_values(part) for part in lines)

    def in_text(self, text: str) -> bool:
        """Return whether a text holds a sample: as numbers, base64, hexadecimal, a bytes literal or characters."""
        if self.in_numbers([float(number) for number in _NUMBER.findall(text)]):
            return True
        if self.in_bytes(text.encode("latin-1", errors="ignore")):
            return True
        return any(self.in_bytes(data) or list(self._find_pieces(read_as_numbers(data))) for data in decoded(text))

    def _find_pieces(self, lines: Sequence[Floats]) -> Iterator[int]:
        """Yield the indices of the lines that contain a piece of a sample."""
        long = [(place, line) for place, line in enumerate(lines) if len(line) >= self.width]
        if not long:
            return
        places = np.concatenate([np.full(len(line) - self.width + 1, place) for place, line in long])
        seen = np.concatenate([windows(line[None], self.width)[0] for _, line in long])
        for start in range(0, len(seen), SEARCH_BATCH):
            alike = ranks_of(seen[start : start + SEARCH_BATCH]) @ self._pieces.T
            there = (alike.max(axis=1) > ALIKE) | (alike.min(axis=1) < -ALIKE)
            yield from np.unique(places[start : start + SEARCH_BATCH][there]).tolist()

    def _has_values(self, line: Floats) -> bool:
        """Return whether a line contains consecutive printed values of a sample."""
        if len(line) < FEW:
            return False
        firsts = self._values[:, 0]
        for some in windows(line[None], FEW)[0]:
            near = self._values[np.searchsorted(firsts, some[0] - ROUNDED) : np.searchsorted(firsts, some[0] + ROUNDED)]
            if bool((np.abs(near - some) < ROUNDED).all(axis=1).any()):
                return True
        return False


def orders_of(samples: Floats) -> list[Floats]:
    """Return samples (n, C, H, W) as rows (n, C * H * W), with their axes in every order."""
    axes = range(1, samples.ndim)
    return [samples.transpose(0, *order).reshape(len(samples), -1) for order in itertools.permutations(axes)]


def encodings_of(pieces: Floats) -> Iterator[bytes]:
    """Yield pieces (n, width) as bytes in every kind of number."""
    for kind in _KINDS:
        # Only stored values are whole numbers.
        fitting = pieces if kind != np.uint8 else pieces[(pieces == pieces.round()).all(axis=1)]
        numbers = fitting.astype(kind)
        for rows in (numbers, numbers.byteswap()):
            yield from (row.tobytes() for row in rows)
    brief = torch.as_tensor(pieces).bfloat16().view(torch.int16).numpy()
    yield from (row.tobytes() for row in brief)


def windows(rows: NDArray[Any], width: int) -> NDArray[Any]:
    """Return all windows of `width` numbers in each row, (n, m, width)."""
    return np.lib.stride_tricks.sliding_window_view(rows, width, axis=1)


def ranks_of(rows: Floats) -> Ranks:
    """Return the ranks within each row, scaled so that the product of two rows is their rank correlation."""
    width = rows.shape[1]
    ranks = np.empty(rows.shape, dtype=np.float32)
    values = np.arange(width) - (width - 1) / 2
    np.put_along_axis(ranks, rows.argsort(axis=1, kind="stable"), (values / np.linalg.norm(values))[None], axis=1)
    return ranks


def lines_of(tensor: Tensor) -> Iterator[Floats]:
    """Yield a tensor's numbers as lines, with each axis as that of samples; of integers also the bytes."""
    numbers = np.nan_to_num(tensor.detach().double().numpy())
    for axis in range(max(1, numbers.ndim)):
        yield (np.moveaxis(numbers, axis, 0) if numbers.ndim else numbers).reshape(-1)
    if not tensor.is_floating_point() and tensor.dtype != torch.bool:
        yield from read_as_numbers(tensor.contiguous().numpy().tobytes())


def read_as_numbers(data: bytes) -> list[Floats]:
    """Return bytes as numbers of every kind, at every offset and in both byte orders."""
    lines = []
    for kind in map(np.dtype, _KINDS):
        for start, order in itertools.product(range(kind.itemsize), "<>" if kind.itemsize > 1 else "<"):
            whole = data[start : start + (len(data) - start) // kind.itemsize * kind.itemsize]
            with np.errstate(all="ignore"):
                numbers = np.frombuffer(whole, np.dtype(order + kind.str[1:])).astype(np.float64)
                lines.append(np.nan_to_num(numbers))
    return lines


def decoded(text: str) -> Iterator[bytes]:
    """Yield the decoded parts of a text."""
    for run in _ENCODED.findall(text):
        if len(run) % 2 == 0 and re.fullmatch("[0-9a-fA-F]+", run):
            yield bytes.fromhex(run)
        plain = run.rstrip("=").replace("-", "+").replace("_", "/")
        try:
            yield base64.b64decode(plain + "=" * (-len(plain) % 4))
        except binascii.Error:
            continue
    for found in _BYTES_LITERAL.finditer(text):
        yield ast.literal_eval(found[0])


def numbers_in(info: Any) -> list[float]:
    """Return all numbers of a JSON value in order, those of an object in the natural order of its keys."""
    if isinstance(info, dict):
        return [number for key in sorted(info, key=natural) for number in numbers_in(info[key])]
    if isinstance(info, list):
        return [number for value in info for number in numbers_in(value)]
    return [float(info)] if isinstance(info, (int, float)) else []


def natural(key: str) -> list[tuple[int, str]]:
    """Return a key that sorts pixel-10 after pixel-9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", key)]


def strings_in(info: Any) -> Iterator[str]:
    """Yield all keys and strings of a JSON value."""
    if isinstance(info, str):
        yield info
    values: Iterable[Any] = ()
    if isinstance(info, dict):
        values = (*info, *info.values())
    elif isinstance(info, list):
        values = info
    for value in values:
        yield from strings_in(value)
