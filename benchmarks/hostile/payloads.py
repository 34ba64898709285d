"""Mutated replies in every phase of every method, through the checks of a real round.

    python -m benchmarks.hostile.payloads                # at least 10,000, all methods
    python -m benchmarks.hostile.payloads --each 5 --only fedavg

A small federation runs in this process. Before a reply is examined, mutations of it are: decoding, finiteness, the
phase's own check, and what the round does with an accepted reply before it is merged. One accepted mutation per reply
is also merged into a copy of the server. Prints one JSON object. Nothing but `BadReply` may be
raised.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.hostile.mutation import mutate
from benchmarks.hostile.tally import Tally, peak_mb
from fedwild import api
from fedwild.contract import Phase, Server, Welcomes
from fedwild.contract.claims import Claims
from fedwild.contract.engine import Answer
from fedwild.core.errors import BadReply
from fedwild.core.payload import Payload, check_finite
from fedwild.lifecycle.exchange import Exchange, loggable
from fedwild.lifecycle.limits import measure_updates
from fedwild.lifecycle.merging import merge_replies
from fedwild.methods import METHODS

EACH = 100
"""Mutations of each reply."""
QUICK = {"rounds": 1, "epochs": 1, "batch_size": 8, "t_f": 0.0, "t_c": 0.0}
"""Endings of settings that make any method quick."""


@dataclass
class Hunt:
    """Mutates replies and counts what becomes of them."""

    each: int
    rng: np.random.Generator
    tally: Tally
    outcomes: Counter[str]
    method: str = ""
    phases: set[tuple[str, str]] = field(default_factory=set)

    def attack(self, server: Server, phase: Phase, reply: Payload) -> None:
        """Try mutations of one valid reply."""
        self.phases.add((self.method, phase.name))
        merged = False
        for _ in range(self.each):
            self.tally.trials += 1
            accepted = self.examine(server, phase, mutate(reply, self.rng))
            if accepted is not None and not merged:
                merged = True
                self.merge(server, phase, {"hostile": accepted, "other": reply})

    def examine(self, server: Server, phase: Phase, data: bytes) -> Payload | None:
        """Return the payload if all checks accept it."""
        try:
            payload = Payload.decode(data)
            check_finite(payload)
            phase.check(server, payload)
            measure_updates(server, payload)
            json.dumps(loggable(payload.info))
        except BadReply as problem:
            assert str(problem)
            self.outcomes["rejected"] += 1
            return None
        except Exception as error:
            self.fail(phase, error)
            return None
        self.outcomes["accepted"] += 1
        return payload

    def merge(self, server: Server, phase: Phase, replies: dict[str, Payload]) -> None:
        """Merge an accepted mutation together with a valid reply; a merge that fails is refused by its guard."""
        readers = {name: partial(Payload, payload.tensors, payload.info) for name, payload in replies.items()}
        try:
            merged = merge_replies(server, phase, dict(readers), list(readers))
        except Exception as error:
            self.fail(phase, error)
            return
        self.outcomes["merges refused" if merged.problem else "merged"] += 1

    def fail(self, phase: Phase, error: Exception) -> None:
        place = traceback.extract_tb(error.__traceback__)[-1]
        what = f"{type(error).__name__}: {str(error)[:100]} ({place.filename}:{place.lineno})"
        self.tally.fail("tracebacks", f"{self.method}, {phase.name}: {what}")


@contextmanager
def attacked(hunt: Hunt) -> Iterator[None]:
    """Attack every valid reply of the runs inside, before it is examined."""
    original = Exchange._examine

    def examine(
        self: Exchange, server: Server, phase: Phase, answer: Answer, claims: Claims
    ) -> tuple[str | None, Payload]:
        reason, payload = original(self, server, phase, answer, claims)
        if reason is None:
            hunt.attack(server, phase, payload)
        return reason, payload

    Exchange._examine = examine  # type: ignore[method-assign]
    try:
        yield
    finally:
        Exchange._examine = original  # type: ignore[method-assign]


def tables(method: str) -> dict[str, Any]:
    """Return the settings of a small federation that uses all phases of a method."""
    kind = METHODS.get(method)
    quick = {name: value for name in kind.Params.model_fields for end, value in QUICK.items() if name.endswith(end)}
    data: dict[str, Any] = {"name": "synthetic:8x8x1:5:150", "known": 3, "novel": 1, "public": 0.1}
    if issubclass(kind, Welcomes):
        data["newcomers"] = {"late": {"name": "synthetic:8x8x1:5:60", "classes": ["0", "4"]}}
    return {
        "data": data,
        "model": {"name": "mlp", "hidden": [8, 6]},
        "method": {"name": method, **quick},
        "partition": {"name": "iid"},
        "evaluation": {"every": 0},
    }


def hunt_methods(folder: Path, names: list[str], each: int, seed: int = 0) -> Tally:
    """Return what became of the mutations."""
    torch.set_num_threads(1)
    tally, outcomes = Tally(), Counter[str]()
    tally.facts["peak_mb_before"] = peak_mb()
    hunt = Hunt(each, np.random.default_rng(seed), tally, outcomes)
    for name in names:
        hunt.method = name
        with attacked(hunt):
            api.run(tables(name), clients=3, workers=0, out=folder / name)
    tally.facts |= {"methods": len(names), "phases": len(hunt.phases), **outcomes}
    return tally


def run(folder: Path, quick: bool) -> Tally:
    """Mutate the replies of all methods."""
    return hunt_methods(folder, METHODS.names(), 2 if quick else EACH)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--each", type=int, default=EACH, help="mutations of each reply")
    parser.add_argument("--only", nargs="*", help="names of methods")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tally = hunt_methods(Path(folder), options.only or METHODS.names(), options.each, options.seed)
    print(json.dumps(tally.to_json()))


if __name__ == "__main__":
    main()
