"""Secure sums over sites: the same bits as on one machine, and nothing readable at the coordinator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedwild import api
from fedwild.contract.engine import SECURE_KINDS
from fedwild.core.errors import RoundFailed
from fedwild.core.payload import Payload
from fedwild.sites.coordinator import resume_over
from fedwild.sites.envelope import Envelope
from tests.sites.inprocess import InProcessSites, connected_sites, coordinated, tables
from tests.tiny import model_bytes

NAMES = ("a", "b", "c")
SECURE = {"secure": "required"}


def settings() -> dict[str, Any]:
    return tables("fedavg", federation={"clients": 3, **SECURE})


def run_here(folder: Path, correction: str = "none") -> api.Run:
    local = {**settings(), "engine": {"workers": 0}, "federation": SECURE, "correction": {"name": correction}}
    local["data"] = {**local["data"], "name": str(folder / "all.npz")}
    return api.run(local, out=folder / "local")


def sent_kinds(sites: InProcessSites) -> list[str]:
    return [envelope.head["job"]["kind"] for _, envelope in sites.sent if envelope.head["kind"] == "job"]


@pytest.mark.parametrize("correction", ["none", "scaffold"])
def test_sites_give_the_bits_of_one_machine(correction: str, tmp_path: Path) -> None:
    sites = connected_sites(tmp_path, NAMES)
    over_sites = coordinated(sites, {**settings(), "correction": {"name": correction}}, tmp_path / "sites")
    assert model_bytes(over_sites.path) == model_bytes(run_here(tmp_path, correction).path)
    assert "local" not in sent_kinds(sites)
    assert set(SECURE_KINDS) < set(sent_kinds(sites))
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith("secrets-")]


def test_what_leaves_a_site_says_nothing_about_its_weights(tmp_path: Path) -> None:
    sites = connected_sites(tmp_path, NAMES)
    coordinated(sites, settings(), tmp_path / "run")
    jobs = [(node, e.head["job"]["kind"]) for node, e in sites.sent if e.head["kind"] == "job"]
    bodies = [e.body for _, e in sites.answered if e.head.get("kind") == "answer"]
    masked = [Payload.decode(bytearray(body)) for (_, kind), body in zip(jobs, bodies, strict=True) if kind == "masked"]
    assert len(masked) == 6
    for payload in masked:
        assert payload.info == {} and payload.tensors.keys() == {"masked"}
        # Weights of an encoded vector are small; masked ones use all bits.
        share = (payload.tensors["masked"].abs() > 2**60).double().mean()
        assert float(share) == pytest.approx(0.875, abs=0.1)


def test_a_site_that_is_restarted_between_steps_still_takes_part(tmp_path: Path) -> None:
    """Its secrets are in its folder, as with Flower, which starts a process for every message."""
    sites = connected_sites(tmp_path, NAMES)

    def restart(answer: Envelope) -> Envelope:
        server = next(server for server in sites.servers.values() if server.name == "b")
        server._executor = server._dataset = None
        return answer

    sites.changes["b"] = restart
    run = coordinated(sites, settings(), tmp_path / "run")
    assert model_bytes(run.path) == model_bytes(run_here(tmp_path).path)


def test_a_site_that_leaves_after_sharing_is_recovered(tmp_path: Path) -> None:
    sites = connected_sites(tmp_path, NAMES)

    def leave(answer: Envelope) -> Envelope | None:
        if sent_kinds(sites)[-1:] == ["masked"]:
            sites.disconnect("b")
            return None
        return answer

    sites.changes["b"] = leave
    run = coordinated(sites, settings(), tmp_path / "run")
    sums = [event for event in run.events() if event["event"] == "secure-sum"]
    assert [(event["clients"], event["summed"]) for event in sums] == [(3, 2), (2, 2)]


def test_too_few_sites_fail_the_round_and_the_run_resumes(tmp_path: Path) -> None:
    sites = connected_sites(tmp_path, NAMES)
    refuse = Envelope({"kind": "rejected", "reason": "busy"})
    sites.changes = {
        name: lambda answer: refuse if sent_kinds(sites)[-1:] == ["unmask"] else answer for name in ("a", "b")
    }
    with pytest.raises(RoundFailed, match="1 of 3 clients completed the step 'unmask' of the secure sum, and 2 are"):
        coordinated(sites, settings(), tmp_path / "run")
    sites.changes = {}
    resume_over(sites, api.Run(tmp_path / "run"), lambda event: None)
    assert model_bytes(tmp_path / "run") == model_bytes(run_here(tmp_path).path)


def test_a_replayed_message_is_refused_at_the_site(tmp_path: Path) -> None:
    sites = connected_sites(tmp_path, NAMES)
    coordinated(sites, settings(), tmp_path / "run")
    server = next(server for server in sites.servers.values() if server.name == "a")
    for kind in ("share", "masked", "unmask"):
        old = next(e for node, e in sites.sent if e.head.get("job", {}).get("kind") == kind)
        answer = server.answer(Envelope({**old.head, "job": {**old.head["job"], "client": "a"}}, bytearray(old.body)))
        assert "has no secrets of this round" in str(answer.head["error"])


def test_a_new_round_forgets_the_keys_of_one_that_was_not_finished(tmp_path: Path) -> None:
    sites = connected_sites(tmp_path, NAMES)
    coordinated(sites, settings(), tmp_path / "run")
    server = next(server for server in sites.servers.values() if server.name == "a")
    advertise = next(e for node, e in sites.sent if e.head.get("job", {}).get("kind") == "advertise")
    server.answer(Envelope({**advertise.head, "job": {**advertise.head["job"], "client": "a"}}, advertise.body))
    assert len(list(server.folder.rglob("secrets-*"))) == 1
    measure = next(e for node, e in sites.sent if e.head.get("job", {}).get("kind") in ("validate", "measure"))
    server.answer(Envelope({**measure.head, "job": {**measure.head["job"], "client": "a"}}, bytearray(measure.body)))
    assert not list(server.folder.rglob("secrets-*"))
