"""Which sites are admitted, which are rejected and why, and which may reconnect."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedwild.core.errors import BadReply, UserError
from fedwild.core.version import __version__
from fedwild.runs.at_sites import SiteFacts
from fedwild.sites import requests as requests_module
from fedwild.sites import roster as roster_module
from fedwild.sites.coordinator import settings_for_sites
from fedwild.sites.engine import checked_head
from fedwild.sites.envelope import PROTOCOL, Envelope
from fedwild.sites.roster import Roster, check_facts, read_hello
from tests.sites.inprocess import ANIMALS, InProcessSites, coordinated, images, saved, site_files, site_server, tables


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    return site_files(tmp_path, ["a", "b", "c"])


def roster_of(sites: InProcessSites, events: list[dict[str, Any]] | None = None) -> Roster:
    return Roster(sites, settings_for_sites(tables()), (events if events is not None else []).append)


def test_sites_are_admitted_under_their_names(files: dict[str, Path], tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    roster = roster_of(InProcessSites(*(site_server(n, files[n], tmp_path) for n in "ba")), events)
    roster.refresh()
    assert sorted(roster.sites) == ["a", "b"]
    assert roster.facts()[0] == SiteFacts("a", ("ant", "bee", "cat", "dog"), 64, (1, 8, 8), "uint8")
    assert {event["client"] for event in events} == {"a", "b"}


def test_two_sites_with_one_name_are_rejected(files: dict[str, Path], tmp_path: Path) -> None:
    twin = replace(site_server("a", files["b"], tmp_path), folder=tmp_path / "twin")
    sites = InProcessSites(site_server("a", files["a"], tmp_path), twin)
    with pytest.raises(UserError, match="two sites are named 'a': start one of them with another --name"):
        coordinated(sites, tables(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_rejected_site_gets_the_reason(files: dict[str, Path], tmp_path: Path) -> None:
    said: list[str] = []
    twin = replace(site_server("a", files["b"], tmp_path), folder=tmp_path / "twin", notify=said.append)
    roster_of(InProcessSites(site_server("a", files["a"], tmp_path), twin)).refresh()
    assert "rejected this site: two sites are named 'a'" in said[-1]


def test_site_with_another_version_rejects_the_coordinator(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sites = InProcessSites(site_server("a", files["a"], tmp_path), site_server("b", files["b"], tmp_path))
    config = settings_for_sites(tables())
    roster = Roster(sites, config, lambda event: None)
    monkeypatch.setattr(requests_module, "__version__", "9.9.9")
    roster.refresh()
    assert not roster.sites
    (reason,) = set(roster.rejections.values())
    assert reason == f"the coordinator has fedwild {__version__} and this site 9.9.9: install the same version on both."


def test_coordinator_rejects_a_hello_of_another_version() -> None:
    with pytest.raises(UserError, match=r"the site has fedwild 0.0.1 and the coordinator .*install the same"):
        read_hello(Envelope({"kind": "hello", "version": "0.0.1", "protocol": PROTOCOL}))


def test_site_with_images_of_another_shape_is_rejected_by_name(files: dict[str, Path], tmp_path: Path) -> None:
    large = saved(tmp_path / "large.npz", images(ANIMALS, 5, side=12))
    sites = InProcessSites(*(site_server(n, files[n], tmp_path) for n in "ab"), site_server("c", large, tmp_path))
    with pytest.raises(UserError) as refused:
        coordinated(sites, tables(federation={"clients": 3}), tmp_path / "run")
    assert "2 of 3 sites connected within engine.wait = 0.5 s (a, b)" in refused.value.problems[0]
    assert "c has samples of shape (1, 12, 12), but this run uses (1, 8, 8): set data.size" in refused.value.problems[1]
    assert not (tmp_path / "run").exists()


def test_data_size_gives_all_sites_one_shape(files: dict[str, Path], tmp_path: Path) -> None:
    large = saved(tmp_path / "large.npz", images(ANIMALS, 5, side=12))
    sites = InProcessSites(site_server("a", files["a"], tmp_path), site_server("c", large, tmp_path))
    config = tables()
    config["data"]["size"] = 8
    assert coordinated(sites, config, tmp_path / "run").result["clients"] == 2


def test_site_with_a_class_that_differs_only_by_case_is_rejected(files: dict[str, Path], tmp_path: Path) -> None:
    shouting = saved(tmp_path / "loud.npz", images({"ANT": 0, "bee": 2}, 5))
    roster = roster_of(InProcessSites(site_server("c", shouting, tmp_path)))
    roster.known = ("ant", "bee", "cat")
    roster.refresh()
    (reason,) = roster.rejections.values()
    assert "class 'ANT' differs from 'ant' only by case" in reason
    renamed = roster_of(InProcessSites(site_server("c", shouting, tmp_path, labels={"ANT": "ant"})))
    renamed.known = ("ant", "bee", "cat")
    renamed.refresh()
    assert renamed.facts()[0].classes == ("ant", "bee")


def test_sites_that_name_one_class_differently_do_not_make_two(files: dict[str, Path], tmp_path: Path) -> None:
    shouting = saved(tmp_path / "loud.npz", images({"ANT": 0, "bee": 2}, 5))
    roster = roster_of(InProcessSites(site_server("a", files["a"], tmp_path), site_server("c", shouting, tmp_path)))
    roster.refresh()
    assert list(roster.sites) == ["a"]
    assert "class 'ANT' differs from 'ant'" in next(iter(roster.rejections.values()))


def test_sites_whose_names_differ_only_by_case_are_rejected(files: dict[str, Path], tmp_path: Path) -> None:
    sites = InProcessSites(site_server("a", files["a"], tmp_path), site_server("A", files["b"], tmp_path))
    roster = roster_of(sites)
    roster.refresh()
    assert list(roster.sites) == ["a"]
    assert "client 'A' differs from 'a' only by case or spaces ('a' is from another site)" in next(
        iter(roster.rejections.values())
    )


def test_name_is_bound_to_the_registered_key(files: dict[str, Path], tmp_path: Path) -> None:
    sites = InProcessSites()
    sites.connect(site_server("a", files["a"], tmp_path), registered="a")
    sites.connect(site_server("b", files["b"], tmp_path), registered="somebody-else")
    roster = roster_of(sites)
    roster.refresh()
    assert list(roster.sites) == ["a"]
    assert list(roster.rejections.values()) == ["its key is registered for 'somebody-else', but its --name is 'b'."]


def test_site_may_reconnect_but_no_other_site_under_its_name(files: dict[str, Path], tmp_path: Path) -> None:
    sites = InProcessSites(site_server("a", files["a"], tmp_path))
    roster = roster_of(sites)
    roster.refresh()
    first = roster.sites["a"].node
    sites.connect(site_server("a", files["a"], tmp_path))
    roster.refresh()
    assert roster.sites["a"].node != first
    sites.disconnect("a")
    sites.connect(replace(site_server("a", files["b"], tmp_path), folder=tmp_path / "impostor"))
    roster.refresh()
    assert not roster.sites
    assert "the name 'a' belongs to another installation in this run" in next(iter(roster.rejections.values()))


def test_site_that_disconnects_is_removed(files: dict[str, Path], tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    sites = InProcessSites(site_server("a", files["a"], tmp_path))
    roster = roster_of(sites, events)
    roster.refresh()
    sites.disconnect("a")
    roster.refresh()
    assert not roster.sites
    assert events[-1] == {"event": "site-left", "client": "a"}


GOOD = SiteFacts("a", ("x", "y"), 10, (1, 8, 8), "uint8")


@pytest.mark.parametrize(
    "change",
    [
        {"name": ""},
        {"name": "a/b"},
        {"name": ".."},
        {"name": "*"},
        {"name": "a\nb"},
        {"name": "x" * 101},
        {"classes": ()},
        {"classes": ("x", "x")},
        {"classes": tuple(map(str, range(10_001)))},
        {"samples": -1},
        {"samples": 2**60},
        {"shape": ()},
        {"shape": (1, 0, 8)},
        {"shape": (1, 2, 3, 4, 5)},
        {"dtype": "object"},
    ],
)
def test_impossible_facts_are_rejected(change: dict[str, Any]) -> None:
    check_facts(GOOD)
    with pytest.raises(BadReply):
        check_facts(replace(GOOD, **change))


@pytest.mark.parametrize(
    "head",
    [
        {},
        {"facts": None},
        {"facts": {"name": "a"}},
        {"facts": {**GOOD.to_json(), "samples": "many"}},
        {"facts": {**GOOD.to_json(), "shape": 3}},
        {"facts": {**GOOD.to_json(), "samples": math.inf}},
        {"facts": {**GOOD.to_json(), "shape": [1, math.inf]}},
    ],
)
def test_malformed_hello_is_rejected(head: dict[str, Any]) -> None:
    hello = {"kind": "hello", "version": __version__, "protocol": PROTOCOL, "identity": "i"}
    with pytest.raises(BadReply):
        read_hello(Envelope({**hello, **head}))


def test_coordinator_waits_for_other_sites_after_a_rejection(files: dict[str, Path], tmp_path: Path) -> None:
    twin = replace(site_server("a", files["b"], tmp_path), folder=tmp_path / "twin")
    sites = InProcessSites(site_server("a", files["a"], tmp_path), twin)

    def listen(event: dict[str, Any]) -> None:
        if event["event"] == "site-refused":
            sites.connect(site_server("b", files["b"], tmp_path))

    assert coordinated(sites, tables(engine={"wait": 20}), tmp_path / "run", listen).result["clients"] == 2


def test_too_few_sites_are_reported_when_time_is_up(files: dict[str, Path], tmp_path: Path) -> None:
    config = tables(federation={"clients": 3}, engine={"wait": 0.2})
    with pytest.raises(UserError, match=r"1 of 3 sites connected within engine.wait = 0.2 s \(a\): start more sites"):
        coordinated(InProcessSites(site_server("a", files["a"], tmp_path)), config, tmp_path / "run")


def test_sites_are_notified_when_the_run_has_ended(files: dict[str, Path], tmp_path: Path) -> None:
    said: dict[str, list[str]] = {"a": [], "b": []}
    sites = InProcessSites(*(site_server(n, files[n], tmp_path, notify=said[n].append) for n in said))
    coordinated(sites, tables(), tmp_path / "run")
    for lines in said.values():
        assert lines[-1] == "the coordinator says: the run has ended"
        assert "the coordinator says: the run has ended" not in lines[:-1]


def test_site_that_does_not_answer_the_goodbye_does_not_delay_the_end(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roster_module, "GOODBYE_SECONDS", 0.3)
    said: list[str] = []
    sites = InProcessSites(
        site_server("a", files["a"], tmp_path, notify=said.append), site_server("b", files["b"], tmp_path)
    )
    roster = roster_of(sites)
    roster.refresh()
    sites.changes["b"] = lambda envelope: None
    roster.say_goodbye()
    assert said[-1] == "the coordinator says: the run has ended"


def test_failure_of_the_goodbye_does_not_fail_the_run(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sites = InProcessSites(*(site_server(n, files[n], tmp_path) for n in "ab"))
    roster = roster_of(sites)
    roster.refresh()

    def lost(node: int, envelope: Envelope) -> str:
        raise UserError("the connection to the SuperLink is lost")

    monkeypatch.setattr(sites, "send", lost)
    roster.say_goodbye()


def test_unexpected_error_while_admitting_rejects_only_that_site(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(envelope: Envelope) -> None:
        raise ZeroDivisionError("unexpected")

    sites = InProcessSites(site_server("a", files["a"], tmp_path))
    roster = roster_of(sites)
    monkeypatch.setattr(roster_module, "read_hello", fail)
    roster.refresh()
    assert list(roster.rejections.values()) == ["unexpected"]


def test_control_sequences_of_a_site_do_not_reach_the_terminal(files: dict[str, Path], tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    sites = InProcessSites(site_server("a", files["a"], tmp_path))
    sites.changes["a"] = lambda envelope: replace(envelope, head={**envelope.head, "torch": "\x1b]0;title\x07 2.0"})
    Roster(sites, settings_for_sites(tables()), events.append).refresh()
    assert [event["torch"] for event in events if event["event"] == "site"] == ["... 2.0"]
    head = checked_head({"kind": "answer", "error": "\x1b[2Jgone", "notes": ["\x1b[31m red"]})
    assert not any("\x1b" in text for text in (head["error"], *head["notes"]))
