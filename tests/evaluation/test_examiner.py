"""Thresholds come from the clients' validation data, figures from the test set, and neither from the other."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedwild.contract import Outcome, Prediction, Server, Step
from fedwild.contract.engine import Job
from fedwild.core.classes import ClassRegistry
from fedwild.core.payload import Payload
from fedwild.core.rng import Rng
from fedwild.data import ClientSplit, Split
from fedwild.engines.executor import Executor, predict
from fedwild.evaluation.examiner import Examiner
from fedwild.openset.metrics import UNKNOWN, open_set_report
from tests.methods import by_hand
from tests.tiny import even_shares, joined_by, run_tiny, split_by, tiny_dataset, tiny_experiment


@pytest.fixture
def data() -> Any:
    return tiny_dataset(classes=3, per_class=24)


def rebuilt(folder: Path, data: Any, split: Any) -> tuple[Any, Executor, Server]:
    experiment = tiny_experiment("fedavg", data, split)
    payload = Payload.read(folder / "model.safetensors")
    server = Server.from_payload(payload, experiment.task, Rng(0))
    executor = Executor(data, split, experiment.config.data, experiment.method, experiment.task, 0, folder, folder)
    return experiment.method.predictor(server), executor, server


def test_the_threshold_accepts_the_asked_share_of_all_validation_samples(data: Any, tmp_path: Path) -> None:
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


def test_without_validation_samples_everything_is_accepted_and_said(data: Any, tmp_path: Path) -> None:
    split = split_by(data, 3, [[0, 1, 2]])
    notes: list[str] = []

    def listen(event: dict[str, Any]) -> None:
        if event["event"] == "note":
            notes.append(event["text"])

    result = run_tiny(tmp_path / "run", "fedavg", data, split, listener=listen)
    assert result["thresholds"]["*"] == math.inf
    assert result["metrics"]["unk"] == 0
    assert any("accepts everything" in note for note in notes)


def test_figures_are_given_by_domain_when_there_are_several(data: Any, tmp_path: Path) -> None:
    two = type(data)(**{**vars(data), "domains": ("one", "two"), "domain_test": torch.arange(len(data.y_test)) % 2})
    split = split_by(two, 3, even_shares(two, 3, 2))
    result = run_tiny(tmp_path / "run", "fedavg", two, split)
    assert set(result["by"]) == {"one", "two"}
    both = [result["by"][name]["closed_accuracy"] for name in ("one", "two")]
    known = [int(((two.domain_test == i) & (two.y_test < 3)).sum()) for i in (0, 1)]
    pooled = sum(a * n for a, n in zip(both, known, strict=True)) / sum(known)
    assert result["metrics"]["closed_accuracy"] == pytest.approx(pooled)


def test_evaluation_may_be_rare_but_always_ends_the_run(data: Any, tmp_path: Path) -> None:
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


def test_how_often_a_run_is_measured_does_not_change_its_model(data: Any, tmp_path: Path) -> None:
    split = split_by(data, 3, even_shares(data, 3, 2))
    for every in (0, 1):
        run_tiny(tmp_path / str(every), "fedavg", data, split, {"evaluation": {"every": every}})
    models = [(tmp_path / str(every) / "model.safetensors").read_bytes() for every in (0, 1)]
    assert models[0] == models[1]


def test_clients_with_test_data_of_their_own_get_figures_of_their_own(data: Any, tmp_path: Path) -> None:
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

TRUE = ["a", "b", "a", "c", "c", "d", "a", "d"]
"""The test set: rows 0-3 are of the home data, 4-6 of ann, 7 of ben."""


def hand_made(
    answers: list[str], classes: dict[str, str], present: tuple[str, ...], refused: tuple[str, ...] = ()
) -> Any:
    """Target, source and global accuracy of these answers; `classes` are the registry's, and who brought each."""
    names = tuple(classes)
    none = np.zeros(0, dtype=np.int64)
    parts = {"bob": [0, 1, 2, 3], "cyd": [0, 1, 2, 3], "ann": [4, 5, 6], "ben": [7]}
    clients = tuple(ClientSplit(name, none, none, none, np.array(rows), names) for name, rows in parts.items())
    split = Split(clients, ("a", "b"), (), (), np.arange(8), none, "train", newcomers=("ann", "ben"))
    server = Server(by_hand.PLAIN, ClassRegistry(), Step("judge-1", 0, 9), Rng(0), present)
    for name, origin in classes.items():
        server.classes.add(name, origin, 0)
    server.state.info["outside"] = list(refused)
    truth = torch.tensor([names.index(name) if name in names else UNKNOWN for name in TRUE])
    logits = torch.nn.functional.one_hot(torch.tensor([names.index(name) for name in answers]), len(names)).float()
    outcome = Outcome(Prediction(logits, torch.zeros(8)), truth, truth, TRUE)
    examiner = Examiner(by_hand.method_of("gains"), tiny_dataset(2), split, 0.95, lambda jobs: iter(()))
    return examiner._newcomer_figures(server, outcome)


OLD = {"a": "known", "b": "known"}


def test_before_anybody_arrives_there_are_no_figures_of_newcomers() -> None:
    assert hand_made(list("abaaaaaa"), OLD, ("bob", "cyd")) == {}


def test_a_newcomer_s_classes_that_nobody_has_learnt_yet_are_mistakes() -> None:
    found = hand_made(list("aaaaabab"), OLD, ("bob", "cyd", "ann"))
    # Ann: c and d are wrong, a is right. Home: c is no class yet, and of a, b, a two are right; ben is still to come.
    assert found == pytest.approx({"target_accuracy": 1 / 3, "source_accuracy": 2 / 3, "global_accuracy": 3 / 6})


def test_accuracy_of_others_is_on_the_same_samples_before_and_after() -> None:
    found = hand_made(list("abacccac"), {**OLD, "c": "ann", "d": "ann"}, ("bob", "cyd", "ann"))
    # The home sample of class c, which ann brought, is left out, right as it is.
    assert found == pytest.approx({"target_accuracy": 2 / 3, "source_accuracy": 3 / 3, "global_accuracy": 5 / 6})


def test_for_the_next_newcomer_the_one_before_is_one_of_the_others() -> None:
    found = hand_made(list("abbcccad"), {**OLD, "c": "ann", "d": "ann"}, ("bob", "cyd", "ann", "ben"))
    # Others: a, b, a, c at home and c, d, a of ann; both have one mistake.
    assert found == pytest.approx({"target_accuracy": 1.0, "source_accuracy": 5 / 7, "global_accuracy": 6 / 8})


def test_a_newcomer_that_was_sent_away_is_none_of_the_others() -> None:
    found = hand_made(list("abbabbbb"), OLD, ("bob", "cyd", "ann", "ben"), refused=("ann",))
    assert found == pytest.approx({"target_accuracy": 0.0, "source_accuracy": 2 / 3, "global_accuracy": 2 / 4})


def test_a_newcomer_without_test_samples_has_no_accuracy() -> None:
    parts = {"bob": [0, 1, 2], "ann": []}
    none = np.zeros(0, dtype=np.int64)
    clients = tuple(
        ClientSplit(name, none, none, none, np.array(rows, dtype=np.int64), ()) for name, rows in parts.items()
    )
    split = Split(clients, ("a",), (), (), np.arange(3), none, "train", newcomers=("ann",))
    server = Server(by_hand.PLAIN, ClassRegistry.of(("a", "b")), Step("x", 0, 0), Rng(0), ("bob", "ann"))
    truth = torch.tensor([0, 1, 0])
    outcome = Outcome(Prediction(torch.eye(2)[truth], torch.zeros(3)), truth, truth, ["a", "b", "a"])
    examiner = Examiner(by_hand.method_of("fedavg"), tiny_dataset(2), split, 0.95, lambda jobs: iter(()))
    found = examiner._newcomer_figures(server, outcome)
    assert math.isnan(found["target_accuracy"])
    assert found["source_accuracy"] == found["global_accuracy"] == 1.0


def test_where_clients_have_predictors_of_their_own_figures_are_means_over_clients(tmp_path: Path) -> None:
    data = tiny_dataset(classes=3, per_class=24)
    rows = even_shares(data, 2, 1)[0]
    split = joined_by(split_by(data, 2, [rows[0::2], rows[1::2]]), data, [2, 6, 10, 14, 18, 22, 26, 30])
    result = run_tiny(tmp_path / "run", "local-only", data, split, {"method": {"epochs": 5}})
    own = {name: figures["closed_accuracy"] for name, figures in result["by"].items()}
    assert set(own) == {"client-00", "client-01", "newcomer"}
    assert result["metrics"]["target_accuracy"] == own["newcomer"]
    assert result["metrics"]["source_accuracy"] == pytest.approx((own["client-00"] + own["client-01"]) / 2)
    assert result["metrics"]["global_accuracy"] == pytest.approx(sum(own.values()) / 3)


def test_the_figures_of_a_real_run_are_those_of_its_model(tmp_path: Path) -> None:
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
