"""The Python API: the verbs of the command line.

import fedwild

run = fedwild.run(method="fedavg", data="digits", clients=10, rounds=5)
print(run.metrics["auroc"], run.predict(images))
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedwild.core.defaults import DEFAULT_WELCOME
from fedwild.core.errors import UserError
from fedwild.core.layers import merge
from fedwild.core.toml import read_toml
from fedwild.core.trust import trusting_code
from fedwild.lifecycle import start as starting
from fedwild.lifecycle.run import Answers, Run
from fedwild.lifecycle.welcome import continued_settings, default_name, site_config, welcome_client
from fedwild.runs.config import Config, nested, resolve, setting_layers
from fedwild.runs.events import Listener, ignore_event

__all__ = ["Answers", "Run", "configure", "resume", "run", "welcome"]

FLAGS = {
    "method": "method.name",
    "rounds": "method.rounds",
    "data": "data.name",
    "partition": "partition.name",
    "model": "model.name",
    "clients": "federation.clients",
    "start_from": "federation.start_from",
    "workers": "engine.workers",
    "engine": "engine.name",
    "seed": "seed",
}
"""The short flags, and the settings for which they stand."""


def run(
    config: str | Path | Mapping[str, Any] | None = None,
    *,
    method: str | None = None,
    data: str | Sequence[str] | None = None,
    partition: str | None = None,
    model: str | None = None,
    clients: int | None = None,
    rounds: int | None = None,
    seed: int | None = None,
    workers: int | None = None,
    engine: str | None = None,
    start_from: str | Path | None = None,
    out: str | Path | None = None,
    settings: Sequence[str] | Mapping[str, Any] = (),
    listener: Listener = ignore_event,
    trust_code: bool = False,
) -> Run:
    """Run a federation to its end and return the run.

    `config` is a TOML file or nested tables. The named arguments override it, and `settings` (`["method.lr=0.1"]`, or
    tables) override both. `start_from` is the folder of a finished run, whose global model is the initial model;
    `trust_code` runs the code that its settings name even if it comes from elsewhere.
    """
    resolved = configure(
        config,
        method=method,
        data=data,
        partition=partition,
        model=model,
        clients=clients,
        rounds=rounds,
        seed=seed,
        workers=workers,
        engine=engine,
        start_from=start_from,
        settings=settings,
    )
    with trusting_code() if trust_code else contextlib.nullcontext():
        return starting.start(resolved, Path(out) if out is not None else None, listener)


def configure(
    config: str | Path | Mapping[str, Any] | None = None,
    *,
    settings: Sequence[str] | Mapping[str, Any] = (),
    **flags: Any,
) -> Config:
    """Return the validated settings of a file, flags and `section.key=value` settings."""
    file = read_toml(Path(config)) if isinstance(config, (str, Path)) else dict(config or {})
    return resolve(file, flag_layer(**flags), *setting_layers(settings))


def flag_layer(**flags: Any) -> dict[str, Any]:
    """Return the tables that the short flags (`FLAGS`) stand for, without those that are None."""
    given = {FLAGS[flag]: value for flag, value in flags.items() if value is not None}
    names = given.get("data.name", "")
    if not isinstance(names, str):
        given["data.name"] = names[0] if len(names) == 1 else list(names)
    if "federation.start_from" in given:
        given["federation.start_from"] = str(given["federation.start_from"])
    return merge(*(nested(key, value) for key, value in given.items()))


def resume(
    path: str | Path,
    workers: int | None = None,
    listener: Listener = ignore_event,
    trust_code: bool = False,
    **engine: Any,
) -> Run:
    """Continue a run after its last completed round. A finished run is returned as it is.

    `engine` holds settings of the engine to change: `name="ray"`, `listen="0.0.0.0:8443"` ... `trust_code` runs the
    code that the settings of a run from elsewhere name.
    """
    with trusting_code() if trust_code else contextlib.nullcontext():
        return _resume(Run(path), workers, listener, **engine)


def _resume(run: Run, workers: int | None, listener: Listener, **engine: Any) -> Run:
    if run.folder.result() is not None:
        return run
    run.config = run.config.with_engine(workers=workers, **engine)
    if run.settings.data.at_sites:
        from fedwild.sites.coordinator import resume_sites

        if run.config.engine.name != "flower":
            raise UserError(
                f"engine.name = {run.config.engine.name!r} is not allowed: the data of this run is at its sites."
            )
        resume_sites(run, listener)
    else:
        starting.resume(run, listener)
    return run


def welcome(
    run: Run | str | Path,
    client: str | Path,
    *,
    name: str | None = None,
    method: str = DEFAULT_WELCOME,
    classes: Sequence[str] | None = None,
    domains: Sequence[str] | None = None,
    labels: Mapping[str, str] | None = None,
    resize: bool = False,
    rounds: int | None = None,
    max_forgetting: float | None = None,
    workers: int | None = None,
    engine: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    settings: Sequence[str] | Mapping[str, Any] = (),
    listener: Listener = ignore_event,
    trust_code: bool = False,
) -> Run:
    """Welcome a newcomer into a finished run's federation and return the new run; the old one does not change.

    `client` is the newcomer's data: an image folder, .npz, .csv or the name of a data set; for a run over real sites
    it is the name of the new site. `labels` maps its own class names to the federation's. `rounds` is the number of
    rounds of adaptation, and `engine` holds settings of the engine to change. `trust_code` runs the code that the
    settings of a run from elsewhere name. Every error is raised before a folder exists.
    """
    source = run if isinstance(run, Run) else Run(run, trust_code)
    folder = None if out is None else Path(out)
    own = {"classes": classes, "domains": domains, "labels": labels, "resize": resize}
    with trusting_code() if source.trust_code else contextlib.nullcontext():
        table = continued_settings(source, method, rounds, max_forgetting)
        if source.settings.data.at_sites:
            from fedwild.sites.welcome import welcome_site

            reject_for_sites(own, name)
            config = site_config(source, str(client), table, settings, engine or {})
            return welcome_site(source, str(client), config, folder, listener)
        newcomer = {"name": str(client), **{key: value for key, value in own.items() if value}}
        name = name or default_name(str(client))
        return welcome_client(source, name, newcomer, table, workers, folder, settings, listener)


def reject_for_sites(own: Mapping[str, Any], name: str | None) -> None:
    """Reject options that only a site can set for itself."""
    flags = {"classes": "--class", "domains": "--domain", "labels": "--label", "resize": "--resize"}
    given = [flags[key] for key, value in own.items() if value] + (["--name"] if name is not None else [])
    if given:
        raise UserError(f"{given[0]} is not allowed here: the newcomer is a site; set it with `fedwild site`.")
