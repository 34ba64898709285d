"""Welcoming a site: a finished run over sites goes on with one more, which may bring new classes or a new domain."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedwild.api import Run, begin
from fedwild.arrival import history_of, log_of, lost_parts, without
from fedwild.config import Config
from fedwild.data import ClassRoles, Split, check_names
from fedwild.errors import UserError
from fedwild.experiment import Experiment, assembled
from fedwild.federation import Listener
from fedwild.flower.coordinator import await_members, identities_of, new_history, over
from fedwild.flower.courier import Courier
from fedwild.flower.link import connected
from fedwild.flower.roster import Roster
from fedwild.sites import SiteFacts, check_site_settings, client_of


def welcome_site(source: Run, name: str, config: Config, out: Path | None, listener: Listener) -> Run:
    """Wait for the newcomer and for the sites of the source run, then find out what it brings, and learn it."""
    check_site_settings(config)
    with connected(config.engine, listener) as courier:
        return welcome_over(courier, source, name, config, out, listener)


def welcome_over(courier: Courier, source: Run, name: str, config: Config, out: Path | None, listener: Listener) -> Run:
    """The same with a courier that is there."""
    home = home_split(source)
    names = {client.name for client in home.clients}
    if name in names:
        raise UserError(f"--client {name!r} is a member of {str(source.path)!r} already.")
    roster = Roster(courier, config, listener)
    roster.bind(identities_of(source))
    roster.shape = source.input_shape
    listener({"event": "waiting", "sites": len(names) + 1})
    await_members(roster, names, (name,), config.engine.wait)
    experiment = welcoming(source, home, roster.seats[name].facts, config)
    history = {**history_of(source), **new_history(roster)}
    connect = over(courier, roster, experiment.config, history["id"])
    run = begin(experiment, out, listener, history, log_of(source), connect)
    roster.say_goodbye()
    return run


def home_split(source: Run) -> Split:
    """The source run's clients without newcomers that are welcomed anew, and with those that joined it as members."""
    split = without(source.experiment.split, source.settings.data.newcomers)
    there = {client.name for client in split.clients}
    roles = ClassRoles(split.known, split.novel, split.unknown)
    checkpoint = source.folder.last_checkpoint()
    joined = checkpoint.info["ledger"].get("joined", {}) if checkpoint else {}
    welcomed = source.server().state.info.get("welcomed", [])
    members = [name for name, row in joined.items() if name not in there and (not row["newcomer"] or name in welcomed)]
    return replace(split, clients=(*split.clients, *(client_of(name, (), roles, {}) for name in members)))


def welcoming(source: Run, home: Split, newcomer: SiteFacts, config: Config) -> Experiment:
    """The experiment that goes on from the source run with a newcomer."""
    check_names(newcomer.name, newcomer.classes, source.server().classes.names)
    roles = ClassRoles(home.known, home.novel, home.unknown)
    waiting = [name for name, settings in config.data.newcomers.items() if not settings.welcomed]
    held = {**dict.fromkeys(config.data.newcomers, ()), newcomer.name: newcomer.classes}
    clients = [client_of(name, classes, roles, config.data.newcomers) for name, classes in held.items()]
    split = replace(home, clients=(*home.clients, *clients), newcomers=tuple(waiting))
    return assembled(config, source.experiment.dataset, split, tuple(lost_parts(source.settings, config)))
