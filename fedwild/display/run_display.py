"""What a run shows while it is running, and its final table."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedwild.core.text import clean, count, size
from fedwild.display.figures import epsilon_text, figure_text, shown_figures
from fedwild.display.progress import ProgressLine, WorkDisplay
from fedwild.display.run_progress import Clock, RunProgress


class RunDisplay:
    """Shows a run's events: a line of progress on a terminal, plain lines elsewhere, nothing if quiet."""

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
        self._console.print(clean(text), highlight=False, markup=False, soft_wrap=True)

    def _on_folder(self, event: dict[str, Any]) -> None:
        self.folder = str(event["path"])
        if not self._quiet:
            self._say(f"run folder {event['path']}")

    def _on_download(self, event: dict[str, Any]) -> None:
        self._work.download(event["file"], event["done"], event["total"])

    def _on_listening(self, event: dict[str, Any]) -> None:
        how = "with TLS, for registered sites" if event["tls"] else "without TLS"
        self._say(f"listening for sites at {event['address']} ({how})")

    def _on_waiting(self, event: dict[str, Any]) -> None:
        text = f"waiting for {count(event['sites'], 'site')}"
        if self._line is None:
            self._say(text)
        else:
            self._line.show(text)

    def _on_site(self, event: dict[str, Any]) -> None:
        self._say(f"  {event['client']} is connected: {count(event['samples'], 'sample')}, torch {event['torch']}")

    def _on_site_left(self, event: dict[str, Any]) -> None:
        self._say(f"  {event['client']} has disconnected")

    def _on_site_refused(self, event: dict[str, Any]) -> None:
        self._say(f"  a site was rejected: {event['reason']}")

    def _on_join(self, event: dict[str, Any]) -> None:
        how = "as a newcomer" if event["newcomer"] else "as a member"
        self._say(f"  {event['client']} joins {how}: {count(event['samples'], 'sample')}")

    def _on_wait(self, event: dict[str, Any]) -> None:
        advice = f"run `fedwild welcome {self.folder} --client {event['client']}` when this run is finished"
        self._say(f"  {event['client']} waits, because no stage of this run is left to welcome it: {advice}")

    def _on_resume(self, event: dict[str, Any]) -> None:
        self._say(f"resuming at round {event['next_index'] + 1} of {event['rounds']}")

    def _on_client(self, event: dict[str, Any]) -> None:
        if self._line is None and self._progress.clients <= 20:
            info = event["info"]
            loss = f", loss {info['loss']:.3f}" if isinstance(info.get("loss"), float) else ""
            # In a secure sum, only the sum of samples is known.
            samples = count(info["samples"], "sample") if "samples" in info else "masked reply"
            self._say(
                f"  {event['client']}: {samples}{loss}, {event['seconds']:.2f} s "
                f"({self._progress.clients_done}/{self._progress.clients})"
            )
        for note in event.get("notes", []):
            self._say(f"  {event['client']}: {note}")

    def _on_client_failed(self, event: dict[str, Any]) -> None:
        self._say(f"  {event['client']} is excluded from this round: {event['reason']}")

    def _on_note(self, event: dict[str, Any]) -> None:
        self._say(f"  note: {event['text']}")

    def _on_warning(self, event: dict[str, Any]) -> None:
        self._say(f"warning: {event['text']}")

    def _on_skip(self, event: dict[str, Any]) -> None:
        self._say(f"round {event['index'] + 1}/{self._progress.rounds} {event['phase']}: not needed")

    def _on_round(self, event: dict[str, Any]) -> None:
        parts = [f"loss {event['loss']:.4f}"] if event["loss"] is not None else []
        parts += figure_phrases(event["metrics"] or {})
        parts += [f"epsilon {epsilon_text(event['privacy'])}"] if event.get("privacy") else []
        self._say(
            f"round {event['index'] + 1}/{self._progress.rounds} {event['phase']}: {', '.join(parts) or 'done'} "
            f"({event['seconds'] + event['evaluation_seconds']:.1f} s)"
        )


def figure_phrases(metrics: dict[str, Any]) -> list[str]:
    """Return the shown figures that have been measured, each with its label."""
    labels = shown_figures(metrics).items()
    return [f"{label} {figure_text(key, metrics[key])}" for key, label in labels if key in metrics]


def result_figures(result: dict[str, Any]) -> dict[str, str]:
    """Return the final figures and costs of a run as text, by label."""
    metrics = result["metrics"]
    return {
        **{label: figure_text(key, metrics.get(key)) for key, label in shown_figures(metrics).items()},
        **({"epsilon": epsilon_text(result["privacy"])} if result.get("privacy") else {}),
        "time": f"{result['seconds']:.1f} s",
        "bytes up": size(result["bytes_up"]),
        "bytes down": size(result["bytes_down"]),
    }


def result_table(result: dict[str, Any]) -> Table:
    """Return the final table of a run."""
    names = [result["data"]] if isinstance(result["data"], str) else result["data"]
    data = " + ".join(Path(name).name for name in names)
    about = f"{result['method']} on {data}, {count(result['clients'], 'client')}, {count(result['rounds'], 'round')}"
    table = Table(title=Text(about))
    figures = result_figures(result)
    for label in figures:
        table.add_column(label, justify="right")
    table.add_row(*figures.values())
    return table


def metrics_table(metrics: dict[str, float], by: dict[str, dict[str, float]]) -> Table:
    """Return all figures, one per row, with a column per client or domain if there are at most eight."""
    table = Table(title="evaluation")
    table.add_column("metric")
    table.add_column("all", justify="right")
    others = list(by) if len(by) <= 8 else []
    for name in others:
        table.add_column(Text(name), justify="right")
    for key, value in metrics.items():
        table.add_row(Text(key), figure_text(key, value), *(figure_text(key, by[name].get(key)) for name in others))
    return table
