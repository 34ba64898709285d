"""FedHEAL: consistency, weights and the mean against the printed formulas, and the state that clients keep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedwild.contract import Reply
from fedwild.contract.task import weights_of
from fedwild.core.bits import pack_bits
from fedwild.core.errors import BadReply
from fedwild.core.payload import Payload
from fedwild.core.rng import Rng
from fedwild.methods.fedheal import KEPT, RISES, consistent_mean, weights_in
from tests.methods.by_hand import NORMED, PLAIN, WITH_NORMS, final, phase_of, replies_of, server_of, states
from tests.tiny import even_shares, run_tiny, split_by, tiny_dataset


@pytest.fixture
def data() -> Any:
    return tiny_dataset(classes=2)


def reply(model: dict[str, Tensor], kept: dict[str, Tensor] | None = None, samples: int = 3) -> Payload:
    everything = {name: torch.ones(t.shape, dtype=torch.bool) for name, t in weights_in(model).items()}
    return Payload.of({"samples": samples}, model=model, kept=pack_bits(everything if kept is None else kept))


# --- at the client ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tau", [0.0, 0.35, 0.62])
def test_consistency_is_the_printed_recursion(tau: float) -> None:
    """l <- (l (t - 1) + [delta >= 0]) / t, and c from the l before."""
    random = np.random.default_rng(0)
    phase, state = phase_of("fedheal", {"tau": tau}), Payload()
    l = np.zeros((5, 7))  # noqa: E741  (the paper's letter)
    dropped = 0
    for t in range(1, 9):
        delta = random.normal(0.3, 1.0, (5, 7))
        delta[0, 0] = 0.0
        kept = phase.select_consistent({"w": torch.from_numpy(delta)}, state)["w"].numpy()
        state = Payload.decode(state.encode())
        c = np.where(delta >= 0, l, 1 - l)
        assert (kept == ((c > tau) | (t == 1))).all()
        dropped += int((~kept).sum())
        l = (l * (t - 1) + (delta >= 0)) / t  # noqa: E741
    assert dropped
    np.testing.assert_allclose(state.group(RISES)["w"].numpy() / 8, l)


def test_a_share_equal_to_tau_is_not_consistent_in_either_direction() -> None:
    """Three of ten one way, or seven of ten the other: 1 - 0.7 is more than 0.3 in floating point."""
    phase = phase_of("fedheal", {"tau": 0.3})
    for rising, sign in ((3, 1.0), (7, -1.0)):
        state = Payload.of({"rounds": {"w": 10}}, rises={"w": torch.tensor([rising], dtype=torch.int32)})
        assert phase.select_consistent({"w": torch.tensor([sign])}, state)["w"].tolist() == [False]


def test_a_grown_head_starts_counting_again_and_other_tensors_continue() -> None:
    phase, state = phase_of("fedheal"), Payload()
    for sign in (1.0, 1.0):
        phase.select_consistent({"body": torch.full((2,), sign), "head": torch.full((2,), sign)}, state)
    kept = phase.select_consistent({"body": torch.full((2,), -1.0), "head": torch.full((3,), -1.0)}, state)
    assert kept["body"].tolist() == [False, False]
    assert kept["head"].tolist() == [True, True, True]
    assert state.info["rounds"] == {"body": 3, "head": 1}


def test_clients_keep_their_history_and_send_only_weights_and_bits(data: Any, tmp_path: Path) -> None:
    split = split_by(data, 2, even_shares(data, 2, 2))
    run_tiny(tmp_path / "run", "fedheal", data, split, {**WITH_NORMS, "method": {"rounds": 3}})
    trained = weights_in(weights_of(NORMED.build(2, Rng(0))))
    for state in states(tmp_path / "run").values():
        assert set(state.info["rounds"].values()) == {3}
        assert state.group(RISES).keys() == trained.keys()
        assert {int(v) for tensor in state.group(RISES).values() for v in tensor.unique()} <= {0, 1, 2, 3}
    assert {name.partition("/")[0] for name in final(tmp_path / "run").tensors} == {"model", "references"}
    assert not any("running" in name or "num_batches" in name for name in trained)


# --- the mean -----------------------------------------------------------------------------------------------


def test_each_element_is_averaged_over_the_clients_that_kept_it() -> None:
    generator = torch.Generator().manual_seed(1)
    old = {"w": torch.randn(6, 5, generator=generator)}
    models = [{"w": torch.randn(6, 5, generator=generator)} for _ in range(3)]
    masks = [{"w": torch.rand(6, 5, generator=generator) < 0.5} for _ in range(3)]
    p = {"a": 0.5, "b": 0.2, "c": 0.3}
    replies = replies_of(**{name: reply(models[k], masks[k]) for k, name in enumerate(p)})
    found = consistent_mean(old, replies, p)["w"]
    alone = 0
    for i in range(6):
        for j in range(5):
            keepers = [k for k in range(3) if masks[k]["w"][i, j]]
            weights = [list(p.values())[k] for k in keepers]
            w = float(old["w"][i, j])
            alone += not keepers
            for k, weight in zip(keepers, weights, strict=True):
                w -= weight / sum(weights) * float(old["w"][i, j] - models[k]["w"][i, j])
            assert float(found[i, j]) == pytest.approx(w, rel=1e-5, abs=1e-6)
            if not keepers:
                assert found[i, j] == old["w"][i, j]
    assert alone


def test_the_first_round_with_equal_weights_is_the_plain_mean(data: Any, tmp_path: Path) -> None:
    rows = even_shares(data, 2, 1)[0]
    split = split_by(data, 2, [rows[:6], rows[6:14], rows[14:]])
    run_tiny(tmp_path / "plain", "fedbn", data, split, {"method": {"rounds": 1}})
    run_tiny(tmp_path / "heal", "fedheal", data, split, {"method": {"rounds": 1, "beta": 0.0}})
    run_tiny(tmp_path / "weighed", "fedheal", data, split, {"method": {"rounds": 1, "beta": 0.9}})
    plain, heal, weighed = (final(tmp_path / name).group("model") for name in ("plain", "heal", "weighed"))
    for name, tensor in plain.items():
        torch.testing.assert_close(heal[name], tensor, rtol=1e-6, atol=1e-7)
    assert not torch.allclose(weighed["head.weight"], plain["head.weight"], rtol=1e-6, atol=1e-7)


def test_batch_norm_statistics_are_averaged_by_p_without_a_mask() -> None:
    def model(weight: float, mean: float, count: int) -> dict[str, Tensor]:
        statistics = {"n.running_mean": torch.tensor([mean]), "n.running_var": torch.tensor([1.0 + mean])}
        return {"n.weight": torch.tensor([weight]), **statistics, "n.num_batches_tracked": torch.tensor(count)}

    nothing = {"n.weight": torch.tensor([False])}
    server = server_of(("a", "b"), model=model(1.0, 0.0, 0))
    server.state.info.update(p={"a": 0.25, "b": 0.75}, dp={})
    replies = replies_of(a=reply(model(5.0, 4.0, 7), nothing), b=reply(model(9.0, 8.0, 9), nothing))
    phase_of("fedheal").merge(server, replies)
    found = server.state.group("model")
    # No client moved a weight that counts, so p does not change.
    assert server.state.info["p"] == {"a": 0.25, "b": 0.75}
    assert found["n.weight"].tolist() == [1.0]
    assert found["n.running_mean"].tolist() == [7.0]
    assert found["n.running_var"].tolist() == [8.0]
    assert found["n.num_batches_tracked"].tolist() == 7


# --- the clients' weights -----------------------------------------------------------------------------------


@pytest.mark.parametrize("distance", ["tensors", "whole-squared"])
@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_weights_follow_the_printed_recursion(beta: float, distance: str) -> None:
    phase = phase_of("fedheal", {"beta": beta, "distance": distance})
    generator = torch.Generator().manual_seed(2)
    names = ("a", "b", "c")
    server = server_of(names, model={"u": torch.zeros(4), "v": torch.zeros(2, 3)})
    p, dp = dict.fromkeys(names, 1 / 3), dict.fromkeys(names, 0.0)
    for _ in range(3):
        old = server.state.group("model")
        payloads, distances = {}, {}
        for scale, name in enumerate(names, 1):
            model = {key: t + scale * torch.randn(t.shape, generator=generator) for key, t in old.items()}
            mask = {key: torch.rand(t.shape, generator=generator) < 0.7 for key, t in old.items()}
            payloads[name] = reply(model, mask)
            kept = {key: ((old[key].double() - model[key]) * mask[key]).numpy() for key in old}
            norms = [float(np.linalg.norm(delta)) for delta in kept.values()]
            distances[name] = sum(norms) if distance == "tensors" else sum(norm**2 for norm in norms)
        phase.merge(server, replies_of(**payloads))
        for name in names:
            dp[name] = (1 - beta) * dp[name] + beta * distances[name] / sum(distances.values())
            p[name] += dp[name]
        total = sum(p.values())
        p = {name: value / total for name, value in p.items()}
        assert server.state.info["p"] == pytest.approx(p, rel=1e-9)
        assert sum(server.state.info["p"].values()) == pytest.approx(1, abs=1e-12)
    assert (max(p.values()) > 0.4) == (beta > 0)


def test_clients_that_do_not_take_part_keep_their_weights() -> None:
    phase = phase_of("fedheal")
    server = server_of(("a", "b", "c", "d"), model={"w": torch.zeros(1)})
    phase.merge(server, replies_of(a=reply({"w": torch.tensor([3.0])}), c=reply({"w": torch.tensor([1.0])})))
    p = server.state.info["p"]
    # Among those two p was a half each and is now (0.5 + 0.4 * 3/4) / 1.4 and (0.5 + 0.4 * 1/4) / 1.4.
    assert p == pytest.approx({"a": 0.5 * 0.8 / 1.4, "b": 0.25, "c": 0.5 * 0.6 / 1.4, "d": 0.25})
    assert server.state.group("model")["w"].tolist() == pytest.approx([(0.8 * 3 + 0.6 * 1) / 1.4])


def test_a_late_client_gets_an_equal_weight(data: Any, tmp_path: Path) -> None:
    split = split_by(data, 2, even_shares(data, 2, 3))
    late = {"federation": {"arrivals": {"client-02": 2}}}
    for rounds in (2, 3):
        settings = {"method": {"rounds": rounds, "beta": 0.0}, **late}
        run_tiny(tmp_path / str(rounds), "fedheal", data, split, settings)
    assert final(tmp_path / "2").info["state"]["p"] == {"client-00": 0.5, "client-01": 0.5}
    three = final(tmp_path / "3").info["state"]["p"]
    assert three == pytest.approx(dict.fromkeys(("client-00", "client-01", "client-02"), 1 / 3))
    rounds_of = {name: set(state.info["rounds"].values()) for name, state in states(tmp_path / "3").items()}
    assert rounds_of == {"client-00": {3}, "client-01": {3}, "client-02": {1}}


def test_a_client_without_samples_has_no_effect() -> None:
    models = []
    for replies in (
        {"a": reply({"w": torch.tensor([3.0])})},
        {"a": reply({"w": torch.tensor([3.0])}), "b": reply({"w": torch.tensor([9.0])}, samples=0)},
    ):
        server = server_of(("a", "b"), model={"w": torch.zeros(1)})
        phase_of("fedheal").merge(server, replies_of(**replies))
        models.append(server.state.group("model")["w"])
    assert models[0].tolist() == models[1].tolist() == [3.0]


# --- replies ------------------------------------------------------------------------------------------------


def test_a_wrong_number_of_bits_is_rejected() -> None:
    phase, weights = phase_of("fedheal"), weights_of(PLAIN.build(2, Rng(0)))
    server = server_of(model=weights)
    phase.check(server, reply(weights))
    for name, bits in (("head.weight", torch.zeros(1, dtype=torch.uint8)), ("head.weight", torch.zeros(2))):
        wrong = reply(weights)
        wrong.add(KEPT, {name: bits})
        with pytest.raises(BadReply, match=KEPT):
            phase.check(server, wrong)
    missing = reply(weights)
    missing.drop(KEPT)
    with pytest.raises(BadReply, match=KEPT):
        phase.check(server, missing)


def test_replies_are_read_one_at_a_time() -> None:
    """The mean reads each reply once, in the order of names."""
    read: list[str] = []

    def replies() -> Any:
        for name in ("a", "b"):
            read.append(name)
            yield Reply(name, reply({"w": torch.ones(2)}))

    found = consistent_mean({"w": torch.zeros(2)}, replies(), {"a": 0.5, "b": 0.5})
    assert found["w"].tolist() == [1.0, 1.0]
    assert read == ["a", "b"]
