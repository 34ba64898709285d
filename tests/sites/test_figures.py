"""Measuring at the sites: reports, their means, and the coordinator's own test data."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from fedwild.core.errors import BadReply, UserError
from fedwild.core.payload import Payload
from fedwild.evaluation.at_sites import mean_figures
from fedwild.evaluation.outcomes import check_report
from fedwild.sites.envelope import Envelope
from tests.conftest import Cli
from tests.sites.inprocess import ANIMALS, connected_sites, coordinated, images, saved, tables


def test_sites_send_figures_and_counts_but_no_answers(tmp_path: Path) -> None:
    sites = connected_sites(tmp_path)
    coordinated(sites, tables(), tmp_path / "run")
    kinds = [envelope.head["job"]["kind"] for _, envelope in sites.sent if envelope.head["kind"] == "job"]
    answers = [envelope for _, envelope in sites.answered if envelope.head["kind"] == "answer"]
    reports = [Payload.decode(bytearray(a.body)) for a, kind in zip(answers, kinds, strict=True) if kind == "measure"]
    assert reports
    for report in reports:
        assert not report.tensors
        assert report.info["classes"].keys() == {"ant", "bee", "cat", "dog"}
        assert sum(row[1] for row in report.info["classes"].values()) == report.info["samples"] == 20


def test_figures_are_means_over_sites_weighted_by_test_samples() -> None:
    by = {"a": {"x": 1.0, "y": math.nan}, "b": {"x": 0.0, "y": 0.5}, "c": {"x": 0.5, "y": math.nan}}
    means = mean_figures(by, {"a": 1, "b": 3, "c": 4})
    assert means == {"x": pytest.approx(3 / 8), "y": 0.5}
    assert mean_figures({}, {}) == {}


def test_coordinators_own_test_set_gives_the_figures(tmp_path: Path) -> None:
    own = saved(tmp_path / "own.npz", images(ANIMALS, 9, test=20))
    run = coordinated(connected_sites(tmp_path), tables(data={"coordinator": str(own)}), tmp_path / "run")
    arrays = np.load(own)
    known = arrays["y_test"] != "dog"
    labels = run.predict(arrays["x_test"][:, None]).logits.argmax(1).numpy()
    names = np.array(run.result["classes"])[labels]
    assert run.metrics["closed_accuracy"] == pytest.approx((names == arrays["y_test"])[known].mean())
    assert run.result["by"].keys() == {"a", "b"}
    assert run.evaluate(workers=0).metrics == pytest.approx(run.metrics, nan_ok=True)


def test_evaluate_without_test_data_says_where_the_figures_are(tmp_path: Path, cli: Cli) -> None:
    run = coordinated(connected_sites(tmp_path), tables(), tmp_path / "run")
    outcome = cli("evaluate", run.path)
    assert outcome.code == 2
    assert "has its data at its sites, which measured it; see result.json" in outcome.err
    shown = cli("show", "confusion", run.path)
    assert shown.code == 2 and "sites" in shown.err


def test_prediction_needs_no_site(tmp_path: Path, cli: Cli) -> None:
    run = coordinated(connected_sites(tmp_path), tables(), tmp_path / "run")
    np.save(tmp_path / "one.npy", images(ANIMALS, 3)["x_test"][0])
    outcome = cli("predict", run.path, tmp_path / "one.npy", "--json")
    assert json.loads(outcome.out)[0]["best_class"] in {"ant", "bee", "cat"}


def test_coordinators_training_samples_are_the_public_data(tmp_path: Path) -> None:
    own = saved(tmp_path / "own.npz", images(ANIMALS, 9))
    config = tables("distilled-close-set", data={"coordinator": str(own), "public": 0.5})
    run = coordinated(connected_sites(tmp_path), config, tmp_path / "run")
    assert len(run.experiment.split.public) == 32
    without = tables("distilled-close-set")
    with pytest.raises(UserError, match="needs public unlabelled data"):
        coordinated(connected_sites(tmp_path), without, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_coordinators_data_of_another_shape_is_rejected(tmp_path: Path) -> None:
    own = saved(tmp_path / "own.npz", images(ANIMALS, 9, side=12))
    with pytest.raises(UserError) as refused:
        coordinated(connected_sites(tmp_path), tables(data={"coordinator": str(own)}), tmp_path / "run")
    assert "has samples of shape (1, 8, 8), but this run uses (1, 12, 12)" in refused.value.problems[1]


GOOD = {"samples": 3, "figures": {"auroc": 0.5, "oscr": None}, "classes": {"x": [1, 2], "y": [0, 1]}}


@pytest.mark.parametrize(
    "change",
    [
        {"samples": -1},
        {"samples": True},
        {"samples": 4},
        {"figures": []},
        {"figures": {"auroc": "high"}},
        {"figures": {"auroc": math.inf}},
        {"figures": {"auroc": 1.01}},
        {"figures": {"novel_accuracy": -0.1}},
        {"figures": {"closed_accuracy": 1e299}},
        {"figures": {"displacement": 1e10}},
        {"figures": dict.fromkeys(map(str, range(20_000)), 0.5)},
        {"classes": {"x": [2, 1], "y": [0, 2]}},
        {"classes": {"x": [1.5, 3]}},
        {"classes": {"x": 3}},
        {"classes": None},
    ],
)
def test_impossible_report_is_rejected(change: dict[str, object]) -> None:
    check_report(Payload(info=GOOD))
    with pytest.raises(BadReply):
        check_report(Payload(info={**GOOD, **change}))


def test_site_with_a_false_report_is_excluded_from_the_figures(tmp_path: Path) -> None:
    sites = connected_sites(tmp_path)
    kinds: list[str] = []

    def lie(envelope: Envelope) -> Envelope:
        kind = sites.sent[-1][1].head.get("job", {}).get("kind")
        kinds.append(kind)
        if kind != "measure":
            return envelope
        report = Payload.decode(bytearray(envelope.body))
        report.info["samples"] = 10**9
        return Envelope(envelope.head, report.encode())

    sites.changes["b"] = lie
    run = coordinated(sites, tables(), tmp_path / "run")
    assert run.result["by"].keys() == {"a"}
    assert "measure" in kinds
    assert any("b is excluded from the figures" in event.get("text", "") for event in run.events())
