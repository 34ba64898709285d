"""FedOV and its distilled form: uploads, voting rules, rejected settings and replies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedwild.cli import main
from fedwild.contract import Server
from fedwild.core.errors import BadReply, UserError
from fedwild.core.payload import Payload
from fedwild.core.rng import Rng
from fedwild.methods.fedov.method import FedOV, OpenVote
from fedwild.methods.fedov.voting import (
    Calibration,
    calibrated_votes,
    confident_votes,
    stack_calibrations,
    stacked_outputs,
)
from fedwild.models import build
from tests.tiny import even_shares, model_bytes, run_tiny, split_by, tiny_dataset, tiny_experiment


def finished(folder: Path, method: str = "fedov", **settings: Any) -> tuple[FedOV, Server]:
    """Run a tiny federation of three clients and two classes; return its method and final server."""
    dataset = tiny_dataset(classes=2)
    split = split_by(dataset, 2, even_shares(dataset, 2, 3))
    run_tiny(folder, method, dataset, split, settings)
    experiment = tiny_experiment(method, dataset, split, settings)
    server = Server.from_payload(Payload.read(folder / "model.safetensors"), experiment.task, Rng(0))
    assert isinstance(experiment.method, FedOV)
    return experiment.method, server


def test_every_client_uploads_its_own_model_with_an_unknown_output(tmp_path: Path) -> None:
    _, server = finished(tmp_path / "run")
    models = server.state.subgroups("models")
    assert list(models) == ["client-00", "client-01", "client-02"]
    assert all(model["head.weight"].shape[0] == 3 for model in models.values())
    assert not torch.equal(models["client-00"]["head.weight"], models["client-01"]["head.weight"])


def test_label_counts_and_medians_come_with_the_model(tmp_path: Path) -> None:
    _, server = finished(tmp_path / "run")
    for name, calibration in server.state.subgroups("calibrations").items():
        assert int(calibration["counts"].sum()) == server.state.info["samples"][name]
        assert calibration["medians"].shape == (2,)


@pytest.mark.parametrize("voting", ["calibrated", "all", 1, 2, 99])
def test_prediction_is_the_rule_of_the_setting(voting: str | int) -> None:
    models = [build("mlp", (4,), 4).eval() for _ in range(3)]
    calibrations = [Calibration(torch.randn(3), torch.tensor([i + 1, 2, 3])) for i in range(3)]
    x = torch.rand(20, 4)
    answer = OpenVote(dict(zip("abc", models, strict=True)), calibrations, 3, FedOV.Params(voting=voting)).predict(x)
    with torch.no_grad():
        outputs = stacked_outputs(models, x).double()
    votes, unknown = confident_votes(outputs)
    if voting == "calibrated":
        scores = calibrated_votes(outputs, stack_calibrations(calibrations))
        assert torch.allclose(answer.logits, scores.float())
        assert torch.allclose(answer.unknown, -scores.amax(dim=1))
    else:
        k = 3 if voting == "all" else min(int(voting), 3)
        assert torch.allclose(answer.logits.exp(), votes[k - 1].float(), atol=1e-6)
        assert torch.allclose(answer.unknown, unknown[k - 1])


def test_accuracy_of_every_rule_comes_from_one_pass(tmp_path: Path) -> None:
    dataset = tiny_dataset(classes=2)
    split = split_by(dataset, 2, even_shares(dataset, 2, 3))
    figures = {
        voting: run_tiny(tmp_path / str(voting), "fedov", dataset, split, {"method": {"voting": voting}})["metrics"]
        for voting in ("calibrated", "all", 1, 2)
    }
    for metrics in figures.values():
        assert metrics["accuracy_calibrated"] == figures["calibrated"]["closed_accuracy"]
        assert metrics["accuracy_all_votes"] == figures["all"]["closed_accuracy"]
        assert metrics["accuracy_top_1"] == figures[1]["closed_accuracy"]
        assert metrics["accuracy_top_2"] == figures[2]["closed_accuracy"]


def test_an_objective_without_an_unknown_output_is_rejected() -> None:
    dataset = tiny_dataset(classes=2)
    split = split_by(dataset, 2, even_shares(dataset, 2, 2))
    with pytest.raises(UserError, match=r"objective.name = 'ce' is not allowed"):
        tiny_experiment("fedov", dataset, split, {"objective": {"name": "ce"}})


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (["--set", "objective.mix_after=fc9"], "objective.mix_after 'fc9' is not known"),
        (["--data", "VECTORS"], "objective.outliers = 'destruction' needs images"),
        (["--set", "method.voting=0"], "method.voting = 0 is not allowed"),
    ],
)
def test_invalid_settings_are_rejected_before_anything_is_written(
    wrong: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "vectors.npz", x=np.random.default_rng(0).random((40, 6)), y=np.arange(40) % 2)
    arguments = [str(tmp_path / "vectors.npz") if word == "VECTORS" else word for word in wrong]
    with pytest.raises(SystemExit) as exit_:
        main(["run", "--method", "fedov", "--out", str(tmp_path / "run"), *arguments])
    assert exit_.value.code == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("counts", "samples"), [([5, 5], 9), ([-1, 10], 9)])
def test_impossible_label_counts_are_rejected(counts: list[int], samples: int, tmp_path: Path) -> None:
    method, server = finished(tmp_path / "run")
    reply = Payload.of(
        model=server.state.group("models/client-00"),
        calibration={"medians": torch.zeros(2), "counts": torch.tensor(counts)},
        info={"samples": samples},
    )
    with pytest.raises(BadReply, match="do not add up"):
        method.phases()[0].check(server, reply)


def test_a_client_without_samples_does_not_vote(tmp_path: Path) -> None:
    dataset = tiny_dataset(classes=2)
    shares = [*even_shares(dataset, 2, 2), []]
    run_tiny(tmp_path / "run", "fedov", dataset, split_by(dataset, 2, shares))
    experiment = tiny_experiment("fedov", dataset, split_by(dataset, 2, shares))
    payload = Payload.read(tmp_path / "run" / "model.safetensors")
    server = Server.from_payload(payload, experiment.task, Rng(0))
    predictor = experiment.method.answers(server).predictor(None)
    assert isinstance(predictor, OpenVote)
    assert len(predictor.members) == 2


def test_clients_of_one_class_each_train_and_vote(tmp_path: Path) -> None:
    dataset = tiny_dataset(classes=3)
    labels = dataset.y_train.tolist()
    shares = [[row for row, label in enumerate(labels) if label == c] for c in range(3)]
    settings = {"method": {"epochs": 3}}
    result = run_tiny(tmp_path / "run", "fedov", dataset, split_by(dataset, 3, shares), settings)
    assert 0 <= result["metrics"]["closed_accuracy"] <= 1


@pytest.mark.parametrize(
    "objective",
    [
        {"name": "proser"},
        {"enhanced": False},
        {"destroyed": False},
        {"outliers": "cutpaste", "enhanced": False},
        {"outliers": "mixture", "enhanced": False},
        {"outliers": "swap", "enhanced": False},
    ],
)
def test_each_row_of_the_papers_ablations_is_a_setting(objective: dict[str, Any], tmp_path: Path) -> None:
    dataset = tiny_dataset(classes=2)
    split = split_by(dataset, 2, even_shares(dataset, 2, 2))
    run_tiny(tmp_path / "whole", "fedov", dataset, split)
    run_tiny(tmp_path / "row", "fedov", dataset, split, {"objective": objective})
    assert model_bytes(tmp_path / "whole") != model_bytes(tmp_path / "row")


def test_one_client_holding_everything_answers_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The centralised setting of Appendix B.11, through the command line."""
    command = ["run", "--method", "fedov", "--clients", "1", "--set", "data.known=2", "--set", "method.epochs=8"]
    command += ["--workers", "0", "--set", "data.train_samples=500"]
    with pytest.raises(SystemExit):
        main([*command, "--set", "method.voting=all", "--out", str(tmp_path / "run"), "--json"])
    metrics = json.loads(capsys.readouterr().out.splitlines()[-1])["metrics"]
    assert metrics["closed_accuracy"] > 0.9
    assert metrics["auroc"] > 0.7


@pytest.mark.parametrize("method", ["distilled-fedov", "distilled-close-set"])
class TestDistilled:
    def test_the_student_has_one_output_per_known_class_and_replaces_the_ensemble(
        self, method: str, tmp_path: Path
    ) -> None:
        dataset = tiny_dataset(classes=2)
        split = split_by(dataset, 2, even_shares(dataset, 2, 3))
        run_tiny(tmp_path / "run", method, dataset, split)
        server = Payload.read(tmp_path / "run" / "model.safetensors")
        assert server.group("model")["head.weight"].shape[0] == 2
        assert "models" not in server
        assert "calibrations" not in server, "label counts belong to the ensemble"

    def test_it_is_rejected_without_public_data(
        self, method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit) as exit_:
            main(["run", "--method", method, "--set", "data.public=0", "--out", str(tmp_path / "run")])
        assert exit_.value.code == 2
        assert "needs public unlabelled data" in capsys.readouterr().err
        assert not (tmp_path / "run").exists()

    def test_fedprox_starts_from_the_student(
        self, method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """FedOV_FedProx of Figure 4."""
        short = ["--clients", "3", "--workers", "0", "--json"]
        short += ["--set", "method.epochs=1", "--set", "data.train_samples=300"]
        first, second = str(tmp_path / "first"), str(tmp_path / "second")
        distil = ["run", "--method", method, "--set", "method.distil_epochs=2", "--out", first]
        prox = ["run", "--start-from", first, "--set", "correction.name=prox", "--set", "method.rounds=1"]
        for command in (distil, [*prox, "--out", second]):
            with pytest.raises(SystemExit) as exit_:
                main([*command, *short])
            assert exit_.value.code == 0
        text = (tmp_path / "second" / "events.jsonl").read_text()
        assert f"starts from {first} (method {method}" in text
