"""Anti-forgetting: the gradient of the written-out penalty, beside any correction, and nothing where lambda is 0."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fedwild.methods.gains.keeping import Keeping
from fedwild.training.corrections import ClientCorrection
from fedwild.training.corrections.prox import Pull
from fedwild.data.samples import Samples
from fedwild.models import build
from fedwild.training.objectives import OBJECTIVES
from fedwild.core.rng import Rng
from fedwild.training.loop import LocalTraining, train

NEW = (2, 3)


def network() -> Any:
    torch.manual_seed(0)
    return build("digit-cnn", (1, 8, 8), 5, params={"width": 0.05}).double()


def anchor_of(model: Any) -> dict[str, Tensor]:
    torch.manual_seed(1)
    return {name: p.detach() + torch.randn_like(p) for name, p in model.named_parameters()}


def batch() -> tuple[Tensor, Tensor]:
    return torch.linspace(0, 1, 6 * 64, dtype=torch.float64).view(6, 1, 8, 8), torch.tensor([0, 1, 2, 3, 4, 0])


def loss_of(model: Any) -> Tensor:
    x, y = batch()
    return torch.nn.functional.cross_entropy(model.eval()(x), y)


def penalty(model: Any, anchor: dict[str, Tensor]) -> Tensor:
    """||W - W_n(0,0)||^2 over all but the new rows, for autograd."""
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
    anchor = anchor_of(model)
    (loss_of(model) + strength * penalty(model, anchor)).backward()
    expected = gradients(model)
    loss_of(model).backward()
    plain = {name: p.grad.clone() for name, p in model.named_parameters()}
    Keeping(ClientCorrection(), model, anchor, strength, NEW).before_step()
    found = gradients(model)
    assert_equal(found, expected)
    for name in ("head.weight", "head.bias"):
        assert torch.equal(found[name][list(NEW)], plain[name][list(NEW)])
        assert not torch.equal(found[name][:2], plain[name][:2])


def test_it_adds_up_with_a_correction() -> None:
    model = network()
    anchor, pull = anchor_of(model), Pull(model, 0.7)
    begin = {name: p.detach().clone() for name, p in model.named_parameters()}
    with torch.no_grad():
        for p in model.parameters():
            p += torch.randn_like(p)
    prox = sum((p - begin[name]).square().sum() for name, p in model.named_parameters())
    (loss_of(model) + 0.7 / 2 * prox + 0.3 * penalty(model, anchor)).backward()
    expected = gradients(model)
    loss_of(model).backward()
    Keeping(pull, model, anchor, 0.3, NEW).before_step()
    assert_equal(gradients(model), expected)


def test_the_correction_s_penalty_and_reply_are_handed_through() -> None:
    class Loud(ClientCorrection):
        def penalty(self, x: Tensor, y: Tensor) -> Tensor:
            return x.sum() + len(y)

        def after_training(self, steps: int, lr: float) -> dict[str, dict[str, Tensor]]:
            return {"said": {"steps": torch.tensor(steps * lr)}}

    model = network()
    keeping = Keeping(Loud(), model, anchor_of(model), 0.3, ())
    x, y = batch()
    assert keeping.penalty(x, y) == x.sum() + 6
    assert keeping.after_training(4, 0.5)["said"]["steps"] == 2.0


def test_weights_that_the_loss_does_not_reach_are_kept_too() -> None:
    model = network()
    anchor = anchor_of(model)
    Keeping(ClientCorrection(), model, anchor, 0.5, ()).before_step()
    for name, p in model.named_parameters():
        assert torch.allclose(p.grad, p.detach() - anchor[name]), name


def test_where_nothing_has_moved_nothing_is_added() -> None:
    model = network()
    Keeping(ClientCorrection(), model, {name: p.detach().clone() for name, p in model.named_parameters()}, 9.0, NEW).before_step()
    assert not any(p.grad.any() for p in model.parameters())


def trained(strength: float | None, new_rows: tuple[int, ...] = NEW) -> dict[str, Tensor]:
    model: Any = network().float()
    anchor = {name: p.detach().clone() for name, p in model.named_parameters()}
    client_correction = ClientCorrection() if strength is None else Keeping(ClientCorrection(), model, anchor, strength, new_rows)
    x, y = batch()
    settings = LocalTraining(epochs=4, batch_size=3, lr=0.1)
    objective = OBJECTIVES.get("ce")(OBJECTIVES.get("ce").Params())
    train(model, Samples(x.float(), y, torch.arange(6)), settings, objective, client_correction, Rng(0))
    return {name: p.detach() - anchor[name] for name, p in model.named_parameters()}


def test_lambda_0_trains_as_if_there_were_none_to_the_last_bit() -> None:
    plain, kept = trained(None), trained(0.0)
    assert all(torch.equal(kept[name], tensor) for name, tensor in plain.items())


def test_a_larger_lambda_stays_nearer_to_what_was_there_but_for_new_rows() -> None:
    moved = [trained(strength) for strength in (0.0, 0.3, 2.0)]
    old = [[0, 1, 4]] * 3
    lengths = [float(found["head.weight"][rows].norm()) for found, rows in zip(moved, old, strict=True)]
    assert lengths[0] > lengths[1] > lengths[2] > 0
    new = [float(found["head.weight"][list(NEW)].norm()) for found in moved]
    assert new[2] > lengths[2]
