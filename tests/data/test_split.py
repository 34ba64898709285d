from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedwild.core.errors import UserError
from fedwild.data import Dataset, DataSettings, Split, make_split
from tests.data.helpers import toy


def rows(split: Split, *parts: str) -> list[int]:
    """Return the rows of these parts of all clients, with repetitions."""
    return sorted(int(i) for c in split.clients for part in parts for i in getattr(c, part))


def rows_of(dataset: Dataset, *names: str) -> list[int]:
    ids = [dataset.classes.index(name) for name in names]
    return [i for i, label in enumerate(dataset.y_train.tolist()) if label in ids]


@pytest.mark.parametrize("partition", ["iid", "dirichlet", "#C=2", "shards", "quantity", "domain", "owner"])
def test_known_samples_are_labelled_once_and_novel_ones_unlabelled_once(partition: str) -> None:
    dataset = toy(per_class=60, classes=5, domains=3, owners=("ann", "bob", "cyd"))
    data = DataSettings(known=3, novel=1)
    split = make_split(dataset, data, partition, {}, 3, 0)
    assert rows(split, "train", "validation") == rows_of(dataset, "class0", "class1", "class2")
    assert rows(split, "unlabelled") == rows_of(dataset, "class3")
    assert (split.known, split.novel, split.unknown) == (
        ("class0", "class1", "class2"),
        ("class3",),
        ("class4",),
    )
    assert len(split.test) == len(dataset.y_test)
    for client in split.clients:
        assert client.known == split.known
        for part in (client.train, client.validation, client.unlabelled, client.test):
            assert part.dtype == np.int64
            assert np.all(np.diff(part) > 0)


def test_the_seed_determines_the_split() -> None:
    dataset, data = toy(per_class=80), DataSettings(novel=1, public=0.1)
    first, again, other = (make_split(dataset, data, "dirichlet", {}, 4, seed) for seed in (1, 1, 2))
    assert [c.train.tolist() for c in first.clients] == [c.train.tolist() for c in again.clients]
    assert [c.train.tolist() for c in first.clients] != [c.train.tolist() for c in other.clients]
    assert first.public.tolist() == again.public.tolist() != other.public.tolist()


def test_validation_is_rounded_down_and_leaves_a_training_sample() -> None:
    dataset = toy(per_class=10, classes=1)
    split = make_split(dataset, DataSettings(validation=0.34), "iid", {}, 3, 0)
    assert [(len(c.train), len(c.validation)) for c in split.clients] == [(3, 1), (2, 1), (2, 1)]
    alone = make_split(dataset, DataSettings(validation=0.99), "iid", {}, 10, 0)
    assert [(len(c.train), len(c.validation)) for c in alone.clients] == [(1, 0)] * 10


def test_shares_are_rounded_down_exactly() -> None:
    split = make_split(toy(per_class=100, classes=1), DataSettings(validation=0.29), "iid", {}, 1, 0)
    assert len(split.clients[0].validation) == 29


def test_a_share_of_the_known_samples_moves_to_the_pool() -> None:
    dataset = toy(per_class=50)
    split = make_split(dataset, DataSettings(novel=1, unlabelled_known=0.2, validation=0), "iid", {}, 5, 0)
    known = rows_of(dataset, "class0", "class1", "class2")
    assert rows(split, "train", "unlabelled") == sorted(known + rows_of(dataset, "class3"))
    for client in split.clients:
        mixed = np.intersect1d(client.unlabelled, known)
        assert len(mixed) == 6
        assert len(client.train) == 24


def test_a_client_sees_only_the_labels_it_may_see() -> None:
    dataset = toy(per_class=50)
    data = DataSettings(known_by_client={"client-01": ["class2"]}, validation=0.2)
    split = make_split(dataset, data, "iid", {}, 3, 0)
    second = split.clients[1]
    labels = dataset.y_train.numpy()
    assert second.known == ("class2",)
    assert set(labels[second.train]) == set(labels[second.validation]) == {2}
    assert set(labels[second.unlabelled]) == {0, 1, 3}
    assert split.clients[0].known == split.known
    assert rows(split, "train", "validation", "unlabelled") == list(range(200))


def test_public_training_data_is_separated_before_the_partition() -> None:
    dataset = toy(per_class=50)
    split = make_split(dataset, DataSettings(known=2, novel=1, public=0.3), "iid", {}, 4, 0)
    assert split.public_from == "train"
    assert len(split.public) == 45
    held = rows(split, "train", "validation", "unlabelled")
    assert sorted([*held, *split.public.tolist()]) == rows_of(dataset, "class0", "class1", "class2")


def test_public_test_data_is_the_first_half_and_leaves_the_test_set() -> None:
    dataset = toy(test_per_class=10)
    split = make_split(dataset, DataSettings(public_from="test"), "iid", {}, 2, 0)
    assert split.public.tolist() == list(range(20))
    assert split.test.tolist() == list(range(20, 40))
    assert all(client.test.tolist() == split.test.tolist() for client in split.clients)


def test_public_test_data_has_no_unknown_class() -> None:
    dataset = toy(test_per_class=10)
    split = make_split(dataset, DataSettings(known=3, public_from="test"), "iid", {}, 2, 0)
    assert 3 not in dataset.y_test.numpy()[split.public]
    assert 3 in dataset.y_test.numpy()[split.test]
    assert split.test.min() >= 20


def test_the_first_half_of_a_sorted_test_set_has_every_class() -> None:
    dataset = toy(test_per_class=10)
    ordered = Dataset(**{**dataset.__dict__, "y_test": torch.sort(dataset.y_test).values})
    split = make_split(ordered, DataSettings(public_from="test"), "iid", {}, 2, 0)
    for part in (split.public, split.test):
        assert np.bincount(ordered.y_test.numpy()[part]).tolist() == [5] * 4


def test_clients_are_tested_on_their_own_domain() -> None:
    dataset = toy(per_class=60, domains=3)
    split = make_split(dataset, DataSettings(), None, {}, None, 0)
    assert [client.name for client in split.clients] == ["domain0", "domain1", "domain2"]
    for number, client in enumerate(split.clients):
        assert set(dataset.domain_train.numpy()[client.train]) == {number}
        assert client.test.tolist() == [i for i in range(len(dataset.y_test)) if i % 3 == number]


def test_owners_become_clients_by_default() -> None:
    dataset = toy(owners=("ann", "bob"))
    split = make_split(dataset, DataSettings(), None, {}, None, 0)
    assert [client.name for client in split.clients] == ["ann", "bob"]
    assert all(len(client.test) == len(dataset.y_test) for client in split.clients)


def test_owners_with_test_data_are_tested_on_it() -> None:
    dataset = toy(owners=("ann", "bob"))
    own = Dataset(**{**dataset.__dict__, "owner_test": torch.arange(len(dataset.y_test)) % 2})
    split = make_split(own, DataSettings(), "owner", {}, None, 0)
    assert all(set(client.test % 2) == {number} for number, client in enumerate(split.clients))


def test_fewer_novel_classes_than_k_are_all_assigned() -> None:
    dataset = toy(per_class=40, classes=5)
    split = make_split(dataset, DataSettings(known=4, novel=1), "#C=2", {}, 4, 0)
    assert rows(split, "unlabelled") == rows_of(dataset, "class4")


def test_more_novel_classes_than_clients_can_hold_are_all_assigned() -> None:
    dataset = toy(per_class=40, classes=9)
    split = make_split(dataset, DataSettings(known=4, novel=5), "#C=2", {}, 2, 0)
    assert rows(split, "unlabelled") == rows_of(dataset, *(f"class{number}" for number in range(4, 9)))


def test_owner_names_must_be_valid_folder_names() -> None:
    with pytest.raises(UserError, match=r"client name '\.\./bob'"):
        make_split(toy(owners=("ann", "../bob")), DataSettings())


@pytest.mark.parametrize(
    ("data", "partition", "clients", "message"),
    [
        ({}, "iid", 81, "federation.clients = 81 is not allowed: there are 80 known training samples"),
        ({}, "iid", 0, "federation.clients = 0"),
        ({}, "owner", None, "does not name the owners"),
        ({}, "#C=9", 4, r"partition\.k = 9"),
        ({}, "sharts", 4, "Did you mean 'shards'"),
        ({"known_by_client": {"client-77": ["class0"]}}, "iid", 4, "client 'client-77' is not known"),
        ({"known_by_client": {"client-01": ["dog"]}}, "iid", 4, "class 'dog' is not known"),
    ],
)
def test_an_impossible_split_is_rejected(
    data: dict[str, Any], partition: str, clients: int | None, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        make_split(toy(), DataSettings(**data), partition, {}, clients, 0)


def test_a_class_without_training_samples_is_rejected() -> None:
    dataset = toy()
    empty = Dataset(**{**dataset.__dict__, "classes": (*dataset.classes, "ghost")})
    with pytest.raises(UserError, match="class 'ghost' has no training samples"):
        make_split(empty, DataSettings(), "iid", {}, 4, 0)
    make_split(empty, DataSettings(known=4), "iid", {}, 4, 0)


def same(a: Split, b: Split) -> bool:
    roles = all(getattr(a, key) == getattr(b, key) for key in ("known", "novel", "unknown", "public_from"))
    arrays = [(a.test, b.test), (a.public, b.public)]
    for one, other in zip(a.clients, b.clients, strict=True):
        roles = roles and one.name == other.name and one.known == other.known
        arrays += [(getattr(one, part), getattr(other, part)) for part in ("train", "validation", "unlabelled", "test")]
    return roles and all(np.array_equal(x, y) and x.dtype == y.dtype for x, y in arrays)


@pytest.mark.parametrize("domains", [1, 3])
def test_a_saved_split_can_be_loaded_and_has_equal_bytes(tmp_path: Path, domains: int) -> None:
    dataset = toy(per_class=60, domains=domains)
    split = make_split(dataset, DataSettings(novel=1, public=0.1), None, {}, None, 5)
    first, second = tmp_path / "deep" / "a.npz", tmp_path / "b.npz"
    split.save(first)
    split.save(second)
    assert same(split, Split.load(first))
    assert first.read_bytes() == second.read_bytes()
    assert [path.name for path in first.parent.iterdir()] == ["a.npz"]
    with np.load(first, allow_pickle=False) as archive:
        assert all(archive[key].dtype != object for key in archive.files)


def test_a_damaged_split_file_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "split.npz"
    make_split(toy(), DataSettings(), "iid", {}, 2, 0).save(path)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(UserError, match=r"split\.npz cannot be read"):
        Split.load(path)
    np.savez(path, something=np.zeros(3))
    with pytest.raises(UserError, match="is not a split file of fedwild"):
        Split.load(path)
    with pytest.raises(UserError, match="does not exist"):
        Split.load(tmp_path / "nothing.npz")
