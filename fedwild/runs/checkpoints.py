"""The checkpoints of a run and its clients' durable states: written after each round, checked when they are read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedwild.core.errors import BadReply, UserError
from fedwild.core.payload import Payload
from fedwild.core.storage import make_folder, write_atomically
from fedwild.runs.records import CheckpointRecord, Record, check_record

KEPT_CHECKPOINTS = 2


class Checkpoints:
    """The last checkpoints, and the states of clients to which they refer."""

    def __init__(self, path: Path, states: Path) -> None:
        self.path, self.states = path, states

    def save(self, number: int, data: bytes) -> None:
        """Write the checkpoint after `number` rounds and remove those that are no longer needed."""
        make_folder(self.path)
        write_atomically(self.path / f"{number:06d}.safetensors", data)
        for old in self.files()[:-KEPT_CHECKPOINTS]:
            old.unlink()

    def files(self) -> list[Path]:
        """Return the files of all checkpoints, the newest last."""
        files = (file for file in self.path.glob("[0-9]*.safetensors") if version_of(file) >= 0)
        return sorted(files, key=version_of)

    def newest(self, with_states: bool = False) -> tuple[Payload | None, list[str]]:
        """Return the newest intact checkpoint, None before the first, and a sentence for each damaged one.

        `with_states` also requires that the states of clients to which it refers are intact.
        """
        problems: list[str] = []
        for file in reversed(self.files()):
            try:
                payload = read_server(file, CheckpointRecord)
                damaged = next(self.damaged_states(payload), None) if with_states else None
                if damaged is None:
                    return payload, [f"{problem}; the checkpoint before it is used" for problem in problems]
                problems.append(damaged)
            except BadReply as problem:
                problems.append(f"{str(file)!r} is damaged ({problem})")
        if problems:
            raise UserError(
                f"{problems[0]}, and no other checkpoint is intact: restore one from a copy, or delete all files in "
                f"{str(self.path)!r} to begin again at the first round."
            )
        return None, []

    def damaged_states(self, checkpoint: Payload) -> Iterator[str]:
        """Yield a sentence for each state to which a checkpoint refers that is missing or damaged."""
        versions: dict[str, int] = checkpoint.info["ledger"]["states"]
        for name, version in versions.items():
            file = state_file(self.states, name, version)
            try:
                Payload.read(file)
            except OSError as error:
                yield f"{str(file)!r} cannot be read ({error.strerror or error})"
            except BadReply as problem:
                yield f"{str(file)!r} is damaged ({problem})"

    def drop_lost_states(self, newest: int) -> None:
        """Remove client states of rounds after `newest`, which no checkpoint refers to."""
        for file in self.states.glob("*/[0-9]*.safetensors"):
            if version_of(file) > newest:
                file.unlink(missing_ok=True)

    def prune_states(self, client: str, oldest: int) -> None:
        """Remove a client's states older than `oldest`, to which the checkpoint before last refers."""
        for file in (self.states / client).glob("[0-9]*.safetensors"):
            if 0 <= version_of(file) < oldest:
                file.unlink(missing_ok=True)


def read_server(path: Path, kind: type[Record]) -> Payload:
    """Return the payload of a model or a checkpoint; raise `BadReply` if it is damaged or cannot be read."""
    try:
        payload = Payload.read(path)
        check_record(kind, payload.info)
        return payload
    except OSError as error:
        raise BadReply(error.strerror or str(error)) from error
    except ValueError as error:
        raise BadReply(str(error)) from error


def state_file(states: Path, client: str, version: int) -> Path:
    """Return the file of a version of a client's durable state."""
    return states / client / f"{version:06d}.safetensors"


def read_state(states: Path, client: str, version: int) -> Payload:
    """Return a version of a client's durable state; raise a `UserError` if it is missing or damaged."""
    path = state_file(states, client, version)
    try:
        return Payload.read(path)
    except (OSError, BadReply) as error:
        reason = error.strerror or error if isinstance(error, OSError) else error
        raise UserError(f"the state of client {client!r} in {str(path)!r} cannot be used ({reason}).") from error


def version_of(file: Path) -> int:
    """Return the number that is a file's name; -1 for other names."""
    return int(file.stem) if file.stem.isdecimal() and len(file.stem) < 10 else -1


def states_of(checkpoint: Payload | None) -> dict[str, int]:
    """Return the version of each client's state at a checkpoint."""
    info: dict[str, Any] = checkpoint.info["ledger"] if checkpoint else {"states": {}}
    states: dict[str, int] = info["states"]
    return states
