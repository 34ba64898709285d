from __future__ import annotations

from fedwild.models import build
from tests.models.cases import inputs


def test_default_hidden_layers_are_256_and_128() -> None:
    network = build("mlp", (30,), 3)
    assert network.cuts == ("fc1", "fc2")
    assert [layer.outputs and network.graph().spaces[layer.outputs] for layer in network.graph().layers] == [
        256,
        128,
        None,
    ]


def test_hidden_sets_the_stages_and_the_embedding() -> None:
    network = build("mlp", (30,), 3, params={"hidden": [7, 6, 5]})
    assert network.cuts == ("fc1", "fc2", "fc3")
    assert network.embedding_dim == 5


def test_images_are_flattened() -> None:
    network = build("mlp", (3, 4, 5), 3)
    assert network(inputs(network)).shape == (3, 3)
