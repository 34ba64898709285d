from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedwild.core.errors import UserError
from fedwild.data.npz import pack_json, read_npz, unpack_json, write_npz


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
