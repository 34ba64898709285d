"""`fedwild show outliers` through the command line: sheets of data and of runs, and every refusal."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.conftest import TINY, Cli, Refused, unfinish

SHOW = ("show", "outliers")


@pytest.fixture(scope="module")
def fedov(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny FedOV run on the embedded digits. Do not change it."""
    from fedwild.cli import main

    folder = tmp_path_factory.mktemp("fedov") / "run"
    tiny = ("--set", "method.epochs=1", "--clients", "2", "--workers", "0", "--quiet", "--out", str(folder))
    with pytest.raises(SystemExit) as ended:
        main(["run", "--method", "fedov", *tiny])
    assert ended.value.code == 0
    return folder


def size(path: str) -> tuple[int, int]:
    with Image.open(path) as image:
        assert image.format == "PNG"
        return image.size


def test_without_options_a_sheet_of_the_digits_is_drawn(cli: Cli) -> None:
    outcome = cli(*SHOW)
    assert outcome.code == 0
    assert "picture written to outliers.png" in outcome.out
    # Margins, the name of a class, ten pictures of 64 pixels with gaps; a caption, six rows.
    width, height = size("outliers.png")
    assert 10 * 64 < width < 10 * 64 + 110
    assert height == 10 + 16 + 6 + 6 * 64 + 5 * 4 + 10


def test_rows_and_columns_say_how_many_pictures_there_are(cli: Cli) -> None:
    for rows, columns in ((1, 20), (3, 21)):
        assert cli(*SHOW, "--rows", str(rows), "--columns", str(columns), "--out", f"{rows}.png").code == 0
    (first, low), (second, high) = size("1.png"), size("3.png")
    assert (second - first, high - low) == (68, 2 * 68)


def test_the_same_seed_gives_the_same_file(cli: Cli) -> None:
    for name, seed in (("a", "7"), ("b", "7"), ("c", "8")):
        assert cli(*SHOW, "--seed", seed, "--out", f"{name}.png").code == 0
    a, b, c = (Path(f"{name}.png").read_bytes() for name in "abc")
    assert a == b
    assert a != c


def test_all_has_a_column_for_each_generator(cli: Cli) -> None:
    outcome = cli(*SHOW, "--outliers", "all", "--rows", "2", "--json")
    said = json.loads(outcome.out)
    assert said["columns"][0] == "real"
    assert len(said["columns"]) == 11
    assert (said["picture"], said["data"], said["outliers"]) == ("outliers.png", "digits", "all")
    assert [set(sample) for sample in said["samples"]] == [{"row", "class"}] * 2
    assert size("outliers.png")[0] > 11 * 64


@pytest.mark.parametrize("shape", ["28x28x1", "32x32x3", "6x12x12x1"])
def test_images_and_volumes_of_any_kind_can_be_shown(shape: str, cli: Cli) -> None:
    if shape == "6x12x12x1":
        volumes = np.random.default_rng(0).integers(0, 256, (20, 6, 12, 12, 1), dtype=np.uint8)
        np.savez("volumes.npz", x=volumes, y=np.arange(20) % 4)
    data = "volumes.npz" if shape == "6x12x12x1" else f"synthetic:{shape}:4:40"
    assert cli(*SHOW, "--data", data, "--outliers", "mixture").code == 0
    assert size("outliers.png")[0] > 500


def test_a_config_file_says_which_data_and_which_seed(cli: Cli) -> None:
    Path("my.toml").write_text('seed = 5\n[data]\nname = "synthetic:8x8x1:4:80"\nmean = 0.5\nstd = 0.25\n')
    said = json.loads(cli(*SHOW, "--config", "my.toml", "--json", "--out", "a.png").out)
    assert said["data"] == "synthetic:8x8x1:4:80"
    same = ("--data", "synthetic:8x8x1:4:80", "--seed", "5", "--outliers", "destruction")
    assert cli(*SHOW, *same, "--out", "b.png").code == 0
    again = json.loads(cli(*SHOW, "--config", "my.toml", "--seed", "5", "--json", "--out", "c.png").out)
    assert said["samples"] == again["samples"]
    assert Path("a.png").read_bytes() == Path("c.png").read_bytes()
    assert size("a.png") == size("b.png")


def test_a_run_is_shown_with_its_models_figures(cli: Cli, fedov: Path) -> None:
    outcome = cli(*SHOW, "--run", fedov, "--json")
    assert outcome.code == 0, outcome.err
    said = json.loads(outcome.out)
    assert (said["client"], said["outliers"], said["steps"], said["step_size"]) == (
        "client-00",
        "destruction",
        5,
        0.002,
    )
    assert len(said["samples"]) == 6
    for sample in said["samples"]:
        figures = [sample["unknown"]["x"], *sample["unknown"]["x'"], *sample["unknown"]["x''"]]
        assert len(figures) == 7
        assert all(0 <= figure <= 1 for figure in figures)
        assert sample["largest_change"] == pytest.approx([0.01] * 3, abs=1e-5)
    width, height = size("outliers.png")
    assert 10 * 64 < width < 10 * 64 + 140
    assert height == 10 + 3 * 16 + 6 + 6 * (64 + 16) + 5 * 4 + 10


def test_another_client_another_sheet(cli: Cli, fedov: Path) -> None:
    for client in ("client-00", "client-01"):
        assert cli(*SHOW, "--run", fedov, "--client", client, "--columns", "4", "--out", f"{client}.png").code == 0
    assert Path("client-00.png").read_bytes() != Path("client-01.png").read_bytes()


def test_fedavg_with_outliers_can_be_shown_too(cli: Cli) -> None:
    assert (
        cli("run", *TINY, "--set", "objective.name=outlier-aware", "--rounds", "1", "--quiet", "--out", "r").code == 0
    )
    said = json.loads(cli(*SHOW, "--run", "r", "--client", "client-01", "--rows", "2", "--json").out)
    assert said["client"] == "client-01"


def test_help_teaches(cli: Cli) -> None:
    said = cli(*SHOW, "--help").out
    assert "fedwild show outliers --data fashion-mnist --outliers all" in said
    assert "show" in cli("--help").out


# --- refusals --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--outliers", "cropp"), ("--outliers 'cropp'", "Did you mean 'crop'", "all")),
        (("--outliers", ""), ("--outliers ''", "is not known")),
        (("--rows", "0"), ("--rows 0", "from 1 to 100")),
        (("--rows", "many"), ("--rows many", "whole number")),
        (("--rows", "101"), ("--rows 101", "from 1 to 100")),
        (("--columns", "1"), ("--columns 1", "from 2 to 50")),
        (("--columns", "2.5"), ("--columns 2.5", "whole number")),
        (("--columns", "4", "--outliers", "all"), ("--columns 4", "not allowed with --outliers all")),
        (("--seed", "-1"), ("--seed -1", "from 0 to")),
        (("--seed", "x"), ("--seed x", "whole number")),
        (("--client", "client-00"), ("--client client-00", "not allowed without --run")),
        (("--data", "nonsense"), ("'nonsense' is not known",)),
        (("--data", "none.npz"), ("'none.npz'", "does not exist")),
        (("--config", "none.toml"), ("'none.toml' does not exist",)),
        (("--out", "no/such/folder/x.png"), ("--out 'no/such/folder/x.png'", "cannot be written")),
        (("--out", "x.jpg"), ("--out 'x.jpg' is not allowed", "must end in .png, .svg or .pdf")),
        (("--out", "."), ("--out '.' is not allowed",)),
        (("--run", "none"), ("'none'", "does not exist")),
    ],
)
def test_bad_values_are_refused_in_one_sentence(
    arguments: tuple[str, ...], said: tuple[str, ...], refused: Refused
) -> None:
    error = refused(*SHOW, *arguments)
    assert len(error.splitlines()) == 1
    assert all(part in error for part in said), error


def test_vectors_are_refused(refused: Refused) -> None:
    np.savez("vectors.npz", x=np.random.default_rng(0).random((20, 7)), y=np.arange(20) % 2)
    error = refused(*SHOW, "--data", "vectors.npz")
    assert "'vectors'" in error or "'vectors.npz'" in error
    assert "(7,)" in error


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--data", "mnist"), ("--data mnist", "not allowed with --run")),
        (("--data", "mnist", "--data", "usps"), ("--data mnist usps", "not allowed with --run")),
        (("--config", "my.toml"), ("--config my.toml", "not allowed with --run")),
        (("--outliers", "crop"), ("--outliers crop", "not allowed with --run")),
        (("--columns", "5"), ("--columns 5", "from 4 to 49, in steps of 3")),
        (("--client", "nobody"), ("--client 'nobody'", "client-00, client-01")),
        (("--rows", "-2"), ("--rows -2", "from 1 to 100")),
        (("--out", "no/such.png"), ("--out 'no/such.png'", "cannot be written")),
    ],
)
def test_bad_values_for_a_run_are_refused(
    arguments: tuple[str, ...], said: tuple[str, ...], fedov: Path, refused: Refused
) -> None:
    error = refused(*SHOW, "--run", fedov, *arguments)
    assert len(error.splitlines()) == 1
    assert all(part in error for part in said), error


def test_a_run_whose_model_has_no_output_for_unknown_is_refused(finished: Path, refused: Refused) -> None:
    error = refused(*SHOW, "--run", finished)
    assert "has no model with an output for 'unknown'" in error
    assert "--set objective.name=outlier-aware" in error


def test_an_unfinished_run_is_refused(finished: Path, refused: Refused) -> None:
    assert "is unfinished" in refused(*SHOW, "--run", unfinish(finished))


def test_a_run_without_its_data_is_refused(cli: Cli, refused: Refused) -> None:
    images = np.random.default_rng(0).integers(0, 256, (40, 8, 8), dtype=np.uint8)
    np.savez("own.npz", x=images, y=np.arange(40) % 2)
    own = ("--data", "own.npz", "--method", "fedov", "--partition", "iid", "--clients", "2", "--workers", "0")
    small = ("--model", "mlp", "--set", "model.hidden=[4]", "--set", "method.epochs=1", "--quiet", "--out", "run")
    assert cli("run", *own, *small).code == 0
    assert cli(*SHOW, "--run", "run", "--rows", "2").code == 0
    shutil.move("own.npz", "elsewhere.npz")
    assert "own.npz" in refused(*SHOW, "--run", "run")
