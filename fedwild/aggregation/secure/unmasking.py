"""The server's side of a secure sum: the sum of masked vectors becomes the sum of the vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedwild.aggregation.secure.masks import add_mask, commit, public_key
from fedwild.aggregation.secure.protocol import PublicKeys, pair_key, pair_sign, purpose_of
from fedwild.aggregation.secure.shamir import SHARE_BYTES, combine_shares, lagrange_weights
from fedwild.core.errors import BadReply


class TooFewShares(Exception):
    """A secret cannot be recovered: too few clients sent a share of it, or several sent a wrong one."""


@dataclass
class ServerRound:
    """What the server knows about one secure sum."""

    round: str
    threshold: int
    members: dict[str, PublicKeys]
    """The clients that advertised keys, in the order of their names: the n-th holds the shares x = n."""
    commitments: dict[str, bytes] = field(default_factory=dict)
    """Of the clients that shared."""
    survivors: list[str] = field(default_factory=list)
    """The clients whose masked vectors are in the sum."""
    liars: set[str] = field(default_factory=set)
    """The clients that sent a wrong share."""

    def __post_init__(self) -> None:
        self.members = dict(sorted(self.members.items()))
        self._points = {name: x for x, name in enumerate(self.members, start=1)}
        self._weights: dict[tuple[str, ...], list[int]] = {}

    @property
    def sharers(self) -> list[str]:
        return sorted(self.commitments)

    def unmask(self, total: np.ndarray, revealed: Mapping[str, Mapping[str, bytes]]) -> None:
        """Turn the sum of the survivors' masked vectors, uint64 (d,), into the sum of their vectors, in place.

        `revealed` holds the shares that each client sent, by client and by whose share it is.
        """
        for name in self.sharers:
            if name in self.survivors:
                add_mask(total, self._recover(name, revealed, self._is_seed(name)), -1)
                continue
            private = self._recover(name, revealed, self._is_mask_key(name))
            for survivor in self.survivors:
                key = pair_key(private, self.members[survivor].mask, self.round, name, survivor)
                add_mask(total, key, -pair_sign(survivor, name))

    def _is_seed(self, name: str) -> Callable[[bytes], bool]:
        return lambda secret: commit(secret, purpose_of("seed", self.round, name)) == self.commitments[name]

    def _is_mask_key(self, name: str) -> Callable[[bytes], bool]:
        return lambda secret: public_key(secret) == self.members[name].mask

    def _recover(
        self, name: str, revealed: Mapping[str, Mapping[str, bytes]], is_right: Callable[[bytes], bool]
    ) -> bytes:
        """Return a client's secret from the others' shares. One wrong share is found and its sender excluded."""
        holders = [holder for holder in sorted(revealed) if name in revealed[holder] and holder not in self.liars]
        # First nobody is excluded, then each of those whose shares were used.
        for excluded in (None, *holders[: self.threshold]):
            chosen = [holder for holder in holders if holder != excluded][: self.threshold]
            if len(chosen) < self.threshold:
                break
            secret = self._combine(chosen, [revealed[holder][name] for holder in chosen])
            if secret is not None and is_right(secret):
                if excluded is not None:
                    self.liars.add(excluded)
                return secret
        raise TooFewShares(
            f"the masks of {name} cannot be removed: {len(holders)} clients sent shares, of which {self.threshold} "
            "valid ones are needed"
        )

    def _combine(self, holders: Sequence[str], shares: Sequence[bytes]) -> bytes | None:
        points = [self._points[holder] for holder in holders]
        key = tuple(holders)
        if key not in self._weights:
            self._weights[key] = lagrange_weights(points)
        return combine_shares(dict(zip(points, shares, strict=True)), self._weights[key])


def check_shares(shares: Mapping[str, bytes], expected: Sequence[str]) -> None:
    """Reject a client's shares that are of others than expected, or that have the wrong size."""
    if not set(shares) <= set(expected) or any(len(share) != SHARE_BYTES for share in shares.values()):
        raise BadReply("its shares are not those that were asked for")
