from __future__ import annotations

from typing import Any

import pytest

from fedwild.errors import UserError
from fedwild.models import MODELS, build, model_names


def test_all_networks_are_listed_with_summary_and_described_settings() -> None:
    assert {"simple-cnn", "digit-cnn", "vgg-9", "mlp", "resnet-18-3d", "wrn-28-10"} <= set(model_names())
    for name, entry in MODELS.items():
        assert entry.name == name
        assert entry.summary.endswith(".") and "\n" not in entry.summary
        assert all(row["description"] for row in entry.Params.described())


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"model\.name 'resnet18' is not known\. Did you mean 'resnet-18'\?"):
        build("resnet18", (3, 8, 8), 2)


@pytest.mark.parametrize(
    ("name", "shape", "needed"),
    [
        ("simple-cnn", (20,), "images (channels, height, width) of at least 8x8"),
        ("simple-cnn", (1, 7, 28), "of at least 8x8"),
        ("digit-cnn", (1, 3, 3), "of at least 4x4"),
        ("vgg-9", (3, 7, 7), "of at least 8x8"),
        ("vgg-9", (0, 8, 8), "of at least 8x8"),
        ("resnet-18", (1, 8, 8, 8), "images (channels, height, width)"),
        ("wrn-16-4", (3, 8), "images (channels, height, width)"),
        ("resnet-18-3d", (3, 32, 32), "volumes (channels, depth, height, width)"),
        ("mlp", (), "feature vectors (d,) or images"),
    ],
)
def test_inputs_a_network_cannot_take_are_refused(name: str, shape: tuple[int, ...], needed: str) -> None:
    with pytest.raises(UserError) as caught:
        build(name, shape, 2)
    message = str(caught.value)
    assert message.startswith(f"model.name '{name}' takes ")
    assert needed in message
    assert message.endswith(f"not inputs of shape {shape}.")


@pytest.mark.parametrize(
    ("name", "params", "problem"),
    [
        ("resnet-18", {"width": 0}, "model.width = 0 is not allowed"),
        ("resnet-18", {"stem": "big"}, "model.stem = 'big' is not allowed"),
        ("resnet-18", {"widht": 8}, "model.widht is not a setting. Did you mean 'width'?"),
        ("simple-cnn", {"width": 8}, "model.width is not a setting."),
        ("wrn-16-4", {"dropout": 1.0}, "model.dropout = 1.0 is not allowed"),
        ("mlp", {"hidden": [4, 0]}, "model.hidden"),
        ("mlp", {"hidden": []}, "model.hidden = [] is not allowed"),
    ],
)
def test_bad_settings_are_refused_by_key_and_value(name: str, params: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError) as caught:
        build(name, (3, 16, 16), 2, params=params)
    assert str(caught.value).startswith(problem)


def test_all_bad_settings_are_reported_at_once() -> None:
    with pytest.raises(UserError) as caught:
        build("resnet-18", (3, 8, 8), 2, params={"width": "wide", "stem": 3})
    assert len(caught.value.problems) == 2
