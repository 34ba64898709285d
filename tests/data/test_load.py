from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedwild.core.errors import UserError
from fedwild.data import DATASETS, DataSettings, load, make_split
from fedwild.data.sources.builtin import load_digits
from fedwild.data.sources.convert import CONVERTERS
from fedwild.data.sources.prepare import data_folders, difference_from_catalogue, find_prepared, prepare


def put(folder: Path, name: str, shape: tuple[int, ...], train: int = 40, test: int = 20, **more: Any) -> None:
    """Write an artificial prepared data set with ten classes."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(len(name))
    arrays: dict[str, Any] = {}
    for part, count in (("train", train), ("test", test)):
        arrays[f"x_{part}"] = rng.integers(0, 256, (count, *shape)).astype(np.uint8)
        arrays[f"y_{part}"] = (np.arange(count) % 10).astype(np.uint8)
    np.savez(folder / f"{name}.npz", **arrays, **more)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDWILD_DATA", str(tmp_path / "own"))
    return tmp_path / "own"


def test_digits_are_those_of_scikit_learn() -> None:
    from sklearn.datasets import load_digits as theirs

    ours, expected = load_digits(), theirs()
    assert ours.test is not None
    images = np.concatenate([ours.train.x, ours.test.x])[:, 0]
    order = np.argsort([image.tobytes() for image in images], kind="stable")
    scaled = np.round(expected.images * (255 / 16)).astype(np.uint8)
    expected_order = np.argsort([image.tobytes() for image in scaled], kind="stable")
    assert np.array_equal(images[order], scaled[expected_order])
    labels = np.concatenate([ours.train.y, ours.test.y])
    assert np.array_equal(labels[order], expected.target[expected_order])


def test_digits_have_a_fixed_split() -> None:
    dataset, other = load(DataSettings(), seed=0), load(DataSettings(), seed=1)
    assert dataset.input_shape == (1, 8, 8)
    assert (len(dataset.y_train), len(dataset.y_test)) == (1346, 451)
    assert (int(dataset.x_train.min()), int(dataset.x_train.max())) == (0, 255)
    assert dataset.classes == tuple("0123456789")
    assert torch.equal(dataset.x_train, other.x_train)
    share = torch.bincount(dataset.y_test) / torch.bincount(torch.cat([dataset.y_train, dataset.y_test]))
    assert (share - 0.25).abs().max() < 0.01


def test_the_catalogue_is_consistent() -> None:
    assert len(DATASETS) == 14
    for name, entry in DATASETS.items():
        assert entry.name == name
        assert len(entry.classes) in (0, entry.class_count)
        assert (name in CONVERTERS) == bool(entry.downloads)
        assert all(len(download.md5) == 32 for download in entry.downloads)
    digits = load(DataSettings())
    assert (DATASETS["digits"].train, DATASETS["digits"].test) == (len(digits.y_train), len(digits.y_test))


def test_prepared_files_are_searched_in_fedwild_data_and_then_in_the_cache(folder: Path, tmp_path: Path) -> None:
    put(tmp_path / "cache" / "fedwild", "usps", (16, 16), train=30)
    assert len(load(DataSettings(name="usps")).y_train) == 30
    put(folder, "usps", (16, 16), train=50)
    assert len(load(DataSettings(name="usps")).y_train) == 50
    assert data_folders() == [folder, tmp_path / "cache" / "fedwild"]
    assert find_prepared("mnist") is None


def test_class_names_come_from_the_file_or_the_catalogue(folder: Path) -> None:
    put(folder, "cifar-10", (32, 32, 3))
    put(folder, "cifar-100", (32, 32, 3), classes=np.array([f"fine{n}" for n in range(10)]))
    assert load(DataSettings(name="cifar-10")).classes[0] == "airplane"
    assert load(DataSettings(name="cifar-100")).classes[9] == "fine9"


def test_a_prepared_file_with_invalid_labels_is_rejected(folder: Path) -> None:
    put(folder, "amazon-reviews", (50,))
    with pytest.raises(UserError, match="has label 9: labels must be 0 to 1"):
        load(DataSettings(name="amazon-reviews"))


def test_several_names_become_domains_of_one_shape(folder: Path) -> None:
    put(folder, "mnist", (28, 28))
    put(folder, "svhn", (32, 32, 3), train=60)
    put(folder, "usps", (16, 16))
    dataset = load(DataSettings(name=["mnist", "svhn", "usps"]))
    assert dataset.input_shape == (3, 32, 32)
    assert dataset.domains == ("mnist", "svhn", "usps")
    assert dataset.name == "mnist+svhn+usps"
    assert torch.bincount(dataset.domain_train).tolist() == [40, 60, 40]
    assert load(DataSettings(name=["mnist", "svhn"], size=28, channels=1)).input_shape == (1, 28, 28)
    assert load(DataSettings(name=["mnist", "usps"])).input_shape == (1, 32, 32)
    assert [c.name for c in make_split(dataset, DataSettings()).clients] == ["mnist", "svhn", "usps"]


def test_equal_domains_keep_their_size(folder: Path) -> None:
    put(folder, "mnist", (28, 28))
    put(folder, "fashion-mnist", (28, 28))
    dataset = load(DataSettings(name=["mnist", "fashion-mnist"]))
    assert dataset.input_shape == (1, 28, 28)
    assert len(dataset.classes) == 20
    assert dataset.classes[int(dataset.y_train[40])] == "T-shirt/top"


def test_images_and_vectors_cannot_be_combined(folder: Path) -> None:
    put(folder, "mnist", (28, 28))
    np.savez(folder / "v.npz", x=np.zeros((10, 4)), y=np.arange(10) % 2)
    with pytest.raises(UserError, match="the samples have different shapes"):
        load(DataSettings(name=["mnist", str(folder / "v.npz")]))


def test_float_and_uint8_domains_become_floats(folder: Path) -> None:
    put(folder, "usps", (16, 16))
    x = np.random.default_rng(0).random((20, 16, 16))
    np.savez(folder / "mine.npz", x=x, y=np.arange(20) % 10)
    dataset = load(DataSettings(name=["usps", str(folder / "mine.npz")], test_fraction=0.5))
    assert dataset.x_train.dtype == torch.float32
    assert 0.9 < float(dataset.x_train.max()) <= 1
    assert dataset.domains == ("usps", "mine")


def test_vector_counts_keep_their_domains(folder: Path) -> None:
    folder.mkdir()
    np.savez(
        folder / "amazon-reviews.npz",
        x_train=np.ones((8, 30), dtype=np.uint8),
        y_train=np.arange(8) % 2,
        domain_train=np.arange(8) % 4,
        x_test=np.ones((4, 30), dtype=np.uint8),
        y_test=np.arange(4) % 2,
        domain_test=np.arange(4),
        domains=np.array(["books", "dvd", "electronics", "kitchen"]),
    )
    dataset = load(DataSettings(name="amazon-reviews"))
    assert dataset.domains == ("books", "dvd", "electronics", "kitchen")
    assert dataset.input_shape == (30,)


def test_subsampling_is_per_domain_seeded_and_keeps_the_order(folder: Path) -> None:
    put(folder, "mnist", (8, 8), train=100)
    put(folder, "usps", (8, 8), train=30)
    settings = DataSettings(name=["mnist", "usps"], train_samples=50, test_samples=5)
    first, again, other = (load(settings, seed) for seed in (1, 1, 2))
    assert torch.bincount(first.domain_train).tolist() == [50, 30]
    assert torch.bincount(first.domain_test).tolist() == [5, 5]
    assert torch.equal(first.x_train, again.x_train)
    assert not torch.equal(first.x_train, other.x_train)


def test_a_file_with_fewer_samples_than_the_catalogue_is_reported(folder: Path) -> None:
    assert difference_from_catalogue("svhn") is None
    put(folder, "svhn", (32, 32, 3), train=40, test=20)
    expected = "svhn has 40 of 73,257 training and 20 of 26,032 test samples"
    assert difference_from_catalogue("svhn") == expected
    put(folder, "usps", (1, 1), train=7291, test=2000)
    assert difference_from_catalogue("usps") == "usps has 2,000 of 2,007 test samples"
    put(folder, "usps", (1, 1), train=7291, test=2007)
    assert difference_from_catalogue("usps") is None
    (folder / "mnist.npz").touch()
    assert difference_from_catalogue("mnist") is None


def test_data_sets_without_a_download_are_reported_with_the_file_to_provide(folder: Path) -> None:
    for name in ("synth-digits", "mnist-m", "amazon-reviews"):
        with pytest.raises(UserError, match=rf"provide {folder}/{name}\.npz with arrays x_train"):
            load(DataSettings(name=name))
    with pytest.raises(UserError, match="domain_train, domain_test"):
        prepare("amazon-reviews")
    with pytest.raises(UserError, match="needs no preparation"):
        prepare("digits")
    with pytest.raises(UserError, match="Did you mean 'mnist'"):
        prepare("mnits")


def test_synthetic_images_are_seeded_and_their_classes_differ() -> None:
    settings = DataSettings(name="synthetic:12x10x3:4:200")
    dataset, again = load(settings), load(settings)
    assert dataset.input_shape == (3, 12, 10)
    assert (len(dataset.y_train), len(dataset.y_test), len(dataset.classes)) == (200, 40, 4)
    assert torch.equal(dataset.x_train, again.x_train)
    means = torch.stack([dataset.x_train[dataset.y_train == c].float().mean(0) for c in range(4)])
    distance = torch.cdist(dataset.x_test.float().flatten(1), means.flatten(1))
    assert (distance.argmin(1) == dataset.y_test).float().mean() > 0.9
    with pytest.raises(UserError, match="synthetic:HxWxC:classes:samples"):
        load(DataSettings(name="synthetic:12"))
