"""Reading and writing .npz files without pickle: clear errors, deterministic bytes, never half a file."""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedwild.core.errors import UserError


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """All arrays of a .npz; pickled (object) arrays are refused."""
    try:
        # Opened here: given a path, numpy would leave a damaged archive's file open.
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise ValueError("it holds a single array, not an archive")
            with archive:
                return {key: archive[key] for key in archive.files}
    except FileNotFoundError:
        raise UserError(f"{path} is not there.") from None
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error, KeyError) as problem:
        raise UserError(
            f"{path} cannot be read as .npz ({_why(problem)}): it is damaged, cut short or holds objects."
        ) from None


def write_npz(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write an uncompressed .npz whose bytes depend only on the arrays; it appears whole or not at all."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
                for key, array in arrays.items():
                    _write_member(archive, f"{key}.npy", array)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def pack_json(value: Any) -> np.ndarray:
    """Plain JSON as a uint8 array, so that strings live in a .npz without objects."""
    return np.frombuffer(json.dumps(value, ensure_ascii=False, sort_keys=True).encode(), dtype=np.uint8)


def unpack_json(array: np.ndarray) -> Any:
    """The inverse of `pack_json`."""
    return json.loads(array.tobytes().decode())


def _write_member(archive: zipfile.ZipFile, name: str, array: np.ndarray) -> None:
    entry = zipfile.ZipInfo(name)  # its date is 1980-01-01, whatever the clock says
    entry.create_system = 3
    with archive.open(entry, "w", force_zip64=True) as member:
        np.lib.format.write_array(member, np.ascontiguousarray(array), allow_pickle=False)


def _why(problem: BaseException) -> str:
    """The first line of the reason, without a final stop."""
    lines = str(problem).splitlines()
    return lines[0].rstrip(".") if lines else type(problem).__name__
