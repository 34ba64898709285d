"""Naming the classes that a finished run discovered.

Three files hold class names. The model is written last and is authoritative: if the command is killed in between, the
model still has the old name, and the same command completes the change. The renamed model is signed by who renames it.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from fedwild.contract import Discovers
from fedwild.core.classes import ClassEntry, ClassRegistry
from fedwild.core.errors import UserError, unknown_name
from fedwild.core.names import check_name, seen_names
from fedwild.methods import METHODS
from fedwild.runs.events import EventLog
from fedwild.runs.folder import RunFolder

if TYPE_CHECKING:
    from fedwild.lifecycle.run import Run


def novel_classes(run: Run) -> list[ClassEntry]:
    """Return the classes that a run discovered, under their current names; raise a `UserError` without any."""
    found = ClassRegistry.from_json(run.folder.server().info["classes"]).novel
    if not found:
        raise nothing_found(run)
    return found


def name_class(run: Run, old: str, new: str) -> ClassEntry:
    """Rename a class that a finished run discovered."""
    folder = run.folder
    if folder.result() is None:
        raise UserError(
            f"run {str(run.path)!r} is unfinished: run `fedwild resume {run.path}` first, since resuming restores "
            "the names of the last checkpoint."
        )
    if not folder.model.exists():
        raise UserError(
            f"run {str(run.path)!r} has no {folder.model.name}: delete result.json, then run "
            f"`fedwild resume {run.path}`."
        )
    try:
        folder.lock()
        return rename(run, old, new)
    except OSError as error:
        raise UserError(
            f"run folder {str(run.path)!r}: {error.strerror or error}. Fix the problem, then repeat the command."
        ) from error
    finally:
        folder.unlock()


def rename(run: Run, old: str, new: str) -> ClassEntry:
    """Check both names, then write result, log and model, in this order."""
    folder, model = run.folder, run.folder.server()
    classes = ClassRegistry.from_json(model.info["classes"])
    check_old(run, classes, old)
    new = allowed_name(classes, old, new)
    classes.rename(old, new)
    model.info["classes"], result = classes.to_json(), {**run.result, "classes": list(classes.names)}
    with folder.changing(model, result):
        folder.write_result(result)
        if new != old:
            log(folder, {"event": "name", "old": old, "new": new})
            model.write(folder.model)
    return classes.entries[classes.names.index(new)]


def log(folder: RunFolder, event: dict[str, Any]) -> None:
    """Append the event, unless it is the last one already: a command that was killed wrote it."""
    last = (folder.read_log() or [{}])[-1]
    if {key: last.get(key) for key in event} == event:
        return
    with closing(EventLog(folder.events)) as file:
        file.write(**event)
        file.sync()


def check_old(run: Run, classes: ClassRegistry, name: str) -> None:
    """Reject a class that does not exist or that has its name from the data."""
    novel = [entry.name for entry in classes.novel]
    if name in novel:
        return
    if name in classes:
        others = f"only discovered classes can: {', '.join(novel)}" if novel else "only discovered classes can"
        raise UserError(f"class {name!r} cannot be renamed: its name comes from the labels; {others}.")
    if not novel:
        raise nothing_found(run)
    raise unknown_name("class", name, novel)


def allowed_name(classes: ClassRegistry, old: str, new: str) -> str:
    """Return the new name without surrounding spaces, if it is allowed."""
    name, others = new.strip() or new, [other for other in classes.names if other != old]
    check_name(name, "", "class", seen_names(others, "another class"), "Choose another name.")
    if name in others:
        raise UserError(f"name {name!r} is taken: another class has it.")
    return name


def nothing_found(run: Run) -> UserError:
    """Return the error for a run without discovered classes."""
    method = run.config.method.name
    if issubclass(METHODS.get(method), Discovers):
        why = f"method {method!r} found no new class among the unlabelled samples"
    else:
        others = [name for name in METHODS.names() if issubclass(METHODS.get(name), Discovers)]
        why = f"method {method!r} does not look for any; use a run of {' or '.join(others)}"
    return UserError(f"run {str(run.path)!r} has no discovered classes: {why}.")
