"""How far the server believes what clients claim about themselves. Numbers of samples decide how much they count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedwild.core.errors import BadReply


@dataclass(frozen=True)
class Claims:
    """The number of samples that each client declared when it joined, and the largest share that one may have."""

    declared: Mapping[str, int] = field(default_factory=dict)
    """By client. A client that is not listed may claim any number."""
    max_weight: float = 1.0

    def check(self, client: str, samples: int, what: str) -> None:
        """Reject a claim of more samples than the client declared."""
        limit = self.declared.get(client)
        if limit is not None and samples > limit:
            raise BadReply(f"{what} is {samples}, but the client declared {limit} samples when it joined")

    def cap(self, samples: Mapping[str, int]) -> dict[str, int]:
        """Return numbers of samples, lowered so that no client has more than the share `max_weight` of them.

        Where that is impossible because too few clients have samples, all of those have the same number.
        """
        present = {name: count for name, count in samples.items() if count > 0}
        limit = largest_count(sorted(present.values(), reverse=True), self.max_weight)
        return {name: min(count, limit) for name, count in samples.items()}


NO_CLAIMS = Claims()
"""Every claim is believed."""


def largest_count(falling: list[int], share: float) -> int:
    """Return the largest L such that L <= share * sum_k min(n_k, L), for numbers n_k in falling order; at least 1.

    If the t largest are lowered to L, L = share * (t L + the rest), so that L = share * rest / (1 - t * share).
    """
    rest = sum(falling)
    for lowered, count in enumerate(falling):
        if lowered * share >= 1:
            break
        limit = share * rest / (1 - lowered * share)
        if count <= limit:
            # None of those that are left is larger, and those before are at most this.
            return count if lowered == 0 else max(1, int(limit))
        rest -= count
    return max(1, falling[-1]) if falling else 1
