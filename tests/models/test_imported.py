from __future__ import annotations

from typing import Any

import pytest
import torch

from fedwild.core.errors import UserError
from fedwild.models import MODELS, AdaptedNetwork, Network, build
from tests.models import own_modules
from tests.models.cases import inputs

OWN = "tests.models.own_modules"


def own(attribute: str, shape: tuple[int, ...], outputs: int = 3, bias: bool = True, **params: Any) -> Network:
    torch.manual_seed(0)
    return build(f"{OWN}:{attribute}", shape, outputs, bias, params)


def test_a_users_network_is_used_with_the_given_number_of_outputs() -> None:
    network = own("OwnNetwork", (4,), outputs=5, hidden=6)
    assert type(network) is own_modules.OwnNetwork
    assert network.cuts == ("first",)
    assert network(inputs(network)).shape == (3, 5)
    assert network.graph().spaces == {"first": 6}


def test_a_users_builder_validates_its_settings() -> None:
    network = own("OwnBuilder", (4,), outputs=5, hidden=6)
    assert (network.name, network.embedding_dim, network.head.out_features) == (f"{OWN}:OwnBuilder", 6, 5)
    with pytest.raises(UserError, match=r"model\.hidden = 0 is not allowed: it must be greater than or equal to 1"):
        own("OwnBuilder", (4,), hidden=0)


def test_settings_reach_the_users_class() -> None:
    assert own("PlainNet", (3, 8, 8), width=11).embedding_dim == 11


def test_a_plain_module_is_adapted() -> None:
    assert isinstance(own("PlainNet", (3, 8, 8)), AdaptedNetwork)


@pytest.mark.parametrize(
    ("path", "shape", "outputs", "problem"),
    [
        ("nowhere.at_all:Net", (4,), 3, "cannot be imported: ModuleNotFoundError: No module named 'nowhere'"),
        (f"{OWN}:Missing", (4,), 3, "module 'tests.models.own_modules' has no attribute 'Missing'"),
        (f"{OWN}:", (4,), 3, "is not an import path: write it as package.module:Class"),
        (":Net", (4,), 3, "is not an import path: write it as package.module:Class"),
        (f"{OWN}:A_NUMBER", (4,), 3, r"is not a subclass of torch\.nn\.Module or fedwild\.models\.NetworkBuilder"),
        (f"{OWN}:plain_function", (4,), 3, r"is not a subclass of torch\.nn\.Module"),
        (f"{OWN}:OwnParams", (4,), 3, r"is not a subclass of torch\.nn\.Module"),
        ("subprocess:Popen", (4,), 3, r"is not a subclass of torch\.nn\.Module"),
        (f"{OWN}:Failing", (4,), 3, "cannot be built: RuntimeError: no weights here"),
        (f"{OWN}:NoLinear", (1, 8, 8), 3, r"has no nn\.Linear layer"),
        (f"{OWN}:UnusedLinear", (4,), 3, r"never runs an nn\.Linear layer"),
        (f"{OWN}:HeadNotLast", (4,), 3, r"must return the output of its last nn\.Linear layer 'fc'"),
        (f"{OWN}:HeadDefinedFirst", (5,), 3, r"does not accept inputs of shape \(5,\)"),
    ],
)
def test_an_unusable_object_is_rejected_by_name(path: str, shape: tuple[int, ...], outputs: int, problem: str) -> None:
    with pytest.raises(UserError, match=problem) as caught:
        build(path, shape, outputs)
    assert f"model '{path}'" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_settings_of_a_missing_module_can_be_read() -> None:
    builder = MODELS.make("nowhere.at_all:Net", {"width": 8})
    assert builder.params.model_dump() == {"width": 8}
    with pytest.raises(UserError, match=r"model 'nowhere\.at_all:Net' cannot be imported"):
        builder.build((4,), 3, True)


def test_settings_that_the_class_does_not_accept_are_rejected() -> None:
    with pytest.raises(UserError, match=r"model\.depth is not a setting\..* Allowed here: width\."):
        own("PlainNet", (3, 8, 8), depth=3)


def test_sizes_cannot_be_given_as_settings() -> None:
    with pytest.raises(UserError, match=r"model\.outputs is not a setting"):
        build(f"{OWN}:PlainNet", (3, 8, 8), 3, params={"outputs": 7})


def test_a_missing_setting_is_reported() -> None:
    with pytest.raises(UserError, match=r"model\.depth is missing"):
        own("NeedsDepth", (4,))
