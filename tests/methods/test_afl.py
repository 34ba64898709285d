"""AFL: the projection against an optimiser, the round by hand, and what must never change."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import optimize

from fedwild.core.errors import BadReply
from fedwild.methods.afl import AFL, projected
from fedwild.methods.fairness import RECEIVED, admitted
from fedwild.core.payload import Payload
from fedwild.contract import Server
from fedwild.core.rng import Rng
from fedwild.runs.events import read_events
from fedwild.contract.task import weights_of
from tests.methods.by_hand import PLAIN, final, method_of, replies_of, server_of
from tests.tiny import even_shares, run_tiny, split_by, tiny_dataset, tiny_experiment


@pytest.fixture
def data() -> Any:
    return tiny_dataset(classes=2)


def told(loss: float, *values: float, samples: int = 3) -> Payload:
    return Payload.of({"samples": samples, RECEIVED: loss}, model={"w": torch.tensor(values)})


# --- the projection -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("total", [1.0, 0.25])
@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_the_projection_is_the_nearest_point_that_an_optimiser_finds(count: int, total: float) -> None:
    random = np.random.default_rng(count)
    for _ in range(8):
        values = random.normal(0, 0.6, count)
        found = optimize.minimize(
            lambda x, values=values: ((x - values) ** 2).sum(),
            np.full(count, total / count),
            jac=lambda x, values=values: 2 * (x - values),
            bounds=[(0, None)] * count,
            constraints={"type": "eq", "fun": lambda x: x.sum() - total},
            method="SLSQP",
            options={"ftol": 1e-14},
        )
        assert found.success
        np.testing.assert_allclose(projected(values, total), found.x, atol=1e-6)


def test_the_projection_leaves_points_of_the_simplex_alone_and_ends_in_it() -> None:
    random = np.random.default_rng(0)
    inside = random.dirichlet(np.ones(5))
    np.testing.assert_allclose(projected(inside), inside, atol=1e-15)
    np.testing.assert_allclose(projected(inside + 7.0), inside, atol=1e-14)
    for _ in range(50):
        point = projected(random.normal(0, 1e6, 7))
        assert point.min() >= 0
        assert point.sum() == pytest.approx(1, abs=1e-9)
    assert projected(np.array([1e30, 0.0])).tolist() == [1.0, 0.0]


# --- a round by hand ----------------------------------------------------------------------------------------


def test_a_round_is_the_mixture_of_models_and_then_a_step_of_the_mixture() -> None:
    method = method_of("afl", {"lr_lambda": 0.2})
    server = server_of(("a", "b"), model={"w": torch.zeros(2)})
    server.state.info["mixture"] = {"a": 0.3, "b": 0.7}
    method.merge(server, replies_of(a=told(2.0, 1.0, 5.0), b=told(0.5, 3.0, -5.0)))
    # 0.3 * 1 + 0.7 * 3 and 0.3 * 5 - 0.7 * 5, by the mixture before its step.
    torch.testing.assert_close(server.state.group("model")["w"], torch.tensor([2.4, -2.0]))
    # 0.3 + 0.4 and 0.7 + 0.1 add up to 1.5: a quarter is taken off each.
    assert server.state.info["mixture"] == pytest.approx({"a": 0.45, "b": 0.55}, abs=1e-12)


def test_equal_losses_leave_the_mixture_as_it_is() -> None:
    method = method_of("afl", {"lr_lambda": 0.5})
    server = server_of(("a", "b", "c"), model={"w": torch.zeros(1)})
    server.state.info["mixture"] = {"a": 0.2, "b": 0.5, "c": 0.3}
    method.merge(server, replies_of(a=told(1.7, 1.0), b=told(1.7, 2.0), c=told(1.7, 3.0)))
    assert server.state.info["mixture"] == pytest.approx({"a": 0.2, "b": 0.5, "c": 0.3}, abs=1e-12)


def test_who_did_not_answer_keeps_its_share_of_the_mixture() -> None:
    method = method_of("afl", {"lr_lambda": 0.1})
    server = server_of(("a", "b", "c"), model={"w": torch.zeros(1)})
    server.state.info["mixture"] = {"a": 0.2, "b": 0.5, "c": 0.3}
    method.merge(server, replies_of(a=told(2.0, 1.0), c=told(0.0, 2.0)))
    torch.testing.assert_close(server.state.group("model")["w"], torch.tensor([(0.2 * 1 + 0.3 * 2) / 0.5]))
    assert server.state.info["mixture"] == pytest.approx({"a": 0.3, "b": 0.5, "c": 0.2}, abs=1e-12)


def test_all_of_the_mixture_with_somebody_who_did_not_answer_leaves_the_others_equal() -> None:
    method = method_of("afl", {})
    server = server_of(("a", "b", "c"), model={"w": torch.zeros(1)})
    server.state.info["mixture"] = {"a": 0.0, "b": 1.0, "c": 0.0}
    method.merge(server, replies_of(a=told(2.0, 1.0), c=told(0.5, 2.0)))
    torch.testing.assert_close(server.state.group("model")["w"], torch.tensor([1.5]))
    assert server.state.info["mixture"] == {"a": 0.0, "b": 1.0, "c": 0.0}


def test_a_client_without_samples_is_no_part_of_the_mixture() -> None:
    method = method_of("afl", {})
    server = server_of(("a", "b"), model={"w": torch.zeros(1)})
    empty = Payload.of({"samples": 0, RECEIVED: None}, model={"w": torch.tensor([9.0])})
    method.check(
        server_of(model={}), Payload.of({"samples": 0, RECEIVED: None}, model=weights_of(PLAIN.build(2, Rng(0))))
    )
    method.merge(server, replies_of(a=told(1.0, 2.0), b=empty))
    assert server.state.group("model")["w"].tolist() == [2.0]
    assert server.state.info["mixture"] == {"a": 1.0}


# --- newcomers ----------------------------------------------------------------------------------------------


def test_newcomers_get_an_equal_share_and_the_others_make_room() -> None:
    assert admitted({}, ["b", "a"]) == {"a": 0.5, "b": 0.5}
    found = admitted({"a": 0.9, "b": 0.1}, ["b", "c", "d"])
    assert found == pytest.approx({"a": 0.45, "b": 0.05, "c": 0.25, "d": 0.25})
    assert sum(found.values()) == pytest.approx(1, abs=1e-15)
    assert admitted({"a": 0.9, "b": 0.1}, ["a"]) == {"a": 0.9, "b": 0.1}
    assert admitted({}, []) == {}


def test_a_client_that_arrives_late_joins_the_mixture(data: Any, tmp_path: Path) -> None:
    split = split_by(data, 2, even_shares(data, 2, 3))
    settings = {"method": {"rounds": 3, "lr_lambda": 0.0}, "federation": {"arrivals": {"client-02": 2}}}
    run_tiny(tmp_path / "run", "afl", data, split, settings)
    checkpoints = sorted((tmp_path / "run" / "checkpoints").iterdir())
    mixture = Payload.read(checkpoints[-1]).info["state"]["mixture"]
    assert mixture == pytest.approx(dict.fromkeys(("client-00", "client-01", "client-02"), 1 / 3))
    two = {"method": {"rounds": 2, "lr_lambda": 0.0}, "federation": {"arrivals": {"client-02": 2}}}
    run_tiny(tmp_path / "two", "afl", data, split, two)
    assert final(tmp_path / "two").info["state"]["mixture"] == {"client-00": 0.5, "client-01": 0.5}


# --- whole runs ---------------------------------------------------------------------------------------------


def test_the_mixture_stays_a_mixture_and_leans_to_those_who_fare_badly(data: Any, tmp_path: Path) -> None:
    rows = even_shares(data, 2, 1)[0]
    # The last client's labels are wrong, so that its loss stays high.
    wrong = tiny_dataset(classes=2)
    split = split_by(data, 2, [rows[:8], rows[8:16], rows[16:]])
    wrong.y_train[torch.tensor(rows[16:])] = 1 - wrong.y_train[torch.tensor(rows[16:])]
    settings = {"method": {"rounds": 12, "lr": 0.1, "lr_lambda": 0.1}}
    run_tiny(tmp_path / "run", "afl", wrong, split, settings)
    mixture = final(tmp_path / "run").info["state"]["mixture"]
    assert sum(mixture.values()) == pytest.approx(1, abs=1e-12)
    assert min(mixture.values()) >= 0
    assert mixture["client-02"] > 0.4


def test_the_model_that_answers_is_the_mean_of_all_rounds_models(data: Any, tmp_path: Path) -> None:
    split = split_by(data, 2, even_shares(data, 2, 2))
    models = []
    for rounds in (1, 2, 3):
        run_tiny(tmp_path / str(rounds), "afl", data, split, {"method": {"rounds": rounds}})
        models.append(final(tmp_path / str(rounds)).group("model"))
    average = final(tmp_path / "3").group("average")
    for name, tensor in average.items():
        expected = torch.stack([model[name].double() for model in models]).mean(0)
        torch.testing.assert_close(tensor.double(), expected, rtol=1e-6, atol=1e-7)
        assert not torch.equal(models[0][name], models[2][name])

    method: Any = tiny_experiment("afl", data, split).method
    server = Server.from_payload(final(tmp_path / "3"), PLAIN, Rng(0))
    assert all(torch.equal(tensor, average[name]) for name, tensor in weights_of(method.answering(server)).items())
    run_tiny(tmp_path / "last", "afl", data, split, {"method": {"rounds": 3, "average": False}})
    last = final(tmp_path / "last")
    assert "average" not in last
    assert all(torch.equal(tensor, models[2][name]) for name, tensor in last.group("model").items())
    server = Server.from_payload(last, PLAIN, Rng(0))
    assert all(torch.equal(tensor, models[2][name]) for name, tensor in weights_of(method.answering(server)).items())


def test_everybody_is_asked_and_the_log_says_so(data: Any, tmp_path: Path) -> None:
    split = split_by(data, 2, even_shares(data, 2, 4))
    run_tiny(tmp_path / "run", "afl", data, split, {"federation": {"participation": 0.5}})
    events = read_events(tmp_path / "run" / "events.jsonl")
    assert [event["clients"] for event in events if event["event"] == "round-start"] == [4, 4]
    assert len([event for event in events if "participation has no effect" in event.get("text", "")]) == 1


@pytest.mark.parametrize("loss", [None, "low", True, 3, math.nan, math.inf, 1e39])
def test_a_reply_without_a_loss_is_refused(loss: Any) -> None:
    method = method_of("afl")
    assert isinstance(method, AFL)
    weights = weights_of(PLAIN.build(2, Rng(0)))
    server = server_of(model=weights)
    method.check(server, Payload.of({"samples": 4, RECEIVED: 0.5}, model=weights))
    with pytest.raises(BadReply, match=RECEIVED):
        method.check(server, Payload.of({"samples": 4, RECEIVED: loss}, model=weights))
