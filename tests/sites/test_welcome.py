"""Newcomers that are sites: they join a running or a finished run, and Gains discovers what they bring."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedwild.core.errors import UserError
from fedwild.core.payload import Payload
from fedwild.lifecycle.run import Run
from fedwild.lifecycle.welcome import continued_settings, site_config
from fedwild.sites.coordinator import resume_over, settings_for_sites
from fedwild.sites.welcome import welcome_over
from tests.conftest import Cli, unfinish
from tests.sites.inprocess import (
    ANIMALS,
    InProcessSites,
    connected_sites,
    coordinated,
    images,
    saved,
    site_server,
    tables,
)
from tests.tiny import model_bytes


@pytest.fixture
def sites(tmp_path: Path) -> InProcessSites:
    return connected_sites(tmp_path)


@pytest.fixture
def newcomer(tmp_path: Path) -> Path:
    """Data with a new class, and some samples of a known one."""
    return saved(tmp_path / "late.npz", images({"elk": 7, "ant": 0}, 7, train=24))


def welcomed(sites: InProcessSites, source: Run, name: str, out: Path, rounds: int = 2) -> Run:
    config = site_config(source, name, continued_settings(source, "gains", rounds, None), (), {})
    return welcome_over(sites, source, name, config, out, lambda event: None)


def test_finished_run_welcomes_a_site_with_a_new_class(sites: InProcessSites, newcomer: Path, tmp_path: Path) -> None:
    config = tables(evaluation={"every": 0})
    config["method"] |= {"rounds": 6, "epochs": 5}
    source = coordinated(sites, config, tmp_path / "source")
    before = model_bytes(source.path)
    sites.connect(site_server("late", newcomer, tmp_path))
    run = welcomed(sites, source, "late", tmp_path / "run")
    assert run.result["classes"] == ["ant", "bee", "cat", "elk"]
    (found,) = run.findings("discovery")
    assert (found["client"], found["kind"]) == ("late", "classes")
    assert {"target_accuracy", "source_accuracy", "global_accuracy"} <= run.metrics.keys()
    assert run.result["rounds"] > source.result["rounds"]
    assert model_bytes(source.path) == before
    assert run.result["by"].keys() == {"a", "b", "late"}


def test_resumed_welcome_has_the_same_bits(sites: InProcessSites, newcomer: Path, tmp_path: Path) -> None:
    source = coordinated(sites, tables(evaluation={"every": 0}), tmp_path / "source")
    sites.connect(site_server("late", newcomer, tmp_path))
    run = welcomed(sites, source, "late", tmp_path / "run")
    expected = model_bytes(run.path)
    unfinish(run.path, run.result["rounds"] - 1)
    again = Run(run.path)
    resume_over(sites, again, lambda event: None)
    assert model_bytes(run.path) == expected


def test_site_that_joins_a_running_gains_is_its_newcomer(sites: InProcessSites, newcomer: Path, tmp_path: Path) -> None:
    config = tables("gains", evaluation={"every": 0})

    def listen(event: dict[str, Any]) -> None:
        if event["event"] == "round-start" and event["index"] == 0:
            sites.connect(site_server("late", newcomer, tmp_path))

    run = coordinated(sites, config, tmp_path / "run", listen)
    (join,) = [event for event in run.events() if event["event"] == "join"]
    assert (join["client"], join["newcomer"]) == ("late", True)
    trained = {event["phase"]: event["participants"] for event in run.events() if event["event"] == "round"}
    assert trained["source"] == ["a", "b"]
    assert trained["declare-1"] == ["a", "b", "late"]
    assert run.findings("discovery")[0]["client"] == "late"


def test_sites_keep_their_own_anchors_after_a_resume(sites: InProcessSites, newcomer: Path, tmp_path: Path) -> None:
    sites.connect(site_server("late", newcomer, tmp_path))
    config = tables("gains-paper", data={"newcomers": {"late": {"name": "site"}}}, evaluation={"every": 0})
    run = coordinated(sites, config, tmp_path / "run")
    files = [*tmp_path.glob("site-*/**/*.safetensors")]
    anchors = {p.tensors["anchor/head.bias"].numpy().tobytes() for p in map(Payload.read, files) if "anchor" in p}
    assert len(anchors) == 2
    expected = model_bytes(run.path)
    unfinish(run.path, run.result["rounds"] - 2)
    resume_over(sites, Run(run.path), lambda event: None)
    assert model_bytes(run.path) == expected


def test_site_without_a_stage_waits_and_is_notified(sites: InProcessSites, newcomer: Path, tmp_path: Path) -> None:
    source = coordinated(sites, tables(evaluation={"every": 0}), tmp_path / "source")
    told: list[str] = []
    third = saved(tmp_path / "third.npz", images({"fox": 3, "bee": 2}, 8))
    sites.connect(site_server("late", newcomer, tmp_path))
    sites.connect(site_server("third", third, tmp_path, notify=told.append))
    run = welcomed(sites, source, "late", tmp_path / "run")
    events = run.events()
    assert [event["client"] for event in events if event["event"] == "wait"] == ["third"]
    assert not [event for event in events if event["event"] == "join"]
    rounds = [event["participants"] for event in events if event["event"] == "round"]
    assert ["a", "b", "late"] in rounds
    assert not any("third" in participants for participants in rounds)
    assert run.result["by"].keys() == {"a", "b", "late"}
    (word,) = [text for text in told if "wait" in text]
    assert word.startswith("the coordinator says: this run has no stage left to welcome this site")
    # It can be welcomed into the next run.
    after = welcomed(sites, run, "third", tmp_path / "after")
    assert after.findings("discovery")[-1]["client"] == "third"


def test_site_that_connects_after_the_last_stage_waits(sites: InProcessSites, newcomer: Path, tmp_path: Path) -> None:
    def listen(event: dict[str, Any]) -> None:
        if event["event"] == "round-start" and event["phase"] == "adapt-1" and len(sites.servers) == 3:
            sites.connect(site_server("later", saved(tmp_path / "later.npz", images({"fox": 3}, 8)), tmp_path))

    sites.connect(site_server("late", newcomer, tmp_path))
    config = tables("gains", data={"newcomers": {"late": {"name": "site"}}}, evaluation={"every": 0})
    config["method"] |= {"rule": "fixed"}
    run = coordinated(sites, config, tmp_path / "run", listen)
    assert [event["client"] for event in run.events() if event["event"] == "wait"] == ["later"]


def test_newcomer_can_be_named_in_the_settings(sites: InProcessSites, newcomer: Path, tmp_path: Path) -> None:
    sites.connect(site_server("late", newcomer, tmp_path))
    config = tables("gains", data={"newcomers": {"late": {"name": "site"}}}, evaluation={"every": 0})
    run = coordinated(sites, config, tmp_path / "run")
    assert run.findings("discovery")[0]["client"] == "late"
    assert not [event for event in run.events() if event["event"] == "join"]


def test_missing_newcomer_is_named(sites: InProcessSites, tmp_path: Path) -> None:
    source = coordinated(sites, tables(), tmp_path / "source")
    with pytest.raises(UserError, match=r"site 'late' did not connect within engine.wait = 0.5 s \(connected: a, b\)"):
        welcomed(sites, source, "late", tmp_path / "run")
    with pytest.raises(UserError, match="'b' is already a member of"):
        welcomed(sites, source, "b", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_options_of_the_newcomers_data_are_rejected(sites: InProcessSites, tmp_path: Path, cli: Cli) -> None:
    source = coordinated(sites, tables(), tmp_path / "source")
    outcome = cli("welcome", source.path, "--client", "late", "--label", "zwei=2")
    assert outcome.code == 2
    assert outcome.err == ("error: --label is not allowed here: the newcomer is a site; set it with `fedwild site`.\n")


def test_only_methods_that_welcome_have_newcomers_at_sites(sites: InProcessSites, tmp_path: Path) -> None:
    config = tables("fedavg", data={"newcomers": {"late": {"name": "site"}}})
    with pytest.raises(UserError, match="method 'fedavg' cannot welcome newcomers; let the site join like any other"):
        coordinated(sites, config, tmp_path / "run")
    elsewhere = tables("gains", data={"newcomers": {"late": {"name": "late.npz"}}})
    with pytest.raises(UserError, match="newcomers are sites, so write name = 'site'"):
        coordinated(sites, elsewhere, tmp_path / "run")


def test_data_name_is_rejected() -> None:
    with pytest.raises(UserError, match=r"data.name = 'digits' is not allowed here: the sites have the data"):
        settings_for_sites({"data": {"name": "digits"}})


def test_chain_of_welcomes_keeps_its_members(sites: InProcessSites, newcomer: Path, tmp_path: Path) -> None:
    source = coordinated(sites, tables(evaluation={"every": 0}), tmp_path / "source")
    sites.connect(site_server("late", newcomer, tmp_path))
    first = welcomed(sites, source, "late", tmp_path / "first")
    sites.connect(site_server("later", saved(tmp_path / "later.npz", images({"fox": 3, "bee": 2}, 8)), tmp_path))
    second = welcomed(sites, first, "later", tmp_path / "second")
    names = {client.name for client in second.experiment.split.clients}
    assert names == {"a", "b", "late", "later"}
    assert second.experiment.split.newcomers == ("later",)
    assert set(ANIMALS) - {"dog"} <= set(second.result["classes"])
