"""`federation.secure`: what is refused, and what a run says about its protection."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from torch import Tensor

from fedwild.aggregation import Aggregation
from fedwild.contract import Reply
from fedwild.runs.protection import protection_notes
from tests.conftest import TINY, Cli, Refused
from tests.methods.by_hand import method_of

PHASE = "cannot be protected, because its merge needs the replies of single clients"


class First(Aggregation):
    """The first client's model."""

    def mean(self, replies: Iterable[Reply], group: str, *rest: Any) -> dict[str, Tensor] | None:
        return next((reply.payload.group(group) for reply in replies), None)


@pytest.mark.parametrize(("method", "phase"), [("fedov", "train"), ("afl", "train"), ("fedoss", "pretrain")])
def test_a_method_that_needs_single_replies_is_refused_with_a_sentence(
    method: str, phase: str, refused: Refused
) -> None:
    error = refused("run", "--method", method, *TINY, "--set", "federation.secure=required")
    assert error == (
        f"error: federation.secure = 'required' is not allowed with method {method!r}: its phase {phase!r} {PHASE}. "
        "Set federation.secure = 'where-possible' to protect the other phases only.\n"
    )


def test_a_component_that_needs_single_replies_is_named(refused: Refused) -> None:
    error = refused("run", *TINY, "--set", "federation.secure=required", "--set", f"aggregation.name={__name__}:First")
    assert f"because aggregation '{__name__}:First' needs the replies of single clients" in error


def test_clipping_of_single_replies_is_refused(refused: Refused) -> None:
    error = refused("run", *TINY, "--set", "federation.secure=required", "--set", "aggregation.clip=1.0")
    assert "because aggregation.clip shortens the updates of single clients" in error


def test_a_limit_on_single_weights_is_refused(refused: Refused) -> None:
    error = refused("run", *TINY, "--set", "federation.secure=required", "--set", "federation.max_weight=0.5")
    assert "federation.max_weight = 0.5 is not allowed with federation.secure = 'required'" in error


def test_privacy_that_counts_single_replies_is_refused(refused: Refused) -> None:
    level = ["--set", "privacy.level=sample", "--set", "privacy.noise=1"]
    error = refused("run", *TINY, "--set", "federation.secure=required", *level)
    assert "federation.secure = 'required' is not allowed with privacy.level = 'sample'" in error


@pytest.mark.parametrize(
    "setting", ["secure=yes", "secure_threshold=0.5", "secure_threshold=1.1", "secure_range=0", "secure_range=1e300"]
)
def test_wrong_settings_are_refused(setting: str, refused: Refused) -> None:
    key, _, value = setting.partition("=")
    assert f"error: federation.{key} = " in refused("run", *TINY, "--set", f"federation.{key}={value}")


def notes(method: str, secure: str = "where-possible", **tables: Any) -> list[str]:
    return protection_notes(method_of(method, federation={"secure": secure}, **tables), secure)


def test_notes_name_protected_and_unprotected_phases() -> None:
    assert notes("fedavg", "required") == ["secure sums protect the phase train"]
    assert notes("fedavg", "no") == []
    reason = "its merge needs the replies of single clients"
    assert notes("gal") == [
        "secure sums protect the phases known, novel-1",
        f"secure sums do not protect describe: {reason}",
        f"secure sums do not protect discover-1: {reason}",
    ]
    assert notes("fedov")[0] == "secure sums protect no phase of this method"


def test_the_terminal_says_what_is_protected(cli: Cli) -> None:
    outcome = cli("run", *TINY, "--set", "federation.secure=required", "--set", "method.rounds=1")
    assert outcome.code == 0
    assert "note: secure sums protect the phase train" in outcome.err
    assert "masked reply" in outcome.err
