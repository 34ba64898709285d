"""Reading and writing .npz files without pickle: clear errors, deterministic bytes, atomic writes."""

from __future__ import annotations

import json
import math
import os
import tempfile
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedwild.core.errors import UserError
from fedwild.core.files import check_regular
from fedwild.core.memory import check_allocation

MAX_ARRAYS = 1000
MAX_HEADER = 10_000
"""The maximum length of the description of one array, which is evaluated as a Python literal."""
_PIECE = 1 << 20
_SINGLE_ARRAY = b"\x93NUMPY"
_HEADER_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_DAMAGED = (
    *(ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error, KeyError),
    # An unknown compression, or an encrypted archive.
    *(NotImplementedError, RuntimeError),
)
"""What reading a damaged archive may raise."""


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Return all arrays of a .npz file; pickled (object) arrays are rejected, and sizes before memory is allocated."""
    try:
        check_regular(path)
        with path.open("rb") as file:
            if file.read(len(_SINGLE_ARRAY)) == _SINGLE_ARRAY:
                raise ValueError("it is a single array, not an archive")
            file.seek(0)
            with zipfile.ZipFile(file) as archive:
                members = archive.infolist()
                _check_members(path, members)
                return {entry.filename.removesuffix(".npy"): _read_member(archive, entry) for entry in members}
    except FileNotFoundError:
        raise UserError(f"{path} does not exist.") from None
    except _DAMAGED as problem:
        raise UserError(
            f"{path} cannot be read as .npz ({_first_line(problem)}): it is damaged, truncated or has pickled objects."
        ) from None


def read_lengths(path: Path) -> dict[str, int]:
    """Return the length of each array of a .npz file, read from the headers alone."""
    try:
        check_regular(path)
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            lengths: dict[str, int] = {}
            for entry in archive.infolist()[:MAX_ARRAYS]:
                with archive.open(entry) as member:
                    shape, _, _ = _read_header(member)
                    lengths[entry.filename.removesuffix(".npy")] = shape[0] if shape else 1
            return lengths
    except _DAMAGED as problem:
        raise UserError(f"{path} cannot be read as .npz ({_first_line(problem)}).") from None


def read_npy(path: Path) -> np.ndarray:
    """Return the array of a .npy file; pickled objects are rejected, and its size before memory is allocated."""
    try:
        check_regular(path)
        with path.open("rb") as file:
            if file.read(2) == b"PK":
                raise UserError(f"{str(path)!r} is an archive of arrays: give a .npy file with one sample.")
            file.seek(0)
            return _read_array(file, os.fstat(file.fileno()).st_size)
    except _DAMAGED as problem:
        raise UserError(f"{str(path)!r} cannot be read as a .npy array: {_first_line(problem)}.") from None


def _check_members(path: Path, members: Sequence[zipfile.ZipInfo]) -> None:
    """Reject an archive with too many, too large, repeated or encrypted members."""
    names = [entry.filename for entry in members]
    if len(members) > MAX_ARRAYS or len(set(names)) < len(names):
        raise ValueError(f"it must have at most {MAX_ARRAYS} arrays with different names")
    check_allocation(sum(entry.file_size for entry in members), str(path), "use fewer or smaller samples")


def _read_member(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(entry) as member:
        return _read_array(member, entry.file_size)


def _read_array(file: IO[bytes], length: int) -> np.ndarray:
    """Return the array of an opened .npy file of `length` bytes, whose header must agree with that length."""
    shape, fortran, dtype = _read_header(file)
    if dtype.hasobject:
        raise ValueError("it has objects")
    if math.prod(shape) * dtype.itemsize != length - file.tell():
        raise ValueError("the size of an array disagrees with the file")
    array = np.empty(shape[::-1] if fortran else shape, dtype)
    _read_into(file, array)
    return array.transpose() if fortran else array


def _read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, order and type of the array that follows in a .npy file."""
    version = np.lib.format.read_magic(file)
    if version not in _HEADER_READERS:
        raise ValueError(f"version {version} of the format is not supported")
    try:
        return _HEADER_READERS[version](file, max_header_size=MAX_HEADER)
    except Exception as error:
        # NumPy parses it as Python, which may raise anything.
        raise ValueError("the description of an array is invalid") from error


def _read_into(file: IO[bytes], array: np.ndarray) -> None:
    """Fill an array with the rest of a file, without a copy of it."""
    rest = array.reshape(-1).view(np.uint8).data if array.nbytes else memoryview(b"")
    while rest:
        piece = file.read(min(len(rest), _PIECE))
        if not piece:
            raise EOFError("an array is truncated")
        rest[: len(piece)] = piece
        rest = rest[len(piece) :]
    if file.read(1):
        raise ValueError("an array is longer than its header says")


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
