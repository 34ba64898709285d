"""Making the folder of a new run, and running in it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedwild.core.errors import explain_os_errors
from fedwild.engines.choice import Connect, engine_of
from fedwild.lifecycle.rounds import Federation
from fedwild.lifecycle.run import Run
from fedwild.runs.config import Config
from fedwild.runs.events import Listener
from fedwild.runs.experiment import Experiment, fingerprint, prepare, with_earlier_members
from fedwild.runs.folder import RunFolder
from fedwild.runs.ownership import mark


def start(config: Config, out: Path | None, listener: Listener) -> Run:
    """Create a run folder and run in it. Bad input raises before the folder exists."""

    def downloading(file: str, done: int, total: int | None) -> None:
        listener({"event": "download", "file": file, "done": done, "total": total})

    return begin(prepare(with_earlier_members(config), progress=downloading), out, listener)


def resume(run: Run, listener: Listener, **engine: Any) -> None:
    """Continue an unfinished run on this machine; `engine` holds settings of the engine to change."""
    run.config = run.config.with_engine(**engine)
    if run.folder.result() is None:
        run.check_cluster()
        Federation(run.experiment, run.folder, listener).run()


def begin(
    experiment: Experiment,
    out: Path | None,
    listener: Listener,
    history: Mapping[str, Any] | None = None,
    events: bytes = b"",
    connect: Connect | None = None,
) -> Run:
    """Create an experiment's run folder and run in it.

    `history` holds facts about the run that it continues, and `events` that run's log. `connect` makes another engine
    than the one that the settings name.
    """
    config = experiment.config
    connect = connect or engine_of(config.engine)
    names = "+".join(Path(name).stem for name in config.data.names)
    stem = re.sub(r"[^\w.+-]+", "_", f"{config.method.name}-{names}")
    facts: dict[str, Any] = {
        "data": fingerprint(experiment.dataset),
        "input": {
            "shape": list(experiment.dataset.input_shape),
            "dtype": str(experiment.dataset.x_train.dtype).removeprefix("torch."),
        },
        "config": config.decisive(),
        **({"start_from": experiment.initial.fingerprint} if experiment.initial else {}),
        **(history or {}),
    }
    facts |= mark(facts, config.engine.address)
    with explain_os_errors(f"--out {str(out or Path('runs'))!r}: the run folder cannot be created"):
        folder = RunFolder.create(out, stem, config.to_toml(), experiment.split, facts, events)
    listener({"event": "folder", "path": str(folder.path)})
    Federation(experiment, folder, listener, connect).run()
    return Run(folder.path, trust_code=True)
