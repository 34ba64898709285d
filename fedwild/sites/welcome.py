"""Welcoming a site: a finished run over sites continues with one more, which may bring new classes or a new domain."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedwild.contract import Welcomes
from fedwild.core.errors import UserError
from fedwild.data import ClassRoles, Split, check_names
from fedwild.lifecycle.run import Run
from fedwild.lifecycle.start import begin
from fedwild.lifecycle.welcome import history_of, log_of, replaced_parts, without_clients
from fedwild.runs.at_sites import SiteFacts, check_site_settings, client_of
from fedwild.runs.config import Config
from fedwild.runs.events import Listener
from fedwild.runs.experiment import Experiment, assembled
from fedwild.sites.coordinator import engine_over, identities_of, new_history, wait_for_members
from fedwild.sites.roster import Roster
from fedwild.sites.superlink import open_transport
from fedwild.sites.transport import Transport


def welcome_site(source: Run, name: str, config: Config, out: Path | None, listener: Listener) -> Run:
    """Wait for the newcomer and for the sites of the source run, then run the method that welcomes it."""
    check_site_settings(config)
    with open_transport(config.engine, listener) as transport:
        return welcome_over(transport, source, name, config, out, listener)


def welcome_over(
    transport: Transport, source: Run, name: str, config: Config, out: Path | None, listener: Listener
) -> Run:
    """`welcome_site` with an open transport."""
    home = home_split(source)
    names = {client.name for client in home.clients}
    if name in names:
        raise UserError(f"--client {name!r} is already a member of {str(source.path)!r}.")
    roster = Roster(transport, config, listener)
    roster.bind(identities_of(source))
    roster.shape = source.input_shape
    listener({"event": "waiting", "sites": len(names) + 1})
    wait_for_members(roster, names, (name,), config.engine.wait)
    experiment = experiment_with(source, home, roster.sites[name].facts, config)
    history = {**history_of(source), **new_history(roster)}
    connect = engine_over(transport, roster, experiment.config, history["id"])
    run = begin(experiment, out, listener, history, log_of(source), connect)
    roster.say_goodbye()
    return run


def home_split(source: Run) -> Split:
    """Return the source run's members, including sites that joined it, without the newcomers of its settings."""
    split = without_clients(source.experiment.split, source.settings.data.newcomers)
    present = {client.name for client in split.clients}
    roles = ClassRoles(split.known, split.novel, split.unknown)
    checkpoint = source.folder.last_checkpoint()
    joined = checkpoint.info["ledger"].get("joined", {}) if checkpoint else {}
    method = source.experiment.method
    welcomed = method.welcomed(source.server()) if isinstance(method, Welcomes) else ()
    members = [
        name for name, row in joined.items() if name not in present and (not row["newcomer"] or name in welcomed)
    ]
    return replace(split, clients=(*split.clients, *(client_of(name, (), roles, {}) for name in members)))


def experiment_with(source: Run, home: Split, newcomer: SiteFacts, config: Config) -> Experiment:
    """Return the experiment that continues the source run with a newcomer."""
    check_names(newcomer.name, newcomer.classes, source.server().classes.names)
    roles = ClassRoles(home.known, home.novel, home.unknown)
    waiting = [name for name, settings in config.data.newcomers.items() if not settings.welcomed]
    held = {**dict.fromkeys(config.data.newcomers, ()), newcomer.name: newcomer.classes}
    clients = [client_of(name, classes, roles, config.data.newcomers) for name, classes in held.items()]
    split = replace(home, clients=(*home.clients, *clients), newcomers=tuple(waiting))
    return assembled(config, source.experiment.dataset, split, tuple(replaced_parts(source.settings, config)))
