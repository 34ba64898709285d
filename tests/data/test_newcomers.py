"""The data of newcomers: appended to that of the others, classes merged by name, mismatches rejected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedwild.core.errors import UserError
from fedwild.data import Dataset, DataSettings, Split, add_newcomers, check_names, make_split, with_newcomers
from tests.data.helpers import toy
from tests.tiny import image_file


def settings(**newcomers: Any) -> DataSettings:
    return DataSettings(name="toy", validation=0.25, newcomers=newcomers)


def arrays(path: Path, shape: tuple[int, ...], names: list[str], count: int = 20, dtype: str = "uint8") -> str:
    x = np.resize(np.arange(256), (count, *shape)).astype(dtype)
    np.savez(path, x=x if dtype == "uint8" else x / 300, y=np.resize(np.array(names), count))
    return str(path)


@pytest.fixture
def ann(tmp_path: Path) -> str:
    return arrays(tmp_path / "ann.npz", (2, 2), ["class1", "new"], 40)


@pytest.fixture
def ben(tmp_path: Path) -> str:
    return arrays(tmp_path / "ben.npz", (2, 2), ["new", "class0", "newer"], 30)


def joined(home: Dataset, data: DataSettings, seed: int = 0) -> tuple[Dataset, Split]:
    split = make_split(home, data, "iid", {}, 2, seed)
    whole = with_newcomers(home, data, seed)
    return whole, add_newcomers(split, whole, data, seed)


# --- the data set --------------------------------------------------------------------------------------------


def test_rows_keep_their_numbers_and_newcomers_are_appended(ann: str, ben: str) -> None:
    home = toy()
    whole = with_newcomers(home, settings(ann={"name": ann}, ben={"name": ben}))
    count = len(home.y_train)
    assert torch.equal(whole.x_train[:count], home.x_train)
    assert torch.equal(whole.y_train[:count], home.y_train)
    assert torch.equal(whole.y_test[: len(home.y_test)], home.y_test)
    # A fifth of each newcomer's samples is for testing.
    assert [int((whole.domain_train == i).sum()) for i in range(3)] == [count, 32, 24]
    assert whole.domains == ("toy", "ann", "ben")


def test_classes_are_merged_by_name_and_new_ones_added_once(ann: str, ben: str) -> None:
    whole = with_newcomers(toy(), settings(ann={"name": ann}, ben={"name": ben}))
    assert whole.classes == ("class0", "class1", "class2", "class3", "new", "newer")
    for number, names in ((1, {"class1", "new"}), (2, {"class0", "new", "newer"})):
        rows = whole.y_train[whole.domain_train == number].unique().tolist()
        assert {whole.classes[i] for i in rows} == names


def test_labels_rename_its_classes(ann: str) -> None:
    whole = with_newcomers(toy(), settings(ann={"name": ann, "labels": {"new": "class3"}}))
    assert whole.classes == toy().classes
    mine = whole.y_train[whole.domain_train == 1].unique().tolist()
    assert mine == [1, 3]


def test_classes_selects_its_classes(ann: str) -> None:
    whole = with_newcomers(toy(), settings(ann={"name": ann, "classes": ["new"]}))
    assert whole.y_train[whole.domain_train == 1].unique().tolist() == [whole.classes.index("new")]
    # Classes without samples are dropped.
    assert whole.classes == (*toy().classes, "new")


def test_limits_choose_samples_by_its_name_alone(ann: str) -> None:
    few = {"name": ann, "train_samples": 6, "test_samples": 3}
    alone = with_newcomers(toy(), settings(ann=few))
    both = with_newcomers(toy(), settings(zoe={"name": ann}, ann=few))
    chosen = [whole.x_train[whole.domain_train == number] for whole, number in ((alone, 1), (both, 2))]
    assert len(chosen[0]) == 6
    assert int((alone.domain_test == 1).sum()) == 3
    assert torch.equal(*chosen)


def test_a_newcomer_with_the_name_of_a_domain_is_a_separate_domain(ann: str) -> None:
    whole = with_newcomers(toy(), settings(toy={"name": ann}))
    assert whole.domains == ("toy", "toy (newcomer)")


def test_domains_and_owners_in_its_files_are_ignored(tmp_path: Path) -> None:
    file = tmp_path / "many.npz"
    x, y = np.zeros((24, 2, 2), dtype=np.uint8), np.resize(["new", "class0"], 24)
    domain = np.repeat(["day", "night", "dawn"], 8)
    np.savez(file, x=x, y=y, domain_train=domain, client_train=np.resize(["p", "q"], 24))
    home = toy(owners=("one", "two"))
    whole = with_newcomers(home, settings(ann={"name": str(file)}))
    assert whole.domains == ("toy", "ann")
    assert whole.owners == ("one", "two", "ann")
    some = with_newcomers(home, settings(ann={"name": str(file), "domains": ["night"]}))
    assert int((some.domain_train == 1).sum()) + int((some.domain_test == 1).sum()) == 8


def test_bytes_and_floats_become_one_type(tmp_path: Path) -> None:
    floats = arrays(tmp_path / "floats.npz", (2, 2), ["new"], dtype="float32")
    home = toy()
    whole = with_newcomers(home, settings(ann={"name": floats}))
    assert whole.x_train.dtype == torch.float32
    assert torch.allclose(whole.x_train[: len(home.y_train)], home.x_train.float() / 255)
    assert float(whole.x_train.max()) <= 1


@pytest.mark.parametrize(("shape", "to"), [((4, 4), "size"), ((2, 2, 3), "channels"), ((5, 3, 3), "both")])
def test_resize_converts_its_images_to_the_shape_of_the_federation(
    shape: tuple[int, ...], to: str, tmp_path: Path
) -> None:
    file = arrays(tmp_path / "other.npz", shape, ["new"])
    with pytest.raises(UserError, match=r"data\.newcomers\.ann: its images have shape .* --resize"):
        with_newcomers(toy(), settings(ann={"name": file}))
    whole = with_newcomers(toy(), settings(ann={"name": file, "resize": True}))
    assert whole.input_shape == (1, 2, 2)


def test_grey_images_become_colour_if_the_federation_has_colour(tmp_path: Path) -> None:
    file = arrays(tmp_path / "grey.npz", (2, 2), ["new"])
    home = toy()
    colour = Dataset(**{**vars(home), "x_train": home.x_train.expand(-1, 3, -1, -1).contiguous()})
    colour = Dataset(**{**vars(colour), "x_test": home.x_test.expand(-1, 3, -1, -1).contiguous()})
    whole = with_newcomers(colour, settings(ann={"name": file, "resize": True}))
    mine = whole.x_train[whole.domain_train == 1]
    assert mine.shape[1:] == (3, 2, 2)
    assert torch.equal(mine[:, 0], mine[:, 2])


# --- the split -----------------------------------------------------------------------------------------------


def test_other_rows_stay_and_newcomers_get_all_of_their_own(ann: str, ben: str) -> None:
    home = toy()
    data = settings(ann={"name": ann}, ben={"name": ben})
    before = make_split(home, data, "iid", {}, 2, 0)
    whole, split = joined(home, data)
    for old, new in zip(before.clients, split.clients, strict=False):
        for part in ("train", "validation", "unlabelled", "test"):
            assert np.array_equal(getattr(old, part), getattr(new, part))
    for number, name in ((1, "ann"), (2, "ben")):
        client = next(c for c in split.clients if c.name == name)
        mine = np.nonzero(whole.domain_train.numpy() == number)[0]
        assert np.array_equal(np.sort(np.concatenate([client.train, client.validation])), mine)
        assert len(client.validation) == len(mine) // 4
        assert np.array_equal(client.test, np.nonzero(whole.domain_test.numpy() == number)[0])
        assert not len(client.unlabelled)
    assert split.newcomers == ("ann", "ben")
    assert np.array_equal(split.home_test, before.test)
    assert len(split.test) == len(whole.y_test)
    assert split.known == before.known


def test_newcomer_classes_gives_the_first_newcomer_of_each_class(ann: str, ben: str) -> None:
    _, split = joined(toy(), settings(ann={"name": ann}, ben={"name": ben}))
    assert split.newcomer_classes == {"new": "ann", "newer": "ben"}
    _, other = joined(toy(), settings(ben={"name": ben}, ann={"name": ann}))
    assert other.newcomer_classes == {"new": "ben", "newer": "ben"}


def test_a_welcomed_client_is_not_a_newcomer(ann: str, ben: str) -> None:
    _, split = joined(toy(), settings(ann={"name": ann, "welcomed": True}, ben={"name": ben}))
    assert split.newcomers == ("ben",)
    assert [client.name for client in split.clients][-2:] == ["ann", "ben"]


def test_a_newcomer_that_the_split_already_has_keeps_its_rows(ann: str, ben: str) -> None:
    home = toy()
    _, split = joined(home, settings(ann={"name": ann}))
    data = settings(ann={"name": ann, "welcomed": True}, ben={"name": ben})
    again = add_newcomers(split, with_newcomers(home, data), data)
    for old, new in zip(split.clients, again.clients, strict=False):
        assert np.array_equal(old.train, new.train)
        assert np.array_equal(old.test, new.test)
    assert [client.name for client in again.clients][-1] == "ben"
    assert np.array_equal(np.unique(again.test), again.test)


def test_its_validation_samples_depend_on_seed_and_name(ann: str) -> None:
    def held(seed: int, name: str) -> list[int]:
        _, split = joined(toy(), settings(**{name: {"name": ann}}), seed)
        return split.clients[-1].validation.tolist()

    assert held(0, "ann") == held(0, "ann")
    assert held(0, "ann") != held(1, "ann")
    assert held(0, "ann") != held(0, "zoe")


def test_a_split_with_newcomers_can_be_saved_and_loaded(ann: str, ben: str, tmp_path: Path) -> None:
    _, split = joined(toy(), settings(ann={"name": ann}, ben={"name": ben}))
    split.save(tmp_path / "split.npz")
    again = Split.load(tmp_path / "split.npz")
    assert again.newcomers == split.newcomers
    assert again.newcomer_classes == split.newcomer_classes
    assert np.array_equal(again.home_test, split.home_test)
    for old, new in zip(split.clients, again.clients, strict=True):
        assert (old.name, old.known) == (new.name, new.known)
        for part in ("train", "validation", "unlabelled", "test"):
            assert np.array_equal(getattr(old, part), getattr(new, part)), part


# --- errors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("brought", "words"),
    [
        (["Class1"], "differs from 'class1' only by case or spaces ('class1' is from the federation)"),
        (["class1 "], "use --label 'class1 =class1'"),
        (["a", "A"], "class 'A' differs from 'a' only by case or spaces ('a' is from newcomer 'ann')"),
        (["unknown"], "class name 'unknown' is not allowed"),
        (["UNKNOWN"], "class name 'UNKNOWN' is not allowed"),
        (["STRASSE", "straße"], "only by case"),
    ],
)
def test_ambiguous_names_are_rejected(brought: list[str], words: str) -> None:
    with pytest.raises(UserError) as refusal:
        check_names("ann", brought, ("class0", "class1"))
    assert words in str(refusal.value)
    assert "newcomer 'ann'" in str(refusal.value)


def test_equal_names_and_distinct_names_are_accepted() -> None:
    check_names("ann", ["class1", "class10", "unknown-1"], ("class0", "class1"))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"classes": ["no"]}, "data.newcomers.ann.classes: class 'no' is not known"),
        ({"labels": {"no": "class0"}}, "data.newcomers.ann.labels: class 'no' is not known"),
        ({"labels": {"new": "class1"}}, "two classes would both be called 'class1'"),
        ({"domains": ["no"]}, "data.newcomers.ann"),
        ({"name": "no.npz"}, "no.npz"),
    ],
)
def test_invalid_settings_of_a_newcomer_are_rejected_by_key(given: dict[str, Any], words: str, ann: str) -> None:
    with pytest.raises(UserError) as refusal:
        with_newcomers(toy(), settings(ann={"name": ann, **given}))
    assert words in str(refusal.value)


def test_vectors_of_another_length_cannot_be_converted(tmp_path: Path) -> None:
    file = arrays(tmp_path / "vectors.npz", (5,), ["new"], dtype="float32")
    with pytest.raises(UserError, match=r"its samples have shape \(5,\), but the federation requires \(1, 2, 2\)"):
        with_newcomers(toy(), settings(ann={"name": file, "resize": True}))


def test_classes_of_two_newcomers_that_differ_by_case_are_rejected(tmp_path: Path) -> None:
    first = image_file(tmp_path / "first.npz", {"ant": 0}, side=2)
    second = image_file(tmp_path / "second.npz", {"Ant": 1}, side=2)
    with pytest.raises(UserError, match="newcomer 'ben': class 'Ant' differs from 'ant'"):
        with_newcomers(toy(), settings(ann={"name": str(first)}, ben={"name": str(second)}))
