"""Exhibits: plain data of a method that the report and `show` render without knowing the method."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fedwild.contract.halves import Client, Server


@dataclass(frozen=True)
class Record:
    """What exhibits are made from: the final server and the log of the run."""

    server: Server
    events: Sequence[Mapping[str, Any]]
    """The events of the run, without those of the run that it continues."""
    client: Callable[[str], Client] | None = None
    """Opens a client's data by name; None if the data is not on this machine."""

    def findings(self, what: str) -> list[Mapping[str, Any]]:
        """Return the figures of one kind that the method put into the log, in order."""
        return [event for event in self.events if event["event"] == "finding" and event["what"] == what]


@dataclass(frozen=True)
class Exhibit:
    """Something to show. Exhibits with the same section are shown together under that heading."""

    section: str
    title: str
    text: str = ""
    """A description in one or two sentences."""


@dataclass(frozen=True)
class TableExhibit(Exhibit):
    """Rows of text."""

    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()


@dataclass(frozen=True)
class CurveExhibit(Exhibit):
    """Lines over a common axis."""

    x: str = ""
    y: str = ""
    lines: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    percent: bool = False
    """Whether values are shares, shown as percentages."""


@dataclass(frozen=True)
class BarExhibit(Exhibit):
    """One bar per name."""

    bars: Mapping[str, float] = field(default_factory=dict)
    percent: bool = False


@dataclass(frozen=True)
class ImageExhibit(Exhibit):
    """A grid of images: a row per label."""

    rows: Mapping[str, Tensor] = field(default_factory=dict)
    """Images (n, channels, height, width) by label, uint8 or float in 0..1."""
    captions: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """A caption per image, by the same labels."""


@dataclass(frozen=True)
class MapExhibit(Exhibit):
    """A matrix of numbers as a heat map."""

    values: Tensor | None = None
    """(rows, columns)."""
    rows: Sequence[str] = ()
    columns: Sequence[str] = ()
