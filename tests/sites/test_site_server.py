"""A site's desk: what it answers, what it keeps, and what it refuses."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedwild.data import ClassRoles
from fedwild.sites.coordinator import settings_for_sites
from fedwild.sites.site_server import SiteServer, program, sent_config, with_rest
from fedwild.sites.envelope import Envelope
from tests.sites.inprocess import Desks, coordinated, desk, site_files, tables


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    return site_files(tmp_path, ["a", "b"])


def jobs_of(desks: Desks) -> list[Envelope]:
    return [letter for _, letter in desks.sent if letter.head["kind"] == "job"]


def with_state(files: dict[str, Path], tmp_path: Path, rounds: int = 4) -> tuple[Desks, Path]:
    """A finished run whose sites keep state (SCAFFOLD's controls), and site a's folder for it."""
    desks = Desks(*(desk(n, f, tmp_path) for n, f in files.items()))
    config = tables(correction={"name": "scaffold"}, evaluation={"every": 0})
    config["method"]["rounds"] = rounds
    run = coordinated(desks, config, tmp_path / "run")
    return desks, tmp_path / "site-a" / "runs" / run.folder.facts()["id"] / "a"


def test_state_stays_at_the_site_by_version_and_old_versions_go(files: dict[str, Path], tmp_path: Path) -> None:
    _, folder = with_state(files, tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == ["000002.safetensors", "000003.safetensors"]
    assert not list((tmp_path / "run" / "clients").iterdir())


def test_a_desk_opened_anew_answers_the_same(files: dict[str, Path], tmp_path: Path) -> None:
    desks, _ = with_state(files, tmp_path)
    (node, letter), *_ = [
        (n, letter) for n, letter in desks.sent if letter.head["kind"] == "job" and letter.head["job"]["state"] == 2
    ]
    old, name = desks.desks[node], desks.desks[node].name
    first, second = old.answer(letter), desk(name, files[name], tmp_path).answer(letter)
    assert first.body == second.body
    assert first.head["state"] == second.head["state"]


def test_a_lost_state_is_one_sentence(files: dict[str, Path], tmp_path: Path) -> None:
    desks, folder = with_state(files, tmp_path)
    letter = next(
        letter for letter in jobs_of(desks) if letter.head["job"]["client"] == "a" and letter.head["job"]["state"] == 2
    )
    for file in folder.iterdir():
        file.unlink()
    answer = desk("a", files["a"], tmp_path).answer(letter)
    assert answer.head["kind"] == "refused"
    assert answer.head["reason"].startswith("the state that a had after round 3 is not in its folder")


def test_identity_is_made_once_and_is_the_sites_own(files: dict[str, Path], tmp_path: Path) -> None:
    first = desk("a", files["a"], tmp_path)
    assert first.identity == desk("a", files["a"], tmp_path).identity
    assert first.identity != desk("b", files["b"], tmp_path).identity
    (first.folder / "identity.json").write_text("{}")
    answer = first.answer(hello())
    assert "identity.json' is damaged" in answer.head["reason"]


def hello(**data: Any) -> Envelope:
    return Envelope({"kind": "hello", **program(), "data": data, "seed": 0})


def job_letter(desks: Desks) -> Envelope:
    return jobs_of(desks)[0]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kind": "party"}, "a letter of kind 'party' is not known here"),
        ({"version": "7"}, "the coordinator has fedwild 7 and this site 0.1.0: install the same version on both."),
        ({"protocol": 99}, "install the same version"),
        ({"run": "../../etc"}, "does not say which run"),
        ({"run": 3}, "does not say which run"),
        ({"job": {}}, "job cannot be read"),
        ({"job": {"kind": "local", "client": "b", "step": {"phase": "train", "round": 0, "index": 0}, "classes": [],
                  "payload": ""}}, "is not for 'a'"),
        ({"setup": {}}, "KeyError"),
    ],
)  # fmt: skip
def test_letters_that_cannot_be_are_refused_and_the_desk_stays_open(
    change: dict[str, Any], reason: str, files: dict[str, Path], tmp_path: Path
) -> None:
    desks = Desks(*(desk(n, f, tmp_path) for n, f in files.items()))
    coordinated(desks, tables(), tmp_path / "run")
    letter = next(letter for letter in jobs_of(desks) if letter.head["job"]["client"] == "a")
    own = desk("a", files["a"], tmp_path)
    answer = own.answer(replace(letter, head={**letter.head, **change}))
    assert answer.head["kind"] == "refused"
    assert reason in answer.head["reason"]
    assert own.answer(letter).head["kind"] == "answer"


def test_a_payload_that_cannot_be_read_is_refused(files: dict[str, Path], tmp_path: Path) -> None:
    desks = Desks(*(desk(n, f, tmp_path) for n, f in files.items()))
    coordinated(desks, tables(), tmp_path / "run")
    letter = next(letter for letter in jobs_of(desks) if letter.head["job"]["client"] == "a")
    answer = desk("a", files["a"], tmp_path).answer(replace(letter, body=b"not a payload"))
    assert answer.head["kind"] == "refused"


def test_settings_that_are_none_are_refused_by_the_site(files: dict[str, Path], tmp_path: Path) -> None:
    answer = desk("a", files["a"], tmp_path).answer(hello(size=-1))
    assert answer.head["kind"] == "refused"
    assert "data.size = -1 is not allowed" in answer.head["reason"]


def test_an_error_at_the_client_is_one_sentence_outside_and_whole_inside(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedwild.methods.fedavg import FedAvg

    def fail(*_: object) -> None:
        raise ValueError(f"bad pixels {[0.25, 0.5, 0.75, 1.0]} in /home/alice/scans/patient-7.png")

    said: list[str] = []
    a, b = desk("a", files["a"], tmp_path, tell=said.append), desk("b", files["b"], tmp_path)
    desks = Desks(a, b)
    coordinated(desks, tables(), tmp_path / "run")
    letter = next(
        letter
        for letter in jobs_of(desks)
        if letter.head["job"]["client"] == "a" and letter.head["job"]["kind"] == "local"
    )
    monkeypatch.setattr(FedAvg, "local", fail)
    answer = a.answer(letter)
    outside = json.dumps(answer.head)
    assert answer.head["error"].startswith("ValueError: bad pixels")
    assert "0.5" not in outside and "alice" not in outside and "Traceback" not in outside
    assert "Traceback" in said[-1] and "0.5" in said[-1]


def test_what_sites_are_sent_has_none_of_the_coordinators_paths(files: dict[str, Path], tmp_path: Path) -> None:
    own = site_files(tmp_path / "own" if (tmp_path / "own").mkdir() is None else tmp_path, ["x"])["x"]
    desks = Desks(*(desk(n, f, tmp_path) for n, f in files.items()))
    coordinated(desks, tables(data={"coordinator": str(own)}), tmp_path / "run")
    text = json.dumps([{**letter.head, "job": None} for _, letter in desks.sent])
    assert str(tmp_path / "own") not in text


def test_classes_without_a_role_are_unknown_unless_the_unknown_ones_are_named() -> None:
    roles = ClassRoles(("x",), (), ("y",))
    rest = settings_for_sites(tables()).data
    named = settings_for_sites(tables(data={"unknown": ["y"]})).data
    assert with_rest(roles, ("x", "y", "z"), rest).unknown == ("y", "z")
    assert with_rest(roles, ("x", "y", "z"), named).unknown == ("y",)


def test_settings_are_sent_without_engine_and_start(tmp_path: Path) -> None:
    sent = sent_config(settings_for_sites(tables()))
    assert "engine" not in sent
    assert sent["federation"]["start_from"] is None


def test_own_class_names_become_the_federations(files: dict[str, Path], tmp_path: Path) -> None:
    own: SiteServer = desk("a", files["a"], tmp_path, labels={"ant": "Ameise"})
    answer = own.answer(hello())
    assert list(answer.head["facts"]["classes"]) == ["Ameise", "bee", "cat", "dog"]
    wrong = desk("a", files["a"], tmp_path, labels={"lion": "Löwe"}).answer(hello())
    assert "labels: class 'lion' is not known" in wrong.head["reason"]


def test_a_payload_is_known_by_its_content_and_not_by_the_coordinators_path(
    files: dict[str, Path], tmp_path: Path
) -> None:
    desks = Desks(*(desk(n, f, tmp_path) for n, f in files.items()))
    config = tables()
    config["method"]["rounds"] = 2
    coordinated(desks, config, tmp_path / "run")
    first, second = [
        letter
        for letter in jobs_of(desks)
        if letter.head["job"]["kind"] == "validate" and letter.head["job"]["client"] == "a"
    ][:2]
    same_path = replace(second, head={**second.head, "job": {**second.head["job"], "payload": "server-0"}})
    stayed, fresh = desk("a", files["a"], tmp_path), desk("a", files["a"], tmp_path)
    stayed.answer(replace(first, head={**first.head, "job": {**first.head["job"], "payload": "server-0"}}))
    assert stayed.answer(same_path).body == fresh.answer(same_path).body


def test_a_module_that_ends_the_process_does_not_end_the_site(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SiteServer, "_word", lambda self, letter: sys.exit("enough"))
    answer = desk("a", files["a"], tmp_path).answer(Envelope({"kind": "word", **program(), "text": "x"}))
    assert answer.head == {"kind": "refused", "reason": "SystemExit: enough"}
