"""Who gets a seat, who is told why not, and who may come back."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fedwild
from fedwild.core.errors import BadReply, UserError
from fedwild.sites import roster as roster_module
from fedwild.sites.coordinator import settings_for_sites
from fedwild.sites.engine import said
from fedwild.sites.envelope import Envelope
from fedwild.sites.roster import Roster, check_facts, introduced
from fedwild.runs.at_sites import SiteFacts
from tests.sites.inprocess import ANIMALS, Desks, coordinated, desk, images, saved, site_files, tables


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    return site_files(tmp_path, ["a", "b", "c"])


def roster_of(desks: Desks, events: list[dict[str, Any]] | None = None) -> Roster:
    return Roster(desks, settings_for_sites(tables()), (events if events is not None else []).append)


def test_sites_get_seats_under_their_own_names(files: dict[str, Path], tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    roster = roster_of(Desks(*(desk(n, files[n], tmp_path) for n in "ba")), events)
    roster.look()
    assert sorted(roster.seats) == ["a", "b"]
    assert roster.facts()[0] == SiteFacts("a", ("ant", "bee", "cat", "dog"), 64, (1, 8, 8), "uint8")
    assert {event["client"] for event in events} == {"a", "b"}


def test_a_run_refuses_two_sites_of_one_name(files: dict[str, Path], tmp_path: Path) -> None:
    twin = replace(desk("a", files["b"], tmp_path), folder=tmp_path / "twin")
    desks = Desks(desk("a", files["a"], tmp_path), twin)
    with pytest.raises(UserError, match="two sites call themselves 'a': give one of them another --name"):
        coordinated(desks, tables(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_refused_site_is_told_why(files: dict[str, Path], tmp_path: Path) -> None:
    said: list[str] = []
    twin = replace(desk("a", files["b"], tmp_path), folder=tmp_path / "twin", tell=said.append)
    roster_of(Desks(desk("a", files["a"], tmp_path), twin)).look()
    assert "does not take us in: two sites call themselves 'a'" in said[-1]


def test_a_site_with_another_version_is_refused_on_both_sides(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desks = Desks(desk("a", files["a"], tmp_path), desk("b", files["b"], tmp_path))
    config = settings_for_sites(tables())
    roster = Roster(desks, config, lambda event: None)
    monkeypatch.setattr(fedwild, "__version__", "9.9.9")
    roster.look()
    assert not roster.seats
    (reason,) = set(roster.refusals.values())
    assert reason == "the coordinator has fedwild 0.1.0 and this site 9.9.9: install the same version on both."


def test_a_hello_of_another_version_is_refused_by_the_coordinator() -> None:
    with pytest.raises(BadReply, match=r"it has fedwild 0.0.1 and the coordinator .*install the same"):
        introduced(Envelope({"kind": "hello", "version": "0.0.1", "protocol": 1}))


def test_a_site_whose_images_have_another_shape_is_refused_by_name(files: dict[str, Path], tmp_path: Path) -> None:
    large = saved(tmp_path / "large.npz", images(ANIMALS, 5, side=12))
    desks = Desks(*(desk(n, files[n], tmp_path) for n in "ab"), desk("c", large, tmp_path))
    with pytest.raises(UserError) as refused:
        coordinated(desks, tables(federation={"clients": 3}), tmp_path / "run")
    assert "2 of 3 sites are there (a, b)" in refused.value.problems[0]
    assert "c has samples of shape (1, 12, 12), and this run takes (1, 8, 8): data.size" in refused.value.problems[1]
    assert not (tmp_path / "run").exists()


def test_one_size_for_all_brings_them_together(files: dict[str, Path], tmp_path: Path) -> None:
    large = saved(tmp_path / "large.npz", images(ANIMALS, 5, side=12))
    desks = Desks(desk("a", files["a"], tmp_path), desk("c", large, tmp_path))
    config = tables()
    config["data"]["size"] = 8
    assert coordinated(desks, config, tmp_path / "run").result["clients"] == 2


def test_a_site_whose_class_differs_only_by_case_is_refused(files: dict[str, Path], tmp_path: Path) -> None:
    shouting = saved(tmp_path / "loud.npz", images({"ANT": 0, "bee": 2}, 5))
    roster = roster_of(Desks(desk("c", shouting, tmp_path)))
    roster.known = ("ant", "bee", "cat")
    roster.look()
    (reason,) = roster.refusals.values()
    assert "class 'ANT' differs from 'ant' only by case" in reason
    renamed = roster_of(Desks(desk("c", shouting, tmp_path, labels={"ANT": "ant"})))
    renamed.known = ("ant", "bee", "cat")
    renamed.look()
    assert renamed.facts()[0].classes == ("ant", "bee")


def test_a_name_is_bound_to_the_key_it_is_registered_with(files: dict[str, Path], tmp_path: Path) -> None:
    desks = Desks()
    desks.connect(desk("a", files["a"], tmp_path), registered="a")
    desks.connect(desk("b", files["b"], tmp_path), registered="somebody-else")
    roster = roster_of(desks)
    roster.look()
    assert list(roster.seats) == ["a"]
    assert list(roster.refusals.values()) == ["its key is registered for 'somebody-else', and it calls itself 'b'."]


def test_a_site_may_come_back_by_another_connection_but_nobody_else_in_its_name(
    files: dict[str, Path], tmp_path: Path
) -> None:
    desks = Desks(desk("a", files["a"], tmp_path))
    roster = roster_of(desks)
    roster.look()
    first = roster.seats["a"].node
    desks.connect(desk("a", files["a"], tmp_path))
    roster.look()
    assert roster.seats["a"].node != first
    desks.disconnect("a")
    desks.connect(replace(desk("a", files["b"], tmp_path), folder=tmp_path / "impostor"))
    roster.look()
    assert not roster.seats
    assert "another installation has been 'a' in this run" in next(iter(roster.refusals.values()))


def test_a_site_that_leaves_loses_its_seat(files: dict[str, Path], tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    desks = Desks(desk("a", files["a"], tmp_path))
    roster = roster_of(desks, events)
    roster.look()
    desks.disconnect("a")
    roster.look()
    assert not roster.seats
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
def test_what_no_site_can_say_of_itself_is_refused(change: dict[str, Any]) -> None:
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
def test_an_introduction_that_cannot_be_read_is_refused(head: dict[str, Any]) -> None:
    hello = {"kind": "hello", "version": fedwild.__version__, "protocol": 1, "identity": "i"}
    with pytest.raises(BadReply):
        introduced(Envelope({**hello, **head}))


def test_a_site_that_does_not_fit_is_no_reason_to_go_while_others_may_come(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roster_module, "LOOK_SECONDS", 0.01)
    twin = replace(desk("a", files["b"], tmp_path), folder=tmp_path / "twin")
    desks = Desks(desk("a", files["a"], tmp_path), twin)

    def listen(event: dict[str, Any]) -> None:
        if event["event"] == "site-refused":
            desks.connect(desk("b", files["b"], tmp_path))

    assert coordinated(desks, tables(engine={"wait": 20}), tmp_path / "run", listen).result["clients"] == 2


def test_too_few_sites_end_the_wait_with_how_many_there_are(files: dict[str, Path], tmp_path: Path) -> None:
    config = tables(federation={"clients": 3}, engine={"wait": 0.2})
    with pytest.raises(UserError, match=r"1 of 3 sites are there \(a\): federation.clients"):
        coordinated(Desks(desk("a", files["a"], tmp_path)), config, tmp_path / "run")


def test_sites_are_told_when_the_run_has_ended(files: dict[str, Path], tmp_path: Path) -> None:
    said: dict[str, list[str]] = {"a": [], "b": []}
    desks = Desks(*(desk(n, files[n], tmp_path, tell=said[n].append) for n in said))
    coordinated(desks, tables(), tmp_path / "run")
    for lines in said.values():
        assert lines[-1] == "the coordinator says: the run has ended"
        assert "the coordinator says: the run has ended" not in lines[:-1]


def test_a_site_that_does_not_answer_the_goodbye_is_not_waited_for_long(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roster_module, "GOODBYE_SECONDS", 0.3)
    said: list[str] = []
    desks = Desks(desk("a", files["a"], tmp_path, tell=said.append), desk("b", files["b"], tmp_path))
    roster = roster_of(desks)
    roster.look()
    desks.changes["b"] = lambda letter: None
    roster.say_goodbye()
    assert said[-1] == "the coordinator says: the run has ended"


def test_trouble_at_the_goodbye_does_not_spoil_the_run(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desks = Desks(*(desk(n, files[n], tmp_path) for n in "ab"))
    roster = roster_of(desks)
    roster.look()

    def lost(node: int, letter: Envelope) -> str:
        raise UserError("the connection to the SuperLink is lost")

    monkeypatch.setattr(desks, "send", lost)
    roster.say_goodbye()


def test_a_site_that_makes_the_coordinator_stumble_is_refused_and_no_end(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stumbled(letter: Envelope) -> None:
        raise ZeroDivisionError("of all things")

    desks = Desks(desk("a", files["a"], tmp_path))
    roster = roster_of(desks)
    monkeypatch.setattr(roster_module, "introduced", stumbled)
    roster.look()
    assert list(roster.refusals.values()) == ["of all things"]


def test_a_site_writes_no_control_sequences_to_the_coordinators_terminal(
    files: dict[str, Path], tmp_path: Path
) -> None:
    events: list[dict[str, Any]] = []
    desks = Desks(desk("a", files["a"], tmp_path))
    desks.changes["a"] = lambda letter: replace(letter, head={**letter.head, "torch": "\x1b]0;title\x07 2.0"})
    Roster(desks, settings_for_sites(tables()), events.append).look()
    assert [event["torch"] for event in events if event["event"] == "site"] == ["... 2.0"]
    told = said({"kind": "answer", "error": "\x1b[2Jgone", "notes": ["\x1b[31m red"]})
    assert not any("\x1b" in text for text in (told["error"], *told["notes"]))
