from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedwild.core.component import summary_of
from fedwild.core.errors import UserError
from fedwild.data import Dataset, DataSettings, make_split
from fedwild.data.partitions import (
    PARTITIONS,
    Partition,
    Rows,
    choose_partition,
    default_partition,
    parse_partition,
    partition_settings,
    pool_partition_settings,
)
from fedwild.data.partitions.choice import make_partition
from fedwild.data.partitions.drawn import balanced_counts
from fedwild.data.partitions.mixes import draw_by_mix
from tests.data.helpers import toy


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def deal(name: str, labels: np.ndarray, clients: int, seed: int = 0, **params: Any) -> list[np.ndarray]:
    return PARTITIONS.make(name, params).assign(Rows(labels), clients, rng(seed))


@st.composite
def worlds(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    """Return labels of 1 to 7 classes with gaps in their numbering, and 1 to 12 clients."""
    classes, clients = draw(st.integers(1, 7)), draw(st.integers(1, 12))
    count = draw(st.integers(max(classes, clients), 200))
    seed = draw(st.integers(0, 1000))
    labels = np.concatenate([np.arange(classes), rng(seed).integers(0, classes, count - classes)])
    return rng(seed).permutation(labels) * 3, clients


def assert_complete(parts: list[np.ndarray], labels: np.ndarray, clients: int) -> None:
    assert len(parts) == clients
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(worlds(), st.sampled_from(["iid", "shards", "dirichlet", "quantity", "class-mix"]), st.integers(0, 99))
def test_every_sample_goes_to_exactly_one_client(world: tuple[np.ndarray, int], name: str, seed: int) -> None:
    labels, clients = world
    params = {"min_samples": 0} if name in ("dirichlet", "quantity") else {}
    parts = deal(name, labels, clients, seed, **params)
    assert_complete(parts, labels, clients)
    again = deal(name, labels, clients, seed, **params)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


@settings(max_examples=80, deadline=None, derandomize=True)
@given(worlds(), st.data())
def test_classes_gives_each_client_k_classes_and_divides_classes_equally(
    world: tuple[np.ndarray, int], data: st.DataObject
) -> None:
    labels, clients = world
    labels = np.repeat(labels, 12)  # enough for every client of a class
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


def test_dirichlet_counts_follow_the_documented_rule() -> None:
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


def test_dirichlet_lowers_the_minimum_if_there_are_too_few_samples() -> None:
    labels = np.repeat(np.arange(3), 10)
    parts = deal("dirichlet", labels, 8)
    assert_complete(parts, labels, 8)


def test_dirichlet_reports_a_minimum_that_it_cannot_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedwild.data.partitions.drawn.MAX_DRAWS", 20)
    with pytest.raises(UserError, match=r"partition\.min_samples = 10 is not reached by 20 draws .*best: 0"):
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


@pytest.mark.parametrize("name", ["iid", "dirichlet", "classes", "shards", "quantity", "class-mix"])
def test_other_seeds_give_other_partitions(name: str) -> None:
    labels = np.repeat(np.arange(5), 60)
    first, other = deal(name, labels, 6, 1), deal(name, labels, 6, 2)
    assert any(not np.array_equal(np.sort(a), np.sort(b)) for a, b in zip(first, other, strict=True))


def test_domain_and_owner_follow_the_data() -> None:
    labels, groups = np.zeros(30, dtype=int), np.arange(30) % 3
    by_domain = PARTITIONS.make("domain").assign(Rows(labels, domains=groups), 3, rng())
    by_owner = PARTITIONS.make("owner").assign(Rows(labels, owners=groups), 3, rng())
    for parts in (by_domain, by_owner):
        assert_complete(parts, labels, 3)
        assert all(set(groups[part]) == {number} for number, part in enumerate(parts))
    two_each = PARTITIONS.make("domain", {"clients_per_domain": 2})
    parts = two_each.assign(Rows(labels, domains=groups), 6, rng())
    assert_complete(parts, labels, 6)
    assert [set(groups[part]) for part in parts] == [{0}, {0}, {1}, {1}, {2}, {2}]
    with pytest.raises(UserError, match="does not divide 5 clients"):
        two_each.assign(Rows(labels, domains=groups), 5, rng())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("iid", ("iid", {})),
        ("dirichlet", ("dirichlet", {})),
        ("dirichlet:0.1", ("dirichlet", {"beta": 0.1})),
        ("dir0.5", ("dirichlet", {"beta": 0.5})),
        ("class-mix:0.1", ("class-mix", {"beta": 0.1})),
        ("classes:2", ("classes", {"k": 2})),
        ("#C=3", ("classes", {"k": 3})),
        ("c2", ("classes", {"k": 2})),
        ("shards:4", ("shards", {"shards_per_client": 4})),
        ("domain:2", ("domain", {"clients_per_domain": 2})),
        ("own.module:Class", ("own.module:Class", {})),
    ],
)
def test_short_forms_are_parsed(text: str, expected: tuple[str, dict[str, float]]) -> None:
    assert parse_partition(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dirichlett", "Did you mean 'dirichlet'"),
        ("dirichlett:0.1", "partition 'dirichlett:0.1' is not known. Did you mean 'dirichlet'"),
        ("dirichlet:many", "is not a number"),
        ("iid:3", "takes no number"),
        ("", "not known"),
    ],
)
def test_invalid_short_forms_are_rejected(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_partition(text)


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("classes", {"k": 0}, r"partition\.k = 0 is not allowed"),
        ("dirichlet", {"beta": -1.0}, r"partition\.beta = -1\.0 is not allowed"),
        ("iid", {"beta": 1.0}, r"partition\.beta = 1\.0 is not a setting of partition 'iid'\. Allowed here: nothing"),
        ("dirichlet", {"betta": 1.0}, "Did you mean 'beta'. Allowed here: beta, min_samples, balance"),
    ],
)
def test_invalid_settings_are_reported_with_key_and_value(name: str, params: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_partition(name, params)


def test_an_impossible_number_of_classes_is_rejected() -> None:
    labels = np.repeat(np.arange(4), 10)
    with pytest.raises(UserError, match=r"partition\.k = 5 is not allowed: there are 4 classes, so choose 1 to 4"):
        deal("classes", labels, 3, k=5)
    with pytest.raises(UserError, match="set k to at least 4 or use at least 2 clients"):
        deal("classes", labels, 1, k=2)


def names_of(text: str, clients: int | None = None, dataset: Dataset | None = None) -> tuple[str, ...]:
    dataset = dataset or toy()
    return choose_partition(dataset, text, {}).client_names(dataset, clients)


def test_client_names_sort_like_their_numbers() -> None:
    for count in (1, 10, 11, 101, 1001):
        names = names_of("iid", count)
        assert list(names) == sorted(names)
        assert len(set(names)) == count
    assert names_of("iid")[1] == "client-01"


def test_the_default_partition_depends_on_the_data() -> None:
    assert default_partition(toy()) == "dirichlet"
    assert default_partition(toy(domains=2)) == "domain"
    assert default_partition(toy(domains=2, owners=("ann", "bob"))) == "owner"


def test_clients_are_named_after_domains_and_owners() -> None:
    two = toy(domains=2, owners=("ann", "bob"))
    assert names_of("owner", dataset=two) == ("ann", "bob")
    assert names_of("domain", dataset=two) == ("domain0", "domain1")
    split = names_of("domain:2", dataset=two)
    assert split == ("domain0-0", "domain0-1", "domain1-0", "domain1-1")
    with pytest.raises(UserError, match=r"federation\.clients = 3 is not allowed: the data has 2 owners; omit it"):
        names_of("owner", 3, two)
    with pytest.raises(UserError, match="does not name the owners"):
        names_of("owner")


def test_without_balance_the_draw_alone_divides_classes() -> None:
    sizes, clients = [400, 400, 400], 4
    draws = rng(5)
    expected = [draws.dirichlet(np.full(clients, 0.5)) * size for size in sizes]
    counts = balanced_counts(sizes, clients, 0.5, rng(5), balance=False)
    assert np.abs(counts - np.array(expected)).max() <= 1
    assert not np.array_equal(counts, balanced_counts(sizes, clients, 0.5, rng(5)))


def test_all_partitions_have_a_summary_and_described_settings() -> None:
    assert PARTITIONS.names() == ["class-mix", "classes", "dirichlet", "domain", "iid", "owner", "quantity", "shards"]
    for name in PARTITIONS.names():
        partition = PARTITIONS.get(name)
        assert summary_of(partition).endswith(".")
        assert all(row["description"] for row in partition.Params.describe())


@pytest.mark.parametrize("name", ["dirichlet", "quantity"])
def test_novel_samples_need_no_minimum(name: str) -> None:
    adapted = PARTITIONS.make(name, {"beta": 0.3}).for_novel(classes=2, clients=5)
    assert (type(adapted), adapted.params.beta, adapted.params.min_samples) == (PARTITIONS.get(name), 0.3, 0)


@pytest.mark.parametrize(("k", "classes", "clients", "expected"), [(2, 1, 4, 1), (2, 5, 2, 3), (2, 4, 4, 2)])
def test_the_number_of_novel_classes_per_client_adapts(k: int, classes: int, clients: int, expected: int) -> None:
    assert PARTITIONS.make("classes", {"k": k}).for_novel(classes, clients).params.k == expected


# --- a class mix per client -----------------------------------------------------------------------------------


def test_mixes_have_the_moments_of_a_dirichlet_distribution_over_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []

    def recorded(mixes: np.ndarray, *rest: Any) -> np.ndarray:
        drawn.append(mixes)
        return draw_by_mix(mixes, *rest)

    monkeypatch.setattr("fedwild.data.partitions.mixes.draw_by_mix", recorded)
    deal("class-mix", np.repeat(np.arange(3), [1000, 1000, 4000]), 6000, beta=0.5)
    # Concentrations 0.25, 0.25 and 1, which add up to 1.5: mean a / 1.5, variance mean (1 - mean) / (1.5 + 1).
    mean = np.array([0.25, 0.25, 1.0]) / 1.5
    assert drawn[0].sum(1) == pytest.approx(np.ones(6000))
    assert drawn[0].mean(0) == pytest.approx(mean, abs=0.02)
    assert drawn[0].var(0) == pytest.approx(mean * (1 - mean) / 2.5, abs=0.01)


def test_clients_of_equal_size_follow_their_own_mixes() -> None:
    # Mixes that use up every class exactly, so that no client needs to draw again often.
    mixes = np.array([[0.7, 0.2, 0.1], [0.1, 0.7, 0.2], [0.2, 0.1, 0.7]])
    counts = draw_by_mix(mixes, np.ones(3), np.array([9000, 9000, 9000]), rng())
    assert counts.sum(1).tolist() == counts.sum(0).tolist() == [9000] * 3
    assert np.abs(counts / 9000 - mixes).max() < 0.02


def test_a_class_that_several_clients_want_is_shared_and_the_rest_is_drawn_from_other_classes() -> None:
    wanted = np.array([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    counts = draw_by_mix(wanted, np.ones(3), np.array([300, 300, 300]), rng())
    assert counts.sum(1).tolist() == counts.sum(0).tolist() == [300] * 3
    # The hypergeometric split of 300 samples between two clients has a deviation of 6.1.
    assert abs(counts[0, 0] - 150) < 30
    assert counts[2].tolist() == [0, 0, 300]
    assert counts[0, 1] + counts[1, 1] == 300


@pytest.mark.parametrize("beta", [1e-6, 0.001, 0.1, 100.0])
def test_class_mixes_are_complete_for_every_beta(beta: float) -> None:
    labels = np.repeat(np.arange(20), 50)
    parts = deal("class-mix", labels, 10, beta=beta)
    assert_complete(parts, labels, 10)
    assert {len(part) for part in parts} == {100}
    held = np.mean([len(np.unique(labels[part])) for part in parts])
    assert held < 6 if beta < 0.01 else held > 6


def test_client_mixes_and_class_shares_are_different_partitions() -> None:
    """With many clients, a Dirichlet draw per class leaves some without samples; a mix per client does not."""
    labels = np.repeat(np.arange(3), 400)
    shares = deal("dirichlet", labels, 60, beta=0.05, min_samples=0, balance=False)
    mixes = deal("class-mix", labels, 60, beta=0.05)
    assert min(map(len, shares)) == 0
    assert {len(part) for part in mixes} == {20}


# --- the partition of the pool --------------------------------------------------------------------------------


def test_novel_samples_can_have_a_partition_of_their_own() -> None:
    dataset, data = toy(), DataSettings(known=2, novel=2, validation=0.0)
    plain = make_split(dataset, data, "iid", {}, 4)
    mixed = make_split(dataset, data, "iid", {}, 4, pool_partition=make_partition("classes", {"k": 1}))
    labels = dataset.y_train.numpy()
    for before, after in zip(plain.clients, mixed.clients, strict=True):
        assert before.train.tolist() == after.train.tolist()
        assert len(np.unique(labels[before.unlabelled])) == 2
        assert len(np.unique(labels[after.unlabelled])) == 1


def test_the_section_of_the_pool_is_complete_and_spelt_out() -> None:
    settings = pool_partition_settings({"name": "dirichlet:0.1"})
    assert settings.model_dump() == {"name": "dirichlet", "beta": 0.1, "min_samples": 10, "balance": True}
    assert pool_partition_settings(settings.model_dump()) == settings
    assert pool_partition_settings({}).name is None


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"beta": 0.1}, "pool_partition.name is missing: beta set without naming the partition."),
        ({"name": "iid", "beta": 1.0}, "pool_partition.beta = 1.0 is not a setting of partition 'iid'."),
        ({"name": "dirichlet", "beta": -1}, "pool_partition.beta = -1 is not allowed"),
        ({"name": "dirichlett"}, "partition 'dirichlett' is not known. Did you mean 'dirichlet'"),
    ],
)
def test_problems_of_the_pool_section_name_its_keys(table: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        pool_partition_settings(table)


def test_a_section_with_a_short_form_is_spelt_out() -> None:
    settings = partition_settings({"name": "dirichlet:0.1", "min_samples": 3})
    assert settings.model_dump() == {"name": "dirichlet", "beta": 0.1, "min_samples": 3}
    assert partition_settings(settings.model_dump()) == settings


def test_a_section_without_a_name_keeps_its_settings_for_the_partition_that_the_data_chooses() -> None:
    settings = partition_settings({"beta": 0.2})
    assert (settings.name, settings.params) == (None, {"beta": 0.2})
    assert choose_partition(toy(), settings.name, settings.params).params.beta == 0.2
    with pytest.raises(UserError, match=r"partition\.beta = 0\.2 is not a setting of partition 'domain'"):
        choose_partition(toy(domains=2), settings.name, settings.params)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"betta": 1}, r"partition\.betta is not a setting\. Did you mean 'beta'\?"),
        ({"name": 3}, r"partition\.name = 3 is not allowed"),
        ({"name": "c2", "k": 0}, r"partition\.k = 0 is not allowed"),
        ({"name": "iid", "k": 2}, r"partition\.k = 2 is not a setting of partition 'iid'"),
    ],
)
def test_an_invalid_section_is_rejected(table: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        partition_settings(table)


class EveryOther(Partition):
    """Gives client i every sample whose position is i modulo the number of clients."""

    def assign(self, rows: Rows, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        return [np.arange(client, len(rows.labels), clients) for client in range(clients)]


class Lossy(Partition):
    """Forgets a sample."""

    def assign(self, rows: Rows, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        return [part[1:] for part in np.array_split(np.arange(len(rows.labels)), clients)]


def test_a_users_partition_is_found_by_import_path() -> None:
    path = "tests.data.test_partitions:EveryOther"
    settings = partition_settings({"name": path})
    assert settings.name == path
    dataset = toy()
    split = make_split(dataset, DataSettings(validation=0), path, clients=3)
    assert [client.name for client in split.clients] == ["client-00", "client-01", "client-02"]
    assert split.clients[1].train.tolist() == list(range(1, len(dataset.y_train), 3))
    with pytest.raises(UserError, match=r"partition\.beta = 1 is not a setting of partition 'tests"):
        partition_settings({"name": path, "beta": 1})


def test_a_partition_that_loses_samples_is_rejected() -> None:
    with pytest.raises(UserError, match="must return one array of positions per client"):
        make_split(toy(), DataSettings(), "tests.data.test_partitions:Lossy", clients=3)
