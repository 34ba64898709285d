"""One line at the bottom of a terminal with the progress and the time left."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

from fedwild.core.text import clean, size
from fedwild.display.forecast import clock, seconds_left
from fedwild.display.run_progress import Clock

NARROW = 60
EVERY_SECONDS = 10.0
"""The time between two lines of progress where standard error is not a terminal."""


class Times(ProgressColumn):
    """The elapsed time, and the time left, counted down to the expected end."""

    def __init__(self, now: Clock) -> None:
        super().__init__(table_column=Column(no_wrap=True))
        self._now, self._begun = now, now()

    def render(self, task: Task) -> Text:
        now, ends = self._now(), task.fields["ends"]
        left = "-:--" if ends is None else clock(max(0.0, ends - now))
        return Text(f"{clock(now - self._begun)}, {left} left")


class ProgressLine:
    """A bar, the current activity, the elapsed time and the time left. It disappears when it is stopped."""

    def __init__(self, console: Console, now: Clock = time.monotonic) -> None:
        self._now = now
        self._bars = Progress(
            BarColumn(bar_width=8 if console.width < NARROW else 20),
            TextColumn("{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True)),
            Times(now),
            console=console,
            expand=True,
            transient=True,
        )
        self._task = self._bars.add_task("preparing", total=None, ends=None)

    def start(self) -> None:
        self._bars.start()

    def stop(self) -> None:
        self._bars.stop()

    def show(self, what: str, done: float = 0, total: float | None = None, left: float | None = None) -> None:
        """Show this activity; `left` is the time left in seconds, counted down until the next call."""
        ends = None if left is None else self._now() + left
        # `update` ignores a total of None, which makes the bar pulse.
        self._bars.tasks[0].total = total
        self._bars.update(self._task, description=clean(what), completed=done, ends=ends)


class WorkDisplay:
    """The progress of a command: one line on a terminal, elsewhere a line every few seconds, nothing if quiet."""

    def __init__(
        self, console: Console, quiet: bool = False, now: Clock = time.monotonic, line: ProgressLine | None = None
    ) -> None:
        """`line` is an existing line to use."""
        self._console, self._quiet, self._now = console, quiet, now
        self._line = ProgressLine(console, now) if line is None and console.is_terminal and not quiet else line
        self._what, self._first, self._since, self._printed = "", 0, 0.0, now()

    def __enter__(self) -> WorkDisplay:
        if self._line is not None:
            self._line.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._line is not None:
            self._line.stop()

    def show(self, what: str, done: int = 0, total: int | None = None) -> None:
        """Show an activity, and how many of its steps are done."""
        self._show(what, what if total is None else f"{what} {done}/{total}", done, total)

    def download(self, file: str, done: int, total: int | None) -> None:
        """Show how many bytes of a file are downloaded."""
        known = f" of {size(total)}" if total else ""
        self._show(f"downloading {file}", f"downloading {file} {size(done)}{known}", done, total)

    def _show(self, what: str, text: str, done: int, total: int | None) -> None:
        if what != self._what:
            # A resumed download did not fetch its first part now.
            self._what, self._first, self._since = what, done, self._now()
        if self._line is None:
            self._print(text)
        else:
            first = self._first
            left = seconds_left(self._now() - self._since, done - first, None if total is None else total - first)
            self._line.show(text, done, total, left)

    def _print(self, text: str) -> None:
        """Print a line, unless one was printed a moment ago."""
        if not self._quiet and self._now() - self._printed >= EVERY_SECONDS:
            self._printed = self._now()
            self._console.print(clean(text), highlight=False, markup=False, soft_wrap=True)
