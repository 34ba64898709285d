"""Answers for files: images are converted to the run's shape, and invalid files are named."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import fedwild
from fedwild import api
from fedwild.api import Run
from fedwild.core.errors import UserError
from fedwild.lifecycle.predict import BATCH, answer_files, find_files, read_sample
from fedwild.results.predictions import to_json, to_jsonl
from tests.conftest import TINY, Cli, Refused

GREY = np.random.default_rng(0).integers(0, 256, (8, 8), dtype=np.uint8)


def save(path: Path, pixels: np.ndarray) -> Path:
    if path.suffix == ".npy":
        np.save(path, pixels)
    else:
        Image.fromarray(pixels).save(path)
    return path


@pytest.fixture(scope="module")
def personal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a model per client, on vectors."""
    folder = tmp_path_factory.mktemp("personal")
    rng = np.random.default_rng(1)
    np.savez(folder / "vectors.npz", x=rng.normal(size=(60, 5)), y=np.arange(60) % 3)
    tables = {"method": {"name": "local-only", "epochs": 1}, "data": {"name": str(folder / "vectors.npz")}}
    return api.run(tables, partition="iid", clients=2, workers=0, out=folder / "run").path


def test_a_file_gets_the_answer_of_its_pixels(finished_once: Path, tmp_path: Path) -> None:
    run = Run(finished_once)
    x = run.experiment.dataset.x_test[:20]
    files = [save(tmp_path / f"{i}.png", image[0].numpy()) for i, image in enumerate(x)]
    rows, answers = list(answer_files(run, files)), run.predict(x)
    assert [row["answer"] for row in rows] == answers.labels
    assert [row["unknown"] for row in rows] == pytest.approx(answers.unknown.tolist())
    assert [row["file"] for row in rows] == [str(file) for file in files]


def test_a_row_has_the_decision_and_the_scores(finished_once: Path, tmp_path: Path) -> None:
    run = Run(finished_once)
    x = run.experiment.dataset.x_test
    files = [save(tmp_path / f"{i}.png", image[0].numpy()) for i, image in enumerate(x)]
    rows = list(answer_files(run, files))
    for row in rows:
        assert row["best_class"] == max(row["scores"], key=row["scores"].get)
        assert row["probability"] == row["scores"][row["best_class"]]
        assert sum(row["scores"].values()) == pytest.approx(1)
        assert list(row["scores"]) == ["0", "1", "2"]
        assert row["answer"] == ("unknown" if row["unknown"] > row["threshold"] else row["best_class"])
        assert row["threshold"] == run.result["thresholds"]["*"]
    assert "unknown" in {row["answer"] for row in rows}
    assert len({row["answer"] for row in rows}) > 1


def test_without_validation_samples_there_is_no_threshold(finished: Path, tmp_path: Path) -> None:
    text = (finished / "config.toml").read_text()
    config = tmp_path / "again.toml"
    config.write_text(text.replace("validation = 0.1", "validation = 0.0"))
    run = api.run(config, out=tmp_path / "none")
    (row,) = answer_files(run, [save(tmp_path / "a.png", GREY)])
    assert row["threshold"] is None
    assert row["answer"] == row["best_class"]
    json.dumps(row, allow_nan=False)


@pytest.mark.parametrize("shape", [(8, 8), (50, 70), (1, 1), (3, 200), (9, 8, 3), (16, 16, 4)])
def test_an_image_of_another_size_or_colour_is_converted_to_the_runs_shape(
    shape: tuple[int, ...], finished_once: Path, tmp_path: Path
) -> None:
    file = save(tmp_path / "odd.png", np.full(shape, 77, dtype=np.uint8))
    sample = read_sample(file, (1, 8, 8), torch.uint8)
    assert sample.shape == (1, 1, 8, 8)
    assert sample.dtype == torch.uint8
    assert sample.unique().tolist() == [77]
    assert next(answer_files(Run(finished_once), [file]))["answer"] in {"0", "1", "2", "unknown"}


def test_a_grey_image_is_converted_for_a_run_on_colour_images(tmp_path: Path) -> None:
    sample = read_sample(save(tmp_path / "grey.png", GREY), (3, 8, 8), torch.uint8)
    assert sample.shape == (1, 3, 8, 8)
    assert all(torch.equal(sample[0, channel], torch.from_numpy(GREY)) for channel in range(3))


def test_bytes_and_floats_give_the_same_sample(tmp_path: Path) -> None:
    png = save(tmp_path / "a.png", GREY)
    whole = save(tmp_path / "whole.npy", GREY)
    share = save(tmp_path / "share.npy", (GREY / 255).astype(np.float32))
    colour = save(tmp_path / "colour.npy", np.repeat(GREY[:, :, None], 3, axis=2))
    expected = torch.from_numpy(GREY)[None, None]
    for file in (png, whole, share, colour):
        assert torch.equal(read_sample(file, (1, 8, 8), torch.uint8), expected)
        assert torch.allclose(read_sample(file, (1, 8, 8), torch.float32), expected.float() / 255)


def test_floats_are_rounded_for_a_run_on_bytes_and_kept_for_a_run_on_floats(tmp_path: Path) -> None:
    fine = np.random.default_rng(3).random((8, 8)).astype(np.float32)
    file = save(tmp_path / "fine.npy", fine)
    stored = read_sample(file, (1, 8, 8), torch.uint8)
    assert stored.dtype == torch.uint8
    assert np.array_equal(stored[0, 0].numpy(), np.round(fine * 255))
    assert np.array_equal(read_sample(file, (1, 8, 8), torch.float32)[0, 0].numpy(), fine)


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.full((8, 8), np.nan), "NaN"),
        (np.zeros(3), "(1, 8, 8)"),
        (np.zeros((4, 8, 8), dtype=np.uint8), "(1, 8, 8)"),
        (np.float32(3), "shape"),
        (np.array(["a"]), "dtype"),
        (-np.ones((8, 8)), "-1"),
        (np.full((8, 8), 300), "300"),
        (np.zeros((0, 8), dtype=np.uint8), "shape"),
    ],
)
def test_an_array_that_is_not_a_sample_is_rejected_by_name(
    array: np.ndarray, words: str, finished_once: Path, tmp_path: Path
) -> None:
    file = tmp_path / "bad.npy"
    np.save(file, array)
    (row,) = answer_files(Run(finished_once), [file])
    assert "bad.npy" in row["error"]
    assert words in row["error"]


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\x93NUMPY\x01\x00", None])
@pytest.mark.parametrize("name", ["bad.npy", "bad.png"])
def test_a_damaged_file_is_named_and_the_others_are_answered(
    content: bytes | None, name: str, cli: Cli, finished: Path
) -> None:
    whole = Path("whole" + Path(name).suffix)
    save(whole, GREY)
    Path(name).write_bytes(whole.read_bytes()[: whole.stat().st_size // 2] if content is None else content)
    outcome = cli("predict", finished, name, whole)
    assert outcome.code == 1
    (line,) = outcome.err.splitlines()
    assert line.startswith("no answer: ") and name in line and "cannot be read" in line
    assert whole.name in outcome.out and name not in outcome.out


def test_an_archive_with_the_suffix_of_an_array_gets_no_answer(cli: Cli, finished: Path) -> None:
    np.savez("arrays.npz", a=GREY)
    shutil.move("arrays.npz", "arrays.npy")
    outcome = cli("predict", finished, "arrays.npy")
    assert outcome.code == 1 and "arrays.npy" in outcome.err and outcome.out == ""


def test_an_array_of_objects_is_never_unpickled(cli: Cli, finished: Path) -> None:
    np.save("objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    outcome = cli("predict", finished, "objects.npy")
    assert outcome.code == 1 and "objects.npy" in outcome.err


def test_a_missing_file_among_others_is_named(refused: Refused, finished: Path) -> None:
    save(Path("good.png"), GREY)
    assert "'none.png' does not exist" in refused("predict", finished, "good.png", "none.png")


def test_vectors_need_the_runs_number_of_features(personal: Path, tmp_path: Path) -> None:
    run = Run(personal)
    (row,) = answer_files(run, [save(tmp_path / "v.npy", np.ones(5))], "client-00")
    assert row["best_class"] in {"0", "1", "2"}
    files = [save(tmp_path / "w.npy", np.ones(4)), save(tmp_path / "a.png", GREY)]
    short, image = answer_files(run, files, "client-00")
    assert "w.npy" in short["error"] and "has 4 features, the run was trained on 5" in short["error"]
    assert "a.png" in image["error"]


def test_clients_with_their_own_models_answer_differently(personal: Path, tmp_path: Path) -> None:
    run, file = Run(personal), save(tmp_path / "v.npy", np.ones(5))
    answers = [next(answer_files(run, [file], client)) for client in ("client-00", "client-01")]
    assert answers[0]["scores"] != answers[1]["scores"]
    assert [a["threshold"] for a in answers] == [run.result["thresholds"][c] for c in ("client-00", "client-01")]


@pytest.mark.parametrize("client", [(), ("--client", "stranger"), ("--client", "")])
def test_a_personal_run_requires_a_client(client: tuple[str, ...], refused: Refused, personal: Path) -> None:
    save(Path("v.npy"), np.ones(5))
    error = refused("predict", personal, "v.npy", *client)
    assert "client-00, client-01" in error
    assert "local-only" in error


def test_an_unknown_client_is_rejected_even_if_all_share_a_model(refused: Refused, finished: Path) -> None:
    save(Path("a.png"), GREY)
    assert "stranger" in refused("predict", finished, "a.png", "--client", "stranger")


def test_predict_prints_a_row_per_file(cli: Cli, finished: Path) -> None:
    files = [save(Path(f"{i}.png"), GREY) for i in range(3)]
    outcome = cli("predict", finished, *files)
    assert outcome.code == 0
    for words in ("answer", "threshold", "0.png", "1.png", "2.png"):
        assert words in outcome.out


def test_predict_as_json_is_one_strict_line(cli: Cli, finished: Path) -> None:
    files = [save(Path(f"{i}.png"), GREY) for i in range(2)]
    outcome = cli("predict", finished, *files, "--json")
    assert outcome.code == 0
    (line,) = outcome.out.splitlines()
    rows = json.loads(line, parse_constant=pytest.fail)
    assert [row["file"] for row in rows] == ["0.png", "1.png"]
    assert rows[0]["scores"] == rows[1]["scores"]


def test_predict_shows_names_with_brackets_as_they_are(cli: Cli) -> None:
    rng = np.random.default_rng(0)
    np.savez("mine.npz", x=rng.integers(0, 256, (40, 8, 8), dtype=np.uint8), y=np.array(["[bold]", ":car:"] * 20))
    arguments = [*TINY, "--data", "mine.npz", "--set", "data.known=2", "--rounds", "1", "--out", "run"]
    arguments[:2] = []
    assert cli("run", *arguments, "--quiet", "--json").code == 0
    save(Path("[red]x.png"), GREY)
    outcome = cli("predict", "run", "[red]x.png")
    assert outcome.code == 0
    assert "[red]x.png" in outcome.out
    assert "[bold]" in outcome.out or ":car:" in outcome.out


def test_an_unfinished_run_predicts_with_its_last_checkpoint(finished: Path, tmp_path: Path) -> None:
    from tests.conftest import unfinish

    file = save(tmp_path / "a.png", GREY)
    whole = next(answer_files(Run(finished), [file]))
    part = next(answer_files(Run(unfinish(finished)), [file]))
    assert part["scores"].keys() == whole["scores"].keys()
    assert part["scores"] != whole["scores"]


@pytest.mark.parametrize("shape", [(3, 8, 8), (5, 8, 8, 1), (2, 1, 8, 8)])
def test_several_samples_in_one_file_are_rejected(shape: tuple[int, ...], tmp_path: Path) -> None:
    file = save(tmp_path / "several.npy", np.zeros(shape, dtype=np.uint8))
    with pytest.raises(UserError, match="one sample per file"):
        read_sample(file, (1, 8, 8), torch.uint8)


def test_predicting_needs_only_the_run_folder(tmp_path: Path) -> None:
    data = tmp_path / "data.npz"
    rng = np.random.default_rng(0)
    np.savez(data, x=rng.integers(0, 255, (40, 8, 8)).astype("uint8"), y=np.arange(40) % 2)
    for method in ("fedavg", "local-only"):
        settings = ["method.epochs=1", "model.name=mlp"]
        run = fedwild.run(method=method, data=str(data), clients=2, workers=0, out=tmp_path / method, settings=settings)
        before = run.predict(np.zeros((3, 1, 8, 8), dtype=np.uint8), client="client-00")
        assert len(before.labels) == 3
    data.unlink()
    for method in ("fedavg", "local-only"):
        run = fedwild.Run(tmp_path / method)
        assert len(run.predict(torch.zeros(2, 1, 8, 8), client="client-00").labels) == 2
        assert run.predict(torch.zeros(0, 1, 8, 8), client="client-00").labels == []
        with pytest.raises(UserError, match=r"\(n, 1, 8, 8\)"):
            run.predict(torch.zeros(8, 8), client="client-00")


def test_folders_patterns_and_lists_name_files(tmp_path: Path) -> None:
    for name in ("b/2.png", "a/1.png", "a/deep/3.jpg", "a/notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        save(tmp_path / name, GREY) if not name.endswith("txt") else (tmp_path / name).touch()
    (tmp_path / "list.csv").write_text("path,label\nb/2.png,x\na/1.png,y\n")
    names = ["a/1.png", "a/deep/3.jpg", "b/2.png"]
    assert find_files([tmp_path]) == [tmp_path / name for name in names]
    assert find_files([f"{tmp_path}/*/*.png"]) == [tmp_path / "a/1.png", tmp_path / "b/2.png"]
    assert find_files([tmp_path / "list.csv"]) == [tmp_path / "b/2.png", tmp_path / "a/1.png"]
    assert find_files([tmp_path / "b/2.png", tmp_path / "a"]) == [tmp_path / name for name in [names[2], *names[:2]]]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("none.png", "'none.png' does not exist"),
        ("*.png", "'*.png' matches no file"),
        ("empty", "folder 'empty' has no images"),
        ("labels.csv", "labels.csv has no column path: its columns are label"),
        ("nothing.csv", "nothing.csv lists no images"),
        ("bytes.csv", "bytes.csv cannot be read as CSV"),
        ("gap.csv", "gap.csv, line 3: path is empty"),
    ],
)
def test_inputs_without_files_are_rejected(given: str, words: str, refused: Refused, finished: Path) -> None:
    Path("empty").mkdir()
    Path("labels.csv").write_text("label\ncat\n")
    Path("nothing.csv").write_text("path\n\n")
    Path("gap.csv").write_text("path,label\na.png,x\n,y\n")
    Path("bytes.csv").write_bytes(b"path\n\xff\xfe\n")
    assert words in refused("predict", finished, given)


def test_batches_and_threads_give_the_answers_of_one_batch(finished_once: Path, tmp_path: Path) -> None:
    run = Run(finished_once)
    x = torch.from_numpy(np.random.default_rng(5).integers(0, 256, (BATCH + 3, 1, 8, 8), dtype=np.uint8))
    files = [save(tmp_path / f"{i:03d}.png", image[0].numpy()) for i, image in enumerate(x)]
    files.insert(7, tmp_path / "gone.png")
    rows = list(answer_files(run, files, workers=3))
    assert [row["file"] for row in rows] == [str(file) for file in files]
    assert "does not exist" in rows.pop(7)["error"]
    assert [row["unknown"] for row in rows] == pytest.approx(run.predict(x).unknown.tolist())


def test_a_row_has_the_three_most_probable_classes_and_the_percentile(finished_once: Path, tmp_path: Path) -> None:
    run = Run(finished_once)
    (row,) = answer_files(run, [save(tmp_path / "a.png", GREY)])
    assert [entry["class"] for entry in row["top"]] == sorted(row["scores"], key=row["scores"].get, reverse=True)
    reference = run.server().references["*"]
    below = sum(score < row["unknown"] for score in reference.quantiles.tolist())
    assert row["percentile"] == below / reference.count


def test_a_moved_threshold_decides(finished_once: Path) -> None:
    run = Run(finished_once)
    x = run.experiment.dataset.x_test
    scores = run.predict(x).unknown
    middle = float(scores.median())
    moved = run.predict(x, threshold=middle)
    assert [label == "unknown" for label in moved.labels] == (scores > middle).tolist()
    assert run.predict(x, threshold=float("inf")).labels.count("unknown") == 0
    limits = [run.predict(x, accept=accept).threshold for accept in (0.2, 0.6, 1.0)]
    assert limits == sorted(limits) and len(set(limits)) == 3
    assert run.predict(x, accept=run.config.evaluation.accept).threshold == run.predict(x).threshold
    assert run.evaluate(0, accept=0.2).metrics["open_accuracy"] != run.evaluate(0).metrics["open_accuracy"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--accept", "0"), "accept = 0.0 is not allowed: it must be greater than 0 and at most 1"),
        (("--accept", "1.5"), "accept = 1.5"),
        (("--accept", "much"), "accept = much"),
        (("--threshold", "nan"), "threshold = nan is not allowed"),
        (("--threshold", "low"), "threshold = low is not allowed"),
        (("--threshold", "1", "--accept", "0.9"), "not allowed together"),
    ],
)
@pytest.mark.parametrize("command", ["predict", "evaluate"])
def test_invalid_thresholds_are_rejected(
    command: str, options: tuple[str, ...], words: str, refused: Refused, finished: Path
) -> None:
    inputs = [save(Path("a.png"), GREY)] if command == "predict" else []
    assert words in refused(command, finished, *inputs, *options)


def test_without_validation_scores_a_share_cannot_set_the_threshold(finished: Path, tmp_path: Path) -> None:
    config = tmp_path / "again.toml"
    config.write_text((finished / "config.toml").read_text().replace("validation = 0.1", "validation = 0.0"))
    run = api.run(config, out=tmp_path / "none")
    with pytest.raises(UserError, match="no scores of validation samples"):
        run.predict(np.zeros((1, 1, 8, 8), dtype=np.uint8), accept=0.9)
    assert run.predict(np.zeros((1, 1, 8, 8), dtype=np.uint8), threshold=-1e9).labels == ["unknown"]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".json"])
def test_answers_are_written_with_the_files_that_have_none(suffix: str, cli: Cli, finished: Path) -> None:
    files = [save(Path(f"{i}.png"), GREY) for i in range(2)]
    Path("bad.png").write_bytes(b"nonsense")
    outcome = cli("predict", finished, *files, "bad.png", "--out", f"answers{suffix}")
    assert outcome.code == 1
    assert f"answers written to answers{suffix}" in outcome.out
    text = Path(f"answers{suffix}").read_text()
    if suffix == ".csv":
        rows = list(csv.DictReader(text.splitlines()))
    else:
        rows = json.loads(text) if suffix == ".json" else [json.loads(line) for line in text.splitlines()]
    assert [row["file"] for row in rows] == ["0.png", "1.png", "bad.png"]
    assert rows[0]["answer"] in {"0", "1", "2", "unknown"} and not rows[0].get("error")
    assert "cannot be read" in rows[2]["error"] and not rows[2].get("answer")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--out", "answers.txt"), "must end in .csv, .jsonl, .json"),
        (("--out", "none/answers.csv"), "folder 'none' does not exist"),
        (("--workers", "0"), "--workers 0 is not allowed"),
    ],
)
def test_invalid_options_are_rejected_before_any_work(
    options: tuple[str, ...], words: str, refused: Refused, finished: Path
) -> None:
    assert words in refused("predict", finished, save(Path("a.png"), GREY), *options)


def test_scores_that_are_no_numbers_are_null_in_json() -> None:
    assert json.loads(to_json([{"file": "a", "unknown": float("nan")}])) == [{"file": "a", "unknown": None}]
    assert to_jsonl([{"scores": {"x": float("inf")}}]) == '{"scores": {"x": null}}\n'
