from __future__ import annotations

import bz2
import gzip
import io
import pickle
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from fedwild.core.errors import UserError
from fedwild.data.npz import write_npz
from fedwild.data.sources.convert import CONVERTERS
from fedwild.data.sources.npz_file import load_npz

RNG = np.random.default_rng(3)


def tar_of(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(f"some-folder/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def records(labels: np.ndarray, images: np.ndarray) -> bytes:
    """Return CIFAR records: label bytes (n, l), then red, green and blue planes of images (n, 32, 32, 3)."""
    return (
        np.concatenate([labels, images.transpose(0, 3, 1, 2).reshape(len(images), -1)], axis=1)
        .astype(np.uint8)
        .tobytes()
    )


def test_idx(tmp_path: Path) -> None:
    arrays = {
        "x_train": RNG.integers(0, 256, (6, 28, 28)).astype(np.uint8),
        "y_train": np.arange(6, dtype=np.uint8),
        "x_test": RNG.integers(0, 256, (3, 28, 28)).astype(np.uint8),
        "y_test": np.arange(3, dtype=np.uint8),
    }
    files = []
    for key, array in arrays.items():
        head = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
        files.append(tmp_path / key)
        files[-1].write_bytes(gzip.compress(head + array.tobytes()))
    made = CONVERTERS["mnist"](files)
    assert all(np.array_equal(made[key], array) for key, array in arrays.items())


def test_cifar_10_binary(tmp_path: Path) -> None:
    images, labels = RNG.integers(0, 256, (12, 32, 32, 3)), RNG.integers(0, 10, (12, 1))
    members = {
        f"data_batch_{n + 1}.bin": records(labels[2 * n : 2 * n + 2], images[2 * n : 2 * n + 2]) for n in range(5)
    }
    members["test_batch.bin"] = records(labels[10:], images[10:])
    made = CONVERTERS["cifar-10"]([tar_of(tmp_path / "c.tar.gz", members)])
    assert np.array_equal(made["x_train"], images[:10])
    assert np.array_equal(made["y_test"], labels[10:, 0])


def test_cifar_100_binary_keeps_the_fine_labels(tmp_path: Path) -> None:
    images, labels = RNG.integers(0, 256, (4, 32, 32, 3)), np.array([[0, 5], [1, 6], [2, 7], [3, 8]])
    members = {
        "train.bin": records(labels[:3], images[:3]),
        "test.bin": records(labels[3:], images[3:]),
        "fine_label_names.txt": "\n".join(f"n{i}" for i in range(100)).encode(),
    }
    made = CONVERTERS["cifar-100"]([tar_of(tmp_path / "c.tar.gz", members)])
    assert made["y_train"].tolist() == [5, 6, 7]
    assert np.array_equal(made["x_test"], images[3:])
    assert made["classes"][8] == "n8"


def test_svhn_mat(tmp_path: Path) -> None:
    files, images = [], RNG.integers(0, 256, (5, 32, 32, 3)).astype(np.uint8)
    for part in ("train", "test"):
        files.append(tmp_path / f"{part}.mat")
        savemat(files[-1], {"X": images.transpose(1, 2, 3, 0), "y": np.array([[1], [10], [3], [9], [10]])})
    made = CONVERTERS["svhn"](files)
    assert np.array_equal(made["x_test"], images)
    assert made["y_train"].tolist() == [1, 0, 3, 9, 0]


def test_usps_libsvm(tmp_path: Path) -> None:
    pixels = RNG.integers(0, 256, (4, 256))
    lines = [
        f"{label} " + " ".join(f"{i + 1}:{v / 127.5 - 1:.6f}" for i, v in enumerate(row) if i != 7)
        for label, row in zip([1, 10, 4, 4], pixels, strict=True)
    ]
    files = [tmp_path / "a.bz2", tmp_path / "b.bz2"]
    for file in files:
        file.write_bytes(bz2.compress("\n".join(lines).encode()))
    made = CONVERTERS["usps"](files)
    pixels[:, 7] = 0  # a value that is left out is the background
    assert np.array_equal(made["x_train"].reshape(4, 256), pixels)
    assert made["y_test"].tolist() == [0, 9, 3, 3]


def test_medmnist_npz_joins_training_and_validation(tmp_path: Path) -> None:
    volumes = RNG.integers(0, 256, (6, 9, 9, 9)).astype(np.uint8)
    path = tmp_path / "organmnist3d.npz"
    np.savez(
        path,
        train_images=volumes[:3],
        train_labels=np.array([[0], [1], [2]]),
        val_images=volumes[3:4],
        val_labels=np.array([[3]]),
        test_images=volumes[4:],
        test_labels=np.array([[4], [10]]),
    )
    made = CONVERTERS["organ-mnist-3d"]([path])
    write_npz(tmp_path / "made.npz", made)
    raw = load_npz(tmp_path / "made.npz", "organs", tuple("abcdefghijk"))
    assert raw.train.x.shape == (4, 1, 9, 9, 9)
    assert raw.train.y.tolist() == [0, 1, 2, 3]
    assert raw.test is not None
    assert raw.test.y.tolist() == [4, 10]


def jpeg(value: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("L" if value % 2 else "RGB", (64, 64), value if value % 2 else (value,) * 3).save(buffer, "JPEG")
    return buffer.getvalue()


def test_tiny_imagenet_zip(tmp_path: Path) -> None:
    path, root = tmp_path / "tiny.zip", "tiny-imagenet-200"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{root}/wnids.txt", "n2\nn1\nn3\n")
        archive.writestr(f"{root}/words.txt", "n1\tcat, house cat\nn2\tcrane\nn3\tcrane, bird\nn9\tnobody\n")
        for number, wnid in enumerate(["n1", "n2", "n3"]):
            archive.writestr(f"{root}/train/{wnid}/images/{wnid}_0.JPEG", jpeg(60 + number))
            archive.writestr(f"{root}/train/{wnid}/{wnid}_boxes.txt", "")
        archive.writestr(f"{root}/val/images/val_0.JPEG", jpeg(90))
        archive.writestr(f"{root}/val/val_annotations.txt", "val_0.JPEG\tn3\t0\t0\t1\t1\n")
    made = CONVERTERS["tiny-imagenet"]([path])
    assert made["classes"].tolist() == ["crane (n2)", "cat", "crane (n3)"]
    assert made["y_train"].tolist() == [1, 0, 2]
    assert made["x_train"].shape == (3, 64, 64, 3)
    assert made["x_train"][:, 0, 0, 0].tolist() == [60, 61, 62]
    assert made["y_test"].tolist() == [2]


@pytest.mark.parametrize("name", sorted(CONVERTERS))
def test_invalid_files_are_rejected_and_never_unpickled(name: str, tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (open, (str(tmp_path / "sprung"), "w"))  # type: ignore[return-value]

    files = [tmp_path / str(number) for number in range(4 if "mnist" in name and "-3d" not in name else 2)]
    if name in ("blood-mnist", "organ-mnist-3d", "tiny-imagenet", "cifar-10", "cifar-100"):
        files = files[:1]
    for file in files:
        file.write_bytes(pickle.dumps(Trap()))
    with pytest.raises(UserError, match=str(files[0])):
        CONVERTERS[name](files)
    assert not (tmp_path / "sprung").exists()
