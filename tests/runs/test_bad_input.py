"""Invalid input: exit code 2, one sentence per problem, no traceback, nothing written."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import fedwild
from fedwild.contract import Step
from fedwild.contract.engine import Answer, Job
from fedwild.core.errors import BadReply
from fedwild.core.payload import Payload
from tests.conftest import TINY, Cli, Refused, unfinish

IMAGES = np.random.default_rng(0).integers(0, 256, (80, 8, 8), dtype=np.uint8)
LABELS = np.arange(80) % 4
RUN = ("run", *TINY, "--rounds", "1")


def own(path: str | Path) -> tuple[str, ...]:
    """Return the arguments of a small run on the user's own data."""
    return ("run", "--data", str(path), *TINY[2:-2], "--rounds", "1")


# --- settings ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--method", "fedavgg"), ("method 'fedavgg'", "Did you mean 'fedavg'?", "local-only")),
        (("--data", "digitz"), ("'digitz'", "Did you mean 'digits'?", "mnist")),
        (("--model", "mlpp"), ("model 'mlpp'", "Did you mean 'mlp'?", "simple-cnn")),
        (("--partition", "dirichlett"), ("partition 'dirichlett'", "Did you mean 'dirichlet'?", "iid")),
        (("--set", "score.name=mspp"), ("score 'mspp'", "Did you mean 'msp'?", "energy")),
        (("--set", "objective.name=cee"), ("objective 'cee'", "Did you mean 'ce'?")),
        (("--set", "correction.name=nune"), ("correction 'nune'", "Did you mean 'none'?")),
        (("--set", "method.epoch=3"), ("method.epoch is not a setting", "Did you mean 'epochs'?", "batch_size")),
        (("--set", "metod.lr=3"), ("metod is not a setting", "Did you mean 'method'?")),
        (("--set", "model.hiden=[3]"), ("model.hiden is not a setting", "Did you mean 'hidden'?")),
        (("--set", "method.lr=-1"), ("method.lr = -1", "> 0")),
        (("--set", "method.lr=nan"), ("method.lr = nan", "finite")),
        (("--set", "method.epochs=few"), ("method.epochs = 'few'", "whole number")),
        (("--set", "method.epochs=1.5"), ("method.epochs = 1.5", "whole number")),
        (("--set", "method.optimizer=sdg"), ("method.optimizer = 'sdg'", "sgd", "adam")),
        (("--set", "federation.clients=true"), ("federation.clients = True", "whole number")),
        (("--set", "federation.participation=0"), ("federation.participation = 0", "> 0")),
        (("--set", "federation.min_clients=9"), ("federation.min_clients = 9", "2 clients")),
        (("--set", "federation.arrivals={stranger=1}"), ("federation.arrivals", "'stranger'", "client-00")),
        (("--set", "evaluation.accept=1.1"), ("evaluation.accept = 1.1", "<= 1")),
        (("--set", "engine.device=cuda:99"), ("engine.device = 'cuda:99'",)),
        (("--set", "engine.device=toaster"), ("engine.device = 'toaster'",)),
        (("--set", "engine.device=meta"), ("engine.device = 'meta'",)),
        (("--workers", "-1"), ("engine.workers = -1", ">= 0")),
        (("--clients", "0"), ("federation.clients = 0", ">= 1")),
        (("--clients", "81"), ("81", "60")),
        (("--seed", "-1"), ("seed = -1",)),
        (("--set", "nonsense"), ("--set 'nonsense'", "section.key=value")),
        (("--set", "a.b.c=1"), ("a is not a setting",)),
        (("--partition", "classes:9"), ("partition.k = 9", "3 classes", "1 to 3")),
        (("--partition", "classes:x"), ("'classes:x'", "not a number")),
        (("--partition", "classes:1"), ("partition.k = 1", "2 clients")),
        (("--partition", "iid:3"), ("'iid:3'", "'iid'")),
        (("--set", "partition.k=2"), ("partition.k = 2", "'iid'")),
        (("--partition", "owner"), ("owner", "does not name the owners")),
        (("--set", "data.known=9"), ("data.known = 9", "4")),
        (("--set", 'data.known=["x"]'), ("data.known", "'x'", "0, 1, 2, 3")),
        (("--set", "data.mean=[0.1, 0.2]"), ("data.mean", "2 values")),
        (("--set", "data.std=0"), ("data.std = 0",)),
        (("--set", 'data.augment=["spin"]'), ("data.augment = ['spin']", "crop", "flip")),
        (("--set", "data.known_by_client={stranger=['0']}"), ("data.known_by_client", "'stranger'", "client-00")),
        (("--model", "no.such:Net"), ("'no.such:Net'", "imported")),
        (("--method", "no.such:Method"), ("method 'no.such:Method'", "imported")),
        (("--data", "synthetic:8x8"), ("'synthetic:8x8'", "synthetic:HxWxC:classes:samples")),
        (("none.toml",), ("'none.toml'", "does not exist")),
        (("--set", "method.rounds=9223372036854775807"), ("method 'fedavg' has more than 100,000 rounds",)),
        (("--partition", "shards:1000000"), ("partition.shards_per_client = 1000000", "<= 10000")),
        (("--method", "gal", "--set", "method.stages=1000000000"), ("method.stages = 1000000000", "<= 1000")),
        (("--set", "data.domains=[]"), ("data.domains = []", "at least 1")),
        (("--set", "data.size=4096"), ("data.size = 4096", "<= 1024")),
        (("--set", f"method.lr={'1' * 5000}"), ("--set 'method.lr=111", "too many digits")),
        (("--set", f"method.lr={'[' * 3000}{']' * 3000}"), ("--set 'method.lr=[[[", "nested too deeply")),
        (("--clients", "9" * 20), ("federation.clients", "<= 1e+06")),
    ],
    ids=lambda value: " ".join(value) if value and value[0].startswith("--") else None,
)
def test_an_invalid_setting_is_one_sentence(
    arguments: tuple[str, ...], words: tuple[str, ...], refused: Refused
) -> None:
    drop = [i for i, word in enumerate(TINY) if word == "--data"] if "--data" in arguments else []
    base = [word for i, word in enumerate(TINY) if i not in {j + k for j in drop for k in (0, 1)}]
    error = refused("run", *base, "--rounds", "1", *arguments)
    assert len(error.splitlines()) == 1
    assert all(word in error for word in words), error


def test_a_network_for_another_input_shape_is_rejected(refused: Refused) -> None:
    error = refused("run", *TINY[:8], "--model", "resnet-18-3d")
    assert "model 'resnet-18-3d'" in error
    assert "(1, 8, 8)" in error


def test_all_problems_are_reported_at_once(refused: Refused) -> None:
    Path("my.toml").write_text('[method]\nlr = [1]\nepoch = 3\n[data]\nvalidation = "much"\n[nonsense]\nx = 1\n')
    error = refused("run", "my.toml", "--model", "mlpp", "--seed", "-4", "--set", "score.name=none")
    lines = error.splitlines()
    for key in ("method.lr", "method.epoch ", "data.validation", "nonsense", "'mlpp'", "seed = -4", "score 'none'"):
        assert len([line for line in lines if key in line]) == 1, key
    assert len(lines) == 7


def test_a_syntax_error_is_reported_with_its_line(refused: Refused) -> None:
    Path("broken.toml").write_text("seed = 1\n[method\nlr = 1\n")
    error = refused("run", "broken.toml")
    assert "'broken.toml' is not valid TOML" in error
    assert "line 2" in error


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"seed = {'1' * 5000}", "a number has too many digits"),
        (f"[method]\nlr = {'[' * 3000}{']' * 3000}", "nested too deeply"),
        ("seed = 1\n[method]\nlr = \x00", "is not valid TOML"),
        (f"# {'x' * 10_000_000}", "at most 10.0 MB are allowed"),
    ],
    ids=["digits", "nested", "control", "large"],
)
def test_extreme_config_files_are_one_sentence(text: str, words: str, refused: Refused) -> None:
    Path("my.toml").write_text(text)
    error = refused("run", "my.toml")
    assert len(error.splitlines()) == 1
    assert "config file 'my.toml'" in error
    assert words in error


def test_a_config_file_must_be_a_regular_file(cli: Cli) -> None:
    os.mkfifo("my.toml")
    outcome = cli("run", "my.toml")
    assert (outcome.code, outcome.err) == (
        2,
        "error: config file 'my.toml' is a pipe: a regular file is required.\n",
    )


def test_too_few_samples_for_the_partition_are_noted(cli: Cli) -> None:
    arguments = ["--partition", "dirichlet:0.5", "--clients", "10", "--set", "partition.min_samples=9"]
    outcome = cli("run", *TINY, "--rounds", "1", *arguments)
    assert outcome.code == 0
    assert "note: partition.min_samples = 9 is not reached, because there are too few samples" in outcome.err
    outcome = cli("run", *TINY, "--rounds", "1", *arguments[:-1], "partition.min_samples=1")
    assert "min_samples" not in outcome.err


def test_rounds_of_a_method_without_rounds_are_rejected(refused: Refused) -> None:
    assert "method.rounds is not a setting" in refused("run", *TINY, "--method", "local-only", "--rounds", "3")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "--clients", "many"), ("federation.clients", "many", "whole number")),
        (("run", "--nonsense"), ("--nonsense",)),
        (("nonsense",), ("nonsense",)),
        (("resume",), ("RUN",)),
        (("list", "nonsense"), ("'nonsense'", "methods", "models")),
        (("data", "prepare", "nonsense"), ("'nonsense'", "mnist")),
        (("data", "show", "--data", "nonsense"), ("'nonsense'", "digits")),
    ],
    ids=" ".join,
)
def test_an_invalid_command_is_one_sentence(
    arguments: tuple[str, ...], words: tuple[str, ...], refused: Refused
) -> None:
    error = refused(*arguments)
    assert len(error.splitlines()) == 1
    assert all(word in error for word in words)


@pytest.mark.parametrize("picture", ["no/such/folder/x.png", ".", "x.jpg"])
def test_an_unwritable_picture_is_one_sentence(picture: str, refused: Refused) -> None:
    assert f"--out '{picture}'" in refused("data", "show", *TINY[:6], "--out", picture)


# --- data ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": IMAGES, "y": LABELS, "classes": np.array(["a", "b"])}, ("label 3", "0 to 1")),
        ({"x": IMAGES, "y": LABELS - 1, "classes": np.array(list("abcd"))}, ("label -1", "0 to 3")),
        ({"x": IMAGES, "y": np.array(list("abce") * 20), "classes": np.array(list("abcd"))}, ("'e'", "a, b, c, d")),
        ({"x": np.where(IMAGES > 250, np.nan, IMAGES / 255), "y": LABELS}, ("NaN", "sample")),
        ({"x": IMAGES, "y": np.where(LABELS == 1, np.nan, LABELS)}, ("y", "whole numbers or text")),
        ({"x": IMAGES}, ("'y'", "x_train")),
        ({"x": IMAGES, "y": LABELS[:3]}, ("(80, 8, 8)", "(3,)")),
        ({"x": IMAGES[:0], "y": LABELS[:0]}, ("no samples",)),
        ({"x": IMAGES, "y": LABELS, "classes": np.array(3)}, ("classes",)),
        ({"x": IMAGES.astype(int) * 3, "y": LABELS}, ("0..255",)),
        ({"x": IMAGES[:4], "y": LABELS[:4]}, ("too few", "data.test_fraction")),
    ],
)
def test_arrays_that_are_not_a_data_set_are_rejected(
    arrays: dict[str, Any], words: tuple[str, ...], refused: Refused
) -> None:
    np.savez("mine.npz", **arrays)
    error = refused(*own("mine.npz"))
    assert len(error.splitlines()) == 1
    assert "mine.npz" in error
    assert all(word in error for word in words), error


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_truncated_npz_is_rejected(share: float, refused: Refused) -> None:
    np.savez("mine.npz", x=IMAGES, y=LABELS)
    whole = Path("mine.npz").read_bytes()
    Path("mine.npz").write_bytes(whole[: int(share * len(whole))])
    assert "mine.npz cannot be read" in refused(*own("mine.npz"))


def test_an_npz_of_objects_is_never_unpickled(refused: Refused) -> None:
    np.savez("mine.npz", x=IMAGES, y=np.array([{}] * 80, dtype=object))
    assert "mine.npz cannot be read" in refused(*own("mine.npz"))


def test_missing_files_and_unknown_formats_are_rejected(refused: Refused) -> None:
    Path("notes.txt").write_text("x")
    assert "'none.npz' does not exist" in refused(*own("none.npz"))
    assert "'notes.txt'" in refused(*own("notes.txt"))


def image_folder() -> Path:
    for number in range(16):
        path = Path("images", "ab"[number % 2], f"{number}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(IMAGES[number]).save(path)
    return Path("images")


def test_empty_folders_and_empty_classes_are_rejected(refused: Refused) -> None:
    Path("empty").mkdir()
    assert "empty has no images" in refused(*own("empty"))
    (image_folder() / "c").mkdir()
    assert "images/c has no images" in refused(*own("images"))


@pytest.mark.parametrize("content", [b"", b"not an image", None])
def test_an_unreadable_image_is_rejected_by_name(content: bytes | None, refused: Refused) -> None:
    bad = image_folder() / "a" / "bad.png"
    whole = Path("images/a/0.png").read_bytes()
    bad.write_bytes(whole[: len(whole) // 2] if content is None else content)
    assert "images/a/bad.png cannot be read as an image" in refused(*own("images"))


def test_images_of_different_sizes_are_rejected_with_the_setting_that_helps(refused: Refused) -> None:
    Image.new("L", (9, 9)).save(image_folder() / "a" / "big.png")
    error = refused(*own("images"))
    assert "big.png" in error
    assert "data.size" in error


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ("path and label", "none")),
        ("file,class\nimages/a/0.png,a\n", ("path and label", "file, class")),
        ("path,label\n", ("lists no images",)),
        ("path,label\nimages/a/0.png,a\nnone.png,b\n", ("line 3", "none.png")),
        ("path,label\nimages/a/0.png,\n", ("line 2", "label")),
        ("path,label,split\nimages/a/0.png,a,both\n", ("line 2", "'both'", "train or test")),
    ],
)
def test_a_csv_that_is_not_a_list_of_images_is_rejected(text: str, words: tuple[str, ...], refused: Refused) -> None:
    image_folder()
    Path("mine.csv").write_text(text)
    error = refused(*own("mine.csv"))
    assert "mine.csv" in error
    assert all(word in error for word in words)


# --- the run folder ------------------------------------------------------------------------------------------


def test_an_out_folder_with_files_is_never_changed(refused: Refused, finished: Path) -> None:
    assert f"--out {str(finished)!r} already exists" in refused(*RUN, "--out", finished)
    Path("file").write_text("precious")
    assert "--out 'file' already exists" in refused(*RUN, "--out", "file")
    Path("hidden").mkdir()
    Path("hidden/.keep").touch()
    assert "--out 'hidden' already exists" in refused(*RUN, "--out", "hidden")


@pytest.mark.parametrize("out", ["file/run", "file/deep/run", "/proc/no/run", "x" * 300])
def test_an_out_folder_that_cannot_be_created_is_one_sentence(out: str, refused: Refused) -> None:
    Path("file").write_text("precious")
    error = refused(*RUN, "--out", out)
    assert len(error.splitlines()) == 1
    assert "--out" in error
    assert out in error


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write everywhere")
def test_an_out_folder_in_a_folder_without_permission_is_one_sentence(refused: Refused) -> None:
    Path("locked").mkdir(mode=0o500)
    assert "locked" in refused(*RUN, "--out", "locked/run")


def test_a_broken_out_link_is_one_sentence(refused: Refused) -> None:
    os.symlink("nowhere", "link")
    assert "link" in refused(*RUN, "--out", "link")


# --- newcomers -----------------------------------------------------------------------------------------------


def newcomer(*names: str, shape: tuple[int, ...] = (8, 8), count: int = 40, file: str = "late.npz") -> str:
    """Write samples of classes with these names, and return the file."""
    x = np.resize(IMAGES, (count, *shape)) if len(shape) > 1 else np.resize(IMAGES / 255, (count, *shape))
    np.savez(file, x=x, y=np.resize(np.array(names), count))
    return file


def welcoming(run: Path, client: str | Path, *arguments: str) -> tuple[str, ...]:
    return ("welcome", str(run), "--client", str(client), "--rounds", "1", "--workers", "0", *arguments)


def refused_once(refused: Refused, *arguments: str) -> str:
    """Return the only sentence of an error."""
    error = refused(*arguments)
    assert len(error.splitlines()) == 1, error
    assert not Path("runs").exists()
    return error


def test_a_newcomer_without_samples_is_rejected(refused: Refused, finished: Path) -> None:
    Path("empty").mkdir()
    assert "empty has no images" in refused_once(refused, *welcoming(finished, "empty"))
    np.savez("none.npz", x=IMAGES[:0], y=LABELS[:0])
    assert "has no samples" in refused_once(refused, *welcoming(finished, "none.npz"))
    np.savez("untrained.npz", x=IMAGES, y=LABELS * 0, x_test=IMAGES, y_test=LABELS * 0 + 1)
    error = refused_once(refused, *welcoming(finished, "untrained.npz", "--class", "1"))
    assert "data.newcomers.untrained has no training samples" in error


def test_a_missing_path_of_a_newcomer_is_rejected(refused: Refused, finished: Path) -> None:
    error = refused_once(refused, *welcoming(finished, "no/such/folder"))
    assert "'no/such/folder' does not exist." in error


@pytest.mark.parametrize("name", ["unknown", "Unknown", "UNKNOWN", " unknown"])
def test_a_class_called_unknown_is_rejected(name: str, refused: Refused, finished: Path) -> None:
    error = refused_once(refused, *welcoming(finished, newcomer(name, "7")))
    assert f"newcomer 'late': class name {name!r} is not allowed" in error
    assert "Rename the class" in error


def test_a_class_called_unknown_can_be_renamed_with_a_label(refused: Refused, cli: Cli, finished: Path) -> None:
    late = newcomer("unknown")
    assert "class name 'unknown' is not allowed" in refused_once(refused, *welcoming(finished, late))
    assert cli(*welcoming(finished, late, "--label", "unknown=ant", "--out", "run")).code == 0


@pytest.mark.parametrize("shape", [(9, 8), (16, 16), (8, 8, 3)])
def test_images_of_another_shape_need_resize(
    shape: tuple[int, ...], refused: Refused, cli: Cli, finished: Path
) -> None:
    late = newcomer("0", "7", shape=shape)
    error = refused_once(refused, *welcoming(finished, late))
    found = (shape[2], *shape[:2]) if len(shape) == 3 else (1, *shape)
    assert str(found) in error
    assert "the federation requires (1, 8, 8)" in error
    assert "--resize (data.newcomers.late.resize = true)" in error
    outcome = cli(*welcoming(finished, late, "--resize", "--out", "run"))
    assert outcome.code == 0, outcome.err


def test_vectors_instead_of_images_and_vectors_of_another_length_are_rejected(
    refused: Refused, cli: Cli, finished: Path
) -> None:
    vectors = newcomer("0", "7", shape=(64,))
    for extra in ((), ("--resize",)):
        error = refused_once(refused, *welcoming(finished, vectors, *extra))
        assert "(64,)" in error
        assert "(1, 8, 8)" in error
        assert "they cannot be converted" in error
    home = newcomer("0", "1", shape=(12,), count=60, file="home.npz")
    run = ("run", "--data", home, "--clients", "2", "--partition", "iid", "--rounds", "1", "--workers", "0")
    assert cli(*run, "--out", "home").code == 0
    error = refused_once(refused, *welcoming(Path("home"), vectors, "--resize"))
    assert "its samples have shape (64,), but the federation requires (12,)" in error
    assert cli(*welcoming(Path("home"), newcomer("0", "7", shape=(12,)), "--out", "run")).code == 0


def test_names_that_differ_only_by_case_are_rejected_and_a_label_fixes_them(refused: Refused, cli: Cli) -> None:
    home = newcomer("cat", "dog", count=60, file="home.npz")
    run = ("run", "--data", home, "--clients", "2", "--partition", "iid", "--rounds", "1", "--workers", "0")
    assert cli(*run, "--out", "home").code == 0
    for name in ("Cat", "CAT", "cat "):
        late = newcomer(name, "ant")
        error = refused_once(refused, *welcoming(Path("home"), late))
        assert f"class {name!r} differs from 'cat' only by case or spaces" in error
        assert f"--label {quote(f'{name}=cat')}" in error
    late = newcomer("Cat", "ant")
    outcome = cli(*welcoming(Path("home"), late, "--label", "Cat=cat", "--out", "run", "--json"))
    assert outcome.code == 0, outcome.err
    assert set(json.loads(outcome.out)["classes"]) <= {"cat", "dog", "ant"}


def test_two_names_of_a_newcomer_that_differ_only_by_case_are_rejected(
    refused: Refused, cli: Cli, finished: Path
) -> None:
    late = newcomer("Ant", "ant")
    error = refused_once(refused, *welcoming(finished, late))
    assert "'ant' differs from 'Ant' only by case" in error
    assert "Both are in its own data" in error
    assert cli(*welcoming(finished, late, "--label", "Ant=bee", "--out", "run")).code == 0


def test_names_that_differ_only_by_case_from_those_of_a_member_are_rejected(
    refused: Refused, cli: Cli, finished: Path
) -> None:
    first = newcomer("ant", "bee", file="first.npz")
    assert cli(*welcoming(finished, first, "--out", "run", "--set", "method.rule=fixed")).code == 0
    error = refused_once(refused, *welcoming(Path("run"), newcomer("Bee")))
    assert "class 'Bee' differs from 'bee' only by case" in error


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--label", "zwei=2"), ("data.newcomers.late.labels: class 'zwei' is not known", "Available: 7, 8")),
        (("--label", "7"), ("--label 7", "OWN=NAME")),
        (("--label", "=7"), ("--label =7", "OWN=NAME")),
        (("--label", "7=8"), ("data.newcomers.late.labels", "two classes would both be called '8'")),
        (("--label", "7=Unknown"), ("'Unknown' is not allowed",)),
        (("--class", "9"), ("data.newcomers.late.classes: class '9' is not known", "Available: 7, 8")),
        (("--domain", "night"), ("data.newcomers.late", "'night'")),
        (("--name", "client-00"), ("newcomer 'client-00'", "already has this name", "--name")),
        (("--name", "a/b"), ("client name 'a/b' is not allowed",)),
        (("--max-forgetting", "2"), ("method.max_forgetting = 2", "<= 1")),
        (("--max-forgetting", "much"), ("method.max_forgetting = 'much'", "number")),
        (("--max-forgetting", "-0.1"), ("method.max_forgetting = -0.1", ">= 0")),
        (
            ("--max-forgetting", "0.1", "--method", "fedavg"),
            ("--max-forgetting 0.1", "'fedavg' cannot reject"),
        ),
        (("--method", "gainz"), ("method 'gainz'", "Did you mean 'gains'?")),
        (("--rounds", "few"), ("method.adapt_rounds = 'few'", "whole number")),
        (("--rounds", "-1"), ("method.adapt_rounds = -1", ">= 0")),
        (("--workers", "-1"), ("engine.workers = -1", ">= 0")),
        (("--set", "method.keeep=1"), ("method.keeep is not a setting", "Did you mean 'keep'?")),
        (("--set", "data.newcomers.late.resise=true"), ("data.newcomers.late.resise is not", "Did you mean 'resize'?")),
        (("--set", "data.newcomers.late.train_samples=0"), ("data.newcomers.late.train_samples = 0", ">= 1")),
    ],
    ids=lambda value: " ".join(value) if value[0].startswith("--") else None,
)
def test_an_invalid_option_of_welcome_is_one_sentence(
    arguments: tuple[str, ...], words: tuple[str, ...], refused: Refused, finished: Path
) -> None:
    error = refused_once(refused, *welcoming(finished, newcomer("7", "8"), *arguments))
    assert all(word in error for word in words), error


def test_a_method_that_cannot_start_from_a_run_is_rejected(refused: Refused, finished: Path) -> None:
    arguments = ("welcome", str(finished), "--client", newcomer("7"), "--method", "local-only")
    assert "method 'local-only' cannot begin with another run's model" in refused_once(refused, *arguments)


def test_a_newcomer_with_the_name_of_an_earlier_one_is_rejected(refused: Refused, cli: Cli, finished: Path) -> None:
    late = newcomer("7", "8")
    assert cli(*welcoming(finished, late, "--out", "run", "--set", "method.rule=fixed")).code == 0
    assert "a client already has this name" in refused_once(refused, *welcoming(Path("run"), late))


def test_only_a_finished_run_can_welcome(refused: Refused, finished: Path) -> None:
    late = newcomer("7")
    assert "'none' does not exist" in refused_once(refused, *welcoming(Path("none"), late))
    assert "is not a run folder" in refused_once(refused, *welcoming(Path("."), late))
    error = refused_once(refused, *welcoming(unfinish(finished), late))
    assert "unfinished" in error
    assert "fedwild resume" in error


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("data.newcomers.ann.nam=x", ("data.newcomers.ann.nam is not a setting", "Did you mean 'name'?")),
        ("data.newcomers.ann.resize=true", ("data.newcomers.ann.name",)),
        ("data.newcomers={ann={name='late.npz', resize=3}}", ("data.newcomers.ann.resize = 3", "true or false")),
        ("data.newcomers={ann=3}", ("data.newcomers.ann = 3 is not allowed", "must be a table with name")),
        ("data.newcomers={ann={name=''}}", ("data.newcomers.ann.name = ''", "at least 1 character")),
        ("data.newcomers={client-00={name='late.npz'}}", ("newcomer 'client-00'", "has this name")),
        ("data.newcomers={ann={name='none.npz'}}", ("none.npz",)),
        ("data.newcomers={ann={name='late.npz', classes=['x']}}", ("data.newcomers.ann.classes", "'x'")),
        ("data.newcommers={ann={name='late.npz'}}", ("data.newcommers is not a setting", "'newcomers'")),
    ],
)
def test_an_invalid_newcomer_in_the_settings_is_rejected(
    setting: str, words: tuple[str, ...], refused: Refused
) -> None:
    newcomer("0", "1")
    error = refused("run", *TINY, "--method", "gains", "--rounds", "1", "--set", setting)
    assert all(word in error for word in words), error
    assert "Traceback" not in error


# --- damaged run folders -------------------------------------------------------------------------------------

COMMANDS = (("resume",), ("evaluate",), ("predict", "image.png"))


def on(command: tuple[str, ...], folder: str | Path) -> tuple[str, ...]:
    return (command[0], str(folder), *command[1:])


@pytest.fixture
def image(tmp_path: Path) -> None:
    Image.fromarray(IMAGES[0]).save(tmp_path / "image.png")


@pytest.mark.usefixtures("image")
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_folder_that_is_not_a_run_is_rejected(command: tuple[str, ...], refused: Refused) -> None:
    Path("empty").mkdir()
    assert "'none' does not exist" in refused(*on(command, "none"))
    assert "'empty' is not a run folder: it has no config.toml" in refused(*on(command, "empty"))
    assert "'image.png'" in refused(*on(command, "image.png"))


@pytest.mark.usefixtures("image")
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("run.json", b"{", "run.json"),
        ("run.json", b"\xff", "run.json"),
        ("run.json", b'{"format": 99}', "format 99"),
        ("config.toml", b"[method", "config.toml"),
        ("config.toml", b"[method]\nlr = -1\n", "method.lr = -1"),
        ("splits.npz", b"PK", "splits.npz"),
        ("splits.npz", b"", "splits.npz"),
    ],
)
def test_a_damaged_file_is_named(
    command: tuple[str, ...], file: str, content: bytes, words: str, refused: Refused, finished: Path
) -> None:
    if (file, command[0]) == ("splits.npz", "predict"):
        pytest.skip("predict needs no split")
    unfinish(finished)
    (finished / file).write_bytes(content)
    assert words in refused(*on(command, finished))


@pytest.mark.usefixtures("image")
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
@pytest.mark.parametrize("keep", [0, 5, 100, -10])
def test_a_truncated_checkpoint_is_named_with_advice(
    command: tuple[str, ...], keep: int, refused: Refused, finished: Path
) -> None:
    checkpoint = unfinish(finished) / "checkpoints" / "000002.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[:keep])
    error = refused(*on(command, finished))
    assert str(checkpoint) in error
    assert "damaged" in error
    assert "no other checkpoint is intact: restore one from a copy, or delete all files in" in error


@pytest.mark.usefixtures("image")
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_checkpoint_with_another_payload_is_named(command: tuple[str, ...], refused: Refused, finished: Path) -> None:
    checkpoint = unfinish(finished) / "checkpoints" / "000002.safetensors"
    checkpoint.write_bytes(Payload({}, {"samples": 3}).encode())
    assert str(checkpoint) in refused(*on(command, finished))


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(cli: Cli, finished: Path) -> None:
    model = (finished / "model.safetensors").read_bytes()
    unfinish(finished, rounds=3)
    damaged = finished / "checkpoints" / "000003.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:50])
    outcome = cli("evaluate", finished, "--workers", "0")
    assert outcome.code == 0
    assert f"warning: {str(damaged)!r} is damaged" in outcome.err
    outcome = cli("resume", finished)
    assert outcome.code == 0
    assert "is damaged" in outcome.err
    assert "resuming at round 3 of 3" in outcome.err
    assert (finished / "model.safetensors").read_bytes() == model


def test_a_damaged_model_is_named(refused: Refused, finished: Path) -> None:
    model = finished / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-10])
    error = refused("evaluate", finished)
    assert str(model) in error
    assert "damaged" in error


def test_a_damaged_result_is_named(refused: Refused, finished: Path) -> None:
    (finished / "result.json").write_text("{")
    assert "result.json" in refused("resume", finished)


@pytest.mark.parametrize("rounds", [0, 2])
@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("lr = 0.05", "lr = 0.06", "method.lr"),
        ("seed = 0", "seed = 4", "seed"),
        ("hidden = [4]", "hidden = [5]", "model.hidden"),
    ],
)
def test_resuming_with_changed_settings_names_the_key_and_both_values(
    old: str, new: str, key: str, rounds: int, refused: Refused, finished: Path
) -> None:
    config = unfinish(finished, rounds) / "config.toml"
    assert old in config.read_text()
    config.write_text(config.read_text().replace(old, new))
    error = refused("resume", finished)
    assert str(config) in error
    assert f"{key} was {old.split(' = ')[1]} and is {new.split(' = ')[1]}" in error


def test_resuming_with_another_engine_setting_is_allowed(cli: Cli, finished: Path) -> None:
    config = unfinish(finished) / "config.toml"
    config.write_text(config.read_text().replace("max_reply_mb = 1024", "max_reply_mb = 512"))
    assert "max_reply_mb = 512" in config.read_text()
    assert cli("resume", finished, "--quiet").code == 0


@pytest.mark.usefixtures("image")
@pytest.mark.parametrize("command", COMMANDS[1:], ids=lambda command: command[0])
def test_a_network_changed_in_the_config_of_a_finished_run_is_one_sentence(
    command: tuple[str, ...], refused: Refused, finished: Path
) -> None:
    config = finished / "config.toml"
    config.write_text(config.read_text().replace("hidden = [4]", "hidden = [5]"))
    assert len(refused(*on(command, finished)).splitlines()) == 1


def test_a_run_in_use_by_another_process_is_not_resumed(refused: Refused, finished: Path) -> None:
    unfinish(finished)
    with open(finished / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "in use by another process" in refused("resume", finished)


def test_a_run_without_a_model_is_an_error(refused: Refused, finished: Path) -> None:
    unfinish(finished, rounds=0)
    assert "has no model yet" in refused("evaluate", finished)


@pytest.mark.parametrize("change", ["pixels", "label", "fewer", "name", "size"])
def test_data_that_changed_since_the_run_began_is_rejected(change: str, refused: Refused, cli: Cli) -> None:
    names = np.array(["a", "b", "c", "d"])
    np.savez("mine.npz", x=IMAGES, y=LABELS, classes=names)
    assert cli(*own("mine.npz"), "--quiet", "--out", "run").code == 0
    images, labels = IMAGES.copy(), LABELS.copy()
    if change == "pixels":
        images = 255 - images
    elif change == "label":
        labels[7] = (labels[7] + 1) % 4
    elif change == "fewer":
        images, labels = images[:60], labels[:60]
    elif change == "name":
        names = np.array(["a", "b", "c", "e"])
    else:
        images = images[:, :7]
    np.savez("mine.npz", x=images, y=labels, classes=names)
    for command in ("resume", "evaluate"):
        if command == "resume":
            shutil.copytree("run", "stopped")
            unfinish(Path("stopped"), rounds=0)
        error = refused(command, "stopped" if command == "resume" else "run")
        assert "mine.npz'" in error
        assert "changed" in error


def test_data_that_disappeared_since_the_run_began_is_rejected(refused: Refused, cli: Cli) -> None:
    np.savez("mine.npz", x=IMAGES, y=LABELS)
    assert cli(*own("mine.npz"), "--quiet", "--out", "run").code == 0
    os.remove("mine.npz")
    assert "mine.npz' does not exist" in refused("evaluate", "run")


# --- a failing disk ------------------------------------------------------------------------------------------

SMALL = ("--data", "synthetic:8x8x1:4:80", "--partition", "iid", "--model", "mlp", "--workers", "0")


def limited(arguments: tuple[str, ...], limit: int, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run in a process in which no file may exceed `limit` bytes."""
    return subprocess.run(
        [sys.executable, "-m", "fedwild", "run", *arguments, "--out", "run"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(fedwild.__file__).parents[1])},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        capture_output=True,
        text=True,
        timeout=120,
    )


def sizes(run: Path) -> dict[str, int]:
    return {str(path.relative_to(run)): path.stat().st_size for path in run.rglob("*") if path.is_file()}


def same_model(folder: Path) -> bool:
    models = [(folder / run / "model.safetensors").read_bytes() for run in ("run", "undisturbed")]
    return models[0] == models[1]


def assert_one_sentence_about(run: str, done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert errors == done.stderr.splitlines()[-1:]
    assert f"'{run}'" in errors[0]
    assert f"`fedwild resume {run}`" in errors[0]


@contextmanager
def file_limit(limit: int) -> Iterator[None]:
    """Limit the size of all files that this process writes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def leftovers(folder: Path) -> list[str]:
    """Return temporary files and folders."""
    return [path.name for path in folder.rglob(".*") if path.name != ".lock"]


def test_a_disk_failure_during_a_run_is_one_sentence_and_resume_is_bit_equal(cli: Cli, tmp_path: Path) -> None:
    arguments = (*SMALL, "--clients", "1", "--rounds", "8", "--set", "model.hidden=[4]")
    assert cli("run", *arguments, "--quiet", "--out", "undisturbed").code == 0
    size = sizes(tmp_path / "undisturbed")
    log = size.pop("events.jsonl")
    limit = (max(size.values()) + log) // 2
    assert max(size.values()) < limit < log

    done = limited(arguments, limit, tmp_path)
    assert_one_sentence_about("run", done)
    assert sorted(os.listdir(tmp_path)) == ["run", "undisturbed"]
    assert 1 <= len([line for line in done.stderr.splitlines() if line.startswith("round ")]) < 8
    assert (tmp_path / "run").is_dir()

    assert cli("resume", "run", "--quiet").code == 0
    assert same_model(tmp_path)
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("victim", ["events.jsonl", "checkpoints/000001.safetensors"])
def test_a_disk_failure_leaves_no_temporary_files_and_resume_is_bit_equal(
    victim: str, cli: Cli, tmp_path: Path
) -> None:
    log = victim == "events.jsonl"
    width, rounds = (4, 8) if log else (24, 2)
    arguments = (
        "run",
        *SMALL,
        "--clients",
        "1",
        "--rounds",
        str(rounds),
        "--set",
        f"model.hidden=[{width}]",
        "--quiet",
    )
    assert cli(*arguments, "--out", "undisturbed").code == 0
    size = sizes(tmp_path / "undisturbed")
    others = max(n for name, n in size.items() if name != victim and (log or not name.startswith("checkpoints")))
    assert others < size[victim]
    with file_limit((others + size[victim]) // 2):
        outcome = cli(*arguments, "--out", "run")
    assert outcome.code == 2
    (sentence,) = outcome.err.splitlines()
    assert sentence.startswith("error: run folder 'run': ")
    assert "`fedwild resume run`" in sentence
    assert leftovers(tmp_path) == []
    assert cli("resume", "run", "--quiet").code == 0
    assert same_model(tmp_path)


def test_a_disk_failure_while_replies_are_written_never_changes_the_model(cli: Cli, tmp_path: Path) -> None:
    arguments = (*SMALL, "--clients", "4", "--rounds", "2", "--set", "model.hidden=[24]")
    assert cli("run", *arguments, "--quiet", "--out", "undisturbed").code == 0
    size = sizes(tmp_path / "undisturbed")
    limit = int(2.5 * size["model.safetensors"])
    assert max(size.values()) < limit

    done = limited(arguments, limit, tmp_path)
    if done.returncode != 0:
        assert_one_sentence_about("run", done)
        assert cli("resume", "run", "--quiet").code == 0
    assert same_model(tmp_path)


def test_a_disk_failure_before_the_folder_exists_leaves_nothing(refused: Refused) -> None:
    with file_limit(300):
        error = refused(*RUN, "--out", "run")
    assert len(error.splitlines()) == 1
    assert "run" in error


def test_a_partly_written_reply_is_an_error(tmp_path: Path) -> None:
    ones = Payload.of(info={"samples": 1}, model={"weight": torch.ones(1000)}).encode()
    (tmp_path / "up").write_bytes(ones[:-400])
    answer = Answer(Job("local", Step("train", 0, 0), ""), str(tmp_path / "up"), 0, len(ones))
    with pytest.raises(BadReply):
        answer.read()
