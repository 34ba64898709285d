"""The folder of a run.

    config.toml          the resolved settings: `fedwild run config.toml` repeats the run
    run.json             format, versions, fingerprint of the data, digests of the two files above and below
    splits.npz           which sample belongs to which client
    events.jsonl         the log of events
    checkpoints/         the server after each of the last rounds
    clients/NAME/        a client's durable state, by version
    model.safetensors    the final server: weights, classes, thresholds
    result.json          the final figures
    manifest.json        digests of run.json, the model, clients' states and the result, signed by who finished the run
    report.html          the report

Every file except the log is written under a temporary name and then renamed, and the folder appears only once it is
complete. So a run that is killed at any moment leaves a folder that can be resumed, or none.

Every file is checked when it is read. Files that are written again and again (checkpoints, states, the model, the
result) hold their own digest, so a kill between two writes damages nothing. Files that are written once with the
folder have theirs in run.json, which holds its own. Folders have the permissions 0700 and files 0600. If you open the
folder for others (`chmod -R g+rX`), files that are written later follow it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import platform
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

import numpy
import torch

from fedwild.core.errors import BadReply, DamageWarning, UserError
from fedwild.core.payload import Payload
from fedwild.core.seal import digest_of, seal_json
from fedwild.core.storage import PRIVATE_FOLDER, create, write_atomically
from fedwild.core.trust import is_code_trusted
from fedwild.core.version import __version__
from fedwild.data import SITES, Split
from fedwild.runs.checkpoints import Checkpoints, read_server, states_of
from fedwild.runs.events import read_events, without_nan
from fedwild.runs.format import FORMAT
from fedwild.runs.json_files import read_facts, read_file, read_result
from fedwild.runs.manifest import Digest, check_signed, digest_of_bytes, digest_of_file, write_manifest
from fedwild.runs.ownership import check_maker
from fedwild.runs.records import ServerRecord

MAX_CONFIG_BYTES = 1_000_000
MAX_SPLIT_BYTES = 2_000_000_000
WRITTEN_FIRST = ("config.toml", "run.json", "splits.npz", "events.jsonl")
"""The files that every run folder has from the start."""
LOCK_PATIENCE = 3.0
"""Seconds to wait for a folder that another process has locked."""


class RunFolder:
    """The files of one run: their paths, and how they are read and written."""

    def __init__(self, path: Path) -> None:
        self.path, self.events = path, path / "events.jsonl"
        self.clients, self.model = path / "clients", path / "model.safetensors"
        self.checkpoints = Checkpoints(path / "checkpoints", self.clients)
        self._lock: TextIO | None = None
        self.trusted = False
        """Whether the user trusts the folder, whoever made it."""

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
        try:
            for folder in ("checkpoints", "clients"):
                (building / folder).mkdir()
            (building / "config.toml").write_text(config, encoding="utf-8")
            split.save(building / "splits.npz")
            files = {name: digest_of([(building / name).read_bytes()]) for name in ("config.toml", "splits.npz")}
            about = {"format": FORMAT, **facts, "files": files, "versions": versions()}
            (building / "run.json").write_bytes(seal_json(about))
            (building / "events.jsonl").write_bytes(events)
            for inner in building.iterdir():
                inner.chmod(PRIVATE_FOLDER if inner.is_dir() else 0o600)
            return cls(_move(building, path, parent, stem))
        except BaseException:
            shutil.rmtree(building, ignore_errors=True)
            raise

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Open an existing run folder; a `UserError` names what is missing."""
        if not path.is_dir():
            raise UserError(f"run folder {str(path)!r} {'is not a folder' if path.exists() else 'does not exist'}.")
        missing = [name for name in WRITTEN_FIRST if not (path / name).is_file()]
        if missing:
            raise UserError(f"{str(path)!r} is not a run folder: it has no {', '.join(missing)}.")
        for name in ("checkpoints", "clients"):
            if (path / name).exists() and not (path / name).is_dir():
                raise UserError(f"{str(path / name)!r} is not a folder: restore it from a copy.")
        folder = cls(path)
        folder.facts()
        return folder

    def facts(self) -> dict[str, Any]:
        """Return the contents of run.json, checked."""
        return read_facts(self.path)

    def lock(self) -> None:
        """Lock the folder against other processes. The operating system frees the lock when this process ends."""
        self._lock = open(create(self.path / ".lock", flags=os.O_NONBLOCK), "w")  # noqa: SIM115  (held for the run's life)
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

    def config_text(self) -> str:
        """Return config.toml. The user may edit it, so only its settings are compared with those of the start."""
        return read_file(self.path / "config.toml", MAX_CONFIG_BYTES).decode("utf-8-sig", errors="replace")

    @property
    def config_is_edited(self) -> bool:
        """Whether config.toml differs from the file that the run began with."""
        return not self._is_first("config.toml", MAX_CONFIG_BYTES)

    def split(self) -> Split:
        """Return the split; a `UserError` if its file is not the one that the run began with."""
        path = self.path / "splits.npz"
        if not self._is_first("splits.npz", MAX_SPLIT_BYTES):
            raise UserError(f"{str(path)!r} is damaged (its digest in run.json differs): restore it from a copy.")
        return Split.load(path)

    def _is_first(self, name: str, max_bytes: int) -> bool:
        """Whether a file is the one that the run began with, by its digest in run.json."""
        data = read_file(self.path / name, max_bytes)
        return bool(digest_of([data]) == self.facts().get("files", {}).get(name))

    def read_log(self) -> list[dict[str, Any]]:
        """Return the events of the log; damaged lines are ignored with a warning."""
        return read_events(self.events, (self.result() or {}).get("log", ""))

    @property
    def keeps_states(self) -> bool:
        """Whether clients' durable states are in this folder, and not at the clients' sites."""
        data = self.facts().get("config", {}).get("data", {})
        return not isinstance(data, dict) or data.get("name") != SITES

    def new_spool(self) -> Path:
        """Return an empty folder for messages, and remove unfinished files of a killed process."""
        for file in self.checkpoints.files():
            # It could neither be replaced nor removed in the middle of the run.
            if file.is_dir():
                raise UserError(f"{str(file)!r} is a folder, not a checkpoint: remove it.")
        for old in self.path.glob(".spool-*"):
            shutil.rmtree(old, ignore_errors=True)
        for half in self.path.rglob(".*.tmp"):
            half.unlink(missing_ok=True)
        spool = self.path / f".spool-{os.getpid()}"
        spool.mkdir(PRIVATE_FOLDER)
        return spool

    def last_checkpoint(self) -> Payload | None:
        """Return the newest intact checkpoint, or None before the first. A damaged one is skipped with a warning."""
        payload, problems = self.checkpoints.newest()
        for problem in problems:
            warnings.warn(f"{problem}.", DamageWarning, stacklevel=2)
        return payload

    def finish(self, model: Payload, result: dict[str, Any]) -> None:
        """Write and sign the final model, then write `result.json`, which marks the run as finished."""
        model.write(self.model)
        write_manifest(self.path, self._digests(result=result))
        self.write_result(result)

    def write_result(self, result: dict[str, Any]) -> None:
        write_atomically(self.path / "result.json", _result_bytes(result))

    def sign(self) -> None:
        """Sign the files of a finished run as they are."""
        write_manifest(self.path, self._digests())

    @contextlib.contextmanager
    def changing(self, model: Payload, result: dict[str, Any]) -> Iterator[None]:
        """Sign a new model and a new result before they are written, beside the old ones, and alone afterwards."""
        old, new = self._digests(), self._digests(model, result)
        if old == new:
            yield
            return
        write_manifest(self.path, {name: [*old[name], *new[name]] for name in new})
        yield
        write_manifest(self.path, new)

    def _digests(self, model: Payload | None = None, result: dict[str, Any] | None = None) -> dict[str, list[Digest]]:
        """Return the digests of the files that are signed; those of `model` and `result` instead of their files."""
        files = {"run.json": digest_of_file(self.path / "run.json")}
        files[self.model.name] = (
            digest_of_file(self.model) if model is None else digest_of_bytes(model.encode(sealed=True))
        )
        path = self.path / "result.json"
        files[path.name] = digest_of_file(path) if result is None else digest_of_bytes(_result_bytes(result))
        if self.keeps_states:
            states = states_of(self.checkpoints.newest()[0])
            files |= {name: digest_of_file(self.path / name) for name in state_files(states)}
        return {name: [digest] for name, digest in files.items()}

    def check_signed(self, names: Iterable[str]) -> None:
        """Reject files of a finished run unless somebody whom the user trusts has signed them."""
        if (self.path / "result.json").exists():
            check_signed(self.path, names, self.trusted or is_code_trusted())

    def _check_vouched(self) -> None:
        """Reject the model of a run unless the user made it, or trusts who did."""
        if (self.path / "result.json").exists():
            self.check_signed(["run.json", self.model.name])
        elif not self.trusted and not is_code_trusted():
            check_maker(self.path, self.facts())

    def result(self) -> dict[str, Any] | None:
        """Return the final figures, or None while the run is unfinished."""
        return read_result(self.path)

    def server(self) -> Payload:
        """Return the final server, or that of the last checkpoint if the run is unfinished."""
        again = f"run `fedwild resume {self.path}`"
        if self.model.exists():
            try:
                server = read_server(self.model, ServerRecord)
                self._check_vouched()
                return server
            except BadReply as problem:
                raise UserError(
                    f"{str(self.model)!r} is damaged ({problem}): delete it and result.json, then {again}."
                ) from problem
        if (self.path / "result.json").exists():
            raise UserError(f"run {str(self.path)!r} has no {self.model.name}: delete result.json, then {again}.")
        checkpoint = self.last_checkpoint()
        if checkpoint is None:
            raise UserError(f"run {str(self.path)!r} has no model yet: {again} first.")
        self._check_vouched()
        return checkpoint


def state_files(states: Mapping[str, int]) -> dict[str, str]:
    """Return the files of clients' states in a run folder, with the clients' names."""
    return {f"clients/{name}/{version:06d}.safetensors": name for name, version in states.items()}


def _result_bytes(result: dict[str, Any]) -> bytes:
    return seal_json(without_nan(result))


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
