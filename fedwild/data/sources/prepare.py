"""Finding a named data set's .npz, or making it from the official files."""

from __future__ import annotations

import os
from pathlib import Path

from fedwild.data.npz import write_npz
from fedwild.data.sources.catalogue import DATASETS, DataEntry
from fedwild.data.sources.convert import CONVERTERS
from fedwild.data.sources.download import Progress, download
from fedwild.core.errors import UserError, unknown_name


def data_folders() -> list[Path]:
    """Where `<name>.npz` is looked for: FEDWILD_DATA, then fedwild's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedwild"
    own = os.environ.get("FEDWILD_DATA")
    return [Path(own).expanduser(), cache] if own else [cache]


def find_prepared(name: str) -> Path | None:
    """The prepared file of this data set, if there is one."""
    for folder in data_folders():
        path = folder / f"{name}.npz"
        if path.is_file():
            return path
    return None


def prepare(name: str, progress: Progress | None = None, keep_downloads: bool = False) -> Path:
    """Download the official files of a named data set and write `<name>.npz`; returns its path."""
    if name not in DATASETS:
        raise unknown_name("data.name:", name, DATASETS)
    if name == "digits":
        raise UserError("data.name='digits' comes with scikit-learn: there is nothing to prepare.")
    entry = DATASETS[name]
    target = data_folders()[0] / f"{name}.npz"
    if not entry.downloads:
        raise UserError(f"data.name={name!r} has no official file to download: {_put_it_there(entry, target)}")
    folder = target.parent / f"{name}-download"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for file in entry.downloads:
            if not (folder / file.file).is_file():
                download(file.url, folder / file.file, file.md5, progress)
        files = [folder / file.file for file in entry.downloads]
        write_npz(target, CONVERTERS[name](files))
    except OSError as problem:
        raise UserError(f"data.name={name!r}: {target.parent} cannot be written ({problem}).") from None
    except UserError as problem:
        raise UserError(f"data.name={name!r} is not prepared: {problem} Or {_put_it_there(entry, target)}") from None
    if not keep_downloads:
        for path in files:
            path.unlink()
        folder.rmdir()
    return target


def _put_it_there(entry: DataEntry, target: Path) -> str:
    """The sentence that says which file would do."""
    keys = "x_train, y_train, x_test, y_test"
    if len(entry.shape) == 1:
        keys += ", classes, domains, domain_train, domain_test"
    elif not entry.classes:
        keys += ", classes"
    sample = "x".join(str(side) for side in (*entry.shape[1:], entry.shape[0]))
    return f"put {target} there yourself, with arrays {keys} (samples of {sample})."
