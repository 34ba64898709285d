"""Reading and writing .npz files without pickle: clear errors, deterministic bytes, atomic writes."""

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
    """Return all arrays of a .npz file; pickled (object) arrays are rejected."""
    try:
        # Opened here because NumPy does not close the file of a damaged archive.
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise ValueError("it is a single array, not an archive")
            with archive:
                return {key: archive[key] for key in archive.files}
    except FileNotFoundError:
        raise UserError(f"{path} does not exist.") from None
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error, KeyError) as problem:
        raise UserError(
            f"{path} cannot be read as .npz ({_first_line(problem)}): it is damaged, truncated or has pickled objects."
        ) from None


def write_npz(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write an uncompressed .npz file atomically; its bytes depend only on the arrays."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
                for key, array in arrays.items():
                    entry = zipfile.ZipInfo(f"{key}.npy")  # dated 1980-01-01: the bytes do not depend on the time
                    entry.create_system = 3
                    with archive.open(entry, "w", force_zip64=True) as member:
                        np.lib.format.write_array(member, np.ascontiguousarray(array), allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def pack_json(value: Any) -> np.ndarray:
    """Return JSON as a uint8 array, so that a .npz file can hold text without objects."""
    return np.frombuffer(json.dumps(value, ensure_ascii=False, sort_keys=True).encode(), dtype=np.uint8)


def unpack_json(array: np.ndarray) -> Any:
    """Return the value that `pack_json` packed."""
    return json.loads(array.tobytes().decode())


def _first_line(problem: BaseException) -> str:
    """Return the first line of the message without its full stop, or the type of the exception."""
    lines = str(problem).splitlines()
    return lines[0].rstrip(".") if lines else type(problem).__name__
