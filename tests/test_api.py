"""The Python API, as the README shows it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import fedwild
from fedwild.data.settings import DataSettings
from fedwild.data.sources import load

QUICK = ["method.epochs=1", "data.train_samples=200"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fedwild.Run:
    folder = tmp_path_factory.mktemp("api") / "run"
    return fedwild.run(method="fedavg", data="digits", clients=3, rounds=6, workers=0, out=folder, settings=QUICK)


def test_a_run_has_figures_history_and_settings(run: fedwild.Run) -> None:
    assert 0 <= run.metrics["auroc"] <= 1
    assert sum(event["event"] == "round" for event in run.events()) == 6
    assert run.config.method.name == "fedavg"
    assert fedwild.Run(run.path).metrics == run.metrics


def test_predictions_are_names_or_unknown_and_agree_with_the_scores(run: fedwild.Run) -> None:
    images = load(DataSettings(), 0).x_test[:200]
    answers = run.predict(images)
    assert set(answers.labels) <= {*answers.classes, "unknown"}
    for i, label in enumerate(answers.labels):
        rejected = float(answers.unknown[i]) > answers.threshold
        assert (label == "unknown") == rejected
        if not rejected:
            assert label == answers.classes[int(answers.logits[i].argmax())]
    assert "unknown" in answers.labels


def test_pixels_as_bytes_and_as_floats_get_the_same_answer(run: fedwild.Run) -> None:
    images = load(DataSettings(), 0).x_test[:20]
    assert torch.allclose(run.predict(images).logits, run.predict(images.float() / 255).logits, atol=1e-5)


def test_embeddings_are_the_input_of_the_head(run: fedwild.Run) -> None:
    images = load(DataSettings(), 0).x_test[:300]
    with torch.inference_mode():
        embeddings = run.embed(images)
        weights = run.server().state.group("model")
        logits = embeddings @ weights["head.weight"].T + weights["head.bias"]
        assert torch.allclose(logits, run.predict(images).logits, atol=1e-5)
    with pytest.raises(fedwild.UserError, match="No inputs"):
        run.embed(images[:0])
    with pytest.raises(fedwild.UserError, match="inputs have shape"):
        run.embed(images[:, :, :5])


def test_outcomes_equal_the_predictions_on_the_test_rows(run: fedwild.Run) -> None:
    rows = run.test_rows()
    dataset = run.experiment.dataset
    assert rows.tolist() == run.experiment.split.test.tolist()
    for some in (rows, rows[5:400:3]):
        outcome = run.outcome(rows=some)
        answers = run.predict(dataset.x_test[some])
        assert outcome.true_names == [dataset.classes[label] for label in dataset.y_test[some].tolist()]
        assert torch.allclose(outcome.prediction.logits, answers.logits, atol=1e-5)
        assert ["unknown" if i < 0 else answers.classes[i] for i in outcome.decision.tolist()] == answers.labels


def test_evaluating_again_gives_the_same_figures(run: fedwild.Run) -> None:
    again = run.evaluate(workers=0).metrics
    assert again == pytest.approx(run.metrics, nan_ok=True)


def test_tables_files_and_flags_are_equivalent(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('seed = 3\n[data]\ntrain_samples = 100\n[method]\nname = "fedavg"\nrounds = 1\nepochs = 1\n')
    by_file = fedwild.run(file, workers=0, out=tmp_path / "file")
    tables = {"data": {"train_samples": 100}, "method": {"epochs": 1}}
    by_flags = fedwild.run(tables, rounds=1, seed=3, workers=0, out=tmp_path / "flags")
    models = [(run.path / "model.safetensors").read_bytes() for run in (by_file, by_flags)]
    assert models[0] == models[1]


def test_the_config_of_a_run_repeats_it(run: fedwild.Run, tmp_path: Path) -> None:
    again = fedwild.run(run.path / "config.toml", out=tmp_path / "again")
    assert (again.path / "model.safetensors").read_bytes() == (run.path / "model.safetensors").read_bytes()


def test_a_personal_method_requires_a_client(tmp_path: Path) -> None:
    run = fedwild.run(method="local-only", clients=2, workers=0, out=tmp_path / "run", settings=QUICK)
    images = load(DataSettings(), 0).x_test[:5]
    with pytest.raises(fedwild.UserError, match="client-00, client-01"):
        run.predict(images)
    assert len(run.predict(images, client="client-01").labels) == 5


def test_an_unfinished_run_names_the_command_that_resumes_it(tmp_path: Path) -> None:
    def stop(event: dict[str, object]) -> None:
        if event["event"] == "round":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedwild.run(rounds=3, workers=0, out=tmp_path / "run", settings=QUICK, listener=stop)
    with pytest.raises(fedwild.UserError, match="fedwild resume"):
        _ = fedwild.Run(tmp_path / "run").metrics
    assert fedwild.resume(tmp_path / "run").metrics["closed_accuracy"] >= 0


def test_several_data_sets_are_domains_and_clients(tmp_path: Path) -> None:
    names = ["synthetic:8x8x1:3:60", "synthetic:12x12x3:3:60"]
    run = fedwild.run(data=names, rounds=1, workers=0, out=tmp_path / "run", settings=["data.size=8"])
    assert len(run.result["by"]) == 2
    assert run.result["clients"] == 2


def test_vectors_and_volumes_get_a_suitable_network(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = np.arange(40) % 2
    np.savez(tmp_path / "vectors.npz", x=rng.normal(size=(40, 5)).astype("float32"), y=y)
    volumes = rng.integers(0, 255, (40, 1, 6, 6, 6)).astype("uint8")
    np.savez(tmp_path / "volumes.npz", x=volumes, y=y)
    for name, model in (("vectors", "mlp"), ("volumes", "resnet-18-3d")):
        settings = ["method.epochs=1", "model.name=resnet-18-3d", "model.width=4"] if name == "volumes" else QUICK[:1]
        data = str(tmp_path / f"{name}.npz")
        run = fedwild.run(data=data, clients=2, rounds=1, workers=0, out=tmp_path / name, settings=settings)
        assert run.config.model is not None
        assert run.config.model.name == model
