"""Contribution-driven aggregation (Eq. 2-7) on toy clients by hand, and where it equals FedAvg's mean."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fedwild.aggregation.means import weighted_mean, weighted_sum
from fedwild.contract import Replies
from fedwild.core.payload import Payload
from fedwild.methods.gains.contributions import (
    class_model,
    client_weights,
    domain_model,
    relative_differences,
    sample_weights,
)
from tests.methods.by_hand import replies_of

BODY, WEIGHT, BIAS = "encoder.weight", "head.weight", "head.bias"


def reply(samples: int, body: list[float], weight: list[list[float]], bias: list[float], **more: Tensor) -> Payload:
    model = {BODY: torch.tensor(body), WEIGHT: torch.tensor(weight), BIAS: torch.tensor(bias), **more}
    return Payload.of({"samples": samples}, model=model)


def random_replies(sizes: dict[str, int], rows: int = 4, seed: int = 0) -> Replies:
    torch.manual_seed(seed)
    payloads = {
        name: Payload.of(
            {"samples": size},
            model={
                BODY: torch.randn(5, 3),
                "norm.running_var": torch.rand(5),
                "norm.num_batches_tracked": torch.tensor(size),
                WEIGHT: torch.randn(rows, 5),
                BIAS: torch.randn(rows),
            },
        )
        for name, size in sizes.items()
    }
    return replies_of(**payloads)


def contributions(differences: dict[str, float], samples: dict[str, int], by_samples: bool) -> dict[str, float]:
    """Return the weights of the source clients alone."""
    found = client_weights(differences, samples, "new", by_samples)
    del found["new"]
    return found


# --- Eq. 2 and 3 ---------------------------------------------------------------------------------------------


def test_contributions_of_two_sources_by_hand() -> None:
    # a = 1/(1+1) and 1/(1+3): 2/3 and 1/3 of the source clients' share, 40 of 60 samples.
    found = contributions({"a": 1.0, "b": 3.0}, {"a": 10, "b": 30, "new": 20}, by_samples=False)
    assert found == pytest.approx({"a": 2 / 3 * 40 / 60, "b": 1 / 3 * 40 / 60}, rel=1e-14)


def test_contributions_by_samples_by_hand() -> None:
    # a = 10/2 and 30/4: 5/12.5 and 7.5/12.5 of the share.
    found = contributions({"a": 1.0, "b": 3.0}, {"a": 10, "b": 30, "new": 20}, by_samples=True)
    assert found == pytest.approx({"a": 0.4 * 2 / 3, "b": 0.6 * 2 / 3}, rel=1e-14)


def test_contributions_of_three_sources_by_hand() -> None:
    found = contributions({"a": 0.0, "b": 1.0, "c": 0.25}, {"a": 1, "b": 2, "c": 5, "new": 8}, by_samples=False)
    whole = 1 + 0.5 + 0.8
    expected = {"a": 1 / whole * 0.5, "b": 0.5 / whole * 0.5, "c": 0.8 / whole * 0.5}
    assert found == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("by_samples", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_the_contributions_sum_to_the_source_clients_share_of_the_samples(seed: int, by_samples: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    sizes = {f"c{i}": int(torch.randint(1, 5000, (), generator=generator)) for i in range(9)}
    differences = {name: float(torch.rand((), generator=generator)) * 10**seed for name in sizes}
    found = contributions(differences, {**sizes, "new": 700}, by_samples)
    total = sum(sizes.values())
    assert sum(found.values()) == pytest.approx(total / (total + 700), abs=1e-12)


def test_a_more_similar_source_client_has_more_weight() -> None:
    found = contributions({"far": 5.0, "near": 0.1}, {"far": 9, "near": 9, "new": 9}, by_samples=True)
    assert found["near"] > found["far"] > 0


@pytest.mark.parametrize("by_samples", [True, False])
def test_a_source_client_without_samples_has_no_weight(by_samples: bool) -> None:
    found = contributions({"a": 1.0, "b": 0.0}, {"a": 10, "b": 0, "new": 10}, by_samples)
    assert found == {"a": 0.5, "b": 0.0}
    assert contributions({"b": 0.0}, {"b": 0, "new": 10}, by_samples) == {"b": 0.0}
    assert contributions({"b": 0.0}, {"b": 0, "new": 0}, by_samples) == {"b": 0.0}


@pytest.mark.parametrize(("target_weight", "expected"), [(None, 1 / 3), (2, 2.0)])
def test_the_newcomer_gets_the_rest_or_a_fixed_weight(target_weight: int | None, expected: float) -> None:
    sizes, differences = {"a": 10, "b": 30, "new": 20}, {"a": 1.0, "b": 3.0}
    found = client_weights(differences, sizes, "new", True, target_weight)
    assert found.pop("new") == pytest.approx(expected)
    assert found == contributions(differences, sizes, by_samples=True)


def test_relative_differences_are_in_units_of_their_mean() -> None:
    found = relative_differences({"a": 0.01, "b": 0.03, "c": 0.02})
    assert found == pytest.approx({"a": 0.5, "b": 1.5, "c": 1.0})
    assert relative_differences({"a": 0.0, "b": 0.0}) == {"a": 0.0, "b": 0.0}


def test_relative_differences_distinguish_sources_that_small_differences_do_not() -> None:
    differences, sizes = {"near": 0.01, "far": 0.03}, {"near": 5, "far": 5, "new": 10}
    plain = contributions(differences, sizes, by_samples=True)
    relative = contributions(relative_differences(differences), sizes, by_samples=True)
    assert plain["near"] / plain["far"] == pytest.approx(1.03 / 1.01)
    assert relative["near"] / relative["far"] == pytest.approx(2.5 / 1.5)
    assert sum(relative.values()) == pytest.approx(sum(plain.values()))


def test_weights_by_samples_are_fedavg_s() -> None:
    sizes = {"a": 7, "b": 120, "new": 50}
    replies, weights = random_replies(sizes), sample_weights(sizes)
    mean = weighted_mean(replies, "model")
    assert mean is not None
    for name, tensor in domain_model(replies, weights, weights).items():
        assert torch.allclose(tensor.double(), mean[name].double(), atol=1e-6), name
    assert sample_weights({"a": 0}) == {"a": 0.0}


# --- Eq. 4 and 5: a new domain -------------------------------------------------------------------------------


def test_a_domain_s_encoder_and_classifier_are_sums_with_their_own_weights() -> None:
    replies = replies_of(
        a=reply(10, [1.0], [[1.0, 0.0], [0.0, 1.0]], [1.0, 2.0]),
        b=reply(30, [3.0], [[3.0, 0.0], [0.0, 3.0]], [0.0, 4.0]),
        new=reply(20, [8.0], [[5.0, 8.0], [1.0, 0.0]], [8.0, 0.0]),
    )
    model = domain_model(replies, {"a": 0.5, "b": 0.25, "new": 0.25}, {"a": 0.125, "b": 0.625, "new": 0.25})
    assert model[BODY].tolist() == [0.5 * 1 + 0.25 * 3 + 0.25 * 8]
    assert model[WEIGHT].tolist() == [[0.125 + 1.875 + 1.25, 2.0], [0.25, 0.125 + 1.875]]
    assert model[BIAS].tolist() == [0.125 + 2.0, 0.25 + 2.5]
    assert model[BODY].dtype == torch.float32


@pytest.mark.parametrize(
    ("by_samples", "sizes"),
    [(True, {"a": 7, "b": 120, "c": 33, "new": 50}), (False, {"a": 40, "b": 40, "c": 40, "new": 55})],
)
def test_equal_differences_give_fedavg_s_mean(by_samples: bool, sizes: dict[str, int]) -> None:
    """Weighted by samples for any sizes; weighted by similarity alone if source clients have equal sizes."""
    replies = random_replies(sizes)
    weights = client_weights(dict.fromkeys(("a", "b", "c"), 0.37), sizes, "new", by_samples)
    found, mean = domain_model(replies, weights, weights), weighted_mean(replies, "model")
    assert mean is not None
    assert found.keys() == mean.keys()
    for name, tensor in mean.items():
        assert torch.allclose(found[name].double(), tensor.double(), atol=1e-6), name
    # Integers are not averaged.
    assert found["norm.num_batches_tracked"].dtype == torch.int64


def test_weighted_by_similarity_alone_sizes_do_not_count() -> None:
    sizes = {"a": 7, "b": 120, "new": 50}
    sources = contributions({"a": 0.3, "b": 0.3}, sizes, by_samples=False)
    assert sources["a"] == sources["b"]


# --- Eq. 6 and 7: new classes --------------------------------------------------------------------------------


def test_new_classes_by_hand() -> None:
    replies = replies_of(
        a=reply(10, [1.0], [[1.0], [2.0], [9.0]], [1.0, 2.0, 9.0]),
        b=reply(30, [3.0], [[5.0], [6.0], [7.0]], [3.0, 0.0, 7.0]),
        new=reply(40, [8.0], [[50.0], [60.0], [70.0]], [50.0, 60.0, 70.0]),
    )
    model = class_model(replies, {"a": 0.25, "b": 0.25, "new": 0.5}, "new", [2])
    assert model[BODY].tolist() == [0.25 + 0.75 + 4.0]
    # Old rows: (10 * 1 + 30 * 5) / 40 and so on; similarity does not count for them.
    assert model[WEIGHT].tolist() == [[4.0], [5.0], [70.0]]
    assert model[BIAS].tolist() == [2.5, 0.5, 70.0]


def test_old_rows_are_the_sources_mean_and_new_rows_the_newcomer_s_bit_for_bit() -> None:
    sizes = {"a": 7, "b": 121, "c": 33, "new": 50}
    replies = random_replies(sizes)
    # Rows in the middle, as if an objective's output for "unknown" is the last one.
    model = class_model(replies, {"a": 0.1, "b": 0.3, "c": 0.2, "new": 0.4}, "new", range(1, 3))
    mean = weighted_mean((r for r in replies if r.client != "new"), "model")
    newcomer = next(r.payload.group("model") for r in replies if r.client == "new")
    assert mean is not None
    for name in (WEIGHT, BIAS):
        assert torch.equal(model[name][[0, 3]], mean[name][[0, 3]])
        assert torch.equal(model[name][1:3], newcomer[name][1:3])
    expected = weighted_sum(replies, "model", lambda r, _: {"a": 0.1, "b": 0.3, "c": 0.2, "new": 0.4}[r.client])
    assert torch.equal(model[BODY], expected[BODY])


def test_without_samples_at_source_clients_the_whole_head_is_the_newcomer_s() -> None:
    replies = random_replies({"a": 0, "new": 5})
    model = class_model(replies, {"a": 0.0, "new": 1.0}, "new", [3])
    newcomer = next(r.payload.group("model") for r in replies if r.client == "new")
    assert all(torch.equal(model[name], newcomer[name]) for name in (BODY, WEIGHT, BIAS))


def test_averaged_new_rows_by_hand() -> None:
    replies = replies_of(
        a=reply(10, [1.0], [[1.0], [12.0]], [1.0, 0.0]),
        b=reply(30, [3.0], [[5.0], [4.0]], [3.0, 2.0]),
        new=reply(40, [8.0], [[50.0], [20.0]], [50.0, 5.0]),
    )
    model = class_model(replies, {"a": 0.25, "b": 0.25, "new": 0.5}, "new", [1])
    found = class_model(replies, {"a": 0.25, "b": 0.25, "new": 0.5}, "new", [1], halfway=True)
    # Halfway between the newcomer's 20 and the source mean (10 * 12 + 30 * 4) / 40; old rows do not change.
    assert found[WEIGHT].tolist() == [[4.0], [(20.0 + 6.0) / 2]]
    assert found[BIAS].tolist() == [2.5, (5.0 + 1.5) / 2]
    assert found[BODY].tolist() == model[BODY].tolist()
    assert model[WEIGHT].tolist() == [[4.0], [20.0]]


def test_averaging_new_rows_does_not_change_old_rows() -> None:
    replies = random_replies({"a": 3, "b": 50, "new": 5})
    found = class_model(replies, {"a": 0.4, "b": 0.1, "new": 0.5}, "new", [2], halfway=True)
    mean = weighted_mean((r for r in replies if r.client != "new"), "model")
    assert mean is not None
    assert all(torch.equal(found[name][[0, 1, 3]], mean[name][[0, 1, 3]]) for name in (WEIGHT, BIAS))


def test_without_samples_at_source_clients_new_rows_are_not_averaged() -> None:
    replies = random_replies({"a": 0, "new": 5})
    model = class_model(replies, {"a": 0.0, "new": 1.0}, "new", [2, 3])
    found = class_model(replies, {"a": 0.0, "new": 1.0}, "new", [2, 3], halfway=True)
    assert all(torch.equal(found[name], model[name]) for name in model)


# --- sums ----------------------------------------------------------------------------------------------------


def test_weighted_sums_omit_tensors_with_weight_0() -> None:
    replies = random_replies({"a": 3, "b": 5})

    def weight(r: Any, name: str) -> float:
        return 0.0 if name == BIAS else {"a": 0.5, "b": 2.0}[r.client]

    found = weighted_sum(replies, "model", weight)
    models = {r.client: r.payload.group("model") for r in replies}
    assert set(found) == set(models["a"]) - {BIAS}
    expected = 0.5 * models["a"][WEIGHT].double() + 2.0 * models["b"][WEIGHT].double()
    assert torch.equal(found[WEIGHT], expected.float())
    assert int(found["norm.num_batches_tracked"]) == 3
