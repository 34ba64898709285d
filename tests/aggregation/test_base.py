"""The kind of component `aggregation`: which methods have one, and what every aggregation must return."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedwild.aggregation import AGGREGATIONS, Aggregation, Mean, by_samples, weighted_mean
from fedwild.aggregation.means import Weight
from fedwild.api import configure
from fedwild.contract import Payload, Replies, Reply, Server, Step, Task, Tensors
from fedwild.core.classes import ClassRegistry
from fedwild.core.errors import BadReply, UserError
from fedwild.core.rng import Rng
from fedwild.methods import METHODS
from fedwild.runs.listing import list_kind
from tests.tiny import even_shares, model_bytes, own, run_tiny, split_by, tiny_dataset

AVERAGING = [name for name in own(METHODS) if "aggregation" in METHODS.get(name).parts]


class Heaviest(Aggregation):
    """The reply of the client with the largest weight."""

    def mean(
        self, replies: Iterable[Reply], group: str, weight: Weight = by_samples, reference: Tensors | None = None
    ) -> dict[str, Tensor] | None:
        weights = {reply.client: (weight(reply), reply.payload.group(group)) for reply in replies}
        heaviest = max(weights.values(), key=lambda pair: pair[0])
        return heaviest[1] if heaviest[0] else None


class Empty(Mean):
    """An aggregation that loses its tensors."""

    def mean(
        self, replies: Iterable[Reply], group: str, weight: Weight = by_samples, reference: Tensors | None = None
    ) -> dict[str, Tensor] | None:
        return {}


def server_with(weight: Tensor) -> Server:
    server = Server(Task((4,), "mlp"), ClassRegistry(), Step("train", 0, 0), Rng(0))
    server.state.put("model", {"w": weight})
    return server


def replies(*clients: tuple[int, Tensor]) -> Replies:
    def reader(count: int, weight: Tensor) -> Callable[[], Payload]:
        return lambda: Payload.of({"samples": count}, model={"w": weight})

    return Replies({f"client-{i}": reader(*client) for i, client in enumerate(clients)})


def test_averaging_methods_have_an_aggregation_and_the_others_have_none() -> None:
    found = {name for name in AVERAGING if METHODS.get(name).__module__ != "fedwild.methods.registry"}
    assert found == {"fedavg", "afl", "fedbn", "fedpd", "fedoss", "gal", "gains"}


@pytest.mark.parametrize("method", sorted(set(own(METHODS)) - set(AVERAGING)))
def test_a_method_that_does_not_average_refuses_an_aggregation(method: str) -> None:
    with pytest.raises(UserError, match=rf"method '{method}' has no exchangeable aggregation"):
        configure(method=method, data="tiny", settings=["aggregation.name=mean"])


def test_the_default_is_the_weighted_mean() -> None:
    server, sent = server_with(torch.zeros(2)), replies((1, torch.tensor([1.0, 2.0])), (3, torch.tensor([5.0, 0.1])))
    mean = AGGREGATIONS.make("mean").update(server, sent)
    expected = weighted_mean(sent, "model")
    assert mean is not None and expected is not None
    assert torch.equal(server.state.group("model")["w"], expected["w"])
    assert torch.equal(mean["w"], expected["w"])


def test_without_samples_the_model_does_not_change() -> None:
    server = server_with(torch.ones(2))
    assert AGGREGATIONS.make("mean").update(server, replies((0, torch.zeros(2)))) is None
    assert torch.equal(server.state.group("model")["w"], torch.ones(2))
    assert server.notes == ["no client has a training sample: the model does not change"]


def test_a_result_with_other_tensors_is_rejected() -> None:
    with pytest.raises(BadReply, match="the aggregation's model lacks"):
        Empty(Empty.Params()).update(server_with(torch.ones(2)), replies((1, torch.zeros(2))))


@pytest.mark.parametrize("method", AVERAGING)
def test_an_own_aggregation_replaces_the_mean(method: str, tmp_path: Path) -> None:
    data = tiny_dataset(classes=2)
    split = split_by(data, 2, even_shares(data, 2, 3))
    settings = {"method": {"mean": "all"}} if "fedpd" in method else {}
    run_tiny(tmp_path / "mean", method, data, split, settings)
    own_class = {"aggregation": {"name": f"{__name__}:Heaviest"}}
    run_tiny(tmp_path / "own", method, data, split, {**settings, **own_class})
    assert model_bytes(tmp_path / "mean") != model_bytes(tmp_path / "own")


@pytest.mark.parametrize("mean", ["auto", "part"])
def test_fedpd_refuses_an_aggregation_with_means_over_parts(mean: str) -> None:
    settings = [f"method.mean={mean}", f"aggregation.name={__name__}:Heaviest"]
    with pytest.raises(UserError, match=r"Use method\.mean = 'all'"):
        configure(method="fedpd", data="tiny", settings=settings).make_method()


def test_they_are_listed_with_their_summaries() -> None:
    assert [row["name"] for row in list_kind("aggregations")] == own(AGGREGATIONS)


SETTINGS = [(name, key) for name in own(AGGREGATIONS) for key in AGGREGATIONS.get(name).Params.model_fields]
OTHER_VALUES = {"clip": 1e-3, "trim": 0.1, "attackers": 0.0, "keep": 2, "radius": 0.1, "steps": 1}


@pytest.mark.parametrize(("name", "key"), SETTINGS)
def test_every_setting_takes_effect(name: str, key: str, tmp_path: Path) -> None:
    data = tiny_dataset(classes=2)
    rows = even_shares(data, 2, 1)[0]
    # The first two clients are alike: with few neighbours, they have the smallest scores.
    shares = [rows[:4], rows[:4], *(rows[i::5] for i in range(5))]
    split = split_by(data, 2, shares)
    aggregation = {"name": name}
    run_tiny(tmp_path / "before", "fedavg", data, split, {"aggregation": aggregation})
    run_tiny(tmp_path / "after", "fedavg", data, split, {"aggregation": {**aggregation, key: OTHER_VALUES[key]}})
    assert model_bytes(tmp_path / "before") != model_bytes(tmp_path / "after")


@pytest.mark.parametrize("name", own(AGGREGATIONS))
def test_networks_with_batch_norm_are_merged_with_any_number_of_workers(name: str, tmp_path: Path) -> None:
    data = tiny_dataset(classes=2)
    split = split_by(data, 2, even_shares(data, 2, 4))
    settings = {"aggregation": {"name": name}, "model": {"name": "digit-cnn", "width": 0.05}}
    run_tiny(tmp_path / "0", "fedavg", data, split, settings)
    run_tiny(tmp_path / "2", "fedavg", data, split, settings, workers=2)
    assert model_bytes(tmp_path / "0") == model_bytes(tmp_path / "2")
