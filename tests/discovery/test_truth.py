"""Which true classes discovered classes stand for."""

from __future__ import annotations

import torch

from fedwild.contract import Outcome, Prediction, Server, Step
from fedwild.core.classes import ClassRegistry
from fedwild.core.rng import Rng
from fedwild.discovery.truth import covered_truth
from tests.methods.by_hand import PLAIN

TRUE = ["cat", "fox", "fox", "hen", "hen", "hen", "alien"]
ANSWERS = [0, 3, 3, 2, 2, 3, 2]


def server_with(*found: str) -> Server:
    """Return a server that knows cats and dogs and has discovered these classes."""
    registry = ClassRegistry.of(("cat", "dog"))
    for name in found:
        registry.add(name, "novel", since=3, stage=1)
    return Server(PLAIN, registry, Step("describe", 1, 9), Rng(0))


def truth_of(server: Server, novel: tuple[tuple[str, ...], ...] = (("fox", "hen"),)) -> list[int]:
    logits = torch.eye(max(4, len(server.classes)))[ANSWERS]
    ids = {name: i for i, name in enumerate(server.classes.names)}
    truth = torch.tensor([ids.get(name, -1) for name in TRUE])
    outcome = Outcome(Prediction(logits, torch.zeros(7)), logits.argmax(1), truth, TRUE, novel)
    found = covered_truth(server, outcome).tolist()
    assert outcome.truth.tolist() == truth.tolist()
    return found


def test_a_discovered_class_stands_for_the_true_class_that_it_covers_best() -> None:
    assert truth_of(server_with("novel-1", "novel-2")) == [0, 3, 3, 2, 2, 2, -1]


def test_a_discovered_class_with_its_true_name_keeps_it() -> None:
    assert truth_of(server_with("fox", "novel-2")) == [0, 2, 2, 3, 3, 3, -1]


def test_a_discovered_class_that_covers_nothing_stands_for_nothing() -> None:
    assert truth_of(server_with("novel-1", "novel-2", "novel-3")) == [0, 3, 3, 2, 2, 2, -1]


def test_without_discovered_or_novel_classes_the_truth_is_unchanged() -> None:
    assert truth_of(server_with()) == [0, -1, -1, -1, -1, -1, -1]
    assert truth_of(server_with("novel-1"), ()) == [0, -1, -1, -1, -1, -1, -1]
