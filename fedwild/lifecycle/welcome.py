"""Welcoming a client: a finished run and a newcomer's data become a new run that continues the old one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedwild.contract import Method, Welcomes
from fedwild.core.defaults import DEFAULT_METHOD
from fedwild.core.errors import UserError
from fedwild.core.layers import Table
from fedwild.data import DATASETS, Split, check_names
from fedwild.data.partitions import POOL
from fedwild.lifecycle.run import Run
from fedwild.lifecycle.start import begin
from fedwild.methods import METHODS
from fedwild.runs.at_sites import NEWCOMER_SITE
from fedwild.runs.config import Config, changes, resolve, setting_layers
from fedwild.runs.earlier import members_of
from fedwild.runs.events import Listener, ignore_event
from fedwild.runs.experiment import check_newcomer_names, prepare
from fedwild.training.loop import LocalTraining


def welcome_client(
    source: Run,
    name: str,
    newcomer: Table,
    table: Table,
    workers: int | None = None,
    out: Path | None = None,
    settings: Sequence[str] | Mapping[str, Any] = (),
    listener: Listener = ignore_event,
) -> Run:
    """Welcome a newcomer whose data is on this machine; `table` comes from `continued_settings`.

    Every error is raised before a folder exists. The source run does not change.
    """
    members = members_of(source.folder, source.settings, source.server())
    table["data"]["newcomers"] = {**members, name: newcomer}
    config = resolve(table, *setting_layers(settings))
    check_settled(source, config, name)
    # A source run whose data files have changed is rejected here.
    home = without_clients(source.experiment.split, source.settings.data.newcomers)
    check_newcomer_names([name], [*(client.name for client in home.clients), *members])
    experiment = prepare(config, home)
    classes = next(client.known for client in experiment.split.clients if client.name == name)
    check_names(name, classes, source.server().classes.names)
    notes = (*experiment.notes, *replaced_parts(source.settings, config))
    experiment = replace(experiment, notes=notes, config=experiment.config.with_engine(workers=workers))
    return begin(experiment, out, listener, history_of(source), log_of(source))


def site_config(
    source: Run, name: str, table: Table, settings: Sequence[str] | Mapping[str, Any], engine: Mapping[str, Any]
) -> Config:
    """Return the settings of a run that welcomes a site."""
    members = members_of(source.folder, source.settings, source.server())
    table["data"]["newcomers"] = {**members, name: {"name": NEWCOMER_SITE}}
    config = resolve(table, *setting_layers(settings)).with_engine(**engine)
    check_settled(source, config, name)
    return config


def continued_settings(source: Run, method: str, rounds: int | None, max_forgetting: float | None) -> Table:
    """Return the source run's settings for a method that continues it and trains as the source did where it can."""
    then, kind = source.settings, METHODS.get(method)
    table = then.table()
    for section in ("method", *then.parts):
        del table[section]
    table["method"] = {"name": method, **training_of(then, kind), **welcome_settings(kind, rounds, max_forgetting)}
    trains_unknown = "objective" in then.parts
    for part, chosen in then.parts.items():
        has_default = part in kind.parts and not kind.parts[part]
        if has_default and (part != "score" or trains_unknown):
            table[part] = chosen.table()
    table["federation"] = {**table["federation"], "start_from": str(source.path), "arrivals": {}}
    return table


def training_of(then: Config, kind: type[Method]) -> Table:
    """Return how the source's clients trained, for settings that the method leaves at the usual default."""
    usual = METHODS.get(DEFAULT_METHOD).Params.model_fields
    before, fields = then.method.params.model_dump(), kind.Params.model_fields
    return {
        key: before[key]
        for key in LocalTraining.model_fields
        if key in before and key in fields and fields[key].default == usual[key].default
    }


def welcome_settings(kind: type[Method], rounds: int | None, max_forgetting: float | None) -> Table:
    """Return the command's own options as settings of the method."""
    if issubclass(kind, Welcomes):
        return kind.welcome_settings(rounds, max_forgetting)
    if max_forgetting is not None:
        raise UserError(
            f"--max-forgetting {max_forgetting} is not allowed: method {kind.name!r} cannot reject a newcomer."
        )
    return {} if rounds is None else {"rounds": rounds}


def replaced_parts(then: Config, now: Config) -> list[str]:
    """Return notes on components of the source run that another one replaces."""

    def name_of(kind: str) -> str:
        return now.parts[kind].name if kind in now.parts else "nothing"

    return [
        f"{kind}.name = {part.name} of the source run is not used: {name_of(kind)} replaces it"
        for kind, part in then.parts.items()
        if kind in ("objective", "score") and name_of(kind) != part.name
    ]


def check_settled(source: Run, now: Config, name: str) -> None:
    """Reject changes to what the source run has settled: seed, data, partition and network."""

    def settled(config: Config) -> Table:
        table = config.table()
        data = {key: value for key, value in table["data"].items() if key not in ("newcomers", "augment")}
        clients = {"clients": table["federation"]["clients"]}
        fixed = {key: table[key] for key in ("seed", "partition", POOL, "model") if key in table}
        return fixed | {"data": data, "federation": clients}

    changed = changes(settled(source.settings), settled(now))
    if now.federation.start_from != str(source.path):
        changed.append(f"federation.start_from was {str(source.path)!r} and is {now.federation.start_from!r}")
    if changed:
        raise UserError(f"a welcome cannot change settings of the source run: {'; '.join(changed)}.")
    if now.data.newcomers[name].welcomed:
        raise UserError(f"data.newcomers.{name}.welcomed = true is not allowed: this run welcomes {name}.")


def without_clients(split: Split, names: Collection[str]) -> Split:
    """Return a split without newcomers, whose rows are found from their own data again."""
    theirs = [client.test for client in split.clients if client.name in names]
    test = np.setdiff1d(split.test, np.concatenate(theirs)) if theirs else split.test
    clients = tuple(client for client in split.clients if client.name not in names)
    return replace(split, clients=clients, test=test, newcomers=())


def default_name(client: str) -> str:
    """Return a newcomer's name, which is that of its data unless the user sets another."""
    return client if client in DATASETS else Path(client).expanduser().resolve().stem


def history_of(source: Run) -> Table:
    """Return facts about the run that is continued: round numbers and the log continue its own."""
    facts, result = source.folder.facts(), source.result
    step = {"run": str(source.path.resolve()), "method": result["method"], "rounds": result["rounds"]}
    return {
        "history": [*facts.get("history", []), step],
        "first_index": result["rounds"],
        "inherited_bytes": len(log_of(source)),
    }


def log_of(source: Run) -> bytes:
    """Return the source run's log."""
    return source.folder.events.read_bytes()
