"""Newcomers that are sites: they join a run under way, or a finished one, and Gains finds out what they bring."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedwild.api import Run
from fedwild.lifecycle.welcome import check_settled, site_table
from fedwild.runs.config import resolve
from fedwild.core.errors import UserError
from fedwild.sites.coordinator import resume_over, settings_for_sites
from fedwild.sites.welcome import welcome_over
from tests.conftest import Cli, unfinish
from tests.sites.inprocess import ANIMALS, Desks, coordinated, desk, images, saved, site_files, tables
from tests.tiny import model_bytes


@pytest.fixture
def desks(tmp_path: Path) -> Desks:
    return Desks(*(desk(n, f, tmp_path) for n, f in site_files(tmp_path, ["a", "b"]).items()))


@pytest.fixture
def newcomer(tmp_path: Path) -> Path:
    """A site that has a class that nobody else has, and a little of an old one."""
    return saved(tmp_path / "late.npz", images({"elk": 7, "ant": 0}, 7, train=24))


def welcomed(desks: Desks, source: Run, name: str, out: Path, rounds: int = 2) -> Run:
    config = resolve(site_table(source, name, "gains", rounds, None))
    check_settled(source, config, name)
    return welcome_over(desks, source, name, config, out, lambda event: None)


def test_a_finished_run_welcomes_a_site_with_a_new_class(desks: Desks, newcomer: Path, tmp_path: Path) -> None:
    config = tables(evaluation={"every": 0})
    config["method"] |= {"rounds": 6, "epochs": 5}
    source = coordinated(desks, config, tmp_path / "source")
    before = model_bytes(source.path)
    desks.connect(desk("late", newcomer, tmp_path))
    run = welcomed(desks, source, "late", tmp_path / "run")
    assert run.result["classes"] == ["ant", "bee", "cat", "elk"]
    (found,) = run.findings("discovery")
    assert (found["client"], found["kind"]) == ("late", "classes")
    assert {"target_accuracy", "source_accuracy", "global_accuracy"} <= run.metrics.keys()
    assert run.result["rounds"] > source.result["rounds"]
    assert model_bytes(source.path) == before
    assert run.result["by"].keys() == {"a", "b", "late"}


def test_a_welcome_that_was_cut_goes_on_with_the_same_bits(desks: Desks, newcomer: Path, tmp_path: Path) -> None:
    source = coordinated(desks, tables(evaluation={"every": 0}), tmp_path / "source")
    desks.connect(desk("late", newcomer, tmp_path))
    run = welcomed(desks, source, "late", tmp_path / "run")
    expected = model_bytes(run.path)
    unfinish(run.path, run.result["rounds"] - 1)
    again = Run(run.path)
    resume_over(desks, again, again.experiment, lambda event: None)
    assert model_bytes(run.path) == expected


def test_a_site_that_joins_gains_under_way_is_its_newcomer(desks: Desks, newcomer: Path, tmp_path: Path) -> None:
    config = tables("gains", evaluation={"every": 0})

    def listen(event: dict[str, Any]) -> None:
        if event["event"] == "round-start" and event["index"] == 0:
            desks.connect(desk("late", newcomer, tmp_path))

    run = coordinated(desks, config, tmp_path / "run", listen)
    (join,) = [event for event in run.events() if event["event"] == "join"]
    assert (join["client"], join["newcomer"]) == ("late", True)
    trained = {event["phase"]: event["participants"] for event in run.events() if event["event"] == "round"}
    assert trained["source"] == ["a", "b"]
    assert trained["declare-1"] == ["a", "b", "late"]
    assert run.findings("discovery")[0]["client"] == "late"


def test_a_site_that_no_stage_is_left_for_has_to_wait_and_is_told_so(
    desks: Desks, newcomer: Path, tmp_path: Path
) -> None:
    source = coordinated(desks, tables(evaluation={"every": 0}), tmp_path / "source")
    told: list[str] = []
    third = saved(tmp_path / "third.npz", images({"fox": 3, "bee": 2}, 8))
    desks.connect(desk("late", newcomer, tmp_path))
    desks.connect(desk("third", third, tmp_path, tell=told.append))
    run = welcomed(desks, source, "late", tmp_path / "run")
    events = run.events()
    assert [event["client"] for event in events if event["event"] == "wait"] == ["third"]
    assert not [event for event in events if event["event"] == "join"]
    rounds = [event["participants"] for event in events if event["event"] == "round"]
    assert ["a", "b", "late"] in rounds
    assert not any("third" in participants for participants in rounds)
    assert run.result["by"].keys() == {"a", "b", "late"}
    (word,) = [text for text in told if "wait" in text]
    assert word.startswith("the coordinator says: no stage of this run is left to welcome us")
    # The advice that its operator got is good.
    after = welcomed(desks, run, "third", tmp_path / "after")
    assert after.findings("discovery")[-1]["client"] == "third"


def test_a_site_that_comes_when_its_stage_is_over_has_to_wait_too(desks: Desks, newcomer: Path, tmp_path: Path) -> None:
    def listen(event: dict[str, Any]) -> None:
        if event["event"] == "round-start" and event["phase"] == "adapt-1" and len(desks.desks) == 3:
            desks.connect(desk("later", saved(tmp_path / "later.npz", images({"fox": 3}, 8)), tmp_path))

    desks.connect(desk("late", newcomer, tmp_path))
    config = tables("gains", data={"newcomers": {"late": {"name": "site"}}}, evaluation={"every": 0})
    config["method"] |= {"rule": "fixed"}
    run = coordinated(desks, config, tmp_path / "run", listen)
    assert [event["client"] for event in run.events() if event["event"] == "wait"] == ["later"]


def test_gains_names_its_newcomers_in_the_settings_too(desks: Desks, newcomer: Path, tmp_path: Path) -> None:
    desks.connect(desk("late", newcomer, tmp_path))
    config = tables("gains", data={"newcomers": {"late": {"name": "site"}}}, evaluation={"every": 0})
    run = coordinated(desks, config, tmp_path / "run")
    assert run.findings("discovery")[0]["client"] == "late"
    assert not [event for event in run.events() if event["event"] == "join"]


def test_a_newcomer_that_is_not_there_is_named(desks: Desks, tmp_path: Path) -> None:
    source = coordinated(desks, tables(), tmp_path / "source")
    with pytest.raises(UserError, match="site 'late' is not there, and these are: a, b"):
        welcomed(desks, source, "late", tmp_path / "run")
    with pytest.raises(UserError, match="'b' is a member of"):
        welcomed(desks, source, "b", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_a_site_says_of_its_data_nobody_says_for_it(desks: Desks, tmp_path: Path, cli: Cli) -> None:
    source = coordinated(desks, tables(), tmp_path / "source")
    outcome = cli("welcome", source.path, "--client", "late", "--label", "zwei=2")
    assert outcome.code == 2
    assert outcome.err == (
        "error: --label is not allowed here: the newcomer is a site, which says so with `fedwild site`.\n"
    )


def test_only_a_method_that_grows_has_newcomers_at_sites(desks: Desks, tmp_path: Path) -> None:
    config = tables("fedavg", data={"newcomers": {"late": {"name": "site"}}})
    with pytest.raises(UserError, match="method 'fedavg' takes in no newcomers; let the site join as any other"):
        coordinated(desks, config, tmp_path / "run")
    elsewhere = tables("gains", data={"newcomers": {"late": {"name": "late.npz"}}})
    with pytest.raises(UserError, match="newcomers are sites, name = 'site'"):
        coordinated(desks, elsewhere, tmp_path / "run")


def test_settings_that_say_where_data_is_are_refused() -> None:
    with pytest.raises(UserError, match=r"data.name = 'digits' is not allowed here: the sites have the data"):
        settings_for_sites({"data": {"name": "digits"}})


def test_a_chain_of_welcomes_keeps_its_members(desks: Desks, newcomer: Path, tmp_path: Path) -> None:
    source = coordinated(desks, tables(evaluation={"every": 0}), tmp_path / "source")
    desks.connect(desk("late", newcomer, tmp_path))
    first = welcomed(desks, source, "late", tmp_path / "first")
    desks.connect(desk("later", saved(tmp_path / "later.npz", images({"fox": 3, "bee": 2}, 8)), tmp_path))
    second = welcomed(desks, first, "later", tmp_path / "second")
    names = {client.name for client in second.experiment.split.clients}
    assert names == {"a", "b", "late", "later"}
    assert second.experiment.split.newcomers == ("later",)
    assert set(ANIMALS) - {"dog"} <= set(second.result["classes"])
