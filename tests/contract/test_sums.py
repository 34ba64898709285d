"""Which phases declare that their merge needs sums only; a changed merge never inherits such a declaration."""

from __future__ import annotations

from typing import Any

import pytest

from fedwild.contract import Phase, Replies, Server
from fedwild.contract.sums import NotSummable, Summable, Sums, sums_of
from fedwild.methods import METHODS
from fedwild.methods.fedavg import AveragingRounds
from fedwild.runs.protection import obstacles
from fedwild.training.corrections import CORRECTIONS, Correction
from tests.methods.by_hand import method_of
from tests.tiny import own

# By method; the phase `train` of all others.
UNPROTECTED: dict[str, set[str]] = {
    "fedavg": set(),
    "fedbn": set(),
    "fedproto": set(),
    "fedpd": {"train", "calibrate"},
    "fedoss": {"pretrain", "finetune"},
    "gal": {"describe", "discover-1"},
    "gains": {"declare-1", "discover-1", "adapt-1", "judge-1"},
}


VARIANTS = ("paper", "released")


class OtherMerge(AveragingRounds):
    def merge(self, server: Server, replies: Replies) -> None:
        pass


class OtherWeights(AveragingRounds):
    def send(self, server: Server, client: str) -> Any:
        return super().send(server, client)


class OwnMerge(Correction):
    def merge(self, server: Server, replies: Replies) -> None:
        pass


def test_averaging_declares_its_model_and_what_its_correction_adds() -> None:
    assert sums_of(method_of("fedavg").phases()[0]) == Sums(means=("model",))
    scaffold = method_of("fedavg", correction={"name": "scaffold"})
    assert sums_of(scaffold.phases()[0]) == Sums(means=("model",), plain_means=("control_change",))


def test_a_subclass_with_another_merge_does_not_inherit_the_declaration() -> None:
    method = method_of("fedavg")
    assert sums_of(OtherWeights("train", 1, method)) == Sums(means=("model",))
    with pytest.raises(NotSummable, match="its merge needs the replies of single clients"):
        sums_of(OtherMerge("train", 1, method))


def test_a_correction_with_another_merge_is_not_summable() -> None:
    method = method_of("fedavg")
    CORRECTIONS.add("own-merge")(OwnMerge)
    phase = AveragingRounds("train", 1, method)
    phase.correction = OwnMerge(method.correction.params)
    with pytest.raises(NotSummable, match="correction 'own-merge' needs the replies of single clients"):
        sums_of(phase)


def test_a_phase_without_declaration_is_not_summable() -> None:
    with pytest.raises(NotSummable, match="single clients"):
        sums_of(Phase("train", 1))

    class Undeclared(Summable, Phase):
        pass

    with pytest.raises(NotSummable, match="does not declare what it adds"):
        sums_of(Undeclared("train", 1))


@pytest.mark.parametrize("method", own(METHODS))
def test_only_methods_whose_merges_are_sums_are_fully_protected(method: str) -> None:
    family = next((name for name in UNPROTECTED if method in (name, *(f"{name}-{v}" for v in VARIANTS))), None)
    phases = method_of(method).phases()
    expected = UNPROTECTED.get(family or "", {"train"}) & {phase.name for phase in phases}
    assert set(obstacles(method_of(method))) == expected
