"""Ways to damage a run folder: accidents, which a digest reveals, and forgeries, whose digests are right."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedwild.core.payload import Payload
from fedwild.core.seal import digest_of, open_json, seal_json
from fedwild.data.npz import pack_json, read_npz, unpack_json, write_npz
from fedwild.runs.events import checked_line
from fedwild.runs.folder import RunFolder

JSON_VALUES: dict[str, Any] = {
    "null": None,
    "list": [1],
    "number": -1,
    "text": "x",
    "table": {"a": {}},
    "true": True,
    "huge": 10**30,
    "fraction": 0.5,
    "nan": float("nan"),
    "infinite": float("inf"),
    "long": "y" * 100_000,
    "nested": [[[[{}]]]],
}
"""Values that are put in the place of others."""
SPARSE_BYTES = 1 << 40


@dataclass(frozen=True)
class Damage:
    """A change of one file of a run folder."""

    name: str
    file: str
    apply: Callable[[Path], object]
    """Changes the file at a path."""
    forged: bool = False
    """Whether the digests are right, as only somebody who wants to deceive makes them."""


def files_of(run: Path) -> list[str]:
    """Return the files that a damage is tried on: all of a run but only one state of a client."""
    found = [file for file in ("config.toml", "run.json", "splits.npz", "events.jsonl") if (run / file).exists()]
    found += [f"checkpoints/{path.name}" for path in sorted((run / "checkpoints").iterdir())]
    found += [str(path.relative_to(run)) for path in sorted((run / "clients").glob("*/*"))[-1:]]
    return found + [file for file in ("model.safetensors", "result.json", "manifest.json") if (run / file).exists()]


def accidents(run: Path, seed: int = 0) -> Iterator[Damage]:
    """Yield what happens to files: cut, flipped, emptied, deleted, or replaced by something else."""
    draw = random.Random(seed)
    for file in files_of(run):
        size = (run / file).stat().st_size
        changes: dict[str, Callable[[Path], object]] = {
            "empty": lambda path: path.write_bytes(b""),
            "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
            "one byte short": lambda path: path.write_bytes(path.read_bytes()[:-1]),
            "one byte more": lambda path: path.write_bytes(path.read_bytes() + b"x"),
            "noise": lambda path: path.write_bytes(random.Random(0).randbytes(1000)),
            "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
            "a JSON list": lambda path: path.write_text("[]"),
            "deep JSON": lambda path: path.write_text("[" * 100_000),
            "many digits": lambda path: path.write_text('{"format": ' + "9" * 10_000 + "}"),
            "deleted": Path.unlink,
            "a folder": lambda path: replace_by(path, Path.mkdir),
            "a pipe": lambda path: replace_by(path, os.mkfifo),
            "a dangling link": lambda path: replace_by(path, lambda new: new.symlink_to("nowhere")),
            "a link to itself": lambda path: replace_by(path, lambda new: new.symlink_to(new.name)),
            "a link to a device": lambda path: replace_by(path, lambda new: new.symlink_to("/dev/zero")),
            "a sparse terabyte": lambda path: os.truncate(path, SPARSE_BYTES),
        }
        if os.geteuid() != 0:
            changes["unreadable"] = lambda path: path.chmod(0)
        for number in range(4):
            place, bit = draw.randrange(size), draw.randrange(8)
            changes[f"bit {bit} of byte {place} flipped ({number})"] = flipped(place, bit)
        yield from (Damage(name, file, change) for name, change in changes.items())


def flipped(place: int, bit: int) -> Callable[[Path], object]:
    def flip(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[place] ^= 1 << bit
        path.write_bytes(data)

    return flip


def replace_by(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


# --- forgeries ------------------------------------------------------------------------------------------------


def forgeries(run: Path) -> Iterator[Damage]:
    """Yield folders with contents that fedwild does not write, and right digests."""
    for file in ("run.json", "result.json", "manifest.json"):
        if (run / file).exists():
            for place in places(open_json((run / file).read_bytes())):
                yield from forged_values(file, place, change_json)
    for file in [f"checkpoints/{max(path.name for path in (run / 'checkpoints').iterdir())}", "model.safetensors"]:
        if (run / file).exists():
            payload = Payload.read(run / file)
            for place in places(payload.info, depth=3):
                yield from forged_values(file, place, change_info)
            yield from forged_tensors(file, sorted(payload.tensors))
    yield from forged_splits(run)
    yield from forged_logs()
    yield from forged_configs()


def forged_values(
    file: str, place: tuple[str, ...], change: Callable[[Path, tuple[str, ...], Any], object]
) -> Iterator[Damage]:
    """Yield a damage for each value that is put at a place of a file, and one without the place."""
    where = ".".join(place)
    draw = random.Random(where)
    for name in draw.sample(sorted(JSON_VALUES), 3):
        value = JSON_VALUES[name]
        yield Damage(f"{where} = {name}", file, lambda path, value=value: change(path, place, value), True)  # type: ignore[misc]
    yield Damage(f"without {where}", file, lambda path: change(path, place, REMOVED), True)


REMOVED = object()


def places(table: dict[str, Any], depth: int = 2, start: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the keys of nested tables, at most three of each inner table."""
    for key in list(table)[: None if not start else 3]:
        yield (*start, key)
        if isinstance(table[key], dict) and depth > 1:
            yield from places(table[key], depth - 1, (*start, key))


def put(table: dict[str, Any], place: tuple[str, ...], value: Any) -> dict[str, Any]:
    inner = table
    for key in place[:-1]:
        inner = inner[key]
    if value is REMOVED:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    return table


def change_json(path: Path, place: tuple[str, ...], value: Any) -> None:
    path.write_bytes(seal_json(put(open_json(path.read_bytes()), place, value)))


def change_info(path: Path, place: tuple[str, ...], value: Any) -> None:
    payload = Payload.read(path)
    put(payload.info, place, value)
    payload.write(path)


def forged_tensors(file: str, names: list[str]) -> Iterator[Damage]:
    """Yield changed tensors of a model or a checkpoint."""

    def changing(change: Callable[[Payload, str], object], name: str) -> Callable[[Path], object]:
        def apply(path: Path) -> None:
            payload = Payload.read(path)
            change(payload, name)
            payload.write(path)

        return apply

    changes: dict[str, Callable[[Payload, str], object]] = {
        "missing": lambda payload, name: payload.tensors.pop(name),
        "wider": lambda payload, name: payload.tensors.update({name: torch.zeros(7, 5)}),
        "whole numbers": lambda payload, name: payload.tensors.update({name: payload.tensors[name].long()}),
        "a scalar": lambda payload, name: payload.tensors.update({name: torch.tensor(1.0)}),
        "empty": lambda payload, name: payload.tensors.update({name: torch.zeros(0)}),
        "beside another": lambda payload, name: payload.tensors.update({f"{name}/extra": torch.zeros(1)}),
    }
    for name in (names[0], names[-1]):
        yield from (Damage(f"{name} {how}", file, changing(change, name), True) for how, change in changes.items())


def forged_splits(run: Path) -> Iterator[Damage]:
    """Yield splits of other types and shapes, and with rows that do not exist."""

    def changing(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
        def apply(path: Path) -> None:
            arrays = read_npz(path)
            change(arrays)
            write_npz(path, arrays)
            digests = {**open_json((path.parent / "run.json").read_bytes())["files"]}
            digests[path.name] = digest_of([path.read_bytes()])
            change_json(path.parent / "run.json", ("files",), digests)

        return apply

    def about(key: str, value: Any) -> Callable[[dict[str, Any]], object]:
        return lambda arrays: arrays.update(about=pack_json({**unpack_json(arrays["about"]), key: value}))

    for name in sorted(read_npz(run / "splits.npz")):
        yield Damage(f"without {name}", "splits.npz", changing(lambda arrays, name=name: arrays.pop(name)), True)  # type: ignore[misc]
        for kind, array in {
            "text": np.array(["x"]),
            "fractions": np.array([0.5, np.nan]),
            "far rows": np.array([2**40, -5]),
            "a cube": np.zeros((2, 2, 2), dtype=np.int64),
            "a scalar": np.array(3),
        }.items():
            change = changing(lambda arrays, name=name, array=array: arrays.update({name: array}))  # type: ignore[misc]
            yield Damage(f"{name} = {kind}", "splits.npz", change, True)
    for key in ("format", "clients", "known", "novel", "unknown", "public_from", "stages", "newcomers"):
        for kind in ("null", "number", "list", "table", "text"):
            yield Damage(f"{key} = {kind}", "splits.npz", changing(about(key, JSON_VALUES[kind])), True)


def forged_logs() -> Iterator[Damage]:
    """Yield logs whose lines are intact and have values of other types."""

    def changing(key: str, value: Any) -> Callable[[Path], object]:
        def apply(path: Path) -> None:
            check, lines = "", []
            for text in path.read_text().splitlines():
                row = {name: old for name, old in json.loads(text).items() if name != "check"}
                line, check = checked_line({**row, key: value} if key in row else row, check)
                lines.append(line)
            path.write_text("".join(lines))

        return apply

    for key in ("event", "time", "index", "phase", "client", "info", "metrics", "by", "loss", "next_index", "rounds"):
        for kind in ("null", "list", "text", "huge", "table", "nan"):
            yield Damage(f"{key} = {kind}", "events.jsonl", changing(key, JSON_VALUES[kind]), True)


def forged_configs() -> Iterator[Damage]:
    """Yield edited settings."""

    def appending(text: str) -> Callable[[Path], object]:
        return lambda path: path.write_text(text + path.read_text())

    for text in (
        "nonsense = 1\n",
        "seed = -1\n",
        f"seed = {'9' * 5000}\n",
        f"x = {'[' * 3000}{']' * 3000}\n",
        "method = 3\n",
        '"\\u0000" = 1\n',
        "[[data]]\n",
        "\x00",
    ):
        yield Damage(f"with {text[:12]!r}", "config.toml", appending(text), True)
    for old, new in (("name = ", "nane = "), ("rounds = ", "rounds = 1e"), ("[engine]", "[[engine]]")):
        change = lambda path, old=old, new=new: path.write_text(path.read_text().replace(old, new))  # noqa: E731
        yield Damage(f"{new!r} for {old!r}", "config.toml", change, True)


def copy_damaged(run: Path, target: Path, damage: Damage) -> Path:
    """Copy a run and damage the copy. A forged copy is signed: otherwise nothing but its signature would be checked."""
    shutil.copytree(run, target)
    damage.apply(target / damage.file)
    if damage.forged and damage.file != "manifest.json" and (target / "result.json").exists():
        with contextlib.suppress(Exception):
            RunFolder(target).sign()
    return target
