"""One line at the foot of a terminal that says how far something is and how long it will still take."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

from fedwild.display.forecast import clock, seconds_left
from fedwild.display.run_progress import Clock

NARROW = 60
EVERY_SECONDS = 10.0
"""How often there is a line where there is no terminal."""


class Times(ProgressColumn):
    """The time that has passed, and the time left, counted down to the foreseen end."""

    def __init__(self, now: Clock) -> None:
        super().__init__(table_column=Column(no_wrap=True))
        self._now, self._begun = now, now()

    def render(self, task: Task) -> Text:
        now, ends = self._now(), task.fields["ends"]
        left = "-:--" if ends is None else clock(max(0.0, ends - now))
        return Text(f"{clock(now - self._begun)}, {left} left")


class ProgressLine:
    """A bar, what is going on, the time that has passed and the time that is left. It goes away when it is stopped."""

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
        self._task = self._bars.add_task("getting ready", total=None, ends=None)

    def start(self) -> None:
        self._bars.start()

    def stop(self) -> None:
        self._bars.stop()

    def show(self, what: str, done: float = 0, total: float | None = None, left: float | None = None) -> None:
        """Show this from now on; `left` are the seconds that are left, counted down until the next call."""
        ends = None if left is None else self._now() + left
        # Set by hand, since to `update` None means to leave the total as it is. Without one, the bar moves to and fro.
        self._bars.tasks[0].total = total
        self._bars.update(self._task, description=what, completed=done, ends=ends)


class WorkDisplay:
    """What a command is busy with: one line on a terminal, elsewhere a line every few seconds, nothing if quiet."""

    def __init__(
        self, console: Console, quiet: bool = False, now: Clock = time.monotonic, line: ProgressLine | None = None
    ) -> None:
        """`line` is one that is there already."""
        self._console, self._quiet, self._now = console, quiet, now
        self._line = ProgressLine(console, now) if line is None and console.is_terminal and not quiet else line
        self._what, self._first, self._since, self._said = "", 0, 0.0, now()

    def __enter__(self) -> WorkDisplay:
        if self._line is not None:
            self._line.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._line is not None:
            self._line.stop()

    def tell(self, what: str, done: int = 0, total: int | None = None) -> None:
        """So much of some work is done."""
        self._show(what, what if total is None else f"{what} {done}/{total}", done, total)

    def download(self, file: str, done: int, total: int | None) -> None:
        """So many bytes of a file have come."""
        known = f" of {size(total)}" if total else ""
        self._show(f"downloading {file}", f"downloading {file} {size(done)}{known}", done, total)

    def _show(self, what: str, text: str, done: int, total: int | None) -> None:
        if what != self._what:
            # A download that goes on from a part of the file did not fetch that part now.
            self._what, self._first, self._since = what, done, self._now()
        if self._line is None:
            self._say(text)
        else:
            first = self._first
            left = seconds_left(self._now() - self._since, done - first, None if total is None else total - first)
            self._line.show(text, done, total, left)

    def _say(self, text: str) -> None:
        """Print a line, unless one was printed just now: what is quick says nothing."""
        if not self._quiet and self._now() - self._said >= EVERY_SECONDS:
            self._said = self._now()
            self._console.print(text, highlight=False, markup=False, soft_wrap=True)


def size(count: float) -> str:
    """Bytes as people read them."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
