"""What a part of the trial counts."""

from __future__ import annotations

import resource
import sys
from dataclasses import dataclass, field
from typing import Any

MAX_EXAMPLES = 20


@dataclass
class Tally:
    """The number of trials, and those that ended as they must not."""

    trials: int = 0
    tracebacks: int = 0
    wrong: int = 0
    """Results that differ, damage that was not noticed, files that were changed by a command that failed."""
    hangs: int = 0
    examples: list[str] = field(default_factory=list)
    """The first trials that failed, one line each."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Further counts of the part."""

    def fail(self, kind: str, example: str) -> None:
        """Count a failure: "tracebacks", "wrong" or "hangs"."""
        setattr(self, kind, getattr(self, kind) + 1)
        print(f"{kind}: {example}", file=sys.stderr, flush=True)
        if len(self.examples) < MAX_EXAMPLES:
            self.examples.append(f"{kind}: {example}")

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "peak_mb": peak_mb()}


def peak_mb() -> int:
    """Return the largest resident memory of this process and of its ended children, in MB."""
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return max(resource.getrusage(one).ru_maxrss for one in who) // 1000
