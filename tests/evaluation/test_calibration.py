"""Thresholds from validation scores, clients that fail, and the progress of jobs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from fedwild.contract import EVERYONE, Server
from fedwild.contract.claims import NO_CLAIMS, Claims
from fedwild.contract.engine import Answer, Job
from fedwild.core.errors import UserError
from fedwild.evaluation.calibration import RunJobs, read_answer, set_references, set_thresholds, validation_scores
from fedwild.evaluation.progress import with_progress
from fedwild.openset.sketch import Sketch, sketch_answers, sketch_scores, to_payload
from fedwild.openset.temperature import best_temperature
from tests.methods.by_hand import server_of


def engine(folder: Path, scores: dict[str, torch.Tensor | str]) -> RunJobs:
    """Return an engine's `run` that answers with these scores, or fails with these messages."""

    def run(jobs: Iterable[Job]) -> Iterator[Answer]:
        for job in jobs:
            found = scores[str(job.client)]
            if isinstance(found, str):
                yield Answer(job, error=found)
            else:
                path = folder / str(job.client)
                yield Answer(job, str(path), size=to_payload(sketch_scores(found)).write(path))

    return run


def test_a_failing_client_is_excluded_with_a_note(tmp_path: Path) -> None:
    scores: dict[str, torch.Tensor | str] = {"a": torch.tensor([1.0, 2.0]), "b": "no disk"}
    scores |= {"c": torch.tensor([[1.0]]), "d": torch.tensor([math.nan])}
    server = server_of(tuple(scores))
    found = validation_scores(engine(tmp_path, scores), server, "snapshot", {}, list(scores))
    assert {name: sketch.quantiles.tolist() for name, sketch in found.items()} == {"a": [1.0, 2.0]}
    assert [note.split(" is excluded")[0] for note in server.notes] == ["b", "c", "d"]
    assert "no disk" in server.notes[0]


def calibrate(
    server: Server, scores: dict[str, Sketch], accept: float, personal: bool, claims: Claims = NO_CLAIMS
) -> None:
    set_thresholds(server, set_references(server, scores, personal, claims), accept)


def test_one_threshold_for_all_or_one_for_each_client() -> None:
    server, scores = (
        server_of(("a", "b")),
        {"b": sketch_scores(np.array([3.0, 4.0])), "a": sketch_scores(np.array([1.0, 2.0]))},
    )
    calibrate(server, scores, 0.5, personal=False)
    assert server.thresholds == {EVERYONE: 2.0}
    calibrate(server, scores, 0.5, personal=True)
    assert server.thresholds == {"a": 1.0, "b": 3.0}
    assert server.notes == []


def test_without_scores_everything_is_accepted_and_the_log_says_so() -> None:
    server = server_of(("a",))
    calibrate(server, {}, 0.95, personal=False)
    assert server.thresholds == {EVERYONE: math.inf}
    calibrate(server, {"a": sketch_scores(np.empty(0))}, 0.95, personal=True)
    assert server.thresholds == {"a": math.inf}
    assert [note.partition(":")[0] for note in server.notes] == [
        "no validation samples at any client",
        "no validation samples at a",
    ]


def test_errors_of_evaluation_jobs_are_raised() -> None:
    job = Job("test", server_of().step, "snapshot")
    with pytest.raises(UserError, match="evaluation failed at the server: broken"):
        read_answer(Answer(job, error="broken"))
    with pytest.raises(OSError, match="full"):
        read_answer(Answer(job, error="full", disk_failed=True))


def test_progress_counts_finished_jobs(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    run = with_progress(
        engine(tmp_path, {"a": "x", "b": "y"}), lambda what, done, total: seen.append((what, done, total))
    )
    assert list(run([])) == []
    jobs = [Job("validate", server_of().step, "snapshot", name) for name in "ab"]
    assert [answer.error for answer in run(jobs)] == ["x", "y"]
    assert seen == [("scoring validation samples", done, 2) for done in (0, 1, 2)]


def test_infinite_scores_and_more_samples_than_declared_exclude_a_client(tmp_path: Path) -> None:
    scores: dict[str, torch.Tensor | str] = {name: torch.tensor([1.0, 2.0, 3.0]) for name in "ab"}
    scores["c"] = torch.tensor([1.0, math.inf])
    server = server_of(tuple(scores))
    claims = Claims({"a": 3, "b": 2, "c": 5})
    found = validation_scores(engine(tmp_path, scores), server, "snapshot", {}, list(scores), claims)
    assert list(found) == ["a"]
    assert server.notes == [
        "b is excluded from the threshold: info 'count' is 3, but the client declared 2 samples when it joined",
        "c is excluded from the threshold: the quantiles of a sketch must be finite",
    ]


def test_one_client_cannot_set_the_common_threshold_beyond_its_share() -> None:
    scores = {name: sketch_scores(np.linspace(0, 1, 101)) for name in "abc"}
    scores["d"] = sketch_scores(np.full(10**6, 1e9))
    server = server_of(tuple(scores))
    calibrate(server, scores, 0.7, personal=False)
    assert server.thresholds == {EVERYONE: 1e9}
    calibrate(server, scores, 0.7, personal=False, claims=Claims(max_weight=0.25))
    # Three quarters of the weight are uniform on [0, 1]: the share 0.7 of all is at 0.7 / 0.75.
    assert server.thresholds[EVERYONE] == pytest.approx(0.7 / 0.75, abs=0.02)


def test_the_reference_holds_all_scores_and_the_temperature_of_all_samples() -> None:
    generator = torch.Generator().manual_seed(0)
    parts = [(torch.randn(40, 5, generator=generator) * 4, torch.randint(5, (40,), generator=generator)) for _ in "ab"]
    sketches = {
        name: sketch_answers(logits, logits.amax(1), labels) for name, (logits, labels) in zip("ab", parts, strict=True)
    }
    server = server_of(("a", "b"))
    set_references(server, sketches, personal=False)
    found = server.references[EVERYONE]
    logits, labels = (torch.cat([part[i] for part in parts]) for i in (0, 1))
    assert found.quantiles.tolist() == sorted(logits.amax(1).double().tolist())
    alone = sketch_answers(logits, logits.amax(1), labels)
    assert found.temperature == pytest.approx(best_temperature(alone.losses), rel=1e-9)
    set_references(server, sketches, personal=True)
    assert {name: reference.count for name, reference in server.references.items()} == {"a": 40, "b": 40}


def test_a_client_above_its_share_counts_less_in_the_reference() -> None:
    sketches = {name: sketch_scores(np.zeros(10)) for name in "abc"} | {"d": sketch_scores(np.ones(1000))}
    server = server_of(tuple(sketches))
    set_references(server, sketches, personal=False, claims=Claims(max_weight=0.25))
    found = server.references[EVERYONE]
    assert found.count == 40
    assert float((found.quantiles == 1).double().mean()) == 0.25
