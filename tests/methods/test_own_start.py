"""The setting `start` of methods that align neurons."""

from __future__ import annotations

import pytest

from fedwild.contract import Step
from fedwild.core.errors import UserError
from fedwild.methods.own_start import starts_alone
from tests.methods.by_hand import method_of


@pytest.mark.parametrize("method", ["fedpd", "fedpd-paper", "fedma"])
def test_own_starts_reject_the_model_of_an_earlier_run(method: str) -> None:
    own, shared = (method_of(method, {"start": start}) for start in ("own", "shared"))
    with pytest.raises(UserError) as raised:
        own.check(None, "runs/earlier")
    assert str(raised.value) == (
        "federation.start_from = 'runs/earlier' is not allowed with method.start = 'own': "
        "no client would begin with its model."
    )
    own.check(None, None)
    shared.check(None, "runs/earlier")


def test_clients_start_alone_in_the_first_round_only() -> None:
    first, second = Step("train", 0, 0), Step("train", 1, 1)
    assert starts_alone("own", first)
    assert not starts_alone("own", second)
    assert not starts_alone("shared", first)
