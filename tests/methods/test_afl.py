"""AFL: the projection compared with an optimiser, a round by hand, and invariants."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import optimize

from fedwild.contract import Server
from fedwild.contract.task import weights_of
from fedwild.core.errors import BadReply
from fedwild.core.payload import Payload
from fedwild.core.rng import Rng
from fedwild.methods.afl import project
from fedwild.methods.fairness import RECEIVED, add_clients
from fedwild.runs.events import read_events
from tests.methods.by_hand import PLAIN, final, method_of, phase_of, replies_of, server_of
from tests.tiny import even_shares, run_tiny, split_by, tiny_dataset


@pytest.fixture
def data() -> Any:
    return tiny_dataset(classes=2)


def reply(loss: float, *values: float, samples: int = 3) -> Payload:
    return Payload.of({"samples": samples, RECEIVED: loss}, model={"w": torch.tensor(values)})


# --- the projection -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("total", [1.0, 0.25])
@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_projection_equals_the_nearest_point_found_by_an_optimiser(count: int, total: float) -> None:
    random = np.random.default_rng(count)
    for _ in range(8):
        values = random.normal(0, 0.6, count)
        found = optimize.minimize(
            lambda x, v: ((x - v) ** 2).sum(),
            np.full(count, total / count),
            args=(values,),
            jac=lambda x, v: 2 * (x - v),
            bounds=[(0, None)] * count,
            constraints={"type": "eq", "fun": lambda x, v: x.sum() - total, "args": (values,)},
            method="SLSQP",
            options={"ftol": 1e-14},
        )
        assert found.success
        np.testing.assert_allclose(project(values, total), found.x, atol=1e-6)


def test_projection_keeps_points_of_the_simplex_and_ends_in_it() -> None:
    random = np.random.default_rng(0)
    inside = random.dirichlet(np.ones(5))
    np.testing.assert_allclose(project(inside), inside, atol=1e-15)
    np.testing.assert_allclose(project(inside + 7.0), inside, atol=1e-14)
    for _ in range(50):
        point = project(random.normal(0, 1e6, 7))
        assert point.min() >= 0
        assert point.sum() == pytest.approx(1, abs=1e-9)
    assert project(np.array([1e30, 0.0])).tolist() == [1.0, 0.0]


# --- a round by hand ----------------------------------------------------------------------------------------


def test_a_round_mixes_the_models_and_then_updates_the_mixture() -> None:
    phase = phase_of("afl", {"lr_lambda": 0.2})
    server = server_of(("a", "b"), model={"w": torch.zeros(2)})
    server.state.info["mixture"] = {"a": 0.3, "b": 0.7}
    phase.merge(server, replies_of(a=reply(2.0, 1.0, 5.0), b=reply(0.5, 3.0, -5.0)))
    # 0.3 * 1 + 0.7 * 3 and 0.3 * 5 - 0.7 * 5, by the mixture before its step.
    torch.testing.assert_close(server.state.group("model")["w"], torch.tensor([2.4, -2.0]))
    # 0.3 + 0.4 and 0.7 + 0.1 add up to 1.5: the projection subtracts a quarter from each.
    assert server.state.info["mixture"] == pytest.approx({"a": 0.45, "b": 0.55}, abs=1e-12)


def test_equal_losses_do_not_change_the_mixture() -> None:
    phase = phase_of("afl", {"lr_lambda": 0.5})
    server = server_of(("a", "b", "c"), model={"w": torch.zeros(1)})
    server.state.info["mixture"] = {"a": 0.2, "b": 0.5, "c": 0.3}
    phase.merge(server, replies_of(a=reply(1.7, 1.0), b=reply(1.7, 2.0), c=reply(1.7, 3.0)))
    assert server.state.info["mixture"] == pytest.approx({"a": 0.2, "b": 0.5, "c": 0.3}, abs=1e-12)


def test_a_client_without_a_reply_keeps_its_weight() -> None:
    phase = phase_of("afl", {"lr_lambda": 0.1})
    server = server_of(("a", "b", "c"), model={"w": torch.zeros(1)})
    server.state.info["mixture"] = {"a": 0.2, "b": 0.5, "c": 0.3}
    phase.merge(server, replies_of(a=reply(2.0, 1.0), c=reply(0.0, 2.0)))
    torch.testing.assert_close(server.state.group("model")["w"], torch.tensor([(0.2 * 1 + 0.3 * 2) / 0.5]))
    assert server.state.info["mixture"] == pytest.approx({"a": 0.3, "b": 0.5, "c": 0.2}, abs=1e-12)


def test_equal_weights_if_only_clients_without_a_reply_have_weight() -> None:
    phase = phase_of("afl", {})
    server = server_of(("a", "b", "c"), model={"w": torch.zeros(1)})
    server.state.info["mixture"] = {"a": 0.0, "b": 1.0, "c": 0.0}
    phase.merge(server, replies_of(a=reply(2.0, 1.0), c=reply(0.5, 2.0)))
    torch.testing.assert_close(server.state.group("model")["w"], torch.tensor([1.5]))
    assert server.state.info["mixture"] == {"a": 0.0, "b": 1.0, "c": 0.0}


def test_a_client_without_samples_is_not_in_the_mixture() -> None:
    phase = phase_of("afl", {})
    server = server_of(("a", "b"), model={"w": torch.zeros(1)})
    empty = Payload.of({"samples": 0, RECEIVED: None}, model={"w": torch.tensor([9.0])})
    phase.check(
        server_of(model={}), Payload.of({"samples": 0, RECEIVED: None}, model=weights_of(PLAIN.build(2, Rng(0))))
    )
    phase.merge(server, replies_of(a=reply(1.0, 2.0), b=empty))
    assert server.state.group("model")["w"].tolist() == [2.0]
    assert server.state.info["mixture"] == {"a": 1.0}


# --- newcomers ----------------------------------------------------------------------------------------------


def test_new_clients_get_equal_weights_and_the_others_are_scaled() -> None:
    assert add_clients({}, ["b", "a"]) == {"a": 0.5, "b": 0.5}
    found = add_clients({"a": 0.9, "b": 0.1}, ["b", "c", "d"])
    assert found == pytest.approx({"a": 0.45, "b": 0.05, "c": 0.25, "d": 0.25})
    assert sum(found.values()) == pytest.approx(1, abs=1e-15)
    assert add_clients({"a": 0.9, "b": 0.1}, ["a"]) == {"a": 0.9, "b": 0.1}
    assert add_clients({}, []) == {}


def test_a_late_client_joins_the_mixture(data: Any, tmp_path: Path) -> None:
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


def test_the_mixture_sums_to_one_and_favours_clients_with_high_loss(data: Any, tmp_path: Path) -> None:
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


def test_the_mean_of_all_rounds_models_answers(data: Any, tmp_path: Path) -> None:
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

    method = method_of("afl")
    server = Server.from_payload(final(tmp_path / "3"), PLAIN, Rng(0))
    assert all(torch.equal(tensor, average[name]) for name, tensor in weights_of(method.model(server)).items())
    run_tiny(tmp_path / "last", "afl", data, split, {"method": {"rounds": 3, "average": False}})
    last = final(tmp_path / "last")
    assert "average" not in last
    assert all(torch.equal(tensor, models[2][name]) for name, tensor in last.group("model").items())
    server = Server.from_payload(last, PLAIN, Rng(0))
    assert all(torch.equal(tensor, models[2][name]) for name, tensor in weights_of(method.model(server)).items())


def test_all_clients_train_and_the_log_says_so(data: Any, tmp_path: Path) -> None:
    split = split_by(data, 2, even_shares(data, 2, 4))
    run_tiny(tmp_path / "run", "afl", data, split, {"federation": {"participation": 0.5}})
    events = read_events(tmp_path / "run" / "events.jsonl")
    assert [event["clients"] for event in events if event["event"] == "round-start"] == [4, 4]
    assert len([event for event in events if "participation has no effect" in event.get("text", "")]) == 1


@pytest.mark.parametrize("loss", [None, "low", True, 3, math.nan, math.inf, 1e39])
def test_a_reply_without_a_loss_is_rejected(loss: Any) -> None:
    phase = phase_of("afl")
    weights = weights_of(PLAIN.build(2, Rng(0)))
    server = server_of(model=weights)
    phase.check(server, Payload.of({"samples": 4, RECEIVED: 0.5}, model=weights))
    with pytest.raises(BadReply, match=RECEIVED):
        phase.check(server, Payload.of({"samples": 4, RECEIVED: loss}, model=weights))
