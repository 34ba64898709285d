"""The folder of a run.

    config.toml          the resolved settings: `fedwild run config.toml` repeats the run
    run.json             format, versions, fingerprint of the data
    splits.npz           which sample belongs to which client
    events.jsonl         the log of events
    checkpoints/         the server after each of the last rounds
    clients/NAME/        a client's durable state, by version
    model.safetensors    the final server: weights, classes, thresholds
    result.json          the final figures
    report.html          the report

Every file except the log is written under a temporary name and then renamed, and the folder appears only once it is
complete. So a run that is killed at any moment leaves a folder that can be resumed, or none.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, TextIO

import numpy
import torch

from fedwild.core.errors import BadReply, UserError
from fedwild.core.payload import Payload, write_atomically
from fedwild.core.version import __version__
from fedwild.data import Split
from fedwild.runs.events import without_nan
from fedwild.runs.format import FORMAT, check_format

KEPT_CHECKPOINTS = 2
LOCK_PATIENCE = 3.0
"""Seconds to wait for a folder that another process has locked."""


class RunFolder:
    """The files of one run: their paths, and how they are read and written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: TextIO | None = None

    @classmethod
    def create(
        cls,
        path: Path | None,
        stem: str,
        config: str,
        split: Split,
        facts: dict[str, Any],
        events: bytes = b"",
    ) -> RunFolder:
        """Create a folder with settings, split and facts. Without a path, it is the next free `runs/STEM-NNN`.

        `events` is the log of the run that this one continues.
        """
        if path is not None and path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise UserError(f"--out {str(path)!r} already exists: choose a new folder, or run `fedwild resume {path}`.")
        parent = path.parent if path is not None else Path("runs")
        parent.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(prefix=f".{stem}.", suffix=".building", dir=parent))
        building.chmod(0o755)
        try:
            for folder in ("checkpoints", "clients"):
                (building / folder).mkdir()
            (building / "config.toml").write_text(config, encoding="utf-8")
            split.save(building / "splits.npz")
            about = {"format": FORMAT, **facts, "versions": versions()}
            (building / "run.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
            (building / "events.jsonl").write_bytes(events)
            return cls(_move(building, path, parent, stem))
        except BaseException:
            shutil.rmtree(building, ignore_errors=True)
            raise

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Open an existing run folder; a `UserError` names what is missing."""
        if not path.is_dir():
            raise UserError(f"run folder {str(path)!r} {'is not a folder' if path.exists() else 'does not exist'}.")
        missing = [n for n in ("config.toml", "run.json", "splits.npz", "events.jsonl") if not (path / n).is_file()]
        if missing:
            raise UserError(f"{str(path)!r} is not a run folder: it has no {', '.join(missing)}.")
        folder = cls(path)
        check_format(path, folder.facts())
        return folder

    def facts(self) -> dict[str, Any]:
        """Return the contents of run.json."""
        try:
            facts = json.loads((self.path / "run.json").read_text(encoding="utf-8"))
            assert isinstance(facts, dict)
            return facts
        except (ValueError, AssertionError) as error:
            raise UserError(f"{str(self.path / 'run.json')!r} is damaged: it is not a JSON object.") from error

    def lock(self) -> None:
        """Lock the folder against other processes. The operating system frees the lock when this process ends."""
        self._lock = open(self.path / ".lock", "w")  # noqa: SIM115  (held for the run's life)
        # The workers of a process that was just killed hold the lock for a moment longer.
        patience = time.monotonic() + LOCK_PATIENCE
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError as error:
                if time.monotonic() > patience:
                    self.unlock()
                    raise UserError(f"run folder {str(self.path)!r} is in use by another process.") from error
                time.sleep(0.05)

    def unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def clients(self) -> Path:
        return self.path / "clients"

    @property
    def model(self) -> Path:
        return self.path / "model.safetensors"

    def config_text(self) -> str:
        return (self.path / "config.toml").read_text(encoding="utf-8")

    def split(self) -> Split:
        return Split.load(self.path / "splits.npz")

    def new_spool(self) -> Path:
        """Return an empty folder for messages, and remove unfinished files of a killed process."""
        for old in self.path.glob(".spool-*"):
            shutil.rmtree(old, ignore_errors=True)
        for half in self.path.rglob(".*.tmp"):
            half.unlink(missing_ok=True)
        spool = self.path / f".spool-{os.getpid()}"
        spool.mkdir()
        return spool

    @staticmethod
    def drop_spool(spool: Path) -> None:
        shutil.rmtree(spool, ignore_errors=True)

    def save_checkpoint(self, number: int, data: bytes) -> None:
        """Write the checkpoint after `number` rounds and remove those that are no longer needed."""
        write_atomically(self.path / "checkpoints" / f"{number:06d}.safetensors", data)
        for old in self._checkpoints()[:-KEPT_CHECKPOINTS]:
            old.unlink()

    def last_checkpoint(self) -> Payload | None:
        """Return the newest checkpoint, or None before the first. A damaged one raises a `UserError`."""
        files = self._checkpoints()
        if not files:
            return None
        return read_complete(files[-1], ("ledger", "classes"), "delete it to continue from the one before")

    def _checkpoints(self) -> list[Path]:
        files = (self.path / "checkpoints").glob("[0-9]*.safetensors")
        return sorted((file for file in files if version_of(file) >= 0), key=version_of)

    def drop_lost_states(self, newest: int) -> None:
        """Remove client states of rounds after `newest`, which no checkpoint refers to."""
        for file in self.clients.glob("*/[0-9]*.safetensors"):
            if version_of(file) > newest:
                file.unlink(missing_ok=True)

    def prune_states(self, client: str, oldest: int) -> None:
        """Remove a client's states older than `oldest`, to which the checkpoint before last refers."""
        for file in (self.clients / client).glob("[0-9]*.safetensors"):
            if 0 <= version_of(file) < oldest:
                file.unlink(missing_ok=True)

    def finish(self, model: Payload, result: dict[str, Any]) -> None:
        """Write the final model, then `result.json`, which marks the run as finished."""
        model.write(self.model)
        self.write_result(result)

    def write_result(self, result: dict[str, Any]) -> None:
        write_atomically(self.path / "result.json", (json.dumps(without_nan(result), indent=2) + "\n").encode())

    def result(self) -> dict[str, Any] | None:
        """Return the final figures, or None while the run is unfinished."""
        path = self.path / "result.json"
        if not path.exists():
            return None
        try:
            result = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            result = None
        if not isinstance(result, dict):
            raise UserError(f"{str(path)!r} is damaged: delete it, then run `fedwild resume {self.path}`.")
        return result

    def server(self) -> Payload:
        """Return the final server, or that of the last checkpoint if the run is unfinished."""
        if self.model.exists():
            return read_complete(
                self.model, ("classes",), f"delete it and result.json, then run `fedwild resume {self.path}`"
            )
        checkpoint = self.last_checkpoint()
        if checkpoint is None:
            raise UserError(f"run {str(self.path)!r} has no model yet: run `fedwild resume {self.path}` first.")
        return checkpoint


def read_complete(path: Path, keys: tuple[str, ...], advice: str) -> Payload:
    """Return the payload of a run's file; raise a `UserError` with advice if the file is damaged or incomplete."""
    try:
        payload = Payload.read(path)
        missing = [key for key in keys if key not in payload.info]
        if missing:
            raise BadReply(f"it has no {missing[0]!r}")
        return payload
    except BadReply as error:
        raise UserError(f"{str(path)!r} is damaged ({error}): {advice}.") from error


def version_of(file: Path) -> int:
    """Return the number that is a file's name; -1 for other names."""
    return int(file.stem) if file.stem.isdecimal() else -1


def versions() -> dict[str, str]:
    """Return the versions of the software that made the run."""
    return {
        "fedwild": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "machine": platform.platform(),
    }


def _move(building: Path, path: Path | None, parent: Path, stem: str) -> Path:
    """Give the complete folder its name. Renaming onto a folder with files fails, so no run is overwritten."""
    if path is not None:
        os.replace(building, path)
        return path
    number = 1
    while True:
        candidate = parent / f"{stem}-{number:03d}"
        if not candidate.exists():
            try:
                os.rename(building, candidate)
                return candidate
            except OSError as error:
                # Another run took the name in between.
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise
        number += 1
