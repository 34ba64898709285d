"""Evaluation: thresholds come from the clients' validation samples and figures from the test set."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedwild.contract import Server
from fedwild.contract.engine import Job
from fedwild.core.rng import Rng
from fedwild.engines.executor import Executor
from fedwild.evaluation.inference import predict
from fedwild.openset.metrics import UNKNOWN, open_set_report
from tests.methods.by_hand import executor_of, final
from tests.tiny import even_shares, joined_by, run_tiny, split_by, tiny_dataset, tiny_experiment


@pytest.fixture
def data() -> Any:
    return tiny_dataset(classes=3, per_class=24)


def rebuilt(folder: Path, data: Any, split: Any) -> tuple[Any, Executor, Server]:
    """Return the predictor, an executor and the server of a finished run."""
    experiment = tiny_experiment("fedavg", data, split)
    server = Server.from_payload(final(folder), experiment.task, Rng(0))
    return experiment.method.answers(server).predictor(None), executor_of(experiment, folder), server


def test_the_threshold_accepts_the_chosen_share_of_all_validation_samples(data: Any, tmp_path: Path) -> None:
    split = split_by(data, 3, even_shares(data, 3, 4))
    run_tiny(tmp_path / "run", "fedavg", data, split, {"evaluation": {"accept": 0.8}})
    predictor, executor, server = rebuilt(tmp_path / "run", data, split)
    scores = []
    for client in split.clients:
        samples = executor.client(Job("validate", server.step, "", client.name, split.known)).validation
        scores.append(predict(predictor, samples, "cpu").unknown.numpy())
    pooled = np.sort(np.concatenate(scores))
    threshold = server.thresholds["*"]
    assert threshold in pooled
    assert (pooled <= threshold).mean() >= 0.8
    assert (pooled < threshold).mean() < 0.8


def test_the_figures_equal_a_computation_from_scratch(data: Any, tmp_path: Path) -> None:
    split = split_by(data, 3, even_shares(data, 3, 2))
    result = run_tiny(tmp_path / "run", "fedavg", data, split, {"method": {"rounds": 3}})
    predictor, _, server = rebuilt(tmp_path / "run", data, split)
    answer = predictor.predict(data.x_test.float() / 255)
    truth = np.where(data.y_test.numpy() < 3, data.y_test.numpy(), UNKNOWN)
    decision = answer.logits.argmax(1).numpy().copy()
    decision[answer.unknown.numpy() > server.thresholds["*"]] = UNKNOWN
    expected = open_set_report(answer.logits.numpy(), answer.unknown.numpy(), truth, decision)
    for key, value in expected.items():
        assert result["metrics"][key] == pytest.approx(value, nan_ok=True, abs=1e-6), key


def test_without_validation_samples_everything_is_accepted_and_the_log_says_so(data: Any, tmp_path: Path) -> None:
    split = split_by(data, 3, [[0, 1, 2]])
    notes: list[str] = []

    def listen(event: dict[str, Any]) -> None:
        if event["event"] == "note":
            notes.append(event["text"])

    result = run_tiny(tmp_path / "run", "fedavg", data, split, listener=listen)
    assert result["thresholds"]["*"] == math.inf
    assert result["metrics"]["unk"] == 0
    assert any("accepts everything" in note for note in notes)


def test_figures_by_domain_if_there_are_several(data: Any, tmp_path: Path) -> None:
    two = type(data)(**{**vars(data), "domains": ("one", "two"), "domain_test": torch.arange(len(data.y_test)) % 2})
    split = split_by(two, 3, even_shares(two, 3, 2))
    result = run_tiny(tmp_path / "run", "fedavg", two, split)
    assert set(result["by"]) == {"one", "two"}
    both = [result["by"][name]["closed_accuracy"] for name in ("one", "two")]
    known = [int(((two.domain_test == i) & (two.y_test < 3)).sum()) for i in (0, 1)]
    pooled = sum(a * n for a, n in zip(both, known, strict=True)) / sum(known)
    assert result["metrics"]["closed_accuracy"] == pytest.approx(pooled)


def test_the_last_round_is_always_evaluated(data: Any, tmp_path: Path) -> None:
    split = split_by(data, 3, even_shares(data, 3, 2))
    measured: list[int] = []

    def listen(event: dict[str, Any]) -> None:
        if event["event"] == "round" and event["metrics"] is not None:
            measured.append(event["index"])

    for every, expected in ((0, [4]), (2, [1, 3, 4]), (1, [0, 1, 2, 3, 4])):
        measured.clear()
        settings = {"evaluation": {"every": every}, "method": {"rounds": 5}}
        run_tiny(tmp_path / str(every), "fedavg", data, split, settings, listener=listen)
        assert measured == expected


def test_evaluation_does_not_change_the_model(data: Any, tmp_path: Path) -> None:
    split = split_by(data, 3, even_shares(data, 3, 2))
    for every in (0, 1):
        run_tiny(tmp_path / str(every), "fedavg", data, split, {"evaluation": {"every": every}})
    models = [(tmp_path / str(every) / "model.safetensors").read_bytes() for every in (0, 1)]
    assert models[0] == models[1]


def test_figures_by_client_if_clients_have_their_own_test_data(data: Any, tmp_path: Path) -> None:
    split = split_by(data, 3, even_shares(data, 3, 2))
    halves = np.array_split(split.test, 2)
    clients = tuple(replace(c, test=half) for c, half in zip(split.clients, halves, strict=True))
    result = run_tiny(tmp_path / "run", "fedavg", data, replace(split, clients=clients))
    assert set(result["by"]) == {"client-00", "client-01"}
    predictor, _, _ = rebuilt(tmp_path / "run", data, split)
    rows = torch.as_tensor(halves[0])
    known = data.y_test[rows] < 3
    right = predictor.predict(data.x_test[rows].float() / 255).logits.argmax(1) == data.y_test[rows]
    assert result["by"]["client-00"]["closed_accuracy"] == pytest.approx(float(right[known].float().mean()))


# --- newcomers -----------------------------------------------------------------------------------------------


def test_with_personal_predictors_figures_are_means_over_clients(tmp_path: Path) -> None:
    data = tiny_dataset(classes=3, per_class=24)
    rows = even_shares(data, 2, 1)[0]
    split = joined_by(split_by(data, 2, [rows[0::2], rows[1::2]]), data, [2, 6, 10, 14, 18, 22, 26, 30])
    result = run_tiny(tmp_path / "run", "local-only", data, split, {"method": {"epochs": 5}})
    own = {name: figures["closed_accuracy"] for name, figures in result["by"].items()}
    assert set(own) == {"client-00", "client-01", "newcomer"}
    assert result["metrics"]["target_accuracy"] == own["newcomer"]
    assert result["metrics"]["source_accuracy"] == pytest.approx((own["client-00"] + own["client-01"]) / 2)
    assert result["metrics"]["global_accuracy"] == pytest.approx(sum(own.values()) / 3)


def test_figures_about_the_newcomer_in_a_run_are_those_of_its_model(tmp_path: Path) -> None:
    data = tiny_dataset(classes=3, per_class=40)
    home = [i for i, label in enumerate(data.y_train.tolist()) if label < 2]
    new = [i for i, label in enumerate(data.y_train.tolist()) if label == 2]
    split = joined_by(split_by(data, 2, [home[0::3], home[1::3], home[2::3]]), data, new)
    settings = {"method": {"rounds": 4, "epochs": 2, "lr": 0.1}}
    result = run_tiny(tmp_path / "run", "fedavg", data, split, settings)
    predictor, _, server = rebuilt(tmp_path / "run", data, split)
    assert server.classes.names == ("class-0", "class-1", "class-2")
    answers = predictor.predict(data.x_test.float() / 255).logits.argmax(1)
    right = answers == data.y_test
    theirs, home_rows = data.y_test == 2, data.y_test < 2
    assert result["metrics"]["target_accuracy"] == pytest.approx(float(right[theirs].float().mean()))
    assert result["metrics"]["source_accuracy"] == pytest.approx(float(right[home_rows].float().mean()))
    assert result["metrics"]["global_accuracy"] == pytest.approx(float(right[theirs | home_rows].float().mean()))
