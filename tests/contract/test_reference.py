"""References: percentiles and thresholds of known validation samples, kept with the server."""

from __future__ import annotations

import math

import pytest
import torch

from fedwild.contract import Rng, Server
from fedwild.contract.reference import Reference
from tests.methods.by_hand import server_of

FOUR = Reference(torch.tensor([1.0, 2.0, 2.0, 5.0]).double(), 4, 0.5)


def test_percentiles_count_the_samples_with_a_lower_score() -> None:
    assert FOUR.percentiles(torch.tensor([0.0, 1.0, 2.0, 3.0, 9.0])).tolist() == [0, 0, 0.25, 0.75, 1]


@pytest.mark.parametrize(("accept", "expected"), [(0.01, 1), (0.25, 1), (0.26, 2), (0.75, 2), (0.76, 5), (1.0, 5)])
def test_a_threshold_accepts_at_least_the_share(accept: float, expected: float) -> None:
    assert FOUR.threshold(accept) == expected


def test_without_samples_nothing_is_compared_and_everything_is_accepted() -> None:
    empty = Reference(torch.empty(0).double(), 0)
    assert empty.threshold(0.9) == math.inf
    assert torch.isnan(empty.percentiles(torch.zeros(2))).all()


def test_a_server_keeps_its_references_and_no_method_sees_them_in_its_state() -> None:
    server = server_of(("a", "b"))
    server.state.put("model", {"w": torch.ones(2)})
    server.references = {"b": FOUR, "a": Reference(torch.empty(0).double(), 0)}
    again = Server.from_payload(server.to_payload(), server.task, Rng(0))
    assert list(again.references) == ["a", "b"]
    assert again.references["b"].quantiles.tolist() == FOUR.quantiles.tolist()
    assert (again.references["b"].count, again.references["b"].temperature) == (4, 0.5)
    assert list(again.state.tensors) == ["model/w"]
    assert again.to_payload().encode() == server.to_payload().encode()
