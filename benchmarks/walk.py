"""The files of fedwild that a round passes, in order: the map that a reader of the code follows.

    python -m benchmarks.walk                  # this checkout
    PYTHONPATH=OTHER python benchmarks/walk.py   # another one

The rule: a file counts if one of its functions is called, at the server or at a client, from the start of the round to
its end, without evaluation. A welcome is all rounds of the welcoming run. Files of general use do not count: the
vocabulary (core), networks (models) and data sets (data). Lambdas, comprehensions and special methods are not calls.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import fedwild
from fedwild import api

PACKAGE = Path(fedwild.__file__).parent
IMPLICIT = ("<", "__")
GENERAL = ("core/", "models/", "data/")
# The same files before the rooms existed.
GENERAL_BEFORE = ("errors.py", "hyper.py", "registry.py", "rng.py", "payload.py", "classes.py", "temporary.py")


class Walk:
    """Collects the files whose functions are called while it is on."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self.on = False

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if not self.on or event != "call" or code.co_name.startswith(IMPLICIT):
            return
        path = Path(code.co_filename)
        if path.is_relative_to(PACKAGE):
            name = str(path.relative_to(PACKAGE))
            if not name.startswith(GENERAL) and name not in GENERAL_BEFORE:
                self.files.setdefault(name, code.co_name)


def walked(act: Callable[[Walk], object]) -> dict[str, str]:
    """The files that an action passes, with the first function of each."""
    walk = Walk()
    sys.setprofile(walk)
    try:
        act(walk)
    finally:
        sys.setprofile(None)
    return walk.files


def one_round(method: str, phase: str, folder: Path, **settings: Any) -> dict[str, str]:
    """The second round of a phase: what is made only once is there by then."""

    def act(walk: Walk) -> None:
        def listen(event: dict[str, Any]) -> None:
            if event.get("phase") == phase and event.get("round") == 1:
                walk.on = event["event"] == "round-start" or (walk.on and event["event"] != "round")

        tables = {"method": {"name": method, **settings}, "evaluation": {"every": 0}}
        api.run(tables, clients=2, workers=0, out=folder / method, listener=listen)

    return walked(act)


def welcome(folder: Path) -> dict[str, str]:
    """A whole welcome into a finished run of FedAvg."""
    source = api.run({"method": {"rounds": 2}, "evaluation": {"every": 0}}, clients=2, workers=0, out=folder / "source")

    def act(walk: Walk) -> None:
        def listen(event: dict[str, Any]) -> None:
            walk.on = event["event"] == "round-start" or (walk.on and event["event"] not in ("measuring", "round"))

        settings = {"evaluation": {"every": 0}, "method": {"adapt_rounds": 2}}
        out = folder / "welcomed"
        fedwild.welcome(
            source, "digits", name="late", classes=["8"], workers=0, out=out, settings=settings, listener=listen
        )

    return walked(act)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        walks = {
            "FedAvg round": one_round("fedavg", "train", here, rounds=3),
            "FedOSS round": one_round("fedoss", "finetune", here, rounds=1, finetune_rounds=3),
            "Gains welcome": welcome(here),
        }
    for name, files in walks.items():
        print(f"{name}: {len(files)} files")
        for file, function in files.items():
            print(f"    {file:45} {function}")


if __name__ == "__main__":
    main()
