"""Jobs over sites: replies that are refused, sites that leave, come back and join; the round goes on."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedwild.api import Run
from fedwild.core.errors import RoundFailed
from fedwild.sites import engine, roster
from fedwild.sites.coordinator import resume_over
from fedwild.sites.transport import Node
from fedwild.sites.envelope import Envelope
from fedwild.core.payload import Payload
from tests.conftest import unfinish
from tests.sites.inprocess import Desks, coordinated, desk, site_files, tables
from tests.tiny import model_bytes

NAMES = ["a", "b", "c"]


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    return site_files(tmp_path, NAMES)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(engine, "LOOK_SECONDS", 0.002)


def all_of(files: dict[str, Path], tmp_path: Path, names: list[str] = NAMES) -> Desks:
    return Desks(*(desk(name, files[name], tmp_path) for name in names))


def failures(run: Run) -> dict[str, str]:
    return {event["client"]: event["reason"] for event in run.events() if event["event"] == "client-failed"}


def bad_weights(letter: Envelope) -> Envelope:
    payload = Payload.decode(bytearray(letter.body))
    payload.tensors = {name: tensor * float("nan") for name, tensor in payload.tensors.items()}
    return replace(letter, body=payload.encode())


def without_samples(letter: Envelope) -> Envelope:
    payload = Payload.decode(bytearray(letter.body))
    del payload.info["samples"]
    return replace(letter, body=payload.encode())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda letter: replace(letter, body=letter.body[:100]), "bad reply: "),
        (lambda letter: replace(letter, body=b""), "bad reply: payload of 0 bytes"),
        (bad_weights, "NaN or infinite"),
        (without_samples, "info 'samples' is None"),
        (lambda letter: replace(letter, body=bytes(3_000_000)), "larger than engine.max_reply_mb allows"),
        (lambda letter: Envelope({"kind": "party"}), "something else than an answer"),
        (lambda letter: Envelope({"kind": "answer", "state": 77}, letter.body), "a state that this round cannot leave"),
        (lambda letter: Envelope({"kind": "refused", "reason": "no"}), "no"),
    ],
)
def test_a_reply_that_cannot_be_used_is_left_out_and_the_round_goes_on(
    change: Callable[[Envelope], Envelope], reason: str, files: dict[str, Path], tmp_path: Path
) -> None:
    desks = all_of(files, tmp_path)
    jobs = {"c": 0}

    def spoil(letter: Envelope) -> Envelope:
        jobs["c"] += letter.head["kind"] == "answer"
        return change(letter) if letter.head["kind"] == "answer" and jobs["c"] == 1 else letter

    desks.changes["c"] = spoil
    config = tables(federation={"clients": 3}, engine={"max_reply_mb": 2}, evaluation={"every": 0})
    run = coordinated(desks, config, tmp_path / "run")
    assert reason in failures(run)["c"]
    rounds = [event["participants"] for event in run.events() if event["event"] == "round"]
    assert rounds == [["a", "b"], ["a", "b", "c"]]


def leaving(desks: Desks, name: str, at: int) -> Callable[[dict[str, Any]], None]:
    """A listener that takes a site's node away when a round begins."""

    def listen(event: dict[str, Any]) -> None:
        if event["event"] == "round-start" and event["index"] == at:
            desks.changes[name] = lambda letter: desks.disconnect(name)  # type: ignore[func-returns-value]

    return listen


def test_a_site_that_goes_in_the_middle_of_a_round_is_left_out_and_comes_back_with_its_state(
    files: dict[str, Path], tmp_path: Path
) -> None:
    desks = all_of(files, tmp_path)
    config = tables(federation={"clients": 3}, correction={"name": "scaffold"}, evaluation={"every": 0})
    config["method"]["rounds"] = 4
    leave = leaving(desks, "c", at=1)

    def listen(event: dict[str, Any]) -> None:
        leave(event)
        if event["event"] == "round" and event["index"] == 1:
            del desks.changes["c"]
            desks.connect(desk("c", files["c"], tmp_path))

    run = coordinated(desks, config, tmp_path / "run", listen)
    assert failures(run) == {"c": "its site is not connected any more"}
    rounds = [event["participants"] for event in run.events() if event["event"] == "round"]
    assert rounds == [["a", "b", "c"], ["a", "b"], ["a", "b", "c"], ["a", "b", "c"]]
    asked = [letter.head["job"] for _, letter in desks.sent if letter.head["kind"] == "job"]
    states = [job["state"] for job in asked if job["client"] == "c" and job["kind"] == "local"]
    assert states == [None, 0, 0, 2]


def test_a_site_that_was_started_anew_has_forgotten_its_job(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node keeps its id, since it has a key: only an answer to another letter shows that the job is lost."""
    monkeypatch.setattr(engine, "DOUBT_SECONDS", 0.01)
    desks = all_of(files, tmp_path)
    lost = {"c": False}

    def lose_first_job(letter: Envelope) -> Envelope | None:
        if letter.head["kind"] == "answer" and not lost["c"]:
            lost["c"] = True
            return None
        return letter

    desks.changes["c"] = lose_first_job
    run = coordinated(desks, tables(federation={"clients": 3}), tmp_path / "run")
    assert failures(run) == {"c": "its site was started anew and has forgotten the job"}


def test_a_site_that_is_too_slow_is_left_out(files: dict[str, Path], tmp_path: Path) -> None:
    desks = all_of(files, tmp_path)
    desks.changes["c"] = lambda letter: None if letter.head["kind"] == "answer" else letter
    config = tables(federation={"clients": 3}, engine={"answer_within": 0.05})
    run = coordinated(desks, config, tmp_path / "run")
    assert failures(run) == {"c": "its site did not answer within engine.answer_within = 0.05 s"}
    assert any("c is left out of the threshold" in event.get("text", "") for event in run.events())


def test_too_few_sites_end_the_run_so_that_it_can_go_on(files: dict[str, Path], tmp_path: Path) -> None:
    desks = all_of(files, tmp_path, ["a", "b"])
    config = tables(federation={"clients": 2, "min_clients": 2}, engine={"wait": 0.05}, evaluation={"every": 0})
    config["method"]["rounds"] = 3
    undisturbed = coordinated(all_of(files, tmp_path, ["a", "b"]), config, tmp_path / "undisturbed")

    def listen(event: dict[str, Any]) -> None:
        if event["event"] == "round" and event["index"] == 0:
            desks.disconnect("b")

    with pytest.raises(RoundFailed, match=r"1 sites are connected, federation.min_clients = 2. `fedwild resume"):
        coordinated(desks, config, tmp_path / "run", listen)
    desks.connect(desk("b", files["b"], tmp_path))
    run = Run(tmp_path / "run")
    resume_over(desks, run, run.experiment, lambda event: None)
    assert model_bytes(run.path) == model_bytes(undisturbed.path)


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_a_run_goes_on_after_any_round_with_the_same_bits(rounds: int, files: dict[str, Path], tmp_path: Path) -> None:
    config = tables(federation={"clients": 3}, correction={"name": "scaffold"}, evaluation={"every": 0})
    config["method"]["rounds"] = 4
    desks = all_of(files, tmp_path)
    whole = coordinated(desks, config, tmp_path / "whole")
    expected = model_bytes(whole.path)

    def stop(event: dict[str, Any]) -> None:
        if event["event"] == "round-start" and event["index"] == rounds:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        coordinated(desks, config, tmp_path / "cut", stop)
    run = Run(tmp_path / "cut")
    resume_over(desks, run, run.experiment, lambda event: None)
    assert model_bytes(run.path) == expected


def test_a_lost_round_is_done_again_from_the_state_before_it(files: dict[str, Path], tmp_path: Path) -> None:
    """The sites have the lost round's state already; the checkpoint that counts names the one before."""
    config = tables(federation={"clients": 3}, correction={"name": "scaffold"}, evaluation={"every": 0})
    config["method"]["rounds"] = 3
    desks = all_of(files, tmp_path)
    run = coordinated(desks, config, tmp_path / "run")
    expected = model_bytes(run.path)
    unfinish(run.path, 2)
    again = Run(run.path)
    resume_over(desks, again, again.experiment, lambda event: None)
    assert model_bytes(run.path) == expected


def test_what_a_site_says_is_wrong_is_what_the_log_says(files: dict[str, Path], tmp_path: Path) -> None:
    desks = all_of(files, tmp_path)
    config = tables(federation={"clients": 3}, correction={"name": "scaffold"}, evaluation={"every": 0})

    def listen(event: dict[str, Any]) -> None:
        if event["event"] == "round" and event["index"] == 0:
            shutil.rmtree(tmp_path / "site-c" / "runs")

    run = coordinated(desks, config, tmp_path / "run", listen)
    assert failures(run)["c"].startswith("the state that c had after round 1 is not in its folder")


def test_a_site_that_joins_takes_part_from_the_next_round(files: dict[str, Path], tmp_path: Path) -> None:
    desks = all_of(files, tmp_path, ["a", "b"])
    config = tables(evaluation={"every": 0})
    config["method"]["rounds"] = 3

    def listen(event: dict[str, Any]) -> None:
        if event["event"] == "round-start" and event["index"] == 0:
            desks.connect(desk("c", files["c"], tmp_path))

    run = coordinated(desks, config, tmp_path / "run", listen)
    rounds = [event["participants"] for event in run.events() if event["event"] == "round"]
    assert rounds == [["a", "b"], ["a", "b", "c"], ["a", "b", "c"]]
    (join,) = [event for event in run.events() if event["event"] == "join"]
    assert (join["client"], join["newcomer"], join["index"]) == ("c", False, 1)
    assert run.result["clients"] == 3


def joined_by_c(files: dict[str, Path], tmp_path: Path, **sections: Any) -> tuple[Desks, Path, bytes]:
    """A run of four rounds that c joined after the first, cut short after the third; its sites, and its final model."""
    desks = all_of(files, tmp_path, ["a", "b"])
    config = tables(evaluation={"every": 0}, **sections)
    config["method"]["rounds"] = 4

    def listen(event: dict[str, Any]) -> None:
        if event["event"] == "round-start" and event["index"] == 0:
            desks.connect(desk("c", files["c"], tmp_path))

    run = coordinated(desks, config, tmp_path / "run", listen)
    expected = model_bytes(run.path)
    return desks, unfinish(run.path, 3), expected


def test_who_joined_is_a_member_after_a_crash_too(files: dict[str, Path], tmp_path: Path) -> None:
    desks, run, expected = joined_by_c(files, tmp_path, correction={"name": "scaffold"})
    again = Run(run)
    resume_over(desks, again, again.experiment, lambda event: None)
    assert model_bytes(run) == expected
    assert len([event for event in Run(run).events() if event["event"] == "join"]) == 1


def test_who_joined_is_waited_for_after_a_crash(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roster, "LOOK_SECONDS", 0.002)
    _, run, expected = joined_by_c(files, tmp_path, engine={"wait": 20})
    desks, nodes, looks = all_of(files, tmp_path, ["a", "b"]), Desks.nodes, []

    def late() -> list[Node]:
        looks.append(len(desks.desks))
        if len(looks) == 10:
            desks.connect(desk("c", files["c"], tmp_path))
        return nodes(desks)

    monkeypatch.setattr(desks, "nodes", late)
    again = Run(run)
    resume_over(desks, again, again.experiment, lambda event: None)
    assert model_bytes(run) == expected


def with_figures(letter: Envelope) -> Envelope:
    if letter.head.get("kind") != "answer":
        return letter
    payload = Payload.decode(bytearray(letter.body))
    if "figures" in payload.info:
        payload.info["figures"] = {"closed_accuracy": 10**400}
    elif "unknown" in payload.tensors:
        payload.tensors["unknown"] = payload.tensors["unknown"].to(torch.bfloat16)
    return replace(letter, body=payload.encode())


def test_figures_that_cannot_be_are_left_out_and_scores_of_any_type_are_not(
    files: dict[str, Path], tmp_path: Path
) -> None:
    desks = all_of(files, tmp_path)
    desks.changes["b"] = with_figures
    run = coordinated(desks, tables(federation={"clients": 3}), tmp_path / "run")
    said = [event["text"] for event in run.events() if event["event"] == "note"]
    assert any(text.startswith("b is left out of the figures") for text in said)
    # Scores of few bits are scores.
    assert not any("left out of the threshold" in text for text in said)
    assert 0 <= run.metrics["closed_accuracy"] <= 1


def test_an_answer_of_any_kind_that_is_too_large_is_left_out(files: dict[str, Path], tmp_path: Path) -> None:
    desks = all_of(files, tmp_path)
    desks.changes["b"] = lambda letter: (
        replace(letter, body=bytes(200_000)) if letter.head.get("kind") == "answer" else letter
    )
    run = coordinated(desks, tables(federation={"clients": 3}, engine={"max_reply_mb": 0.1}), tmp_path / "run")
    assert "larger than engine.max_reply_mb allows" in failures(run)["b"]
