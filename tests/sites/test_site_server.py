"""A site server: what it answers, what it keeps, and what it rejects."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedwild.aggregation.private import norm_of, update_of
from fedwild.core.payload import Payload
from fedwild.core.version import __version__
from fedwild.data import ClassRoles
from fedwild.sites.coordinator import settings_for_sites
from fedwild.sites.envelope import Envelope
from fedwild.sites.own_data import with_remaining_unknown
from fedwild.sites.requests import sent_config, version_fields
from fedwild.sites.site_server import SiteServer
from tests.sites.inprocess import InProcessSites, coordinated, site_files, site_server, tables


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    return site_files(tmp_path, ["a", "b"])


def sites_with(files: dict[str, Path], folder: Path) -> InProcessSites:
    return InProcessSites(*(site_server(name, file, folder) for name, file in files.items()))


def requests_to(sites: InProcessSites, client: str, **fields: object) -> list[Envelope]:
    """Return the job requests that were sent to a client, with these fields."""
    wanted = {"client": client, **fields}
    requests = [envelope for _, envelope in sites.sent if envelope.head["kind"] == "job"]
    return [r for r in requests if all(r.head["job"][key] == value for key, value in wanted.items())]


def with_state(files: dict[str, Path], tmp_path: Path, rounds: int = 4) -> tuple[InProcessSites, Path]:
    """Run with sites that keep state (SCAFFOLD's controls). Returns the sites and the state folder of site a."""
    sites = sites_with(files, tmp_path)
    config = tables(correction={"name": "scaffold"}, evaluation={"every": 0})
    config["method"]["rounds"] = rounds
    run = coordinated(sites, config, tmp_path / "run")
    return sites, tmp_path / "site-a" / "runs" / run.folder.facts()["id"] / "a"


def test_state_stays_at_the_site_and_old_versions_are_deleted(files: dict[str, Path], tmp_path: Path) -> None:
    _, folder = with_state(files, tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == ["000002.safetensors", "000003.safetensors"]
    assert not list((tmp_path / "run" / "clients").iterdir())


def test_restarted_site_gives_the_same_answer(files: dict[str, Path], tmp_path: Path) -> None:
    sites, _ = with_state(files, tmp_path)
    request = requests_to(sites, "a", state=2)[0]
    first = next(server for server in sites.servers.values() if server.name == "a").answer(request)
    second = site_server("a", files["a"], tmp_path).answer(request)
    assert first.body == second.body
    assert first.head["state"] == second.head["state"]


def test_lost_state_is_one_sentence(files: dict[str, Path], tmp_path: Path) -> None:
    sites, folder = with_state(files, tmp_path)
    request = requests_to(sites, "a", state=2)[0]
    for file in folder.iterdir():
        file.unlink()
    answer = site_server("a", files["a"], tmp_path).answer(request)
    assert answer.head["kind"] == "rejected"
    assert answer.head["reason"].startswith("the state of a after round 3 is not in the site's folder")


def test_identity_is_created_once_per_site(files: dict[str, Path], tmp_path: Path) -> None:
    first = site_server("a", files["a"], tmp_path)
    assert first.identity == site_server("a", files["a"], tmp_path).identity
    assert first.identity != site_server("b", files["b"], tmp_path).identity
    (first.folder / "identity.json").write_text("{}")
    answer = first.answer(hello())
    assert "identity.json' is damaged" in answer.head["reason"]


def hello(**data: Any) -> Envelope:
    return Envelope({"kind": "hello", **version_fields(), "data": data, "seed": 0})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kind": "party"}, "unknown request kind 'party'"),
        ({"version": "7"}, f"the coordinator has fedwild 7 and this site {__version__}: install the same"),
        ({"protocol": 99}, "install the same version"),
        ({"run": "../../etc"}, "no valid run id"),
        ({"run": 3}, "no valid run id"),
        ({"job": {}}, "job is malformed"),
        ({"job": {"kind": "local", "client": "b", "step": {"phase": "train", "round": 0, "index": 0}, "classes": [],
                  "payload": ""}}, "was sent to 'a'"),
        ({"setup": {}}, "KeyError"),
    ],
)  # fmt: skip
def test_invalid_requests_are_rejected_and_the_site_keeps_serving(
    change: dict[str, Any], reason: str, files: dict[str, Path], tmp_path: Path
) -> None:
    sites = sites_with(files, tmp_path)
    coordinated(sites, tables(), tmp_path / "run")
    request = requests_to(sites, "a")[0]
    own = site_server("a", files["a"], tmp_path)
    answer = own.answer(replace(request, head={**request.head, **change}))
    assert answer.head["kind"] == "rejected"
    assert reason in answer.head["reason"]
    assert own.answer(request).head["kind"] == "answer"


def test_malformed_payload_is_rejected(files: dict[str, Path], tmp_path: Path) -> None:
    sites = sites_with(files, tmp_path)
    coordinated(sites, tables(), tmp_path / "run")
    request = requests_to(sites, "a")[0]
    answer = site_server("a", files["a"], tmp_path).answer(replace(request, body=b"not a payload"))
    assert answer.head["kind"] == "rejected"


def test_invalid_settings_are_rejected_by_the_site(files: dict[str, Path], tmp_path: Path) -> None:
    answer = site_server("a", files["a"], tmp_path).answer(hello(size=-1))
    assert answer.head["kind"] == "rejected"
    assert "data.size = -1 is not allowed" in answer.head["reason"]


def test_error_leaves_the_site_as_one_sentence_and_is_shown_in_full_there(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedwild.methods.fedavg import AveragingRounds

    def fail(*_: object) -> None:
        raise ValueError(f"bad pixels {[0.25, 0.5, 0.75, 1.0]} in /home/alice/scans/patient-7.png")

    said: list[str] = []
    a, b = site_server("a", files["a"], tmp_path, notify=said.append), site_server("b", files["b"], tmp_path)
    sites = InProcessSites(a, b)
    coordinated(sites, tables(), tmp_path / "run")
    request = requests_to(sites, "a", kind="local")[0]
    monkeypatch.setattr(AveragingRounds, "local", fail)
    answer = a.answer(request)
    outside = json.dumps(answer.head)
    assert answer.head["error"].startswith("ValueError: bad pixels")
    assert "0.5" not in outside and "alice" not in outside and "Traceback" not in outside
    assert "Traceback" in said[-1] and "0.5" in said[-1]


def test_requests_hold_no_paths_of_the_coordinator(files: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    own = site_files(tmp_path / "own", ["x"])["x"]
    sites = sites_with(files, tmp_path)
    coordinated(sites, tables(data={"coordinator": str(own)}), tmp_path / "run")
    text = json.dumps([{**envelope.head, "job": None} for _, envelope in sites.sent])
    assert str(tmp_path / "own") not in text


def test_classes_without_a_role_are_unknown_unless_unknown_ones_are_listed() -> None:
    roles = ClassRoles(("x",), (), ("y",))
    rest = settings_for_sites(tables()).data
    named = settings_for_sites(tables(data={"unknown": ["y"]})).data
    assert with_remaining_unknown(roles, ("x", "y", "z"), rest).unknown == ("y", "z")
    assert with_remaining_unknown(roles, ("x", "y", "z"), named).unknown == ("y",)


def test_settings_are_sent_without_engine_and_start_from(tmp_path: Path) -> None:
    sent = sent_config(settings_for_sites(tables()))
    assert "engine" not in sent
    assert sent["federation"]["start_from"] is None


def test_own_class_names_are_replaced_by_the_federations(files: dict[str, Path], tmp_path: Path) -> None:
    own: SiteServer = site_server("a", files["a"], tmp_path, labels={"ant": "Ameise"})
    answer = own.answer(hello())
    assert list(answer.head["facts"]["classes"]) == ["Ameise", "bee", "cat", "dog"]
    wrong = site_server("a", files["a"], tmp_path, labels={"lion": "Löwe"}).answer(hello())
    assert "--label: class 'lion' is not known" in wrong.head["reason"]


def test_payload_is_identified_by_its_content_not_by_its_path(files: dict[str, Path], tmp_path: Path) -> None:
    sites = sites_with(files, tmp_path)
    config = tables()
    config["method"]["rounds"] = 2
    coordinated(sites, config, tmp_path / "run")
    first, second = requests_to(sites, "a", kind="validate")[:2]
    same_path = replace(second, head={**second.head, "job": {**second.head["job"], "payload": "server-0"}})
    stayed, fresh = site_server("a", files["a"], tmp_path), site_server("a", files["a"], tmp_path)
    stayed.answer(replace(first, head={**first.head, "job": {**first.head["job"], "payload": "server-0"}}))
    assert stayed.answer(same_path).body == fresh.answer(same_path).body


def test_exit_of_a_users_module_does_not_end_the_site(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SiteServer, "_show", lambda self, request: sys.exit("enough"))
    notice = Envelope({"kind": "notice", **version_fields(), "text": "x"})
    answer = site_server("a", files["a"], tmp_path).answer(notice)
    assert answer.head == {"kind": "rejected", "reason": "SystemExit: enough"}


def test_a_site_clips_its_update_before_it_leaves(files: dict[str, Path], tmp_path: Path) -> None:
    sites = sites_with(files, tmp_path)
    coordinated(sites, tables(privacy={"level": "client", "clip": 0.01, "noise": 1.0}), tmp_path / "run")
    for request in requests_to(sites, "a", kind="local"):
        answer = Payload.decode(bytearray(site_server("a", files["a"], tmp_path).answer(request).body))
        sent, trained = Payload.decode(bytearray(request.body)).group("model"), answer.group("model")
        assert norm_of(update_of(sent, trained)) == pytest.approx(0.01, rel=1e-3)


def test_a_site_trains_with_private_steps_and_its_own_secret_noise(files: dict[str, Path], tmp_path: Path) -> None:
    def replies(**privacy: Any) -> list[Payload]:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        sites = sites_with(files, folder)
        coordinated(sites, tables(privacy={"level": "sample", "noise": 1.0, **privacy}), folder / "run")
        request = requests_to(sites, "a", kind="local")[0]
        own = site_server("a", files["a"], folder)
        return [Payload.decode(bytearray(own.answer(request).body)) for _ in range(2)]

    derived, drawn = replies(), replies(seed="secret")
    assert all(reply.info["loss"] is None for reply in derived + drawn)
    assert derived[0].encode() == derived[1].encode()
    assert drawn[0].encode() != drawn[1].encode()
