"""Checking every file of a run folder: the content of `fedwild verify`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fedwild.core.errors import BadReply, UserError
from fedwild.core.payload import Payload
from fedwild.core.text import count
from fedwild.runs.checkpoints import read_server, states_of
from fedwild.runs.events import check_log
from fedwild.runs.folder import WRITTEN_FIRST, RunFolder
from fedwild.runs.format import OtherFormat
from fedwild.runs.manifest import FILE, SIGNED, check_signed, read_manifest
from fedwild.runs.records import CheckpointRecord, ServerRecord
from fedwild.runs.signing import fingerprint, standing


@dataclass(frozen=True)
class Checked:
    """A file and what was found."""

    file: str
    """Its path in the run folder."""
    good: bool
    text: str
    """Remarks on a good file, or what is wrong with a damaged one."""


def verify_run(path: Path) -> list[Checked]:
    """Return a row for each file of a run folder. Nothing is written."""
    if not path.is_dir():
        raise UserError(f"run folder {str(path)!r} {'is not a folder' if path.exists() else 'does not exist'}.")
    if not any((path / name).is_file() for name in WRITTEN_FIRST):
        raise UserError(f"{str(path)!r} is not a run folder: it has no {', '.join(WRITTEN_FIRST)}.")
    folder = RunFolder(path)
    rows = [_check("run.json", lambda: _facts(folder))]
    rows.append(_check("config.toml", lambda: _config(folder, rows[0].good)))
    rows.append(_check("splits.npz", lambda: _split(folder, rows[0].good)))
    rows += _checkpoints(folder)
    rows += _states(folder)
    rows += _model(folder)
    rows.append(_check("events.jsonl", lambda: _log(folder)))
    return rows


def _check(file: str, look: Callable[[], str]) -> Checked:
    """Return a row for a file; `look` returns a remark or raises."""
    try:
        return Checked(file, True, look())
    except OtherFormat:
        raise
    except UserError as error:
        return Checked(file, False, " ".join(error.problems))
    except (BadReply, ValueError) as error:
        return Checked(file, False, f"damaged: {error}")
    except OSError as error:
        return Checked(file, False, f"cannot be read: {error.strerror or error}")


def _facts(folder: RunFolder) -> str:
    folder.facts()
    return ""


def _config(folder: RunFolder, has_facts: bool) -> str:
    folder.config_text()
    if not has_facts:
        return "not compared, because run.json is damaged"
    return "edited since the run began: only [engine] may differ" if folder.config_is_edited else ""


def _split(folder: RunFolder, has_facts: bool) -> str:
    if not has_facts:
        raise ValueError("its digest cannot be read from run.json")
    return count(len(folder.split().clients), "client")


def _checkpoints(folder: RunFolder) -> Iterator[Checked]:
    for file in folder.checkpoints.files():
        yield _check(f"checkpoints/{file.name}", lambda file=file: _server(file, CheckpointRecord))  # type: ignore[misc]


def _server(file: Path, kind: type[ServerRecord]) -> str:
    return count(len(read_server(file, kind).tensors), "tensor")


def _states(folder: RunFolder) -> Iterator[Checked]:
    """Check every state that is there, and that those of the newest checkpoint are."""
    files = {file for file in folder.clients.glob("*/*.safetensors") if not file.name.startswith(".")}
    try:
        newest, _ = folder.checkpoints.newest()
        if folder.keeps_states:
            files |= {
                folder.clients / name / f"{version:06d}.safetensors" for name, version in states_of(newest).items()
            }
    except UserError:
        # The rows of the checkpoints or of run.json say why.
        pass
    for file in sorted(files):
        yield _check(str(file.relative_to(folder.path)), lambda file=file: _state(file))  # type: ignore[misc]


def _state(file: Path) -> str:
    return count(len(Payload.read(file).tensors), "tensor")


def _model(folder: RunFolder) -> Iterator[Checked]:
    """Check the files of a finished run."""
    if (folder.path / "result.json").exists():
        yield _check("result.json", lambda: _result(folder))
        yield _check("model.safetensors", lambda: _server(folder.model, ServerRecord))
        yield _check(FILE, lambda: _manifest(folder))


def _result(folder: RunFolder) -> str:
    folder.result()
    return ""


def _manifest(folder: RunFolder) -> str:
    """Check the signature and every file that was signed, and say who signed."""
    manifest = read_manifest(folder.path)
    if manifest is None:
        raise ValueError("it is missing, so nobody has signed the run")
    check_signed(folder.path, {*SIGNED, *manifest.files}, anybody=True)
    key, who = fingerprint(manifest.signer), standing(manifest.signer)
    return f"signed by {who} ({key})" if who else f"signed with a key that you do not trust ({key})"


def _log(folder: RunFolder) -> str:
    log = check_log(folder.events)
    problem = log.problem(_anchor(folder))
    if problem:
        raise ValueError(problem)
    return count(len(log.checks), "line")


def _anchor(folder: RunFolder) -> str:
    """Return the check of a line that the log must have, if the result or a checkpoint names one."""
    try:
        result = folder.result()
        if result is not None:
            return str(result.get("log", ""))
        newest, _ = folder.checkpoints.newest()
        return str(newest.info["ledger"].get("log", "")) if newest else ""
    except UserError:
        return ""
