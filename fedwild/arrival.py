"""Welcoming a client: a trained federation's run and a newcomer's data become a run that goes on from it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedwild.api import Run, begin
from fedwild.config import Config, Table, changes, resolve, setting_layers
from fedwild.data import DATASETS, Split, check_names
from fedwild.errors import UserError
from fedwild.experiment import Experiment, check_newcomer_names, prepare
from fedwild.federation import Listener
from fedwild.methods import METHODS
from fedwild.methods.fedavg import FedAvg
from fedwild.protocol import Method
from fedwild.sites import A_SITE
from fedwild.training import LocalTraining


def welcome(
    run: Run | str | Path,
    client: str | Path,
    *,
    name: str | None = None,
    method: str = "gains",
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
    listener: Listener = lambda event: None,
) -> Run:
    """Take a newcomer into a finished run's federation; returns the run that goes on, the old one stays as it is.

    `client` is the newcomer's data: an image folder, .npz, .csv or a data set's name; of a run over real sites it is
    the new site's name. `labels` gives its own names of classes the federation's. `rounds` are those of adaptation,
    `engine` settings of the engine that change. Whatever is wrong shows before a folder exists.
    """
    source = run if isinstance(run, Run) else Run(run)
    own = {"classes": classes, "domains": domains, "labels": labels, "resize": resize}
    if source.settings.data.at_sites:
        from fedwild.flower.welcome import welcome_site

        refuse_for_sites(own, name)
        table = site_table(source, str(client), method, rounds, max_forgetting)
        config = resolve(table, *setting_layers(settings)).with_engine(**(engine or {}))
        check_settled(source, config, str(client))
        return welcome_site(source, str(client), config, None if out is None else Path(out), listener)
    newcomer = {"name": str(client), **{key: value for key, value in own.items() if value}}
    experiment = prepared(source, name or default_name(str(client)), newcomer, method, rounds, max_forgetting, settings)
    if workers is not None:
        experiment = replace(experiment, config=experiment.config.with_engine(workers=workers))
    return begin(experiment, None if out is None else Path(out), listener, history_of(source), log_of(source))


def refuse_for_sites(own: Mapping[str, Any], name: str | None) -> None:
    """What a site says of its own data, nobody can say for it."""
    flags = {"classes": "--class", "domains": "--domain", "labels": "--label", "resize": "--resize"}
    given = [flags[key] for key, value in own.items() if value] + (["--name"] if name is not None else [])
    if given:
        raise UserError(f"{given[0]} is not allowed here: the newcomer is a site, which says so with `fedwild site`.")


def site_table(source: Run, name: str, method: str, rounds: int | None, max_forgetting: float | None) -> Table:
    """The settings of a run that welcomes a site."""
    flags = {"rounds": rounds, "max_forgetting": max_forgetting}
    table = continued(source, method, {key: value for key, value in flags.items() if value is not None})
    table["data"]["newcomers"] = {**members_of(source), name: {"name": A_SITE}}
    return table


def prepared(
    source: Run,
    name: str,
    newcomer: Table,
    method: str,
    rounds: int | None,
    max_forgetting: float | None,
    settings: Sequence[str] | Mapping[str, Any],
) -> Experiment:
    """Everything that the new run needs, checked."""
    members = members_of(source)
    flags = {"rounds": rounds, "max_forgetting": max_forgetting}
    table = continued(source, method, {key: value for key, value in flags.items() if value is not None})
    table["data"]["newcomers"] = {**members, name: newcomer}
    config = resolve(table, *setting_layers(settings))
    check_settled(source, config, name)
    # A source whose data files have changed since is refused here.
    home = without(source.experiment.split, source.settings.data.newcomers)
    check_newcomer_names([name], [*(client.name for client in home.clients), *members])
    experiment = prepare(config, home)
    brought = next(client.known for client in experiment.split.clients if client.name == name)
    check_names(name, brought, source.server().classes.names)
    return replace(experiment, notes=(*experiment.notes, *lost_parts(source.settings, config)))


def lost_parts(then: Config, now: Config) -> list[str]:
    """What of the source run's parts does not go on."""

    def name_of(kind: str) -> str:
        return now.parts[kind].name if kind in now.parts else "nothing"

    return [
        f"{kind}.name = {part.name} of the source run does not go on: {name_of(kind)} takes its place"
        for kind, part in then.parts.items()
        if kind in ("objective", "score") and name_of(kind) != part.name
    ]


def check_settled(source: Run, now: Config, name: str) -> None:
    """Refuse to change what the source run has settled: seed, data, who holds what of it, and the network."""

    def settled(config: Config) -> Table:
        table = config.table()
        data = {key: value for key, value in table["data"].items() if key not in ("newcomers", "augment")}
        clients = {"clients": table["federation"]["clients"]}
        return {key: table[key] for key in ("seed", "partition", "model")} | {"data": data, "federation": clients}

    changed = changes(settled(source.settings), settled(now))
    if now.federation.start_from != str(source.path):
        changed.append(f"federation.start_from was {str(source.path)!r} and is {now.federation.start_from!r}")
    if changed:
        raise UserError(f"a welcome cannot change what the source run has settled: {'; '.join(changed)}.")
    if now.data.newcomers[name].welcomed:
        raise UserError(f"data.newcomers.{name}.welcomed = true is not allowed: it is who this run welcomes.")


def continued(source: Run, method: str, flags: Table) -> Table:
    """The source run's settings for a method that goes on from it: it trains as the source did where it may."""
    then, kind = source.settings, METHODS.get(method)
    table = then.table()
    for section in ("method", *then.parts):
        del table[section]
    table["method"] = {"name": method, **training_of(then, kind), **renamed_flags(kind, flags)}
    trains_unknown = "objective" in then.parts
    for part, chosen in then.parts.items():
        if part in kind.composes and part not in kind.parts and (part != "score" or trains_unknown):
            table[part] = chosen.table()
    table["federation"] = {**table["federation"], "start_from": str(source.path), "arrivals": {}}
    return table


def training_of(then: Config, kind: type[Method]) -> Table:
    """How clients trained, for a method that has no wishes of its own."""
    before, usual, fields = then.method.params.model_dump(), FedAvg.Params.model_fields, kind.Params.model_fields
    return {
        key: before[key]
        for key in LocalTraining.model_fields
        if key in before and key in fields and fields[key].default == usual[key].default
    }


def renamed_flags(kind: type[Method], flags: Table) -> Table:
    """The command's own flags as settings of the method: a method that grows has rounds of adaptation alone."""
    if not kind.grows:
        if "max_forgetting" in flags:
            raise UserError(
                f"--max-forgetting {flags['max_forgetting']} is not allowed: {kind.name!r} never goes back."
            )
        return flags
    settings = {"rounds": 0, "stages": 1, **{key: value for key, value in flags.items() if key != "rounds"}}
    return {**settings, "adapt_rounds": flags["rounds"]} if "rounds" in flags else settings


def members_of(source: Run) -> dict[str, Table]:
    """The newcomers of the source run and of those before it that became members, and their data."""
    info, config = source.server().state.info, source.settings
    # Where newcomers are not asked in, they are members from the start.
    asked = METHODS.get(config.method.name).grows
    outside = [name for name in source.folder.split().newcomers if asked and name not in info.get("welcomed", [])]
    newcomers = config.data.newcomers.items()
    return {name: {**data.model_dump(), "welcomed": True} for name, data in newcomers if name not in outside}


def without(split: Split, newcomers: Collection[str]) -> Split:
    """A split without newcomers, whose rows are found again from their own data."""
    theirs = [client.test for client in split.clients if client.name in newcomers]
    test = np.setdiff1d(split.test, np.concatenate(theirs)) if theirs else split.test
    clients = tuple(client for client in split.clients if client.name not in newcomers)
    return replace(split, clients=clients, test=test, newcomers=())


def default_name(client: str) -> str:
    """A newcomer is called as its data is."""
    return client if client in DATASETS else Path(client).expanduser().resolve().stem


def history_of(source: Run) -> Table:
    """Facts about the run that is continued: rounds and the log count on from it."""
    facts, result = source.folder.facts(), source.result
    step = {"run": str(source.path.resolve()), "method": result["method"], "rounds": result["rounds"]}
    return {
        "history": [*facts.get("history", []), step],
        "first_index": result["rounds"],
        "inherited_bytes": len(log_of(source)),
    }


def log_of(source: Run) -> bytes:
    """The source run's log."""
    return source.folder.events.read_bytes()
