"""A run over real sites: gather them, begin, go on after a crash, take in one more."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from fedwild.api import Run, begin
from fedwild.config import Config, read_toml, resolve
from fedwild.data import SITES, load
from fedwild.engines.choice import Connect
from fedwild.engines.site import Site
from fedwild.errors import UserError
from fedwild.experiment import Experiment
from fedwild.federation import Federation, Listener
from fedwild.flower.courier import Courier
from fedwild.flower.engine import FlowerEngine
from fedwild.flower.link import connected
from fedwild.flower.roster import Roster
from fedwild.sites import SiteFacts, check_site_settings, prepare_sites

DEFAULT_SITES = 2


def settings_for_sites(*layers: Mapping[str, Any]) -> Config:
    """The settings of a run over sites. Data is theirs, so it need not be named."""
    for layer in layers:
        name = layer.get("data", {}).get("name", SITES) if isinstance(layer.get("data", {}), Mapping) else SITES
        if name != SITES:
            raise UserError(f"data.name = {name!r} is not allowed here: the sites have the data, leave it out.")
    return resolve({"data": {"name": SITES}}, *layers, {"engine": {"name": "flower"}})


def coordinate(config: Config, out: Path | None, listener: Listener) -> Run:
    """Make a run over the sites that come; whatever is wrong with the settings shows before anything is started."""
    check_before(config, out)
    if config.engine.certificates is not None:
        # By its full path, so that the run can be resumed from any folder.
        config = config.with_engine(certificates=str(Path(config.engine.certificates).resolve()))
    with connected(config.engine, listener) as courier:
        return coordinate_over(courier, config, out, listener)


def coordinate_over(courier: Courier, config: Config, out: Path | None, listener: Listener) -> Run:
    """The same with a courier that is there."""
    roster = Roster(courier, config, listener)
    experiment = prepare_sites(config, gathered(roster, config, listener))
    history = new_history(roster)
    connect = over(courier, roster, experiment.config, history["id"])
    run = begin(experiment, out, listener, history, connect=connect)
    roster.say_goodbye()
    return run


def check_before(config: Config, out: Path | None) -> None:
    """What needs no site to be refused."""
    check_site_settings(config)
    config.make_method()
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"--out {str(out)!r} exists already: name a new folder, or `fedwild resume` it.")
    if config.data.coordinator is not None:
        coordinator_shape(config)


def coordinator_shape(config: Config) -> tuple[int, ...] | None:
    """The shape of the coordinator's own samples, if it has some."""
    if config.data.coordinator is None:
        return None
    try:
        return load(config.data.model_copy(update={"name": config.data.coordinator, "newcomers": {}})).input_shape
    except UserError as error:
        raise UserError(*(p.replace("data.name=", "data.coordinator=") for p in error.problems)) from error


def gathered(roster: Roster, config: Config, listener: Listener) -> list[SiteFacts]:
    """The sites that a run begins with; what is wrong with those that do not fit, if they are missed."""
    wanted, newcomers = config.federation.clients or DEFAULT_SITES, set(config.data.newcomers)

    def members() -> int:
        return len(roster.seats.keys() - newcomers)

    listener({"event": "waiting", "sites": wanted})
    roster.gather(lambda: members() >= wanted, config.engine.wait)
    if roster.seats:
        roster.settle(coordinator_shape(config))
    if members() < wanted:
        reasons = [f"site refused: {reason}" for reason in dict.fromkeys(roster.refusals.values())]
        there = ", ".join(sorted(roster.seats)) or "none"
        raise UserError(
            f"{members()} of {wanted} sites are there ({there}): federation.clients says how many the run begins with, "
            f"engine.wait = {config.engine.wait:g} how many seconds it waits.",
            *reasons,
        )
    return roster.facts()


def await_members(roster: Roster, names: Collection[str], needed: Collection[str], seconds: float) -> None:
    """Wait for the sites of a run that goes on; those that are needed must come, others may stay away."""
    roster.gather(lambda: {*names, *needed} <= roster.seats.keys(), seconds)
    missing = sorted(set(needed) - roster.seats.keys())
    if missing:
        reasons = [f"site refused: {reason}" for reason in dict.fromkeys(roster.refusals.values())]
        there = ", ".join(sorted(roster.seats)) or "none"
        waited = f"engine.wait = {seconds:g} s"
        raise UserError(f"site {missing[0]!r} is not there, and these are: {there} ({waited}).", *reasons)


def new_history(roster: Roster) -> dict[str, Any]:
    """Facts about a run over sites: its id, under which sites keep their clients' state, and who is who."""
    return {"id": uuid.uuid4().hex, "identities": roster.identities}


def over(courier: Courier, roster: Roster, config: Config, run: str) -> Connect:
    """How a run with this id gets its engine."""

    def connect(site: Site) -> FlowerEngine:
        roster.shape, roster.known = site.task.input_shape, site.split.known
        return FlowerEngine(site, config, run, courier, roster)

    return connect


def resume_sites(run: Run, listener: Listener) -> None:
    """Go on with a run over sites: wait for those it had, then continue from the last finished round."""
    experiment, config = run.experiment, run.config
    with connected(config.engine, listener) as courier:
        resume_over(courier, run, experiment, listener)


def resume_over(courier: Courier, run: Run, experiment: Experiment, listener: Listener) -> None:
    """The same with a courier that is there."""
    facts = run.folder.facts()
    roster = Roster(courier, run.config, listener)
    roster.bind(identities_of(run))
    roster.shape = experiment.task.input_shape
    names = {client.name for client in experiment.split.clients} - set(experiment.split.newcomers)
    # Whoever joined since takes part in the rounds to come as if nothing had happened.
    names |= identities_of(run).keys()
    listener({"event": "waiting", "sites": len(names)})
    await_members(roster, names, (), run.config.engine.wait)
    connect = over(courier, roster, run.config, str(facts["id"]))
    Federation(experiment, run.folder, listener, connect).run()
    roster.say_goodbye()


def identities_of(run: Run) -> dict[str, str]:
    """Who had which name in a run: those it began with, and those who joined."""
    checkpoint = run.folder.last_checkpoint()
    joined = checkpoint.info["ledger"].get("joined", {}) if checkpoint else {}
    began: dict[str, str] = run.folder.facts().get("identities", {})
    return {**began, **{name: row["identity"] for name, row in joined.items()}}


def run_in_server_app(courier: Courier, config_file: Path, out: str) -> None:
    """A whole run inside Flower's ServerApp, for `flwr run` without `fedwild coordinate`."""
    from rich.console import Console

    from fedwild.console import RunDisplay

    config = settings_for_sites(read_toml(config_file))
    check_before(config, Path(out) if out else None)
    with RunDisplay(Console(width=200)) as display:
        done = coordinate_over(courier, config, Path(out) if out else None, display)
    print(f"run folder: {done.path.resolve()}")
