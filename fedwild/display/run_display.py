"""What a run shows while it goes, and its closing table."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedwild.display.progress import ProgressLine, WorkDisplay, size
from fedwild.display.run_progress import Clock, RunProgress

SHOWN = {
    "closed_accuracy": "closed accuracy",
    "auroc": "AUROC",
    "oscr": "OSCR",
    "open_macro_f1": "open macro-F1",
}
LENGTHS = ("width", "displacement")
"""Figures that are multiples of something, not shares."""
SHOWN_IF_THERE = {
    "novel_accuracy": "novel accuracy",
    "number_found": "novel classes",
    "target_accuracy": "newcomer",
    "source_accuracy": "others",
    "global_accuracy": "both",
}


class RunDisplay:
    """Listens to a run's events: a line of progress on a terminal, plain lines elsewhere, nothing if quiet."""

    def __init__(self, console: Console, quiet: bool = False, now: Clock = time.monotonic) -> None:
        self._console = console
        self._quiet = quiet
        self._progress = RunProgress(now)
        self._line = ProgressLine(console, now) if console.is_terminal and not quiet else None
        self._work = WorkDisplay(console, quiet, now, self._line)
        self.folder = ""

    def __enter__(self) -> RunDisplay:
        if self._line is not None:
            self._line.show(self._progress.text)
            self._line.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._line is not None:
            self._line.stop()

    def __call__(self, event: dict[str, Any]) -> None:
        """Show one event."""
        if self._quiet and event["event"] != "folder":
            return
        self._progress(event)
        if self._line is not None and self._progress.rounds is not None:
            progress = self._progress
            self._line.show(progress.text, progress.done, progress.rounds, progress.seconds_left())
        handler = getattr(self, "_on_" + event["event"].replace("-", "_"), None)
        if handler is not None:
            handler(event)

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _on_folder(self, event: dict[str, Any]) -> None:
        self.folder = str(event["path"])
        if not self._quiet:
            self._say(f"run folder {event['path']}")

    def _on_download(self, event: dict[str, Any]) -> None:
        self._work.download(event["file"], event["done"], event["total"])

    def _on_listening(self, event: dict[str, Any]) -> None:
        how = "with TLS, for registered sites" if event["tls"] else "without TLS"
        self._say(f"sites are expected at {event['address']} ({how})")

    def _on_waiting(self, event: dict[str, Any]) -> None:
        text = f"waiting for {count(event['sites'], 'site')}"
        if self._line is None:
            self._say(text)
        else:
            self._line.show(text)

    def _on_site(self, event: dict[str, Any]) -> None:
        self._say(f"  {event['client']} is there: {event['samples']} samples, torch {event['torch']}")

    def _on_site_left(self, event: dict[str, Any]) -> None:
        self._say(f"  {event['client']} is not connected any more")

    def _on_site_refused(self, event: dict[str, Any]) -> None:
        self._say(f"  a site is refused: {event['reason']}")

    def _on_join(self, event: dict[str, Any]) -> None:
        how = "to be welcomed" if event["newcomer"] else "as a member"
        self._say(f"  {event['client']} joins, {how}: {event['samples']} samples")

    def _on_wait(self, event: dict[str, Any]) -> None:
        advice = f"`fedwild welcome {self.folder} --client {event['client']}` takes it in when the run has ended"
        self._say(f"  {event['client']} has to wait, since no stage of this run is left to welcome it: {advice}")

    def _on_resume(self, event: dict[str, Any]) -> None:
        self._say(f"going on with round {event['next_index'] + 1} of {event['rounds']}")

    def _on_client(self, event: dict[str, Any]) -> None:
        if self._line is None and self._progress.clients <= 20:
            info = event["info"]
            loss = f", loss {info['loss']:.3f}" if isinstance(info.get("loss"), float) else ""
            self._say(
                f"  {event['client']}: {info.get('samples', '?')} samples{loss}, {event['seconds']:.2f} s "
                f"({self._progress.clients_done}/{self._progress.clients})"
            )
        for note in event.get("notes", []):
            self._say(f"  {event['client']}: {note}")

    def _on_client_failed(self, event: dict[str, Any]) -> None:
        self._say(f"  {event['client']} is left out of this round: {event['reason']}")

    def _on_note(self, event: dict[str, Any]) -> None:
        self._say(f"  note: {event['text']}")

    def _on_skip(self, event: dict[str, Any]) -> None:
        self._say(f"round {event['index'] + 1}/{self._progress.rounds} {event['phase']}: not needed")

    def _on_round(self, event: dict[str, Any]) -> None:
        parts = [f"loss {event['loss']:.4f}"] if event["loss"] is not None else []
        metrics = event["metrics"] or {}
        parts += [f"{label} {figure(key, metrics[key])}" for key, label in shown(metrics).items() if key in metrics]
        self._say(
            f"round {event['index'] + 1}/{self._progress.rounds} {event['phase']}: {', '.join(parts) or 'done'} "
            f"({event['seconds'] + event['evaluation_seconds']:.1f} s)"
        )


def percent(value: float | None) -> str:
    """A share as a percentage; a dash where it is not defined, such as AUROC without unknown classes."""
    return "-" if value is None or math.isnan(value) else f"{100 * value:.1f} %"


def figure(key: str, value: float | None) -> str:
    """A figure as people read it: numbers of things and multiples plainly, all others as a percentage."""
    if value is not None and key.startswith(("number_", *LENGTHS)):
        return f"{value:.0f}" if key.startswith("number_") else f"{value:.2f}"
    return percent(value)


def shown(metrics: dict[str, Any]) -> dict[str, str]:
    """The figures that the console shows, with their labels."""
    return {**SHOWN, **{key: label for key, label in SHOWN_IF_THERE.items() if key in metrics}}


def extra_columns(metrics: dict[str, Any]) -> int:
    """How many figures are shown beside the usual ones."""
    return len(shown(metrics)) - len(SHOWN)


def count(number: int, noun: str) -> str:
    """'1 client', '2 clients'."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def result_lines(result: dict[str, Any]) -> list[str]:
    """The closing figures for a terminal too narrow for the table."""
    metrics = result["metrics"]
    figures = {label: figure(key, metrics.get(key)) for key, label in shown(metrics).items()}
    figures["time"] = f"{result['seconds']:.1f} s"
    figures |= {"bytes up": size(result["bytes_up"]), "bytes down": size(result["bytes_down"])}
    return [f"{label}: {value}" for label, value in figures.items()]


def result_table(result: dict[str, Any]) -> Table:
    """The closing table of a run."""
    names = [result["data"]] if isinstance(result["data"], str) else result["data"]
    data = " + ".join(Path(name).name for name in names)
    about = f"{result['method']} on {data}, {count(result['clients'], 'client')}, {count(result['rounds'], 'round')}"
    table = Table(title=Text(about))
    metrics = result["metrics"]
    for heading in (*shown(metrics).values(), "time", "bytes up", "bytes down"):
        table.add_column(heading, justify="right")
    table.add_row(
        *(figure(key, metrics.get(key)) for key in shown(metrics)),
        f"{result['seconds']:.1f} s",
        size(result["bytes_up"]),
        size(result["bytes_down"]),
    )
    return table


def metrics_table(metrics: dict[str, float], by: dict[str, dict[str, float]]) -> Table:
    """All figures, one per row; a column per client or domain where there are a few."""
    table = Table(title="evaluation")
    table.add_column("metric")
    table.add_column("all", justify="right")
    others = list(by) if len(by) <= 8 else []
    for name in others:
        table.add_column(Text(name), justify="right")
    for key, value in metrics.items():
        table.add_row(Text(key), figure(key, value), *(figure(key, by[name].get(key)) for name in others))
    return table
