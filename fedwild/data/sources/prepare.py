"""Prepared data sets: finding the .npz file of a named data set, or making it from the official files."""

from __future__ import annotations

import os
from pathlib import Path

from fedwild.core.errors import UserError, unknown_name
from fedwild.data.npz import read_lengths, write_npz
from fedwild.data.sources.catalogue import DATASETS, DataEntry
from fedwild.data.sources.convert import CONVERTERS
from fedwild.data.sources.download import Progress, download
from fedwild.data.sources.rendered import render_digits, why_no_fonts


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


def why_missing(name: str) -> str | None:
    """Return why a named data set cannot be used without a download, and how to get it; None if it can."""
    entry = DATASETS[name]
    if name == "digits" or find_prepared(name) is not None:
        return None
    if entry.is_generated:
        return why_no_fonts()
    return f"fedwild data prepare {name}" if entry.downloads else "no automatic download"


def difference_from_catalogue(name: str) -> str | None:
    """Return how the prepared file of a data set differs in numbers of samples from the catalogue; None if equal.

    A file without these arrays, or one that cannot be read, is reported when it is loaded.
    """
    path = find_prepared(name)
    if name not in DATASETS or path is None:
        return None
    try:
        lengths = read_lengths(path)
    except UserError:
        return None
    entry = DATASETS[name]
    parts = {"training": (lengths.get("y_train"), entry.train), "test": (lengths.get("y_test"), entry.test)}
    found = [f"{mine:,} of {whole:,} {part}" for part, (mine, whole) in parts.items() if mine not in (None, whole)]
    return f"{name} has {' and '.join(found)} samples" if found else None


def prepare(name: str, progress: Progress | None = None) -> Path:
    """Draw a data set or download its official files, write `NAME.npz` and return its path."""
    if name not in DATASETS:
        raise unknown_name("data set", name, DATASETS)
    if name == "digits":
        raise UserError("data set 'digits' is included in scikit-learn: it needs no preparation.")
    entry = DATASETS[name]
    target = data_folders()[0] / f"{name}.npz"
    if not entry.downloads and not entry.is_generated:
        raise UserError(f"data set {name!r} has no official download: {_manual_way(entry, target)}")
    try:
        if entry.is_generated:
            write_npz(target, render_digits())
        else:
            _download(entry, target, progress)
    except OSError as problem:
        raise UserError(f"data set {name!r} cannot be prepared: {target.parent} is not writable ({problem}).") from None
    return target


def _download(entry: DataEntry, target: Path, progress: Progress | None) -> None:
    """Write the prepared file from the official ones, which are deleted if all went well."""
    folder = target.parent / f"{entry.name}-download"
    files = [folder / file.file for file in entry.downloads]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for path, file in zip(files, entry.downloads, strict=True):
            if not path.is_file():
                download(file.url, path, file.md5, progress)
        write_npz(target, CONVERTERS[entry.name](files))
    except UserError as problem:
        raise UserError(
            f"data set {entry.name!r} cannot be prepared: {problem} Try again, or {_manual_way(entry, target)}"
        ) from None
    for path in files:
        path.unlink()
    folder.rmdir()


def _manual_way(entry: DataEntry, target: Path) -> str:
    """Return the clause that says which file to provide."""
    keys = "x_train, y_train, x_test, y_test"
    if len(entry.shape) == 1:
        keys += ", classes, domains, domain_train, domain_test"
    elif not entry.classes:
        keys += ", classes"
    sample = "x".join(str(side) for side in (*entry.shape[1:], entry.shape[0]))
    return f"provide {target} with arrays {keys} (samples of {sample})."
