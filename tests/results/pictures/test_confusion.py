"""Confusion matrices of runs: equal to those of scikit-learn, drawn as they are, and every refusal."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.text import Annotation
from sklearn.metrics import confusion_matrix

from fedwild import api
from fedwild.core.errors import UserError
from fedwild.lifecycle.run import Run
from fedwild.results.pictures.confusion import Confusion, draw, figures, table_of
from fedwild.results.pictures.drawing import write_figure
from fedwild.results.pictures.shown_run import ShownRun
from tests.conftest import Cli, Refused, unfinish

SHOW = ("show", "confusion")


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run on the embedded digits that is right about many samples and wrong about some. Do not change it."""
    tables = {
        "data": {"name": "digits", "train_samples": 300, "known": [4, 1, 7], "unknown": [0, 9]},
        "model": {"name": "mlp", "hidden": [8]},
        "method": {"name": "fedavg", "rounds": 4, "epochs": 2, "batch_size": 16},
        "partition": {"name": "iid"},
        "evaluation": {"every": 0},
    }
    return api.run(tables, clients=2, workers=0, out=tmp_path_factory.mktemp("digits") / "run")


@pytest.fixture(scope="module")
def personal(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with a model per client, each with test data of its own: two domains. Do not change it."""
    names = ["synthetic:8x8x1:4:80", "synthetic:8x8x3:4:80"]
    tables = {
        "method": {"name": "local-only", "epochs": 1},
        "data": {"known": 3, "size": 8},
        "evaluation": {"accept": 0.5},
    }
    folder = tmp_path_factory.mktemp("personal") / "run"
    return api.run(tables, data=names, model="mlp", workers=0, out=folder)


def by_scikit_learn(run: Run, rows: np.ndarray, client: str | None = None) -> list[list[int]]:
    """The matrix from the run's plain answers."""
    dataset = run.experiment.dataset
    answers = run.predict(dataset.x_test[rows], client)
    names = [dataset.classes[label] for label in dataset.y_test[rows].tolist()]
    true = [name if name in answers.classes else "unknown" for name in names]
    counts: list[list[int]] = confusion_matrix(true, answers.labels, labels=[*answers.classes, "unknown"]).tolist()
    return counts


def confusion_of(counts: Any, client: str | None = None, known: tuple[str, ...] | None = None) -> Confusion:
    """A matrix without a run."""
    matrix = np.array(counts)
    names = known or tuple(f"class {i}" for i in range(len(matrix) - 1))
    return Confusion(ShownRun("runs/some", "fedavg", client, 3, names, ("x", "y")), matrix)


# --- figures ---------------------------------------------------------------------------------------------------


def test_the_counts_are_those_of_scikit_learn(digits: Run) -> None:
    found = figures(digits)
    assert found["counts"] == by_scikit_learn(digits, digits.experiment.split.test)
    assert found["names"] == ["4", "1", "7", "unknown"]
    assert (found["known"], found["unknown"]) == (["4", "1", "7"], ["0", "9"])
    about = {"run": str(digits.path), "method": "fedavg", "client": None, "round": 4}
    assert {key: found[key] for key in about} == about
    # The check would be empty if the model answered one class, or never "unknown".
    matrix = np.array(found["counts"])
    assert (matrix.sum(axis=0) > 0).all()
    assert matrix.trace() < matrix.sum()


def test_a_client_with_its_own_model_is_asked_about_its_own_test_data(personal: Run) -> None:
    matrices = []
    for client in personal.experiment.split.clients:
        found = figures(personal, client.name)
        assert found["client"] == client.name
        assert found["counts"] == by_scikit_learn(personal, client.test, client.name)
        assert np.array(found["counts"])[:, -1].any()
        matrices.append(found["counts"])
        assert np.sum(found["counts"]) == len(client.test) < len(personal.experiment.split.test)
    assert matrices[0] != matrices[1]


def test_an_unfinished_run_is_shown_as_evaluate_measures_it(digits: Run, tmp_path: Path) -> None:
    run = Run(unfinish(Path(shutil.copytree(digits.path, tmp_path / "run")), rounds=3))
    assert run.server().thresholds == {}
    found = figures(run)
    matrix = np.array(found["counts"])
    assert found["round"] == 3
    assert matrix[:, -1].sum() > 0
    assert matrix.trace() / matrix.sum() == pytest.approx(run.evaluate().metrics["open_accuracy"])


def test_shares_are_of_rows_and_an_empty_row_has_none() -> None:
    shares = table_of(confusion_of([[3, 1, 0], [0, 0, 0], [1, 1, 2]])).values
    assert shares.tolist() == [[0.75, 0.25, 0], [0, 0, 0], [0.25, 0.25, 0.5]]


# --- the picture -----------------------------------------------------------------------------------------------


def test_cells_show_their_share_of_the_row_in_per_cent() -> None:
    confusion = confusion_of([[30, 1, 0], [0, 2, 2], [2, 2, 4]])
    axes: Any = draw(confusion).axes[0]
    assert np.array_equal(axes.images[0].get_array(), table_of(confusion).values)
    assert (axes.images[0].norm.vmin, axes.images[0].norm.vmax) == (0, 1)
    written = {text.get_position(): text.get_text() for text in axes.texts if not isinstance(text, Annotation)}
    expected = [["96.8", "3.2", ""], ["", "50.0", "50.0"], ["25.0", "25.0", "50.0"]]
    assert [[written[column, row] for column in range(3)] for row in range(3)] == expected
    for labels in (axes.get_xticklabels(), axes.get_yticklabels()):
        assert [label.get_text() for label in labels] == ["class 0", "class 1", "unknown"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("answer", "true class")
    table = table_of(confusion)
    assert table.totals == ["31", "4", "8"]
    assert table.last_apart


@pytest.mark.parametrize(("known", "texts"), [(10, {"100.0", ""}), (20, {"100", ""}), (100, set())])
def test_with_many_classes_numbers_become_shorter_and_disappear(known: int, texts: set[str]) -> None:
    (axes,) = draw(confusion_of(np.eye(known + 1, dtype=int))).axes
    assert {text.get_text() for text in axes.texts if not isinstance(text, Annotation)} == texts


def test_the_title_says_what_is_shown() -> None:
    def words(confusion: Confusion) -> tuple[str, str]:
        (axes,) = draw(confusion).axes
        return axes.get_title(loc="left"), axes.texts[-1].get_text()

    counts = [[1, 0], [0, 2]]
    title, text = words(confusion_of(counts))
    assert title == "some: fedavg, round 3, 3 test samples"
    assert text.splitlines()[-1] == "unknown: x, y"
    assert words(confusion_of(counts, client="client-07"))[0].startswith("client-07 of some: ")
    title, text = words(Confusion(ShownRun("r" * 99, "fedavg", None, 1, ("a",), ()), np.array(counts)))
    assert title.startswith("r" * 39 + "…: fedavg")
    assert len(text.splitlines()) == 1


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_the_same_matrix_gives_the_same_bytes(kind: str, tmp_path: Path) -> None:
    for name, last in (("a", 2), ("b", 2), ("c", 3)):
        write_figure(draw(confusion_of([[1, 0], [1, last]])), tmp_path / f"{name}.{kind}")
    first, again, other = ((tmp_path / f"{name}.{kind}").read_bytes() for name in "abc")
    assert first == again != other


# --- the command -----------------------------------------------------------------------------------------------


def test_the_command_draws_the_matrix_and_prints_the_counts(cli: Cli, digits: Run) -> None:
    outcome = cli(*SHOW, digits.path)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.endswith("picture written to confusion.png\n")
    said = json.loads(cli(*SHOW, digits.path, "--out", "some.png", "--json").out.splitlines()[-1])
    assert said == {**figures(digits), "picture": "some.png"}
    assert Path("some.png").read_bytes() == Path("confusion.png").read_bytes()
    assert cli(*SHOW, digits.path, "--out", "some.pdf").code == 0
    assert Path("some.pdf").read_bytes().startswith(b"%PDF-")


def test_help_teaches(cli: Cli) -> None:
    said = " ".join(cli(*SHOW, "--help").out.split())
    assert "fedwild show confusion runs/fedavg-digits-001" in said
    assert "Rows are true classes and columns answers" in said
    assert "confusion" in cli("show", "--help").out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("--client", "client-00"),
            "client = 'client-00' is not allowed: method 'fedavg' has one model for all clients.",
        ),
        (("--client", "nobody"), "client = 'nobody' is not one of this fedavg run's clients: client-00, client-01."),
        (("--out", "no/such/folder/x.png"), "--out 'no/such/folder/x.png' cannot be written: "),
        (("--out", "x.gif"), "--out 'x.gif' is not allowed: the file's name must end in .png, .svg or .pdf."),
        (("--workers", "-1"), "engine.workers = -1"),
    ],
)
def test_bad_values_are_refused_in_one_sentence(
    arguments: tuple[str, ...], said: str, digits: Run, refused: Refused
) -> None:
    error = refused(*SHOW, digits.path, *arguments)
    assert len(error.splitlines()) == 1
    assert said in error


def test_a_personal_run_asks_whose_model(personal: Run, refused: Refused) -> None:
    names = ", ".join(client.name for client in personal.experiment.split.clients)
    error = refused(*SHOW, personal.path)
    assert f"method 'local-only' has a model per client; choose one of {names}." in error
    assert len(error.splitlines()) == 1


def test_no_run_and_a_run_without_a_finished_round_are_refused(finished: Path, refused: Refused) -> None:
    assert "'none' does not exist" in refused(*SHOW, "none")
    assert "has no model yet: run `fedwild resume " in refused(*SHOW, unfinish(finished, rounds=0))


def test_a_run_without_its_data_or_with_no_test_samples_is_refused(tmp_path: Path, refused: Refused) -> None:
    images = np.random.default_rng(0).integers(0, 256, (40, 8, 8), dtype=np.uint8)
    np.savez("own.npz", x=images, y=np.arange(40) % 2)
    tables = {"method": {"name": "fedavg", "rounds": 1}, "model": {"name": "mlp", "hidden": [4]}}
    run = api.run(tables, data="own.npz", partition="iid", clients=2, workers=0, out=tmp_path / "run")
    experiment = run.experiment
    run.experiment = replace(experiment, split=replace(experiment.split, test=experiment.split.test[:0]))
    with pytest.raises(UserError, match=r"^run '.*' has no test samples\.$"):
        figures(run)
    shutil.move("own.npz", "elsewhere.npz")
    assert "own.npz" in refused(*SHOW, run.path)
