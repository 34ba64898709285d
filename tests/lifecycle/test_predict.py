"""Answers for files: images are converted to the run's shape, and invalid files are named."""

from __future__ import annotations

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
from fedwild.lifecycle.predict import answer_files, read_sample
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
    rows, answers = answer_files(run, files), run.predict(x)
    assert [row["answer"] for row in rows] == answers.labels
    assert [row["unknown"] for row in rows] == pytest.approx(answers.unknown.tolist())
    assert [row["file"] for row in rows] == [str(file) for file in files]


def test_a_row_has_the_decision_and_the_scores(finished_once: Path, tmp_path: Path) -> None:
    run = Run(finished_once)
    x = run.experiment.dataset.x_test
    files = [save(tmp_path / f"{i}.png", image[0].numpy()) for i, image in enumerate(x)]
    rows = answer_files(run, files)
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
    assert answer_files(Run(finished_once), [file])[0]["answer"] in {"0", "1", "2", "unknown"}


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
    with pytest.raises(UserError) as caught:
        answer_files(Run(finished_once), [file])
    assert "bad.npy" in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\x93NUMPY\x01\x00", None])
@pytest.mark.parametrize("name", ["bad.npy", "bad.png"])
def test_a_damaged_file_is_named(content: bytes | None, name: str, refused: Refused, finished: Path) -> None:
    whole = Path("whole" + Path(name).suffix)
    save(whole, GREY)
    Path(name).write_bytes(whole.read_bytes()[: whole.stat().st_size // 2] if content is None else content)
    error = refused("predict", finished, name)
    assert name in error
    assert "cannot be read" in error


def test_an_archive_with_the_suffix_of_an_array_is_rejected(refused: Refused, finished: Path) -> None:
    np.savez("arrays.npz", a=GREY)
    shutil.move("arrays.npz", "arrays.npy")
    assert "arrays.npy" in refused("predict", finished, "arrays.npy")


def test_an_array_of_objects_is_never_unpickled(refused: Refused, finished: Path) -> None:
    np.save("objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    assert "objects.npy" in refused("predict", finished, "objects.npy")


def test_a_missing_file_among_others_is_named(refused: Refused, finished: Path) -> None:
    save(Path("good.png"), GREY)
    assert "'none.png' does not exist" in refused("predict", finished, "good.png", "none.png")


def test_vectors_need_the_runs_number_of_features(personal: Path, tmp_path: Path) -> None:
    run = Run(personal)
    (row,) = answer_files(run, [save(tmp_path / "v.npy", np.ones(5))], "client-00")
    assert row["best_class"] in {"0", "1", "2"}
    with pytest.raises(UserError, match=r"w\.npy.* has 4 features, the run was trained on 5"):
        answer_files(run, [save(tmp_path / "w.npy", np.ones(4))], "client-00")
    with pytest.raises(UserError, match=r"a\.png"):
        answer_files(run, [save(tmp_path / "a.png", GREY)], "client-00")


def test_clients_with_their_own_models_answer_differently(personal: Path, tmp_path: Path) -> None:
    run, file = Run(personal), save(tmp_path / "v.npy", np.ones(5))
    answers = [answer_files(run, [file], client)[0] for client in ("client-00", "client-01")]
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
    whole = answer_files(Run(finished), [file])[0]
    part = answer_files(Run(unfinish(finished)), [file])[0]
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
