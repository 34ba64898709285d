"""T-Acc, S-Acc and G-Acc by hand: pooled over samples, pooled over sites, and as means over clients."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedwild.contract import Server, Step
from fedwild.core.classes import ClassRegistry
from fedwild.core.rng import Rng
from fedwild.data import ClientSplit, Split
from fedwild.evaluation.newcomers import mean_over_clients, pooled, pooled_over_sites
from fedwild.openset.metrics import UNKNOWN
from tests.methods.by_hand import PLAIN

TRUE = "abaccdad"
"""True classes of the test set: rows 0-3 belong to bob and cyd, 4-6 to the newcomer ann, 7 to the newcomer ben."""
ROWS = {"bob": [0, 1, 2, 3], "cyd": [0, 1, 2, 3], "ann": [4, 5, 6], "ben": [7]}
OLD = {"a": "known", "b": "known"}
"""The registry: each class and who brought it."""
ALL = {**OLD, "c": "ann", "d": "ann"}


def split_of(rows: dict[str, list[int]]) -> Split:
    none = np.zeros(0, dtype=np.int64)
    clients = [ClientSplit(name, none, none, none, np.array(own, dtype=np.int64), ()) for name, own in rows.items()]
    newcomers = tuple(name for name in ("ann", "ben") if name in rows)
    return Split(tuple(clients), ("a", "b"), (), (), np.arange(8), none, "train", newcomers=newcomers)


def server_of(classes: dict[str, str], clients: str) -> Server:
    """Return a server with these classes, by who brought them, and clients that are present."""
    registry = ClassRegistry()
    for name, origin in classes.items():
        registry.add(name, origin, 0)
    return Server(PLAIN, registry, Step("judge-1", 0, 9), Rng(0), tuple(clients.split()), newcomers=("ann", "ben"))


def accuracies(target: float, source: float, both: float) -> dict[str, float]:
    return {"target_accuracy": target, "source_accuracy": source, "global_accuracy": both}


# --- pooled over test samples ---------------------------------------------------------------------------------


def pooled_of(answers: str, classes: dict[str, str], clients: str, members: str | None = None) -> dict[str, float]:
    """Return the figures for these answers; all present clients are members unless given."""
    names = list(classes)
    truth = np.array([names.index(name) if name in names else UNKNOWN for name in TRUE])
    right = np.array([given == true for given, true in zip(answers, TRUE, strict=True)])
    members = clients if members is None else members
    return pooled(server_of(classes, clients), split_of(ROWS), members.split(), truth, right)


def test_no_figures_before_the_first_newcomer() -> None:
    assert pooled_of("abaaaaaa", OLD, "bob cyd") == {}


def test_classes_of_the_newcomer_that_are_not_learnt_yet_are_mistakes() -> None:
    # Ann: c and d are wrong, a is right. Others: a, b, a with one mistake; c is not a class yet, and ben is absent.
    assert pooled_of("aaaaabab", OLD, "bob cyd ann") == pytest.approx(accuracies(1 / 3, 2 / 3, 3 / 6))


def test_source_accuracy_is_on_the_same_samples_before_and_after() -> None:
    # Row 3 is of class c, which ann brought: it does not count for the others although its answer is correct.
    assert pooled_of("abacccac", ALL, "bob cyd ann") == pytest.approx(accuracies(2 / 3, 3 / 3, 5 / 6))


def test_an_earlier_newcomer_counts_as_source() -> None:
    # Source: rows 0-3 and 4-6, with a mistake each. Target: row 7.
    assert pooled_of("abbcccad", ALL, "bob cyd ann ben") == pytest.approx(accuracies(1.0, 5 / 7, 6 / 8))


def test_a_rejected_newcomer_does_not_count_as_source() -> None:
    found = pooled_of("abbabbbb", OLD, "bob cyd ann ben", members="bob cyd ben")
    assert found == pytest.approx(accuracies(0.0, 2 / 3, 2 / 4))


def test_a_rejected_last_newcomer_is_still_the_target() -> None:
    found = pooled_of("abbabbbb", OLD, "bob cyd ann ben", members="bob cyd ann")
    assert found == pytest.approx(accuracies(0.0, 2 / 4, 2 / 5))


def test_without_test_samples_of_the_newcomer_its_accuracy_is_undefined() -> None:
    split = split_of({"bob": list(range(8)), "ann": []})
    truth = np.array([0, 1, 0, 0, 1, 1, 0, 1])
    found = pooled(server_of(OLD, "bob ann"), split, ["bob", "ann"], truth, np.ones(8, dtype=bool))
    assert math.isnan(found["target_accuracy"])
    assert found["source_accuracy"] == found["global_accuracy"] == 1.0


# --- pooled over sites ----------------------------------------------------------------------------------------


def test_counts_of_sites_are_added_up() -> None:
    counts = {
        "bob": {"a": [3, 4], "b": [1, 2], "c": [0, 5]},
        "cyd": {"a": [2, 2]},
        "ann": {"a": [1, 1], "c": [3, 4]},
    }
    found = pooled_over_sites(server_of(ALL, "bob cyd ann"), counts)
    # Source: a and b of bob and cyd, 6 of 8; class c, which ann brought, counts at ann only.
    assert found == pytest.approx(accuracies(4 / 5, 6 / 8, 10 / 13))


def test_the_last_newcomer_that_reports_is_the_target() -> None:
    counts = {"bob": {"a": [1, 2]}, "ann": {"c": [3, 4]}, "ben": {"d": [0, 2]}}
    # Class d is ann's, so ann's samples of c count as source and ben's are the target.
    assert pooled_over_sites(server_of(ALL, "bob ann ben"), counts) == pytest.approx(accuracies(0.0, 4 / 6, 4 / 8))
    del counts["ben"]
    assert pooled_over_sites(server_of(ALL, "bob ann ben"), counts) == pytest.approx(accuracies(3 / 4, 1 / 2, 4 / 6))


def test_sites_without_a_newcomer_have_no_figures_about_one() -> None:
    assert pooled_over_sites(server_of(OLD, "bob"), {"bob": {"a": [1, 2]}}) == {}


def test_sites_without_samples_leave_figures_undefined() -> None:
    found = pooled_over_sites(server_of(ALL, "bob ann"), {"bob": {"c": [2, 2]}, "ann": {}})
    assert all(math.isnan(value) for value in found.values())


# --- means over clients ---------------------------------------------------------------------------------------


def test_every_client_counts_equally() -> None:
    own = {"bob": 0.5, "cyd": 1.0, "ann": 0.3}
    found = mean_over_clients(server_of(ALL, "bob cyd ann"), split_of(ROWS), own)
    assert found == pytest.approx(accuracies(0.3, 0.75, 0.6))


def test_the_last_newcomer_present_is_the_target() -> None:
    own = {"bob": 0.5, "ann": 0.3, "ben": 0.1}
    found = mean_over_clients(server_of(ALL, "bob ann ben"), split_of(ROWS), own)
    assert found == pytest.approx(accuracies(0.1, 0.4, 0.3))


def test_without_a_newcomer_or_its_accuracy_there_are_no_figures() -> None:
    assert mean_over_clients(server_of(OLD, "bob cyd"), split_of(ROWS), {"bob": 0.5, "cyd": 1.0}) == {}
    assert mean_over_clients(server_of(OLD, "bob ann"), split_of(ROWS), {"bob": 0.5}) == {}


def test_without_other_clients_source_accuracy_is_undefined() -> None:
    found = mean_over_clients(server_of(OLD, "ann"), split_of(ROWS), {"ann": 0.5})
    assert math.isnan(found["source_accuracy"])
    assert found["target_accuracy"] == found["global_accuracy"] == 0.5
