from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedwild.data.partition import (
    PARTITIONS,
    balanced_counts,
    check_params,
    client_names,
    default_partition,
    parse_partition,
)
from fedwild.core.errors import UserError
from tests.data.helpers import toy


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def deal(name: str, labels: np.ndarray, clients: int, seed: int = 0, **params: Any) -> list[np.ndarray]:
    return PARTITIONS[name].deal(labels, clients, check_params(name, params), rng(seed))


@st.composite
def worlds(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    """Labels of 1 to 7 classes with gaps in their numbering, and 1 to 12 clients with a sample each."""
    classes, clients = draw(st.integers(1, 7)), draw(st.integers(1, 12))
    count = draw(st.integers(max(classes, clients), 200))
    seed = draw(st.integers(0, 1000))
    labels = np.concatenate([np.arange(classes), rng(seed).integers(0, classes, count - classes)])
    return rng(seed).permutation(labels) * 3, clients


def assert_complete(parts: list[np.ndarray], labels: np.ndarray, clients: int) -> None:
    assert len(parts) == clients
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(worlds(), st.sampled_from(["iid", "shards", "dirichlet", "quantity"]), st.integers(0, 99))
def test_every_sample_goes_to_exactly_one_client(world: tuple[np.ndarray, int], name: str, seed: int) -> None:
    labels, clients = world
    params = {"min_samples": 0} if name in ("dirichlet", "quantity") else {}
    parts = deal(name, labels, clients, seed, **params)
    assert_complete(parts, labels, clients)
    again = deal(name, labels, clients, seed, **params)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


@settings(max_examples=80, deadline=None, derandomize=True)
@given(worlds(), st.data())
def test_classes_gives_k_classes_each_starting_with_i_mod_k_and_cuts_classes_equally(
    world: tuple[np.ndarray, int], data: st.DataObject
) -> None:
    labels, clients = world
    labels = np.repeat(labels, 12)  # enough that every holder of a class gets some of it
    names = np.unique(labels)
    k = data.draw(st.integers(-(-len(names) // clients), len(names)))
    parts = deal("classes", labels, clients, data.draw(st.integers(0, 99)), k=k)
    assert_complete(parts, labels, clients)
    for client, part in enumerate(parts):
        held = np.unique(labels[part])
        assert len(held) == k
        assert names[client % len(names)] in held
    for name in names:
        sizes = [n for n in (int((labels[part] == name).sum()) for part in parts) if n]
        assert max(sizes) - min(sizes) <= 1


def test_classes_other_than_the_first_are_drawn_evenly() -> None:
    labels = np.repeat(np.arange(10), 20)
    partners = np.zeros(10)
    for seed in range(300):
        part = deal("classes", labels, 10, seed, k=2)[0]
        partners[np.unique(labels[part])] += 1
    assert partners[0] == 300
    assert partners[1:].min() > 15  # 33 expected


@settings(max_examples=60, deadline=None, derandomize=True)
@given(worlds(), st.sampled_from([0.01, 0.1, 0.5, 5.0]), st.integers(0, 99))
def test_a_client_with_its_fair_share_gets_no_more(world: tuple[np.ndarray, int], beta: float, seed: int) -> None:
    labels, clients = world
    parts = deal("dirichlet", labels, clients, seed, beta=beta, min_samples=0)
    fair, held = len(labels) / clients, [0] * clients
    for name in np.unique(labels):
        for client, part in enumerate(parts):
            gained = int((labels[part] == name).sum())
            assert gained == 0 or held[client] < fair
            held[client] += gained
    assert sum(held) == len(labels)


def test_dirichlet_counts_equal_a_plain_computation_of_the_rule() -> None:
    sizes, clients, beta = [50, 30, 41, 17], 5, 0.4
    counts = balanced_counts(sizes, clients, beta, rng(7))
    source, held = rng(7), [0] * clients
    for size, row in zip(sizes, counts, strict=True):
        draw = source.dirichlet([beta] * clients)
        kept = [share if have < sum(sizes) / clients else 0.0 for share, have in zip(draw, held, strict=True)]
        edges = [round(sum(kept[: i + 1]) / sum(kept) * size) for i in range(clients)]
        expected = [b - a for a, b in zip([0, *edges], edges, strict=False)]
        assert row.tolist() == expected
        held = [a + b for a, b in zip(held, expected, strict=True)]


def test_dirichlet_redraws_until_every_client_has_ten() -> None:
    labels = np.repeat(np.arange(6), 130)
    for seed in range(5):
        assert min(len(part) for part in deal("dirichlet", labels, 10, seed, beta=0.3)) >= 10


def test_dirichlet_skew_grows_as_beta_falls() -> None:
    labels = np.repeat(np.arange(10), 100)

    def largest_share(beta: float) -> float:
        parts = deal("dirichlet", labels, 10, 1, beta=beta, min_samples=0)
        return float(np.mean([np.bincount(labels[p], minlength=10).max() / max(1, len(p)) for p in parts]))

    assert largest_share(0.05) > 0.5 > largest_share(50.0)


def test_dirichlet_lowers_the_minimum_when_there_are_too_few_samples() -> None:
    labels = np.repeat(np.arange(3), 10)
    parts = deal("dirichlet", labels, 8)
    assert_complete(parts, labels, 8)


def test_dirichlet_gives_up_with_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedwild.data.partition.REDRAWS", 20)
    with pytest.raises(UserError, match=r"partition\.min_samples=10: 20 draws .*best: 0"):
        deal("dirichlet", np.repeat(np.arange(2), 50), 10, beta=0.01)


def test_shards_give_few_classes_and_equal_sizes() -> None:
    labels = np.repeat(np.arange(10), 40)
    parts = deal("shards", labels, 10)
    assert {len(part) for part in parts} == {40}
    assert all(len(np.unique(labels[part])) <= 2 for part in parts)


def test_quantity_makes_uneven_sizes_with_a_minimum() -> None:
    sizes = [len(part) for part in deal("quantity", np.zeros(1000, dtype=int), 8, 3)]
    assert min(sizes) >= 10
    assert max(sizes) > 2 * min(sizes)


@pytest.mark.parametrize("name", ["iid", "dirichlet", "classes", "shards", "quantity"])
def test_other_seeds_deal_otherwise(name: str) -> None:
    labels = np.repeat(np.arange(5), 60)
    first, other = deal(name, labels, 6, 1), deal(name, labels, 6, 2)
    assert any(not np.array_equal(np.sort(a), np.sort(b)) for a, b in zip(first, other, strict=True))


def test_domain_and_owner_follow_the_data() -> None:
    labels, groups = np.zeros(30, dtype=int), np.arange(30) % 3
    by_domain = PARTITIONS["domain"].deal(labels, 3, check_params("domain", {}), rng(), domains=groups)
    by_owner = PARTITIONS["owner"].deal(labels, 3, check_params("owner", {}), rng(), owners=groups)
    for parts in (by_domain, by_owner):
        assert_complete(parts, labels, 3)
        assert all(set(groups[part]) == {number} for number, part in enumerate(parts))
    two_each = check_params("domain", {"clients_per_domain": 2})
    parts = PARTITIONS["domain"].deal(labels, 6, two_each, rng(), domains=groups)
    assert_complete(parts, labels, 6)
    assert [set(groups[part]) for part in parts] == [{0}, {0}, {1}, {1}, {2}, {2}]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("iid", ("iid", {})),
        ("dirichlet", ("dirichlet", {})),
        ("dirichlet:0.1", ("dirichlet", {"beta": 0.1})),
        ("dir0.5", ("dirichlet", {"beta": 0.5})),
        ("classes:2", ("classes", {"k": 2})),
        ("#C=3", ("classes", {"k": 3})),
        ("c2", ("classes", {"k": 2})),
        ("shards:4", ("shards", {"shards_per_client": 4})),
        ("domain:2", ("domain", {"clients_per_domain": 2})),
    ],
)
def test_partition_texts(text: str, expected: tuple[str, dict[str, float]]) -> None:
    assert parse_partition(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dirichlett", "Did you mean 'dirichlet'"),
        ("dirichlet:many", "is not a number"),
        ("iid:3", "takes no number"),
        ("", "not known"),
    ],
)
def test_wrong_partition_texts(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_partition(text)


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("classes", {"k": 0}, r"partition\.k = 0 is not allowed"),
        ("dirichlet", {"beta": -1.0}, r"partition\.beta = -1\.0 is not allowed"),
        ("iid", {"beta": 1.0}, r"partition\.beta=1\.0 is not a setting of 'iid'"),
        ("dirichlet", {"betta": 1.0}, "its settings: beta, min_samples"),
    ],
)
def test_wrong_settings_name_the_key_and_the_value(name: str, params: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_params(name, params)


def test_classes_that_do_not_fit_are_errors() -> None:
    labels = np.repeat(np.arange(4), 10)
    with pytest.raises(UserError, match=r"partition\.k=5 is more than the 4 classes"):
        deal("classes", labels, 3, k=5)
    with pytest.raises(UserError, match="k of at least 4 or at least 2 clients"):
        deal("classes", labels, 1, k=2)


def test_client_names_sort_like_their_numbers() -> None:
    for count in (1, 10, 11, 101, 1001):
        names = client_names("iid", check_params("iid", {}), count, toy())
        assert list(names) == sorted(names)
        assert len(set(names)) == count
    assert client_names("iid", check_params("iid", {}), None, toy())[1] == "client-01"


def test_the_datas_own_partition_is_the_default() -> None:
    assert default_partition(toy()) == "dirichlet"
    assert default_partition(toy(domains=2)) == "domain"
    assert default_partition(toy(domains=2, owners=("ann", "bob"))) == "owner"


def test_domains_and_owners_name_the_clients() -> None:
    two = toy(domains=2, owners=("ann", "bob"))
    assert client_names("owner", check_params("owner", {}), None, two) == ("ann", "bob")
    assert client_names("domain", check_params("domain", {}), None, two) == ("domain0", "domain1")
    split = client_names("domain", check_params("domain", {"clients_per_domain": 2}), None, two)
    assert split == ("domain0-0", "domain0-1", "domain1-0", "domain1-1")
    with pytest.raises(UserError, match="clients=3, but the data has 2 owners"):
        client_names("owner", check_params("owner", {}), 3, two)
    with pytest.raises(UserError, match="does not say who owns"):
        client_names("owner", check_params("owner", {}), None, toy())


def test_without_the_balance_rule_classes_are_dealt_by_the_draw_alone() -> None:
    sizes, clients = [400, 400, 400], 4
    draws = rng(5)
    expected = [draws.dirichlet(np.full(clients, 0.5)) * size for size in sizes]
    counts = balanced_counts(sizes, clients, 0.5, rng(5), balance=False)
    assert np.abs(counts - np.array(expected)).max() <= 1
    assert not np.array_equal(counts, balanced_counts(sizes, clients, 0.5, rng(5)))
