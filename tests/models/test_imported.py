from __future__ import annotations

from typing import Any

import pytest
import torch

from fedwild.errors import UserError
from fedwild.models import AdaptedNetwork, Network, build
from tests.models.cases import inputs

OWN = "tests.models.own_modules"


def own(attribute: str, shape: tuple[int, ...], outputs: int = 3, bias: bool = True, **params: Any) -> Network:
    torch.manual_seed(0)
    return build(f"{OWN}:{attribute}", shape, outputs, bias, params)


def test_a_network_of_ones_own_is_used_as_it_is_with_the_asked_head() -> None:
    network = own("own_network", (4,), outputs=5, hidden=6)
    assert type(network) is Network
    assert network.cuts == ("first",)
    assert network(inputs(network)).shape == (3, 5)
    assert network.graph().spaces == {"first": 6}


def test_settings_reach_the_users_class() -> None:
    assert own("PlainNet", (3, 8, 8), width=11).embedding_dim == 11


def test_a_plain_module_is_adapted() -> None:
    assert isinstance(own("PlainNet", (3, 8, 8)), AdaptedNetwork)


@pytest.mark.parametrize(
    ("path", "shape", "outputs", "problem"),
    [
        ("nowhere.at_all:Net", (4,), 3, "module 'nowhere.at_all' cannot be imported"),
        (f"{OWN}:Missing", (4,), 3, "'Missing' is not in 'tests.models.own_modules'"),
        (f"{OWN}:", (4,), 3, "not an import path like 'package.module:Class'"),
        (":Net", (4,), 3, "not an import path like 'package.module:Class'"),
        (f"{OWN}:NOT_CALLABLE", (4,), 3, "must name a class or function, not a int"),
        (f"{OWN}:not_a_module", (4,), 3, r"must give a torch\.nn\.Module, not a str"),
        (f"{OWN}:failing", (4,), 3, "could not be built: RuntimeError: no weights here"),
        (f"{OWN}:NoLinear", (1, 8, 8), 3, r"has no nn\.Linear layer"),
        (f"{OWN}:UnusedLinear", (4,), 3, r"never runs its nn\.Linear layers"),
        (f"{OWN}:HeadNotLast", (4,), 3, r"must return what its last nn\.Linear layer 'fc' makes"),
        (f"{OWN}:HeadDefinedFirst", (5,), 3, r"does not take inputs of shape \(5,\)"),
        ("builtins:dict", (4,), 3, "has no signature"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(path: str, shape: tuple[int, ...], outputs: int, problem: str) -> None:
    with pytest.raises(UserError, match=problem) as caught:
        build(path, shape, outputs)
    assert f"model.name '{path}'" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_settings_the_class_does_not_take_are_refused() -> None:
    with pytest.raises(UserError, match=r"model\.depth is not a setting\..* Allowed here: width\."):
        own("PlainNet", (3, 8, 8), depth=3)


def test_sizes_cannot_be_given_as_settings() -> None:
    with pytest.raises(UserError, match=r"model\.outputs is not a setting"):
        build(f"{OWN}:PlainNet", (3, 8, 8), 3, params={"outputs": 7})


def test_a_missing_setting_is_named() -> None:
    with pytest.raises(UserError, match=r"model\.depth is missing"):
        own("needs_depth", (4,))
