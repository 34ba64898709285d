"""Jobs at sites: rejected replies, and sites that disconnect, reconnect and join during a run."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedwild.core.errors import RoundFailed
from fedwild.core.payload import Payload
from fedwild.lifecycle.run import Run
from fedwild.sites import engine
from fedwild.sites.coordinator import resume_over
from fedwild.sites.envelope import Envelope
from fedwild.sites.transport import Node
from tests.conftest import unfinish
from tests.sites.inprocess import InProcessSites, coordinated, site_files, site_server, tables
from tests.tiny import model_bytes

NAMES = ["a", "b", "c"]


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    return site_files(tmp_path, NAMES)


def sites_with(files: dict[str, Path], tmp_path: Path, names: list[str] = NAMES) -> InProcessSites:
    return InProcessSites(*(site_server(name, files[name], tmp_path) for name in names))


def failures(run: Run) -> dict[str, str]:
    return {event["client"]: event["reason"] for event in run.events() if event["event"] == "client-failed"}


def bad_weights(envelope: Envelope) -> Envelope:
    payload = Payload.decode(bytearray(envelope.body))
    payload.tensors = {name: tensor * float("nan") for name, tensor in payload.tensors.items()}
    return replace(envelope, body=payload.encode())


def without_samples(envelope: Envelope) -> Envelope:
    payload = Payload.decode(bytearray(envelope.body))
    del payload.info["samples"]
    return replace(envelope, body=payload.encode())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda envelope: replace(envelope, body=envelope.body[:100]), "bad reply: "),
        (lambda envelope: replace(envelope, body=b""), "bad reply: payload of 0 bytes"),
        (bad_weights, "NaN or infinite"),
        (without_samples, "info 'samples' is None"),
        (lambda envelope: replace(envelope, body=bytes(3_000_000)), "larger than engine.max_reply_mb allows"),
        (lambda envelope: Envelope({"kind": "party"}), "did not send an answer"),
        (
            lambda envelope: Envelope({"kind": "answer", "state": 77}, envelope.body),
            "a state version that this round cannot produce",
        ),
        (lambda envelope: Envelope({"kind": "rejected", "reason": "no"}), "no"),
    ],
)
def test_invalid_reply_is_rejected_and_the_round_continues(
    change: Callable[[Envelope], Envelope], reason: str, files: dict[str, Path], tmp_path: Path
) -> None:
    sites = sites_with(files, tmp_path)
    jobs = {"c": 0}

    def spoil(envelope: Envelope) -> Envelope:
        jobs["c"] += envelope.head["kind"] == "answer"
        return change(envelope) if envelope.head["kind"] == "answer" and jobs["c"] == 1 else envelope

    sites.changes["c"] = spoil
    config = tables(federation={"clients": 3}, engine={"max_reply_mb": 2}, evaluation={"every": 0})
    run = coordinated(sites, config, tmp_path / "run")
    assert reason in failures(run)["c"]
    rounds = [event["participants"] for event in run.events() if event["event"] == "round"]
    assert rounds == [["a", "b"], ["a", "b", "c"]]


def leaving(sites: InProcessSites, name: str, at: int) -> Callable[[dict[str, Any]], None]:
    """Return a listener that disconnects a site at its next answer after a round starts."""

    def listen(event: dict[str, Any]) -> None:
        if event["event"] == "round-start" and event["index"] == at:
            sites.changes[name] = lambda envelope: sites.disconnect(name)

    return listen


def test_site_that_disconnects_during_a_round_reconnects_with_its_state(files: dict[str, Path], tmp_path: Path) -> None:
    sites = sites_with(files, tmp_path)
    config = tables(federation={"clients": 3}, correction={"name": "scaffold"}, evaluation={"every": 0})
    config["method"]["rounds"] = 4
    leave = leaving(sites, "c", at=1)

    def listen(event: dict[str, Any]) -> None:
        leave(event)
        if event["event"] == "round" and event["index"] == 1:
            del sites.changes["c"]
            sites.connect(site_server("c", files["c"], tmp_path))

    run = coordinated(sites, config, tmp_path / "run", listen)
    assert failures(run) == {"c": "its site disconnected"}
    rounds = [event["participants"] for event in run.events() if event["event"] == "round"]
    assert rounds == [["a", "b", "c"], ["a", "b"], ["a", "b", "c"], ["a", "b", "c"]]
    asked = [envelope.head["job"] for _, envelope in sites.sent if envelope.head["kind"] == "job"]
    states = [job["state"] for job in asked if job["client"] == "c" and job["kind"] == "local"]
    assert states == [None, 0, 0, 2]


def test_job_of_a_restarted_site_is_given_up(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a key, the node keeps its id: only an answer to a second request shows that the job is lost."""
    monkeypatch.setattr(engine, "PROBE_SECONDS", 0.01)
    sites = sites_with(files, tmp_path)
    lost = {"c": False}

    def lose_first_job(envelope: Envelope) -> Envelope | None:
        if envelope.head["kind"] == "answer" and not lost["c"]:
            lost["c"] = True
            return None
        return envelope

    sites.changes["c"] = lose_first_job
    run = coordinated(sites, tables(federation={"clients": 3}), tmp_path / "run")
    assert failures(run) == {"c": "its site was restarted and has lost the job"}


def test_too_slow_site_is_excluded(files: dict[str, Path], tmp_path: Path) -> None:
    sites = sites_with(files, tmp_path)
    sites.changes["c"] = lambda envelope: None if envelope.head["kind"] == "answer" else envelope
    config = tables(federation={"clients": 3}, engine={"answer_within": 0.05})
    run = coordinated(sites, config, tmp_path / "run")
    assert failures(run) == {"c": "its site did not answer within engine.answer_within = 0.05 s"}
    assert any("c is excluded from the threshold" in event.get("text", "") for event in run.events())


def test_run_stopped_by_too_few_sites_can_be_resumed(files: dict[str, Path], tmp_path: Path) -> None:
    sites = sites_with(files, tmp_path, ["a", "b"])
    config = tables(federation={"clients": 2, "min_clients": 2}, engine={"wait": 0.05}, evaluation={"every": 0})
    config["method"]["rounds"] = 3
    undisturbed = coordinated(sites_with(files, tmp_path, ["a", "b"]), config, tmp_path / "undisturbed")

    def listen(event: dict[str, Any]) -> None:
        if event["event"] == "round" and event["index"] == 0:
            sites.disconnect("b")

    with pytest.raises(RoundFailed, match=r"1 sites are connected, federation.min_clients = 2. Run `fedwild resume"):
        coordinated(sites, config, tmp_path / "run", listen)
    sites.connect(site_server("b", files["b"], tmp_path))
    run = Run(tmp_path / "run")
    resume_over(sites, run, lambda event: None)
    assert model_bytes(run.path) == model_bytes(undisturbed.path)


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_run_resumed_after_any_round_has_the_same_bits(rounds: int, files: dict[str, Path], tmp_path: Path) -> None:
    config = tables(federation={"clients": 3}, correction={"name": "scaffold"}, evaluation={"every": 0})
    config["method"]["rounds"] = 4
    sites = sites_with(files, tmp_path)
    whole = coordinated(sites, config, tmp_path / "whole")
    expected = model_bytes(whole.path)

    def stop(event: dict[str, Any]) -> None:
        if event["event"] == "round-start" and event["index"] == rounds:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        coordinated(sites, config, tmp_path / "cut", stop)
    run = Run(tmp_path / "cut")
    resume_over(sites, run, lambda event: None)
    assert model_bytes(run.path) == expected


def test_lost_round_is_repeated_from_the_state_before_it(files: dict[str, Path], tmp_path: Path) -> None:
    """The sites already have the state of the lost round; the checkpoint refers to the one before."""
    config = tables(federation={"clients": 3}, correction={"name": "scaffold"}, evaluation={"every": 0})
    config["method"]["rounds"] = 3
    sites = sites_with(files, tmp_path)
    run = coordinated(sites, config, tmp_path / "run")
    expected = model_bytes(run.path)
    unfinish(run.path, 2)
    again = Run(run.path)
    resume_over(sites, again, lambda event: None)
    assert model_bytes(run.path) == expected


def test_log_has_the_reason_that_a_site_gives(files: dict[str, Path], tmp_path: Path) -> None:
    sites = sites_with(files, tmp_path)
    config = tables(federation={"clients": 3}, correction={"name": "scaffold"}, evaluation={"every": 0})

    def listen(event: dict[str, Any]) -> None:
        if event["event"] == "round" and event["index"] == 0:
            shutil.rmtree(tmp_path / "site-c" / "runs")

    run = coordinated(sites, config, tmp_path / "run", listen)
    assert failures(run)["c"].startswith("the state of c after round 1 is not in the site's folder")


def test_site_that_joins_takes_part_from_the_next_round(files: dict[str, Path], tmp_path: Path) -> None:
    sites = sites_with(files, tmp_path, ["a", "b"])
    config = tables(evaluation={"every": 0})
    config["method"]["rounds"] = 3

    def listen(event: dict[str, Any]) -> None:
        if event["event"] == "round-start" and event["index"] == 0:
            sites.connect(site_server("c", files["c"], tmp_path))

    run = coordinated(sites, config, tmp_path / "run", listen)
    rounds = [event["participants"] for event in run.events() if event["event"] == "round"]
    assert rounds == [["a", "b"], ["a", "b", "c"], ["a", "b", "c"]]
    (join,) = [event for event in run.events() if event["event"] == "join"]
    assert (join["client"], join["newcomer"], join["index"]) == ("c", False, 1)
    assert run.result["clients"] == 3


def joined_by_c(files: dict[str, Path], tmp_path: Path, **sections: Any) -> tuple[InProcessSites, Path, bytes]:
    """Run four rounds, which c joins after the first, and undo the last. Returns the sites, the run and its model."""
    sites = sites_with(files, tmp_path, ["a", "b"])
    config = tables(evaluation={"every": 0}, **sections)
    config["method"]["rounds"] = 4

    def listen(event: dict[str, Any]) -> None:
        if event["event"] == "round-start" and event["index"] == 0:
            sites.connect(site_server("c", files["c"], tmp_path))

    run = coordinated(sites, config, tmp_path / "run", listen)
    expected = model_bytes(run.path)
    return sites, unfinish(run.path, 3), expected


def test_site_that_joined_is_a_member_after_a_crash(files: dict[str, Path], tmp_path: Path) -> None:
    sites, run, expected = joined_by_c(files, tmp_path, correction={"name": "scaffold"})
    again = Run(run)
    resume_over(sites, again, lambda event: None)
    assert model_bytes(run) == expected
    assert len([event for event in Run(run).events() if event["event"] == "join"]) == 1


def test_resume_waits_for_sites_that_joined(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, run, expected = joined_by_c(files, tmp_path, engine={"wait": 20})
    sites, nodes, looks = sites_with(files, tmp_path, ["a", "b"]), InProcessSites.nodes, []

    def late() -> list[Node]:
        looks.append(len(sites.servers))
        if len(looks) == 10:
            sites.connect(site_server("c", files["c"], tmp_path))
        return nodes(sites)

    monkeypatch.setattr(sites, "nodes", late)
    again = Run(run)
    resume_over(sites, again, lambda event: None)
    assert model_bytes(run) == expected


def with_impossible_figures(envelope: Envelope) -> Envelope:
    if envelope.head.get("kind") != "answer":
        return envelope
    payload = Payload.decode(bytearray(envelope.body))
    if "figures" in payload.info:
        payload.info["figures"] = {"closed_accuracy": 10**400}
    elif "unknown" in payload.tensors:
        payload.tensors["unknown"] = payload.tensors["unknown"].to(torch.bfloat16)
    return replace(envelope, body=payload.encode())


def test_impossible_figures_are_rejected_but_scores_of_any_type_are_accepted(
    files: dict[str, Path], tmp_path: Path
) -> None:
    sites = sites_with(files, tmp_path)
    sites.changes["b"] = with_impossible_figures
    run = coordinated(sites, tables(federation={"clients": 3}), tmp_path / "run")
    said = [event["text"] for event in run.events() if event["event"] == "note"]
    assert any(text.startswith("b is excluded from the figures") for text in said)
    # bfloat16 scores are valid.
    assert not any("excluded from the threshold" in text for text in said)
    assert 0 <= run.metrics["closed_accuracy"] <= 1


def test_too_large_answer_of_any_kind_is_rejected(files: dict[str, Path], tmp_path: Path) -> None:
    sites = sites_with(files, tmp_path)
    sites.changes["b"] = lambda envelope: (
        replace(envelope, body=bytes(200_000)) if envelope.head.get("kind") == "answer" else envelope
    )
    run = coordinated(sites, tables(federation={"clients": 3}, engine={"max_reply_mb": 0.1}), tmp_path / "run")
    assert "larger than engine.max_reply_mb allows" in failures(run)["b"]
