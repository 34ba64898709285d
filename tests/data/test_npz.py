from __future__ import annotations

import io
import os
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedwild.core import memory
from fedwild.core.errors import UserError
from fedwild.data.npz import pack_json, read_npy, read_npz, unpack_json, write_npz


def test_arrays_and_text_survive_a_round_trip(tmp_path: Path) -> None:
    arrays = {"a": np.arange(6).reshape(2, 3).T, "empty": np.zeros((0, 3)), "text": pack_json({"ä": ["x", 1]})}
    write_npz(tmp_path / "f.npz", arrays)
    back = read_npz(tmp_path / "f.npz")
    assert all(np.array_equal(back[key], array) and back[key].dtype == array.dtype for key, array in arrays.items())
    assert unpack_json(back["text"]) == {"ä": ["x", 1]}


def test_a_failed_write_keeps_the_old_file_and_leaves_no_other(tmp_path: Path) -> None:
    path = tmp_path / "f.npz"
    write_npz(path, {"a": np.ones(3)})
    before = path.read_bytes()
    with pytest.raises(ValueError, match="Object arrays"):
        write_npz(path, {"a": np.zeros(9), "b": np.array([{}])})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_pickled_objects_are_rejected(tmp_path: Path) -> None:
    np.savez(tmp_path / "o.npz", a=np.array([{"x": 1}]))
    with pytest.raises(UserError, match="has pickled objects"):
        read_npz(tmp_path / "o.npz")
    np.save(tmp_path / "single.npy", np.zeros(3))
    with pytest.raises(UserError, match="a single array"):
        read_npz(tmp_path / "single.npy")


def test_arrays_of_any_layout_are_read_as_numpy_reads_them(tmp_path: Path) -> None:
    arrays = {
        "c": np.arange(24).reshape(2, 3, 4),
        "fortran": np.asfortranarray(np.arange(24.0).reshape(2, 3, 4)),
        "big": np.arange(5, dtype=">i4"),
        "text": np.array(["a", "bcd"]),
        "bool": np.array([[True], [False]]),
        "number": np.array(3.5),
        "empty": np.zeros((0, 3)),
        "large": np.random.default_rng(0).random(400_000),
    }
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "f.npz", **arrays)  # type: ignore[arg-type]
        back = read_npz(tmp_path / "f.npz")
        for key, array in arrays.items():
            assert back[key].dtype == array.dtype, key
            assert np.array_equal(back[key], array), key
    for key, array in arrays.items():
        np.save(tmp_path / "a.npy", array)
        assert np.array_equal(read_npy(tmp_path / "a.npy"), array), key


def npy(shape: tuple[int, ...], data: bytes = b"") -> bytes:
    """A .npy file whose header announces an array of this shape."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f8", "fortran_order": False, "shape": shape})
    return stream.getvalue() + data


def archive(path: Path, *members: tuple[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members:
            file.writestr(name, data)
    return path


@pytest.mark.parametrize("shape", [(10**12,), (2**40, 2**40), (10**18, 0), (3,), (-1,)])
def test_an_array_that_is_larger_than_its_file_is_rejected_before_it_is_allocated(
    shape: tuple[int, ...], tmp_path: Path
) -> None:
    path = archive(tmp_path / "x.npz", ("x.npy", npy(shape, bytes(16))))
    (tmp_path / "x.npy").write_bytes(npy(shape, bytes(16)))
    with pytest.raises(UserError, match=r"cannot be read as \.npz"):
        read_npz(path)
    with pytest.raises(UserError, match=r"cannot be read as a \.npy array"):
        read_npy(tmp_path / "x.npy")


def test_a_bomb_is_rejected_by_the_sizes_in_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zeros = npy((2_500_000,), bytes(20_000_000))
    path = archive(tmp_path / "x.npz", *((f"{number}.npy", zeros) for number in range(5)))
    assert path.stat().st_size < 200_000
    assert len(read_npz(path)) == 5
    monkeypatch.setattr(memory, "machine_memory", lambda: 100_000_000)
    tracemalloc.start()
    with pytest.raises(UserError, match=r"x\.npz needs 100\.0 MB of memory, and this machine allows 80\.0 MB"):
        read_npz(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


def test_a_directory_that_lies_about_a_size_is_rejected(tmp_path: Path) -> None:
    path = archive(tmp_path / "x.npz", ("x.npy", npy((250_000,), bytes(2_000_000))))
    data, true = bytearray(path.read_bytes()), (2_000_128).to_bytes(4, "little")
    assert data.count(true) >= 2
    path.write_bytes(data.replace(true, (1000).to_bytes(4, "little")))
    with pytest.raises(UserError, match=r"cannot be read as \.npz"):
        read_npz(path)


@pytest.mark.parametrize(
    "members",
    [
        [("x.npy", npy((1,), bytes(8))), ("x.npy", npy((1,), bytes(8)))],
        [(f"{number}.npy", npy((1,), bytes(8))) for number in range(1001)],
        [("x.npy", b"no array")],
        [("x.npy", npy((1,), bytes(16)))],
        [("x.npy", b"\x93NUMPY\x03\x00" + npy((1,), bytes(8))[8:])],
        [("x.npy", b"\x93NUMPY\x02\x00" + (2**31).to_bytes(4, "little") + b"(" * 100)],
        [("x.npy", b"\x93NUMPY\x01\x00" + (5000).to_bytes(2, "little") + b"(" * 5000)],
    ],
    ids=["twice", "many", "no array", "rest", "version", "long header", "nested header"],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_invalid_members_are_rejected(members: list[tuple[str, bytes]], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot be read as \.npz"):
        read_npz(archive(tmp_path / "x.npz", *members))


def test_pipes_and_devices_are_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.npz")
    (tmp_path / "zero.npz").symlink_to("/dev/zero")
    with pytest.raises(UserError, match="is a pipe: a regular file is required"):
        read_npz(tmp_path / "x.npz")
    with pytest.raises(UserError, match="is a device: a regular file is required"):
        read_npz(tmp_path / "zero.npz")
