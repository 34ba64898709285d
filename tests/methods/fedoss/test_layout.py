"""Where networks are cut."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedwild.contract import Task
from fedwild.core.errors import UserError
from fedwild.methods.fedoss.heads import Layouts, choose_cut
from fedwild.methods.fedoss.settings import AUTO, FedOSSParams
from fedwild.models import build


@pytest.mark.parametrize(
    ("name", "shape", "cut"),
    [
        ("simple-cnn", (1, 28, 28), "conv2"),
        ("digit-cnn", (1, 16, 16), "conv3"),
        ("resnet-18", (3, 16, 16), "layer3"),
        ("mlp", (9,), "fc1"),
    ],
)
def test_the_cut_is_before_dense_layers_or_the_last_stage(name: str, shape: tuple[int, ...], cut: str) -> None:
    assert choose_cut(build(name, shape, 3), AUTO) == cut


def test_any_stage_can_be_chosen() -> None:
    network = build("mlp", (9,), 3)
    assert [choose_cut(network, cut) for cut in network.cuts] == list(network.cuts)
    with pytest.raises(UserError, match=r"method.cut 'layer9' is not known"):
        choose_cut(network, "layer9")


@pytest.mark.parametrize("branch", ["light", "full"])
def test_a_layout_draws_no_random_numbers_of_others(branch: Any) -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    layouts = Layouts(FedOSSParams(branch=branch))
    layout = layouts.of(Task((1, 8, 8), "mlp", {"hidden": [8, 6]}), 3)
    assert torch.equal(torch.rand(2), expected)
    assert layouts.of(Task((1, 8, 8), "mlp", {"hidden": [8, 6]}), 3) is layout
    assert layout.head["head.weight"].shape == ((3, 8) if branch == "light" else (3, 6))
