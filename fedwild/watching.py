"""Telling how far some work is, to whoever watches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from fedwild.engines.base import Answer, Job

if TYPE_CHECKING:
    from fedwild.evaluation import Carry

Tell = Callable[[str, int, "int | None"], None]
"""What is being done, how much of it is done, and of how much, if that is known."""

WORDS = {
    "validate": "scoring validation samples",
    "test": "answering test samples",
}


def nobody(what: str, done: int, total: int | None) -> None:
    """Tell nobody."""


def watched(run: Carry, tell: Tell) -> Carry:
    """An engine's `run` that tells how many of its jobs are done."""

    def carry(jobs: Iterable[Job]) -> Iterator[Answer]:
        todo = list(jobs)
        if not todo:
            return
        what = WORDS.get(todo[0].kind, "working")
        tell(what, 0, len(todo))
        for done, answer in enumerate(run(todo), start=1):
            tell(what, done, len(todo))
            yield answer

    return carry
