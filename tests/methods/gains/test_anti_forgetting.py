"""Anti-forgetting: the gradient of the penalty, with any correction, and the anchors of clients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fedwild.contract import Step
from fedwild.contract.task import weights_of
from fedwild.core.payload import Payload
from fedwild.core.rng import Rng
from fedwild.data.samples import Samples
from fedwild.methods.gains.adapt import AntiForgetting
from fedwild.models import build
from fedwild.training.corrections import ClientCorrection
from fedwild.training.corrections.prox import Pull
from fedwild.training.loop import LocalTraining, train
from fedwild.training.objectives import OBJECTIVES
from tests.methods.by_hand import PLAIN
from tests.methods.gains.federation import client_of, phase_of

NEW = (2, 3)


def network() -> Any:
    torch.manual_seed(0)
    return build("digit-cnn", (1, 8, 8), 5, params={"width": 0.05}).double()


def random_anchor(model: Any) -> dict[str, Tensor]:
    torch.manual_seed(1)
    return {name: p.detach() + torch.randn_like(p) for name, p in model.named_parameters()}


def batch() -> tuple[Tensor, Tensor]:
    return torch.linspace(0, 1, 6 * 64, dtype=torch.float64).view(6, 1, 8, 8), torch.tensor([0, 1, 2, 3, 4, 0])


def loss_of(model: Any) -> Tensor:
    x, y = batch()
    return torch.nn.functional.cross_entropy(model.eval()(x), y)


def penalty(model: Any, anchor: dict[str, Tensor]) -> Tensor:
    """Return ||W - W_n(0,0)||^2 over all but the new rows, for autograd."""
    total = torch.zeros((), dtype=torch.float64)
    for name, p in model.named_parameters():
        difference = (p - anchor[name]).square()
        if name.startswith("head."):
            difference = difference[[row for row in range(len(p)) if row not in NEW]]
        total = total + difference.sum()
    return total


def gradients(model: Any) -> dict[str, Tensor]:
    found = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    return found


def assert_equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.allclose(tensor, second[name], rtol=1e-12, atol=1e-12), name


@pytest.mark.parametrize("strength", [0.3, 0.001])
def test_the_gradient_is_autograd_s_of_the_penalty_with_new_rows_free(strength: float) -> None:
    model = network()
    anchor = random_anchor(model)
    (loss_of(model) + strength * penalty(model, anchor)).backward()
    expected = gradients(model)
    loss_of(model).backward()
    plain = {name: p.grad.clone() for name, p in model.named_parameters()}
    AntiForgetting(ClientCorrection(), model, anchor, strength, NEW).before_step()
    found = gradients(model)
    assert_equal(found, expected)
    for name in ("head.weight", "head.bias"):
        assert torch.equal(found[name][list(NEW)], plain[name][list(NEW)])
        assert not torch.equal(found[name][:2], plain[name][:2])


def test_it_adds_to_another_correction() -> None:
    model = network()
    anchor, pull = random_anchor(model), Pull(model, 0.7)
    begin = {name: p.detach().clone() for name, p in model.named_parameters()}
    with torch.no_grad():
        for p in model.parameters():
            p += torch.randn_like(p)
    prox = sum((p - begin[name]).square().sum() for name, p in model.named_parameters())
    (loss_of(model) + 0.7 / 2 * prox + 0.3 * penalty(model, anchor)).backward()
    expected = gradients(model)
    loss_of(model).backward()
    AntiForgetting(pull, model, anchor, 0.3, NEW).before_step()
    assert_equal(gradients(model), expected)


def test_the_other_correction_s_penalty_and_reply_are_passed_on() -> None:
    class Loud(ClientCorrection):
        def penalty(self, x: Tensor, y: Tensor) -> Tensor:
            return x.sum() + len(y)

        def after_training(self, steps: int, lr: float) -> dict[str, dict[str, Tensor]]:
            return {"said": {"steps": torch.tensor(steps * lr)}}

    model = network()
    correction = AntiForgetting(Loud(), model, random_anchor(model), 0.3, ())
    x, y = batch()
    assert correction.penalty(x, y) == x.sum() + 6
    assert correction.after_training(4, 0.5)["said"]["steps"] == 2.0


def test_the_pull_also_acts_on_weights_without_a_gradient() -> None:
    model = network()
    anchor = random_anchor(model)
    AntiForgetting(ClientCorrection(), model, anchor, 0.5, ()).before_step()
    for name, p in model.named_parameters():
        assert torch.allclose(p.grad, p.detach() - anchor[name]), name


def test_at_the_anchor_nothing_is_added() -> None:
    model = network()
    AntiForgetting(
        ClientCorrection(), model, {name: p.detach().clone() for name, p in model.named_parameters()}, 9.0, NEW
    ).before_step()
    assert not any(p.grad.any() for p in model.parameters())


def trained(strength: float | None, new_rows: tuple[int, ...] = NEW) -> dict[str, Tensor]:
    model: Any = network().float()
    anchor = {name: p.detach().clone() for name, p in model.named_parameters()}
    client_correction = (
        ClientCorrection()
        if strength is None
        else AntiForgetting(ClientCorrection(), model, anchor, strength, new_rows)
    )
    x, y = batch()
    settings = LocalTraining(epochs=4, batch_size=3, lr=0.1)
    objective = OBJECTIVES.get("ce")(OBJECTIVES.get("ce").Params())
    train(model, Samples(x.float(), y, torch.arange(6)), settings, objective, client_correction, Rng(0))
    return {name: p.detach() - anchor[name] for name, p in model.named_parameters()}


def test_lambda_0_is_bit_equal_to_training_without() -> None:
    plain, kept = trained(None), trained(0.0)
    assert all(torch.equal(kept[name], tensor) for name, tensor in plain.items())


def test_a_larger_lambda_stays_nearer_to_the_anchor_except_for_new_rows() -> None:
    moved = [trained(strength) for strength in (0.0, 0.3, 2.0)]
    old = [[0, 1, 4]] * 3
    lengths = [float(found["head.weight"][rows].norm()) for found, rows in zip(moved, old, strict=True)]
    assert lengths[0] > lengths[1] > lengths[2] > 0
    new = [float(found["head.weight"][list(NEW)].norm()) for found in moved]
    assert new[2] > lengths[2]


# --- anchors --------------------------------------------------------------------------------------------------


def test_the_anchor_of_an_output_for_unknown_stays_the_last_row() -> None:
    kept, model = weights_of(PLAIN.build(3, Rng(1))), weights_of(PLAIN.build(4, Rng(2)))
    bob = client_of("bob", Step("adapt-1", 0, 4), Payload.of({"stage": 1}, anchor=kept))
    phase = phase_of("adapt-1", objective={"name": "proser"})
    found = phase.anchor(bob, Payload.of({"newcomer": "ann", "known": 2}, model=model))
    for name in ("head.weight", "head.bias"):
        assert torch.equal(found[name][[0, 1, 3]], kept[name])
        assert torch.equal(found[name][2], model[name][2])


def test_the_anchor_of_an_earlier_stage_is_replaced() -> None:
    kept, model = weights_of(PLAIN.build(3, Rng(1))), weights_of(PLAIN.build(4, Rng(2)))
    bob = client_of("bob", Step("adapt-2", 0, 9), Payload.of({"stage": 1}, anchor=kept))
    again = phase_of("adapt-2").anchor(bob, Payload.of({"newcomer": "ben", "known": 2}, model=model))
    assert all(torch.equal(again[name], tensor) for name, tensor in model.items())
    assert bob.state.info == {"stage": 2}
