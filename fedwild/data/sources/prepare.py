"""Prepared data sets: finding the .npz file of a named data set, or making it from the official files."""

from __future__ import annotations

import os
from pathlib import Path

from fedwild.core.errors import UserError, unknown_name
from fedwild.data.npz import write_npz
from fedwild.data.sources.catalogue import DATASETS, DataEntry
from fedwild.data.sources.convert import CONVERTERS
from fedwild.data.sources.download import Progress, download


def data_folders() -> list[Path]:
    """Return the folders that may have `NAME.npz`: FEDWILD_DATA, then the cache of fedwild."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedwild"
    own = os.environ.get("FEDWILD_DATA")
    return [Path(own).expanduser(), cache] if own else [cache]


def find_prepared(name: str) -> Path | None:
    """Return the prepared file of a data set, or None."""
    for folder in data_folders():
        path = folder / f"{name}.npz"
        if path.is_file():
            return path
    return None


def prepare(name: str, progress: Progress | None = None) -> Path:
    """Download the official files of a data set, write `NAME.npz` and return its path."""
    if name not in DATASETS:
        raise unknown_name("data set", name, DATASETS)
    if name == "digits":
        raise UserError("data set 'digits' is included in scikit-learn: it needs no preparation.")
    entry = DATASETS[name]
    target = data_folders()[0] / f"{name}.npz"
    if not entry.downloads:
        raise UserError(f"data set {name!r} has no official download: {_manual_way(entry, target)}")
    folder = target.parent / f"{name}-download"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for file in entry.downloads:
            if not (folder / file.file).is_file():
                download(file.url, folder / file.file, file.md5, progress)
        files = [folder / file.file for file in entry.downloads]
        write_npz(target, CONVERTERS[name](files))
    except OSError as problem:
        raise UserError(f"data set {name!r} cannot be prepared: {target.parent} is not writable ({problem}).") from None
    except UserError as problem:
        raise UserError(
            f"data set {name!r} cannot be prepared: {problem} Try again, or {_manual_way(entry, target)}"
        ) from None
    for path in files:
        path.unlink()
    folder.rmdir()
    return target


def _manual_way(entry: DataEntry, target: Path) -> str:
    """Return the clause that says which file to provide."""
    keys = "x_train, y_train, x_test, y_test"
    if len(entry.shape) == 1:
        keys += ", classes, domains, domain_train, domain_test"
    elif not entry.classes:
        keys += ", classes"
    sample = "x".join(str(side) for side in (*entry.shape[1:], entry.shape[0]))
    return f"provide {target} with arrays {keys} (samples of {sample})."
