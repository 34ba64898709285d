"""What a batch of runs shows: one line with the time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from fedwild.core.errors import UserError
from fedwild.core.text import clean, count, duration
from fedwild.display.run_display import figure_phrases
from fedwild.results.batch import Planned, Progress, Watcher
from fedwild.runs.events import Listener
from fedwild.runs.folder import RunFolder


class BatchDisplay(Watcher):
    """Shows a batch on a console; nothing if quiet."""

    def __init__(self, console: Console, quiet: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._quiet, self._clock = console, quiet, clock
        self._live: Live | None = None
        self._began = 0.0
        self._round = ""

    def __enter__(self) -> BatchDisplay:
        if self._console.is_terminal and not self._quiet:
            self._live = Live(Text(""), console=self._console, transient=True, refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def begin(self, progress: Progress) -> None:
        kept = f", {progress.kept} already finished" if progress.kept else ""
        self._print(f"{count(progress.total, 'run')}{kept}")

    def run(self, planned: Planned, progress: Progress) -> Listener:
        self._began, self._round = self._clock(), ""
        if self._live is None:
            self._print(f"run {progress.done + 1}/{progress.total}: {planned.label}")

        def listen(event: dict[str, Any]) -> None:
            if event["event"] in ("start", "resume"):
                self._round = f", round {event['next_index'] + 1}/{event['rounds']}"
            elif event["event"] == "round-start" and self._round:
                self._round = f", round {event['index'] + 1}/{self._round.rpartition('/')[2]}"
            self._show(planned, progress)

        return listen

    def ran(self, planned: Planned, progress: Progress, error: UserError | None) -> None:
        elapsed = duration(self._clock() - self._began)
        result = {} if error else RunFolder.open(planned.folder).result() or {}
        what = f"failed: {error}" if error else ", ".join(figure_phrases(result.get("metrics", {})))
        self._print(f"  {planned.label}: {what} ({elapsed}){time_left(progress.seconds_left())}")

    def _show(self, planned: Planned, progress: Progress) -> None:
        if self._live is not None:
            rest = time_left(progress.seconds_left(self._clock() - self._began))
            line = f"run {progress.done + 1}/{progress.total}: {planned.label}{self._round}{rest}"
            self._live.update(Text(clean(line), no_wrap=True, overflow="ellipsis"))

    def _print(self, text: str) -> None:
        if not self._quiet:
            self._console.print(clean(text), highlight=False, markup=False, soft_wrap=True)


def time_left(seconds: float | None) -> str:
    return "" if seconds is None else f", about {duration(seconds)} left"
