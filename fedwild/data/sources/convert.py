"""Conversion of official files to the arrays of a prepared .npz file, without pickle."""

from __future__ import annotations

import bz2
import gzip
import io
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from fedwild.core.errors import UserError
from fedwild.data.npz import read_npz

Arrays = dict[str, np.ndarray]


def from_idx(files: Sequence[Path]) -> Arrays:
    """Read MNIST's idx.gz files: training images and labels, test images and labels."""
    keys = ("x_train", "y_train", "x_test", "y_test")
    return {key: _read_idx(file) for key, file in zip(keys, files, strict=True)}


def _read_idx(file: Path) -> np.ndarray:
    """Read a gzipped idx file of bytes: magic 0, 0, 8, number of axes; big-endian sizes; then the values."""
    try:
        content = gzip.decompress(file.read_bytes())
        zero, kind, axes = struct.unpack(">HBB", content[:4])
        if zero != 0 or kind != 8:
            raise ValueError("not an idx file of bytes")
        shape = struct.unpack(f">{axes}I", content[4 : 4 + 4 * axes])
        return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape)
    except (OSError, EOFError, ValueError, struct.error, zlib.error) as problem:
        raise _invalid(file, problem) from None


def from_cifar10(files: Sequence[Path]) -> Arrays:
    """Read CIFAR-10's binary tar file: records of one label byte and 3,072 pixel bytes."""
    train = [f"data_batch_{number}.bin" for number in range(1, 6)]
    members = _tar_members(files[0], [*train, "test_batch.bin"])
    return _cifar_records(files[0], b"".join(members[name] for name in train), members["test_batch.bin"], 1)


def from_cifar100(files: Sequence[Path]) -> Arrays:
    """Read CIFAR-100's binary tar file: records of a coarse and a fine label byte and 3,072 pixel bytes."""
    members = _tar_members(files[0], ["train.bin", "test.bin", "fine_label_names.txt"])
    names = np.array(members["fine_label_names.txt"].decode().split())
    return {**_cifar_records(files[0], members["train.bin"], members["test.bin"], 2), "classes": names}


def _tar_members(file: Path, names: Sequence[str]) -> dict[str, bytes]:
    """Return the contents of these files, in any folder of the archive, without writing them to disk."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(file) as archive:
            for member in archive:
                name = member.name.rpartition("/")[2]
                content = archive.extractfile(member) if member.isfile() and name in names else None
                if content is not None:
                    found[name] = content.read()
    except (tarfile.TarError, OSError, EOFError, zlib.error) as problem:
        raise _invalid(file, problem) from None
    missing = [name for name in names if name not in found]
    if missing:
        raise _invalid(file, ValueError(f"{', '.join(missing)} missing"))
    return found


def _cifar_records(file: Path, train: bytes, test: bytes, labels: int) -> Arrays:
    """Return images (n, 32, 32, 3) and the last label byte of each record."""
    arrays: Arrays = {}
    for part, content in (("train", train), ("test", test)):
        if len(content) % (labels + 3072):
            raise _invalid(file, ValueError("records of wrong length"))
        records = np.frombuffer(content, np.uint8).reshape(-1, labels + 3072)
        images = records[:, labels:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        arrays |= {f"x_{part}": np.ascontiguousarray(images), f"y_{part}": records[:, labels - 1].copy()}
    return arrays


def from_svhn(files: Sequence[Path]) -> Arrays:
    """Read SVHN's cropped .mat files: X (32, 32, 3, n), y in 1..10, where 10 is the digit 0."""
    from scipy.io import loadmat

    arrays: Arrays = {}
    for part, file in zip(("train", "test"), files, strict=True):
        try:
            content = loadmat(file)
            arrays[f"x_{part}"] = np.ascontiguousarray(content["X"].transpose(3, 0, 1, 2))
            arrays[f"y_{part}"] = (content["y"].reshape(-1) % 10).astype(np.uint8)
        except (OSError, ValueError, LookupError, TypeError, NotImplementedError, zlib.error) as problem:
            raise _invalid(file, problem) from None
    return arrays


def from_libsvm(files: Sequence[Path]) -> Arrays:
    """Read USPS as libsvm text in bz2: labels 1..10 for digits 0..9, 256 values in [-1, 1]."""
    arrays: Arrays = {}
    for part, file in zip(("train", "test"), files, strict=True):
        try:
            lines = bz2.decompress(file.read_bytes()).decode("ascii").splitlines()
            x = np.full((len(lines), 256), -1.0)
            y = np.empty(len(lines), dtype=np.uint8)
            for row, line in enumerate(lines):
                label, *pairs = line.split()
                y[row] = int(float(label)) - 1
                for pair in pairs:
                    place, _, value = pair.partition(":")
                    x[row, int(place) - 1] = float(value)
        except (OSError, ValueError, IndexError, EOFError) as problem:
            raise _invalid(file, problem) from None
        arrays[f"x_{part}"] = np.round((x + 1) * 127.5).astype(np.uint8).reshape(-1, 16, 16)
        arrays[f"y_{part}"] = y
    return arrays


def from_medmnist(files: Sequence[Path]) -> Arrays:
    """Read MedMNIST's .npz; its validation part joins the training part, since clients have their own."""
    content = read_npz(files[0])
    try:
        return {
            "x_train": np.concatenate([content["train_images"], content["val_images"]]),
            "y_train": np.concatenate([content["train_labels"], content["val_labels"]]).reshape(-1),
            "x_test": content["test_images"],
            "y_test": content["test_labels"].reshape(-1),
        }
    except (KeyError, ValueError) as problem:
        raise _invalid(files[0], problem) from None


def from_tiny_imagenet(files: Sequence[Path]) -> Arrays:
    """Read the training folders of the zip file and its labelled validation images, which become test data."""
    try:
        with zipfile.ZipFile(files[0]) as archive:
            root = "tiny-imagenet-200/"
            ids = archive.read(root + "wnids.txt").decode().split()
            train = sorted(
                name
                for name in archive.namelist()
                if name.startswith(root + "train/") and name.lower().endswith(".jpeg")
            )
            notes = [line.split("\t") for line in archive.read(root + "val/val_annotations.txt").decode().splitlines()]
            label = {wnid: number for number, wnid in enumerate(ids)}
            return {
                "x_train": _jpegs(archive, train),
                "y_train": np.array([label[name.split("/")[2]] for name in train], dtype=np.uint8),
                "x_test": _jpegs(archive, [f"{root}val/images/{note[0]}" for note in notes]),
                "y_test": np.array([label[note[1]] for note in notes], dtype=np.uint8),
                "classes": np.array(_word_names(ids, archive.read(root + "words.txt").decode())),
            }
    except (zipfile.BadZipFile, KeyError, OSError, ValueError, IndexError, zlib.error) as problem:
        raise _invalid(files[0], problem) from None


def _jpegs(archive: zipfile.ZipFile, names: list[str]) -> np.ndarray:
    """Return images (n, 64, 64, 3)."""
    out = np.empty((len(names), 64, 64, 3), dtype=np.uint8)
    for number, name in enumerate(names):
        with Image.open(io.BytesIO(archive.read(name))) as image:
            out[number] = np.asarray(image.convert("RGB"))
    return out


def _word_names(ids: list[str], words: str) -> list[str]:
    """Return the first English word of each WordNet id, with the id if that word is not unique."""
    lines = (line.partition("\t") for line in words.splitlines())
    first = {wnid: names.split(",")[0].strip() for wnid, _, names in lines}
    names = [first.get(wnid) or wnid for wnid in ids]
    return [name if names.count(name) == 1 else f"{name} ({wnid})" for name, wnid in zip(names, ids, strict=True)]


def _invalid(file: Path, problem: Exception) -> UserError:
    return UserError(f"{file} is not a valid official file ({problem}): delete it to download it again.")


CONVERTERS: dict[str, Callable[[Sequence[Path]], Arrays]] = {
    "mnist": from_idx,
    "fashion-mnist": from_idx,
    "cifar-10": from_cifar10,
    "cifar-100": from_cifar100,
    "svhn": from_svhn,
    "usps": from_libsvm,
    "blood-mnist": from_medmnist,
    "organ-mnist-3d": from_medmnist,
    "tiny-imagenet": from_tiny_imagenet,
}
