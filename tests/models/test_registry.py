from __future__ import annotations

from typing import Any

import pytest

from fedwild.core.component import summary_of
from fedwild.core.errors import UserError
from fedwild.models import MODELS, build


def test_all_networks_have_a_summary_and_described_settings() -> None:
    assert {"simple-cnn", "digit-cnn", "vgg-9", "mlp", "resnet-18-3d", "wrn-28-10"} <= set(MODELS.names())
    for name in MODELS.names():
        builder = MODELS.get(name)
        assert builder.name == name
        assert summary_of(builder).endswith(".")
        assert all(row["description"] for row in builder.Params.describe())


def test_a_network_is_called_as_it_is_registered() -> None:
    assert build("mlp", (4,), 2).name == "mlp"


def test_an_unknown_name_is_rejected_with_a_suggestion() -> None:
    with pytest.raises(UserError, match=r"model 'resnet18' is not known\. Did you mean 'resnet-18'\?"):
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
        ("word-lstm", (1, 8, 8), "vectors of word counts (d,)"),
    ],
)
def test_inputs_of_an_unsupported_shape_are_rejected(name: str, shape: tuple[int, ...], needed: str) -> None:
    with pytest.raises(UserError) as caught:
        build(name, shape, 2)
    message = str(caught.value)
    assert message.startswith(f"model '{name}' accepts ")
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
def test_invalid_settings_are_rejected_with_key_and_value(name: str, params: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError) as caught:
        build(name, (3, 16, 16), 2, params=params)
    assert str(caught.value).startswith(problem)


def test_all_invalid_settings_are_reported_at_once() -> None:
    with pytest.raises(UserError) as caught:
        build("resnet-18", (3, 8, 8), 2, params={"width": "wide", "stem": 3})
    assert len(caught.value.problems) == 2
