"""Names for discovered classes: a person has looked at what a finished run found, and says what it is.

Three files hold names. The model is written last, and it decides: whoever kills the command in between leaves the old
name in it, so that the same command, given again, does all of it.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from fedwild.classes import MOST_CHARACTERS, UNKNOWN_NAME, ClassEntry, ClassRegistry
from fedwild.errors import UserError, unknown_name
from fedwild.methods import METHODS
from fedwild.runs.events import EventLog, read_events
from fedwild.runs.folder import RunFolder

if TYPE_CHECKING:
    from fedwild.api import Run


def novel_classes(run: Run) -> list[ClassEntry]:
    """The classes that a run discovered, under the names that they have now; a `UserError` if there are none."""
    found = ClassRegistry.from_json(run.folder.server().info["classes"]).novel
    if not found:
        raise nothing_found(run)
    return found


def name_class(run: Run, old: str, new: str) -> ClassEntry:
    """Give a class that a finished run discovered another name, which all that reads the run then uses."""
    folder = run.folder
    if folder.result() is None:
        raise UserError(
            f"run {str(run.path)!r} is unfinished: `fedwild resume {run.path}` it first, since going on brings back "
            "the names of the last checkpoint."
        )
    if not folder.model.exists():
        raise UserError(
            f"run {str(run.path)!r} has no {folder.model.name}: delete result.json, then `fedwild resume {run.path}`."
        )
    try:
        folder.lock()
        return rename(run, old, new)
    except OSError as error:
        raise UserError(
            f"run folder {str(run.path)!r}: {error.strerror or error}. Put that right, then give the command again."
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
    folder.write_result({**run.result, "classes": list(classes.names)})
    if new != old:
        log(folder, {"event": "name", "old": old, "new": new})
        model.info["classes"] = classes.to_json()
        model.write(folder.model)
    return classes.entries[classes.names.index(new)]


def log(folder: RunFolder, event: dict[str, Any]) -> None:
    """Append the event, unless it is the last one: then a command that was killed has written it already."""
    last = (read_events(folder.events) or [{}])[-1]
    if {key: last.get(key) for key in event} == event:
        return
    with closing(EventLog(folder.events)) as file:
        file.write(**event)
        file.sync()


def check_old(run: Run, classes: ClassRegistry, name: str) -> None:
    """Refuse a class that is not there, or that has its name from the data."""
    novel = [entry.name for entry in classes.novel]
    if name in novel:
        return
    if name in classes:
        others = f"only discovered classes can: {', '.join(novel)}" if novel else "only discovered classes can"
        raise UserError(f"class {name!r} cannot be renamed: it came with labels, and labels have its name; {others}.")
    if not novel:
        raise nothing_found(run)
    raise unknown_name("class", name, novel)


def allowed_name(classes: ClassRegistry, old: str, new: str) -> str:
    """The new name without spaces around it, if a class may have it."""
    name = new.strip()
    if not name:
        raise UserError(f"name {new!r} is not allowed: a name needs a character that is not a space.")
    if not name.isprintable() or len(name) > MOST_CHARACTERS:
        raise UserError(
            f"name {new[:MOST_CHARACTERS]!r} is not allowed: it must be one line of at most {MOST_CHARACTERS} "
            "printable characters."
        )
    if name == UNKNOWN_NAME:
        raise UserError(f"name {name!r} is not allowed: it is the answer for what belongs to no class.")
    if name != old and name in classes:
        raise UserError(f"name {name!r} is taken: two classes cannot have one name, and another class has this one.")
    return name


def nothing_found(run: Run) -> UserError:
    """The error for a run without discovered classes."""
    seekers = [name for name in METHODS.names() if "estimator" in METHODS.get(name).composes]
    method = run.config.method.name
    why = f"method {method!r} looks for none; take a run of {' or '.join(seekers)}"
    if "estimator" in METHODS.get(method).composes:
        why = f"method {method!r} found nothing new in what clients hold without labels"
    return UserError(f"run {str(run.path)!r} has no discovered classes: {why}.")
