"""A run over real sites: wait for them, run, and resume after a crash."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from fedwild.core.errors import UserError
from fedwild.core.text import clean
from fedwild.core.toml import read_toml
from fedwild.data import SITES, load
from fedwild.engines.choice import Connect
from fedwild.engines.executor import Executor
from fedwild.lifecycle.rounds import Federation
from fedwild.lifecycle.run import Run
from fedwild.lifecycle.start import begin
from fedwild.runs.at_sites import SiteFacts, check_site_settings, prepare_sites
from fedwild.runs.config import Config, resolve
from fedwild.runs.events import Listener
from fedwild.sites.engine import FlowerEngine
from fedwild.sites.roster import Roster
from fedwild.sites.superlink import open_transport
from fedwild.sites.transport import Transport

DEFAULT_SITES = 2


def settings_for_sites(*layers: Mapping[str, Any]) -> Config:
    """Return the settings of a run over sites. They need no `data.name`, since the sites have the data."""
    for layer in layers:
        name = layer.get("data", {}).get("name", SITES) if isinstance(layer.get("data", {}), Mapping) else SITES
        if name != SITES:
            raise UserError(f"data.name = {name!r} is not allowed here: the sites have the data, so omit it.")
    return resolve({"data": {"name": SITES}}, *layers, {"engine": {"name": "flower"}})


def coordinate(config: Config, out: Path | None, listener: Listener) -> Run:
    """Run over the sites that connect. Wrong settings are rejected before anything is started."""
    check_settings(config, out)
    if config.engine.certificates is not None:
        # As a full path, so that the run can be resumed from any folder.
        config = config.with_engine(certificates=str(Path(config.engine.certificates).resolve()))
    with open_transport(config.engine, listener) as transport:
        return coordinate_over(transport, config, out, listener)


def coordinate_over(transport: Transport, config: Config, out: Path | None, listener: Listener) -> Run:
    """`coordinate` with an open transport."""
    roster = Roster(transport, config, listener)
    experiment = prepare_sites(config, wait_for_sites(roster, config, listener))
    history = new_history(roster)
    connect = engine_over(transport, roster, experiment.config, history["id"])
    run = begin(experiment, out, listener, history, connect=connect)
    roster.say_goodbye()
    return run


def check_settings(config: Config, out: Path | None) -> None:
    """Reject settings that are wrong whatever the sites have."""
    check_site_settings(config)
    config.make_method()
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"--out {str(out)!r} exists already: choose a new folder, or continue it: `fedwild resume`.")
    if config.data.coordinator is not None:
        coordinator_shape(config)


def coordinator_shape(config: Config) -> tuple[int, ...] | None:
    """Return the shape of the coordinator's own samples, or None if it has none."""
    if config.data.coordinator is None:
        return None
    try:
        return load(config.data.model_copy(update={"name": config.data.coordinator, "newcomers": {}})).input_shape
    except UserError as error:
        raise UserError(*(p.replace("data.name = ", "data.coordinator = ") for p in error.problems)) from error


def wait_for_sites(roster: Roster, config: Config, listener: Listener) -> list[SiteFacts]:
    """Wait for the sites that a new run starts with, and return their facts."""
    wanted, newcomers = config.federation.clients or DEFAULT_SITES, set(config.data.newcomers)

    def members() -> int:
        return len(roster.sites.keys() - newcomers)

    listener({"event": "waiting", "sites": wanted})
    roster.wait_until(lambda: members() >= wanted, config.engine.wait)
    if roster.sites:
        roster.fix_shape(coordinator_shape(config))
    if members() < wanted:
        raise UserError(
            f"{members()} of {wanted} sites connected within engine.wait = {config.engine.wait:g} s "
            f"({names_of(roster)}): start more sites, or lower federation.clients.",
            *roster.rejection_lines(),
        )
    return roster.facts()


def wait_for_members(roster: Roster, names: Collection[str], needed: Collection[str], seconds: float) -> None:
    """Wait for the sites of an earlier run. Only those that are needed must connect."""
    roster.wait_until(lambda: {*names, *needed} <= roster.sites.keys(), seconds)
    missing = sorted(set(needed) - roster.sites.keys())
    if missing:
        raise UserError(
            f"site {missing[0]!r} did not connect within engine.wait = {seconds:g} s (connected: {names_of(roster)}).",
            *roster.rejection_lines(),
        )


def names_of(roster: Roster) -> str:
    return ", ".join(sorted(roster.sites)) or "none"


def new_history(roster: Roster) -> dict[str, Any]:
    """Return the facts of a new run over sites: its id, under which sites keep state, and the sites' identities."""
    return {"id": uuid.uuid4().hex, "identities": roster.identities}


def engine_over(transport: Transport, roster: Roster, config: Config, run: str) -> Connect:
    """Return the function that makes the engine of the run with this id."""

    def connect(executor: Executor) -> FlowerEngine:
        roster.shape, roster.known = executor.task.input_shape, executor.split.known
        return FlowerEngine(executor, config, run, transport, roster)

    return connect


def resume_sites(run: Run, listener: Listener) -> None:
    """Resume a run over sites: wait for its sites, then continue after the last completed round."""
    # Before anything is started: the run folder may be damaged, or the coordinator's data may have changed.
    _ = run.experiment
    with open_transport(run.config.engine, listener) as transport:
        resume_over(transport, run, listener)


def resume_over(transport: Transport, run: Run, listener: Listener) -> None:
    """`resume_sites` with an open transport."""
    experiment, identities = run.experiment, identities_of(run)
    roster = Roster(transport, run.config, listener)
    roster.bind(identities)
    roster.shape = experiment.task.input_shape
    names = {client.name for client in experiment.split.clients} - set(experiment.split.newcomers)
    # Sites that joined later take part in the remaining rounds as well.
    names |= identities.keys()
    listener({"event": "waiting", "sites": len(names)})
    wait_for_members(roster, names, (), run.config.engine.wait)
    connect = engine_over(transport, roster, run.config, str(run.folder.facts()["id"]))
    Federation(experiment, run.folder, listener, connect).run()
    roster.say_goodbye()


def identities_of(run: Run) -> dict[str, str]:
    """Return the identities of a run's sites by name: those at its start and those that joined."""
    checkpoint = run.folder.last_checkpoint()
    joined = checkpoint.info["ledger"].get("joined", {}) if checkpoint else {}
    first: dict[str, str] = run.folder.facts().get("identities", {})
    return {**first, **{name: row["identity"] for name, row in joined.items()}}


def run_in_server_app(transport: Transport, config_file: Path, out: str) -> None:
    """Run inside Flower's ServerApp, for `flwr run` without `fedwild coordinate`. Prints one line per event."""
    config = settings_for_sites(read_toml(config_file))
    folder = Path(out) if out else None
    check_settings(config, folder)
    run = coordinate_over(transport, config, folder, print_event)
    print(f"run folder: {run.path.resolve()}")


def print_event(event: Mapping[str, Any]) -> None:
    """Print an event as one line: its name and its fields."""
    fields = [f"{key}={value}" for key, value in event.items() if key not in ("event", "time")]
    print(clean(" ".join([str(event["event"]), *fields]), 500), flush=True)
