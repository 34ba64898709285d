"""The command line with valid input: runs, JSON, lists, pictures, evaluation and resuming."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fedwild
from fedwild.data import DATASETS, PARTITIONS
from fedwild.methods import METHODS
from fedwild.models import MODELS
from fedwild.openset import SCORES
from fedwild.runs.listing import KINDS, REGISTRIES
from tests.conftest import TINY, Cli, unfinish
from tests.folders import read_json

SHOWN = ("closed_accuracy", "auroc", "oscr", "open_macro_f1")


def strict(text: str) -> Any:
    """Return parsed JSON; NaN and Infinity are errors."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def process(*arguments: str, cwd: Path, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run `fedwild` in a process."""
    return subprocess.run(
        [sys.executable, "-m", "fedwild", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(Path(fedwild.__file__).parents[1]), **extra},
        capture_output=True,
        text=True,
        timeout=120,
    )


# --- run -----------------------------------------------------------------------------------------------------


def test_json_output_is_the_result_and_progress_is_on_stderr(cli: Cli) -> None:
    outcome = cli("run", *TINY, "--rounds", "2", "--out", "run", "--json")
    assert outcome.code == 0
    result = strict(outcome.out.splitlines()[-1])
    assert len(outcome.out.splitlines()) == 1
    assert all(0 <= result["metrics"][key] <= 1 for key in SHOWN)
    assert (result["rounds"], result["clients"], result["classes"]) == (2, 2, ["0", "1", "2"])
    assert result == read_json(Path("run/result.json"))
    assert "round 2/2" in outcome.err
    assert "client-01" in outcome.err


def test_without_unknown_classes_auroc_is_null_and_the_table_shows_a_dash(cli: Cli) -> None:
    arguments = ("run", *TINY, "--set", "data.known=all", "--rounds", "1")
    outcome = cli(*arguments, "--json", "--out", "run")
    metrics = strict(outcome.out.splitlines()[-1])["metrics"]
    assert metrics["auroc"] is None
    assert 0 <= metrics["closed_accuracy"] <= 1
    table = cli(*arguments, "--quiet")
    assert table.code == 0
    assert "nan" not in table.out.lower()
    assert " - " in table.out
    strict(cli("evaluate", "run", "--json", "--workers", "0").out)
    for line in Path("run/events.jsonl").read_text().splitlines():
        strict(line)


def test_without_json_the_result_is_a_table_with_the_run_folder(cli: Cli) -> None:
    outcome = cli("run", *TINY, "--rounds", "1", "--quiet", "--out", "my/new/run")
    assert outcome.code == 0
    assert outcome.err == ""
    assert "run folder: my/new/run" in outcome.out
    assert "AUROC" in outcome.out


def test_runs_without_out_are_numbered_and_never_overwritten(cli: Cli) -> None:
    for _ in range(2):
        assert cli("run", *TINY, "--rounds", "1", "--quiet").code == 0
    assert sorted(os.listdir("runs")) == [f"fedavg-synthetic_8x8x1_4_80-00{i}" for i in (1, 2)]


def test_an_empty_out_folder_is_used(cli: Cli) -> None:
    Path("mine").mkdir()
    assert cli("run", *TINY, "--rounds", "1", "--quiet", "--out", "mine").code == 0
    assert Path("mine/result.json").is_file()


def test_the_config_of_a_run_repeats_it_bit_for_bit(cli: Cli) -> None:
    assert cli("run", *TINY, "--rounds", "2", "--seed", "5", "--quiet", "--out", "one").code == 0
    assert cli("run", "one/config.toml", "--quiet", "--out", "two").code == 0
    assert Path("one/model.safetensors").read_bytes() == Path("two/model.safetensors").read_bytes()
    assert Path("one/splits.npz").read_bytes() == Path("two/splits.npz").read_bytes()
    assert cli("run", "one/config.toml", "--seed", "6", "--quiet", "--out", "three").code == 0
    assert Path("one/model.safetensors").read_bytes() != Path("three/model.safetensors").read_bytes()


def test_flags_override_the_file_and_set_overrides_flags(cli: Cli) -> None:
    Path("my.toml").write_text("seed = 1\n[method]\nrounds = 5\nepochs = 2\n[federation]\nclients = 3\n")
    arguments = ("my.toml", *TINY, "--rounds", "2", "--seed", "2", "--set", "method.rounds=1", "--json", "--quiet")
    result = strict(cli("run", *arguments, "--out", "run").out)
    assert (result["seed"], result["rounds"], result["clients"]) == (2, 1, 2)
    assert "epochs = 2" in Path("run/config.toml").read_text()


def test_a_users_own_class_is_imported_from_the_working_folder(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "my_cli_method.py").write_text(
        "from fedwild.methods.fedavg import FedAvg\nclass Mine(FedAvg):\n    '''Mine.'''\n"
    )
    outcome = cli("run", *TINY, "--method", "my_cli_method:Mine", "--rounds", "1", "--json", "--quiet")
    assert strict(outcome.out)["method"] == "my_cli_method:Mine"
    assert os.listdir("runs") == ["fedavg-synthetic_8x8x1_4_80-001".replace("fedavg", "my_cli_method_Mine")]


def test_names_with_brackets_do_not_break_the_tables(cli: Cli) -> None:
    Path("[").mkdir()
    images = np.random.default_rng(0).integers(0, 256, (40, 8, 8), dtype=np.uint8)
    np.savez("[/b].npz", x=images, y=np.array(["[/c]", "[bold]"] * 20))
    own = ("--data", "[/b].npz", "--partition", "iid", "--clients", "2")
    small = ("--model", "mlp", "--set", "model.hidden=[4]", "--workers", "0", "--rounds", "1", "--quiet")
    assert "b].npz" in cli("run", *own, *small, "--out", "run").out
    shown = cli("data", "show", *own, "--out", "p.png").out
    assert "[/c]" in shown
    assert "[bold]" in shown


# --- resume and evaluate -------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [0, 2])
def test_resume_gives_the_model_of_an_uninterrupted_run(rounds: int, cli: Cli, finished: Path) -> None:
    model = (finished / "model.safetensors").read_bytes()
    metrics = strict((finished / "result.json").read_text())["metrics"]
    outcome = cli("resume", unfinish(finished, rounds), "--json", "--workers", "0")
    assert outcome.code == 0
    assert strict(outcome.out.splitlines()[-1])["metrics"] == metrics
    assert (finished / "model.safetensors").read_bytes() == model
    assert f"resuming at round {rounds + 1} of 3" in outcome.err


def test_resuming_a_finished_run_prints_its_result_and_changes_nothing(cli: Cli, finished: Path) -> None:
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    outcome = cli("resume", finished, "--json")
    assert strict(outcome.out) == read_json(finished / "result.json")
    assert {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()} == before


def test_evaluate_gives_the_figures_of_the_run(cli: Cli, finished: Path) -> None:
    before = sorted(finished.rglob("*"))
    outcome = cli("evaluate", finished, "--json", "--workers", "0")
    assert outcome.code == 0
    (line,) = outcome.out.splitlines()
    assert strict(line)["metrics"] == strict((finished / "result.json").read_text())["metrics"]
    assert sorted(finished.rglob("*")) == before
    table = cli("evaluate", finished, "--workers", "0").out
    assert all(key in table for key in SHOWN)


def test_evaluating_a_run_in_progress_does_not_change_its_spool(cli: Cli, finished: Path) -> None:
    unfinish(finished)
    spool = finished / ".spool-1"
    spool.mkdir()
    (spool / "down-0.safetensors").write_bytes(b"on its way to a client")
    with open(finished / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        cli("evaluate", finished, "--workers", "0")
    assert (spool / "down-0.safetensors").exists()


# --- list ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_list_as_json_has_a_summary_and_all_settings_of_every_row(kind: str, cli: Cli) -> None:
    outcome = cli("list", kind, "--json")
    assert outcome.code == 0
    (line,) = outcome.out.splitlines()
    rows = strict(line)
    assert rows
    for row in rows:
        assert row["name"]
        assert row["summary"].strip()
        for parameter in row["parameters"]:
            assert parameter["description"].strip(), (row["name"], parameter["name"])
            assert parameter["type"] not in ("", "any")
            assert "default" in parameter


@pytest.mark.parametrize("kind", KINDS)
def test_list_prints_one_line_per_row(kind: str, cli: Cli) -> None:
    rows = strict(cli("list", kind, "--json").out)
    *lines, empty, hint = cli("list", kind).out.splitlines()
    assert [line.split(maxsplit=1) for line in lines] == [[row["name"], row["summary"]] for row in rows]
    assert (empty, hint) == ("", f"Settings of one of them: fedwild list {kind} NAME")


@pytest.mark.parametrize("kind", KINDS)
def test_list_with_a_name_prints_its_details_and_settings(kind: str, cli: Cli) -> None:
    for row in strict(cli("list", kind, "--json").out)[:3]:
        outcome = cli("list", kind, row["name"])
        assert outcome.code == 0
        assert outcome.out.startswith(f"{row['name']}  {row['summary']}\n")
        assert all(f"\n{line}\n" in outcome.out for line in row["details"])
        for parameter in row["parameters"]:
            assert f"\n  {parameter['name']} = {json.dumps(parameter['default'])}  {parameter['type']}" in outcome.out
            assert parameter["description"] in outcome.out
        assert strict(cli("list", kind, row["name"], "--json").out) == [row]


def test_shared_settings_of_a_method_are_listed_after_its_own(cli: Cli) -> None:
    own, _, shared = cli("list", "methods", "qffl").out.partition("\nSettings of local training")
    assert "\n  q = " in own
    assert "\n  rounds = " in own
    assert "\n  lr = " in shared
    assert "\n  lr = " not in own


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("metods",), "list 'metods' is not known. Did you mean 'methods'?"),
        (("methods", "fedavgg"), "method 'fedavgg' is not known. Did you mean 'fedavg'?"),
        (("objectives", "prosser"), "objective 'prosser' is not known. Did you mean 'proser'?"),
        (("partitions", "dirichlett"), "partition 'dirichlett' is not known. Did you mean 'dirichlet'?"),
        (("models", "resnet18"), "model 'resnet18' is not known. Did you mean 'resnet-18'?"),
        (("scores", "enrgy"), "score 'enrgy' is not known. Did you mean 'energy'?"),
        (("data", "minst"), "data set 'minst' is not known. Did you mean 'mnist'?"),
        (("settings", "engin"), "section 'engin' is not known. Did you mean 'engine'?"),
    ],
)
def test_an_unknown_kind_or_name_gets_a_suggestion(words: tuple[str, ...], message: str, cli: Cli) -> None:
    outcome = cli("list", *words)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith(f"error: {message}")


def test_list_shows_a_users_own_class(cli: Cli) -> None:
    outcome = cli("list", "partitions", "tests.data.test_partitions:EveryOther")
    assert outcome.out.startswith("tests.data.test_partitions:EveryOther  Gives client i every sample ")


def test_the_lists_contain_everything_that_is_registered(cli: Cli) -> None:
    expected = {
        "methods": METHODS.names(),
        "data": list(DATASETS),
        "models": MODELS.names(),
        "partitions": PARTITIONS.names(),
        "scores": SCORES.names(),
    }
    for kind, names in expected.items():
        assert sorted(row["name"] for row in strict(cli("list", kind, "--json").out)) == sorted(names)


def test_every_setting_of_every_component_has_a_default() -> None:
    for registry in REGISTRIES.values():
        for name in registry.names():
            fields = registry.get(name).Params.model_fields.items()
            assert not [key for key, field in fields if field.is_required()], name


def test_methods_list_their_components(cli: Cli) -> None:
    row = next(row for row in strict(cli("list", "methods", "--json").out) if row["name"] == "fedavg")
    assert row["composes"] == ["objective", "correction", "aggregation", "score"]
    defaults = "objective (ce), correction (none), aggregation (mean), score (msp)"
    assert f"Components, with defaults: {defaults}." in row["details"]


# --- data ----------------------------------------------------------------------------------------------------


def test_data_show_prints_a_picture_and_writes_a_png(cli: Cli) -> None:
    outcome = cli("data", "show", "--data", "digits", "--clients", "4", "--out", "picture.png")
    assert outcome.code == 0
    assert "client-03" in outcome.out
    assert "4 clients" in outcome.out
    assert "picture written to picture.png" in outcome.out
    with Image.open("picture.png") as image:
        image.load()
        assert image.format == "PNG"
        assert min(image.size) > 50


def test_data_show_as_json_counts_every_training_sample_once(cli: Cli) -> None:
    outcome = cli("data", "show", "--data", "digits", "--partition", "classes:2", "--clients", "6", "--json")
    shown = strict(outcome.out)
    assert shown["clients"] == [f"client-0{i}" for i in range(6)]
    assert all(sum(count > 0 for count in row) == 2 for row in shown["counts"])
    assert [sum(row[i] for row in shown["counts"]) > 0 for i in range(10)] == [True] * 6 + [False] * 4
    assert shown["picture"] is None
    assert not list(Path().glob("*.png"))


def test_data_show_shows_the_split_of_a_run(cli: Cli) -> None:
    shown = strict(cli("data", "show", *TINY[:6], "--seed", "3", "--json").out)
    cli("run", *TINY, "--set", "data.known=all", "--seed", "3", "--rounds", "1", "--out", "run", "--quiet")
    with np.load("run/splits.npz") as split:
        assert [sum(row) for row in shown["counts"]] == split["lengths"][:, :3].sum(1).tolist()


def test_preparing_the_embedded_digits_works(cli: Cli) -> None:
    outcome = cli("data", "prepare", "digits")
    assert outcome.code == 0
    assert "digits" in outcome.out


def test_preparing_available_data_prints_its_path(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDWILD_DATA", str(tmp_path))
    images = np.zeros((20, 28, 28), dtype=np.uint8)
    labels = np.arange(20) % 10
    np.savez(tmp_path / "mnist.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    module = sys.modules["fedwild.data.sources.prepare"]  # the package also has a function of that name
    monkeypatch.setattr(module, "download", lambda *a, **k: pytest.fail("no download is needed"))
    outcome = cli("data", "prepare", "mnist")
    assert outcome.code == 0
    assert str(tmp_path / "mnist.npz") in outcome.out


# --- real processes ------------------------------------------------------------------------------------------


def test_help_and_version_do_not_import_torch(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom fedwild.cli import main\n"
        "try:\n    main(sys.argv[1:])\n"
        "except SystemExit as end:\n    assert not end.code\n"
        "assert 'torch' not in sys.modules\n"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(fedwild.__file__).parents[1])}
    for arguments, words in (
        (["--help"], "Commands"),
        (["--version"], fedwild.__version__),
        (["run", "--help"], "--set"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], cwd=tmp_path, env=env, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert words in done.stdout


def test_a_process_runs_with_workers_and_prints_json(tmp_path: Path) -> None:
    done = process("run", *TINY, "--workers", "2", "--rounds", "2", "--json", "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = strict(done.stdout.splitlines()[-1])
    assert set(SHOWN) <= result["metrics"].keys()
    assert "round 2/2" in done.stderr
    assert sorted(os.listdir(tmp_path)) == ["run"]
    assert not [name for name in os.listdir(tmp_path / "run") if name.startswith(".") and name != ".lock"]


def test_a_process_rejects_invalid_input_with_exit_code_2(tmp_path: Path) -> None:
    done = process("run", *TINY, "--method", "fedavgg", "--set", "method.epoch=1", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: method 'fedavgg' is not known. Did you mean 'fedavg'?")
    assert "Traceback" not in done.stderr
    assert os.listdir(tmp_path) == []


def test_a_reader_that_stops_early_causes_no_traceback(tmp_path: Path) -> None:
    command = f"set -o pipefail; {sys.executable} -m fedwild list methods | head -n 1"
    env = {**os.environ, "PYTHONPATH": str(Path(fedwild.__file__).parents[1])}
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.stdout.startswith(METHODS.names()[0])
    assert done.stderr == ""
    assert done.returncode == 0


def test_without_arguments_help_is_printed(cli: Cli) -> None:
    outcome = cli()
    assert outcome.code == 0
    assert outcome.out.startswith("Usage: ") and "Train a model across clients" in outcome.out
    assert outcome.err == ""
