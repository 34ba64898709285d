"""Consoles that show text from outside safely: nothing that is printed can move the cursor or change the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook
from rich.segment import Segment

from fedwild.core.text import clean


def open_console(stderr: bool = False, file: IO[str] | None = None, width: int | None = None) -> Console:
    """Return a console on standard output, standard error or a file that cleans everything it prints."""
    console = Console(stderr=stderr, file=file, width=width)
    console.push_render_hook(_CleanText())
    return console


def print_warning(text: str) -> None:
    """Print one line on standard error."""
    print(clean(text), file=sys.stderr)


class _CleanText(RenderHook):
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Cleaned(renderable) for renderable in renderables]


@dataclass(frozen=True)
class _Cleaned:
    """Something to print, whose text is cleaned after it was laid out. Colours, which rich adds later, stay."""

    renderable: ConsoleRenderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in console.render(self.renderable, options):
            text = segment.text
            if segment.control or text.replace("\n", "").isprintable():
                yield segment
            else:
                rows = (clean(row, len(row)) for row in text.split("\n"))
                yield Segment("\n".join(rows), segment.style)
