"""q-FFL: the update against the printed formula, and its limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedwild.contract.task import weights_of
from fedwild.core.errors import BadReply
from fedwild.core.payload import Payload
from fedwild.core.rng import Rng
from fedwild.methods.fairness import RECEIVED
from tests.methods.by_hand import NORMED, PLAIN, final, phase_of, replies_of, server_of
from tests.tiny import even_shares, run_tiny, split_by, tiny_dataset


@pytest.fixture
def data() -> Any:
    return tiny_dataset(classes=2)


def reply(loss: float, model: dict[str, Tensor], samples: int = 3) -> Payload:
    return Payload.of({"samples": samples, RECEIVED: loss}, model=model)


def random_models(count: int) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        {"a": torch.randn(3, 4, generator=generator), "b": torch.randn(5, generator=generator)} for _ in range(count)
    ]


@pytest.mark.parametrize("q", [0.0, 0.5, 1.0, 2.0, 5.0])
def test_the_update_is_the_printed_formula(q: float) -> None:
    """w - sum D_k / sum h_k as printed, over all weights as one vector of float64."""
    old, *models = random_models(4)
    losses, lr = [0.3, 1.9, 0.7], 0.2
    phase = phase_of("qffl", {"q": q, "lr": lr})
    server = server_of(model=old)
    phase.merge(server, replies_of(**{f"c{k}": reply(losses[k], models[k]) for k in range(3)}))

    w = torch.cat([old["a"].flatten(), old["b"]]).double()
    numerator, denominator = torch.zeros_like(w), 0.0
    for loss, model in zip(losses, models, strict=True):
        g = (w - torch.cat([model["a"].flatten(), model["b"]]).double()) / lr
        f = loss + 1e-10
        numerator += f**q * g
        denominator += q * f ** (q - 1) * float(g @ g) + f**q / lr
    expected = w - numerator / denominator
    found = server.state.group("model")
    torch.testing.assert_close(torch.cat([found["a"].flatten(), found["b"]]), expected.float(), rtol=1e-6, atol=1e-7)


def test_q_of_zero_is_the_plain_mean_of_clients(data: Any, tmp_path: Path) -> None:
    rows = even_shares(data, 2, 1)[0]
    split = split_by(data, 2, [rows[:6], rows[6:]])
    # fedbn on a network without batch-norm is FedAvg with equal weights.
    settings = {"rounds": 3, "momentum": 0.0}
    run_tiny(tmp_path / "plain", "fedbn", data, split, {"method": settings})
    run_tiny(tmp_path / "zero", "qffl", data, split, {"method": {**settings, "q": 0.0}})
    run_tiny(tmp_path / "one", "qffl", data, split, {"method": {**settings, "q": 1.0}})
    plain, zero, one = (final(tmp_path / name).group("model") for name in ("plain", "zero", "one"))
    for name, tensor in plain.items():
        torch.testing.assert_close(zero[name], tensor, rtol=1e-5, atol=1e-6)
        assert not torch.allclose(one[name], tensor, rtol=1e-3)


def test_a_larger_q_gives_more_weight_to_clients_with_high_loss() -> None:
    old = {"w": torch.zeros(2)}
    directions = []
    for q in (0.0, 1.0, 4.0):
        server = server_of(model=old)
        good, bad = reply(0.5, {"w": torch.tensor([1.0, 0.0])}), reply(2.0, {"w": torch.tensor([0.0, 1.0])})
        phase_of("qffl", {"q": q}).merge(server, replies_of(bad=bad, good=good))
        x, y = server.state.group("model")["w"].tolist()
        directions.append(y / x)
    assert directions == pytest.approx([1.0, 4.0, 4.0**4], rel=1e-5)


def test_batch_norm_statistics_are_averaged_equally_and_counters_copied() -> None:
    old = {
        "n.weight": torch.ones(1),
        "n.running_mean": torch.zeros(1),
        "n.running_var": torch.ones(1),
        "n.num_batches_tracked": torch.tensor(0),
    }
    models = [
        {
            "n.weight": torch.tensor([1.0 + k]),
            "n.running_mean": torch.tensor([2.0 * k]),
            "n.running_var": torch.tensor([1.0 + 2 * k]),
            "n.num_batches_tracked": torch.tensor(5 + k),
        }
        for k in (1, 2)
    ]
    server = server_of(model=old)
    phase = phase_of("qffl", {"lr": 0.1})
    phase.merge(server, replies_of(a=reply(3.0, models[0], 1), b=reply(0.1, models[1], 9)))
    found = server.state.group("model")
    assert found["n.running_mean"].tolist() == [3.0]
    assert found["n.running_var"].tolist() == [4.0]
    assert found["n.num_batches_tracked"].tolist() == 6
    # h has no share of the statistics: g = (-10, -20), F = (3, 0.1), q = 1.
    expected = 1 + (3 * 10 + 0.1 * 20) / (100 + 400 + 3.1 / 0.1)
    assert found["n.weight"].tolist() == pytest.approx([expected], rel=1e-6)


def test_a_client_without_samples_has_no_effect() -> None:
    old = {"w": torch.zeros(1)}
    a, b = reply(1.0, {"w": torch.tensor([1.0])}), reply(2.0, {"w": torch.tensor([2.0])})
    empty = Payload.of({"samples": 0, RECEIVED: None}, model={"w": torch.tensor([99.0])})
    results = []
    for replies in (replies_of(a=a, b=b), replies_of(a=a, b=b, c=empty)):
        server = server_of(model=old)
        phase_of("qffl").merge(server, replies)
        results.append(server.state.group("model")["w"])
    assert torch.equal(results[0], results[1])


@pytest.mark.parametrize("q", [0.3, 1.0, 60.0])
@pytest.mark.parametrize("losses", [(0.0, 0.0), (0.0, 3e38), (1e-30, 1e30)])
def test_the_model_stays_finite_for_any_loss(q: float, losses: tuple[float, float]) -> None:
    old, *models = random_models(3)
    server = server_of(model=old)
    phase_of("qffl", {"q": q}).merge(server, replies_of(a=reply(losses[0], models[0]), b=reply(losses[1], models[1])))
    for name, tensor in server.state.group("model").items():
        assert torch.isfinite(tensor).all()
        assert tensor.shape == old[name].shape


def test_a_negative_loss_is_rejected() -> None:
    weights = weights_of(PLAIN.build(2, Rng(0)))
    with pytest.raises(BadReply, match="negative"):
        phase_of("qffl").check(server_of(model=weights), reply(-0.1, weights))


def test_all_tensors_of_a_network_with_batch_norm_are_merged() -> None:
    old, new = weights_of(NORMED.build(2, Rng(0))), weights_of(NORMED.build(2, Rng(1)))
    server = server_of(model=old, task=NORMED)
    phase_of("qffl", {"q": 0.0}).merge(server, replies_of(a=reply(1.0, old), b=reply(2.0, new)))
    found = server.state.group("model")
    assert found.keys() == old.keys()
    for name, tensor in found.items():
        assert tensor.dtype == old[name].dtype
        if tensor.is_floating_point():
            torch.testing.assert_close(tensor, (old[name] + new[name]) / 2)
