"""FedAvg and the one-shot methods, with two toy clients computed by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedwild.contract.task import weights_of
from fedwild.core.errors import UserError
from fedwild.core.rng import Rng
from fedwild.openset import SCORES
from fedwild.openset.predictors import ScoredModel, Vote
from fedwild.openset.scores import Signals
from fedwild.training.corrections import ClientCorrection
from fedwild.training.loop import train
from tests.methods.by_hand import client_of, final
from tests.tiny import even_shares, run_tiny, split_by, tiny_dataset, tiny_experiment


@pytest.fixture
def data() -> Any:
    return tiny_dataset(classes=2)


def test_one_round_is_the_sample_weighted_mean_of_local_training(data: Any, tmp_path: Path) -> None:
    shares = even_shares(data, 2, 1)[0]
    split = split_by(data, 2, [shares[:8], shares[8:]])
    run_tiny(tmp_path / "run", "fedavg", data, split, {"method": {"rounds": 1}})

    experiment = tiny_experiment("fedavg", data, split, {"method": {"rounds": 1}})
    method: Any = experiment.method
    start = weights_of(experiment.task.build(2, Rng(0).child("start")))
    total: dict[str, torch.Tensor] = {}
    counts = []
    for name in ("client-00", "client-01"):
        client = client_of(experiment, tmp_path, name)
        model = experiment.task.network(start, 2)
        rng = Rng(0).child("train", 0, "client", name)
        train(model, client.train, method.params, method.objective, ClientCorrection(), rng)
        counts.append(len(client.train))
        for key, tensor in weights_of(model).items():
            total[key] = total.get(key, torch.zeros(())) + counts[-1] * tensor.double()
    assert counts[0] != counts[1]
    for key, tensor in final(tmp_path / "run").group("model").items():
        assert torch.equal(tensor, (total[key] / sum(counts)).float())


def test_the_learning_rate_is_halved_after_the_given_rounds(data: Any, tmp_path: Path) -> None:
    """Four rounds at 0.1, 0.1, 0.05 and 0.05, computed with settings of a constant learning rate."""
    split = split_by(data, 2, even_shares(data, 2, 1))
    settings = {"method": {"rounds": 4, "lr": 0.1, "halve_after": 2}}
    run_tiny(tmp_path / "run", "fedavg", data, split, settings)
    experiment = tiny_experiment("fedavg", data, split, settings)
    method: Any = experiment.method
    weights = weights_of(experiment.task.build(2, Rng(0).child("start")))
    client = client_of(experiment, tmp_path, "client-00")
    for round_, lr in enumerate((0.1, 0.1, 0.05, 0.05)):
        model = experiment.task.network(weights, 2)
        plain = method.params.model_copy(update={"lr": lr, "halve_after": None})
        rng = Rng(0).child("train", round_, "client", "client-00")
        train(model, client.train, plain, method.objective, ClientCorrection(), rng)
        weights = {name: tensor.clone() for name, tensor in weights_of(model).items()}
    for name, tensor in final(tmp_path / "run").group("model").items():
        assert torch.allclose(tensor, weights[name], atol=1e-6)


def test_fedavg_learns(data: Any, tmp_path: Path) -> None:
    split = split_by(data, 2, even_shares(data, 2, 3))
    settings = {"method": {"rounds": 15, "lr": 0.1}}
    assert run_tiny(tmp_path / "run", "fedavg", data, split, settings)["metrics"]["closed_accuracy"] == 1.0


def test_local_only_never_mixes_clients(data: Any, tmp_path: Path) -> None:
    shares = even_shares(data, 2, 2)
    run_tiny(tmp_path / "both", "local-only", data, split_by(data, 2, shares))
    run_tiny(tmp_path / "alone", "local-only", data, split_by(data, 2, shares[:1]))
    both, alone = final(tmp_path / "both"), final(tmp_path / "alone")
    for key, tensor in alone.group("models/client-00").items():
        assert torch.equal(tensor, both.group("models/client-00")[key])


def test_local_only_reports_the_mean_over_clients_and_each_client(data: Any, tmp_path: Path) -> None:
    result = run_tiny(tmp_path / "run", "local-only", data, split_by(data, 2, even_shares(data, 2, 3)))
    accuracies = [figures["closed_accuracy"] for figures in result["by"].values()]
    assert len(accuracies) == 3
    assert result["metrics"]["closed_accuracy"] == pytest.approx(sum(accuracies) / 3)
    assert set(result["thresholds"]) == {"client-00", "client-01", "client-02"}


def test_a_vote_is_the_mean_of_probabilities_and_of_unknown_scores(data: Any) -> None:
    task = tiny_experiment("fedavg", data, split_by(data, 2, even_shares(data, 2, 1))).task
    models = [task.build(2, Rng(seed)) for seed in range(3)]
    score = SCORES.make("energy")
    x = torch.rand(7, 1, 8, 8)
    answer = Vote(dict(zip("abc", models, strict=True)), 2, score).predict(x)
    single = [ScoredModel(model, 2, score).predict(x) for model in models]
    expected = torch.stack([one.logits.softmax(1) for one in single]).mean(0)
    assert torch.allclose(answer.logits.softmax(1), expected, atol=1e-6)
    assert torch.allclose(answer.unknown, torch.stack([one.unknown for one in single]).mean(0))


def test_clients_without_samples_do_not_vote(data: Any, tmp_path: Path) -> None:
    rows = even_shares(data, 2, 1)[0]
    for name, shares in (("with", [rows, []]), ("without", [rows])):
        run_tiny(tmp_path / name, "close-set-voting", data, split_by(data, 2, shares))
    with_empty, without = final(tmp_path / "with"), final(tmp_path / "without")
    assert with_empty.info["thresholds"] == without.info["thresholds"]


def test_extra_outputs_of_a_head_are_not_classes(data: Any) -> None:
    task = tiny_experiment("fedavg", data, split_by(data, 2, even_shares(data, 2, 1))).task
    predictor = ScoredModel(task.build(3, Rng(0)), 2, SCORES.make("msp"))
    assert predictor.predict(torch.rand(4, 1, 8, 8)).logits.shape == (4, 2)


@pytest.mark.parametrize("score", ["unknown", "proser"])
def test_proser_under_fedavg_is_scored_by_its_unknown_output(score: str, data: Any, tmp_path: Path) -> None:
    split = split_by(data, 2, even_shares(data, 2, 2))
    settings = {"objective": {"name": "proser"}, "score": {"name": score}}
    run_tiny(tmp_path / "run", "fedavg", data, split, settings)
    experiment = tiny_experiment("fedavg", data, split, settings)
    weights = final(tmp_path / "run").group("model")
    assert weights["head.weight"].shape[0] == 3
    model = experiment.task.network(weights, 3).eval()
    x = torch.rand(5, *data.input_shape)
    answer = ScoredModel(model, 2, SCORES.make(score)).predict(x)
    with torch.no_grad():
        assert torch.allclose(answer.unknown, SCORES.make(score).score(Signals(model(x), 2), {}))
        assert torch.equal(answer.logits, model(x)[:, :2])


@pytest.mark.parametrize(
    ("method", "objective"), [("fedavg", "ce"), ("close-set-voting", "ce"), ("distilled-fedov", "outlier-aware")]
)
def test_a_score_of_the_unknown_output_needs_such_an_output(method: str, objective: str, data: Any) -> None:
    split = split_by(data, 2, even_shares(data, 2, 2))
    with pytest.raises(UserError, match=r"score.name = 'unknown' is not allowed here"):
        tiny_experiment(method, data, split, {"objective": {"name": objective}, "score": {"name": "unknown"}})
