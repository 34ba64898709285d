"""Claims of clients: held to what they declared, and capped to a share."""

from __future__ import annotations

import pytest

from fedwild.contract.claims import NO_CLAIMS, Claims
from fedwild.core.errors import BadReply
from fedwild.core.rng import Rng


def test_a_claim_of_more_samples_than_declared_is_rejected() -> None:
    claims = Claims({"a": 10})
    claims.check("a", 10, "info 'samples'")
    claims.check("stranger", 10**9, "info 'samples'")
    with pytest.raises(BadReply, match="info 'samples' is 11, but the client declared 10 samples when it joined"):
        claims.check("a", 11, "info 'samples'")


def test_without_a_limit_nothing_is_lowered() -> None:
    assert NO_CLAIMS.cap({"a": 1, "b": 10**15, "c": 0}) == {"a": 1, "b": 10**15, "c": 0}


@pytest.mark.parametrize(
    ("share", "before", "after"),
    [
        (0.5, {"a": 10, "b": 10, "c": 1000}, {"a": 10, "b": 10, "c": 20}),
        (0.4, {"a": 10, "b": 10, "c": 1000}, {"a": 10, "b": 10, "c": 13}),
        (0.5, {"a": 30, "b": 70}, {"a": 30, "b": 30}),
        # Two clients cannot both have at most a third.
        (0.3, {"a": 30, "b": 70, "c": 0}, {"a": 30, "b": 30, "c": 0}),
        (0.5, {"a": 5, "b": 0}, {"a": 5, "b": 0}),
        (0.25, {"a": 4, "b": 5, "c": 6, "d": 2**53, "e": 2**53}, {"a": 4, "b": 5, "c": 6, "d": 7, "e": 7}),
        (0.5, {}, {}),
    ],
)
def test_no_client_has_more_than_its_share(share: float, before: dict[str, int], after: dict[str, int]) -> None:
    assert Claims(max_weight=share).cap(before) == after


@pytest.mark.parametrize("seed", range(20))
def test_shares_are_within_the_limit_and_small_clients_keep_their_samples(seed: int) -> None:
    rng = Rng(seed).numpy("counts")
    counts = {str(i): int(10 ** rng.uniform(1, 6)) for i in range(8)}
    share = float(rng.uniform(0.15, 1.0))
    capped = Claims(max_weight=share).cap(counts)
    assert max(capped.values()) <= share * sum(capped.values()) + 1
    lowered = [name for name in counts if capped[name] < counts[name]]
    assert all(capped[name] == max(capped.values()) for name in lowered)
    if max(counts.values()) <= share * sum(counts.values()):
        assert capped == counts
