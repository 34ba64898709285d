"""Event files for TensorBoard, written while a run is in progress or from its log afterwards."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedwild.core.errors import UserError, explain_os_errors
from fedwild.core.storage import make_folder
from fedwild.core.toml import read_toml
from fedwild.runs.events import Listener
from fedwild.runs.folder import RunFolder

if TYPE_CHECKING:
    from torch.utils.tensorboard import FileWriter

TENSORBOARD = "tensorboard"
"""The folder of event files inside a run folder."""


class Scalars:
    """Converts a run's events, in their order, to numbers. The step is the round, counted from 1."""

    def __init__(self, by_client: bool = False) -> None:
        self._by_client = by_client
        self._rounds = 0
        self._is_measured = False
        self._bytes = {"bytes/up": 0, "bytes/down": 0}

    def of(self, event: Mapping[str, Any]) -> dict[str, float]:
        """Return the numbers of an event by name, without undefined ones."""
        values: dict[str, Any] = {}
        if event["event"] in ("start", "resume"):
            self._rounds = event["rounds"]
        elif event["event"] == "round-start":
            self._is_measured, self._bytes = False, dict.fromkeys(self._bytes, 0)
        elif event["event"] in ("client", "client-failed"):
            values = self._client(event)
        elif event["event"] == "round":
            values = self._round(event)
        elif event["event"] == "end" and not self._is_measured:
            # If the last round was skipped, the run is evaluated at its end.
            values = metric_names(event["metrics"])
        return {name: value for name, value in values.items() if value is not None}

    def step(self, event: Mapping[str, Any]) -> int:
        """Return the round of an event; the last round for the end of the run."""
        return int(event["index"]) + 1 if "index" in event else self._rounds

    def _client(self, event: Mapping[str, Any]) -> dict[str, Any]:
        self._bytes["bytes/up"] += event["bytes_up"]
        self._bytes["bytes/down"] += event["bytes_down"]
        loss = event.get("info", {}).get("loss")
        return {f"client_loss/{event['client']}": loss} if self._by_client and isinstance(loss, float) else {}

    def _round(self, event: Mapping[str, Any]) -> dict[str, Any]:
        self._is_measured = event["metrics"] is not None
        seconds = {"seconds/training": event["seconds"], "seconds/evaluation": event["evaluation_seconds"]}
        return {"loss": event["loss"], **metric_names(event["metrics"] or {}), **seconds, **self._bytes}


class EventFile:
    """The event file of a run. It starts with the whole log; later events are added."""

    def __init__(self, run: RunFolder, folder: Path, by_client: bool = False) -> None:
        self._scalars = Scalars(by_client)
        events = without_lost_ends(run.read_log())
        # Everything is read before anything is written.
        config, settings = run.config_text(), hyperparameters(read_toml(run.path / "config.toml"))
        with explain_os_errors(f"{str(folder)!r} cannot be written"):
            make_folder(folder)
            # Old files may hold rounds that were lost in a crash and repeated.
            for old in folder.glob("events.out.tfevents.*"):
                old.unlink()
            self._writer: FileWriter = file_writer()(str(folder))
        self._describe(config, settings, events[0]["time"] if events else time.time())
        for event in events:
            self.add(event)
        self._writer.flush()

    def _describe(self, config: str, settings: dict[str, str | float], when: float) -> None:
        """Write the run's settings, as text and as hyperparameters."""
        from torch.utils.tensorboard.summary import hparams, text

        self._writer.add_summary(text("config.toml", f"```toml\n{config}```"), walltime=when)
        # Without a list of columns, TensorBoard shows those of all runs that it finds.
        _, start, self._end = hparams(settings, {})
        self._writer.add_summary(start, walltime=when)

    def add(self, event: Mapping[str, Any]) -> None:
        """Write the numbers of an event with its own time."""
        from torch.utils.tensorboard.summary import scalar

        for name, value in self._scalars.of(event).items():
            self._writer.add_summary(scalar(name, value), self._scalars.step(event), event["time"])
        if event["event"] == "end":
            self._writer.add_summary(self._end, walltime=event["time"])
        if event["event"] in ("round", "end"):
            self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class Tracker:
    """A listener that writes a run's event file and passes every event on."""

    def __init__(self, listener: Listener, run: Path | None = None) -> None:
        self._listener, self._run = listener, run
        self.file: EventFile | None = None
        """Exists once the run has started."""

    def __call__(self, event: dict[str, Any]) -> None:
        self._listener(event)
        if event["event"] == "folder":
            self._run = Path(event["path"])
        elif event["event"] in ("start", "resume") and self._run is not None:
            # The log already holds this event and all earlier ones.
            self.file = EventFile(RunFolder.open(self._run), self._run / TENSORBOARD)
        elif self.file is not None:
            self.file.add(event)

    def close(self) -> None:
        if self.file is not None:
            self.file.close()


@contextmanager
def tracked(listener: Listener, wanted: bool, run: Path | None = None) -> Iterator[Listener]:
    """Yield a listener that also writes an event file if `wanted`. `run` is the folder of an existing run."""
    if not wanted:
        yield listener
        return
    file_writer()
    tracker = Tracker(listener, run)
    try:
        yield tracker
        if run is not None and tracker.file is None:
            # The run was finished before, so it reported no events.
            write_event_file(RunFolder.open(run), run / TENSORBOARD)
    finally:
        tracker.close()


def write_event_file(run: RunFolder, folder: Path, by_client: bool = False) -> None:
    """Write the event file of a run, finished or not, from its log."""
    EventFile(run, folder, by_client).close()


def file_writer() -> type[FileWriter]:
    """Return the class that writes event files. Raises `UserError` if TensorBoard is not installed."""
    try:
        from torch.utils.tensorboard import FileWriter
    except ImportError as error:
        raise UserError("TensorBoard is not installed: pip install 'fedwild[track]'.") from error
    return FileWriter


def without_lost_ends(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the events without the end of a run that was later resumed from an earlier round."""
    kept: list[dict[str, Any]] = []
    for event in events:
        if event["event"] == "resume" and kept and kept[-1]["event"] == "end":
            kept.pop()
        kept.append(event)
    return kept


def metric_names(metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {f"metrics/{name}": value for name, value in metrics.items()}


def hyperparameters(tables: Mapping[str, Any], prefix: str = "") -> dict[str, str | float]:
    """Return settings by full name, such as method.lr. Values that are not numbers or text become JSON."""
    flat: dict[str, str | float] = {}
    for key, value in tables.items():
        if isinstance(value, Mapping):
            flat |= hyperparameters(value, f"{prefix}{key}.")
        elif isinstance(value, (str, int, float)) and not isinstance(value, bool):
            flat[prefix + key] = value
        else:
            flat[prefix + key] = json.dumps(value, default=str)
    return flat
