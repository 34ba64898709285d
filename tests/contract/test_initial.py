"""Runs that start from another run: head rows by class name, rejected runs, kill and resume."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import fedwild
from fedwild.api import configure
from fedwild.contract import Server, Step
from fedwild.contract.initial import Initial, initial_weights
from fedwild.contract.task import Task, weights_of
from fedwild.core.classes import ClassRegistry
from fedwild.core.errors import UserError
from fedwild.core.payload import Payload
from fedwild.core.rng import Rng
from fedwild.training.objectives import Objective
from tests.conftest import TINY, Cli, Refused, unfinish
from tests.folders import change_json
from tests.tiny import model_bytes

TABLES: dict[str, Any] = {
    "data": {"name": "synthetic:8x8x1:4:80", "known": 3},
    "model": {"name": "mlp", "hidden": [4]},
    "method": {"name": "fedavg", "rounds": 2},
    "partition": {"name": "iid"},
}
"""The settings of the fixture `finished`, except for the number of rounds."""


class Dummy(Objective):
    """Cross-entropy with one output more than there are classes."""

    extra_outputs = 1

    def loss(self, model: Any, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        return F.cross_entropy(model(x), y)


class Open(Dummy):
    """The same with two additional outputs."""

    extra_outputs = 2


def start_from(folder: Path, earlier: Path, settings: dict[str, Any] | None = None, **more: Any) -> fedwild.Run:
    return fedwild.run(TABLES, clients=2, workers=0, start_from=earlier, out=folder, settings=settings or {}, **more)


def model_of(folder: Path) -> dict[str, Tensor]:
    return Payload.read(folder / "model.safetensors").group("model")


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def notes(run: Path) -> list[str]:
    return [event["text"] for event in fedwild.Run(run).events() if event["event"] == "note"]


def rejection(*arguments: Any, **more: Any) -> str:
    with pytest.raises(UserError) as caught:
        start_from(*arguments, **more)
    (sentence,) = caught.value.problems
    return sentence


# --- head rows by class name --------------------------------------------------------------------------------


def head(*rows: float) -> dict[str, Tensor]:
    """Return a body with one value, and a head with distinct rows and biases."""
    return {
        "body.weight": torch.tensor([[float(sum(rows))]]),
        "head.weight": torch.tensor([[float(row), 10.0 * row] for row in rows]),
        "head.bias": torch.tensor([100.0 * row for row in rows]),
    }


def mapped_rows(earlier: Initial, fresh: dict[str, Tensor], classes: tuple[str, ...]) -> list[float]:
    """Return the rows of the head after `onto`, which must agree in all tensors."""
    weights = earlier.onto(fresh, classes)
    assert list(weights) == list(fresh)
    assert torch.equal(weights["body.weight"], earlier.weights["body.weight"])
    rows = [float(row) for row in weights["head.weight"][:, 0]]
    assert torch.equal(weights["head.weight"][:, 1], 10 * torch.tensor(rows))
    assert torch.equal(weights["head.bias"], 100 * torch.tensor(rows))
    return rows


@pytest.mark.parametrize(
    ("classes", "rows"),
    [
        (("a", "b", "c"), [1, 2, 3]),
        (("c", "a", "b"), [3, 1, 2]),
        (("c",), [3]),
        (("x", "b", "y", "a"), [-1, 2, -3, 1]),
        (("x", "y"), [-1, -2]),
    ],
    ids=["the same", "reordered", "fewer", "some others", "all others"],
)
def test_head_rows_are_matched_by_class_name_and_new_classes_keep_fresh_rows(
    classes: tuple[str, ...], rows: list[float]
) -> None:
    earlier = Initial(head(1, 2, 3), ClassRegistry.of(("a", "b", "c")), "there")
    assert mapped_rows(earlier, head(*(-1.0 - i for i in range(len(classes)))), classes) == rows


@pytest.mark.parametrize(
    ("outputs", "rows"),
    [(2, [3, 1]), (3, [3, 1, -3]), (4, [3, 1, 8, 9]), (5, [3, 1, -3, -4, -5])],
    ids=["no added output", "fewer", "as many", "more"],
)
def test_added_outputs_are_kept_only_if_their_number_is_equal(outputs: int, rows: list[float]) -> None:
    earlier = Initial(head(1, 2, 3, 8, 9), ClassRegistry.of(("a", "b", "c")), "there")
    assert mapped_rows(earlier, head(*(-1.0 - i for i in range(outputs))), ("c", "a")) == rows


def test_a_new_added_output_has_fresh_rows() -> None:
    assert mapped_rows(Initial(head(1, 2), ClassRegistry.of("ab"), "there"), head(-1, -2, -3), ("b", "a")) == [2, 1, -3]


def test_a_head_without_bias_has_a_bias_of_zero() -> None:
    weights = head(1, 2)
    del weights["head.bias"]
    onto = Initial(weights, ClassRegistry.of(("a", "b")), "there").onto(head(-1, -2), ("b", "x"))
    assert onto["head.bias"].tolist() == [0.0, -200.0]


def test_the_weights_are_copies() -> None:
    earlier, fresh = Initial(head(1, 2), ClassRegistry.of(("a", "b")), "there"), head(-1, -2)
    for tensor in earlier.onto(fresh, ("a", "x")).values():
        tensor.zero_()
    assert equal(earlier.weights, head(1, 2))
    assert equal(fresh, head(-1, -2))


def test_without_an_earlier_run_the_weights_are_those_of_a_new_network() -> None:
    task = Task((4,), "mlp", {"hidden": [3]})
    server = Server(task, ClassRegistry.of(["a", "b"]), Step("start", 0, 0), Rng(5))
    fresh = weights_of(task.build(3, Rng(5)))
    assert equal(initial_weights(server, 3), fresh)
    server.initial = Initial(weights_of(task.build(2, Rng(6))), ClassRegistry.of(("b", "z")), "there")
    mixed = initial_weights(server, 3)
    assert torch.equal(mixed["head.weight"][1], server.initial.weights["head.weight"][0])
    assert torch.equal(mixed["head.weight"][[0, 2]], fresh["head.weight"][[0, 2]])


# --- whole runs ---------------------------------------------------------------------------------------------


def test_without_training_the_model_is_bit_equal_to_the_earlier_one(finished: Path, tmp_path: Path) -> None:
    run = start_from(tmp_path / "on", finished, {"method": {"epochs": 0, "rounds": 1}}, seed=9)
    assert equal(model_of(run.path), model_of(finished))
    assert notes(run.path) == [f"starts from {finished} (method fedavg, round 3)"]


def test_all_classes_are_kept_and_new_ones_are_added(finished: Path, tmp_path: Path) -> None:
    settings = {"method": {"epochs": 0, "rounds": 1}, "data": {"known": ["2", "3", "0"]}}
    run = start_from(tmp_path / "on", finished, settings)
    before, after = model_of(finished), model_of(run.path)
    fresh = weights_of(run.task.build(4, Rng(0).child("start")))
    assert run.result["classes"] == ["0", "1", "2", "3"]
    for name in ("head.weight", "head.bias"):
        assert torch.equal(after[name][:3], before[name])
        assert torch.equal(after[name][3], fresh[name][3])
    assert notes(run.path)[-1] == "classes it did not have: 3"


@pytest.mark.parametrize(("objective", "same"), [("Dummy", True), ("Open", False)])
def test_an_output_added_by_the_objective_is_kept(objective: str, same: bool, tmp_path: Path) -> None:
    tables = {**TABLES, "objective": {"name": "tests.contract.test_initial:Dummy"}}
    first = fedwild.run(tables, clients=2, workers=0, out=tmp_path / "first").path
    settings = {"method": {"epochs": 0, "rounds": 1}, "objective": {"name": f"tests.contract.test_initial:{objective}"}}
    before, after = model_of(first), model_of(start_from(tmp_path / "on", first, settings, seed=9).path)
    assert torch.equal(after["head.weight"][:3], before["head.weight"][:3])
    assert torch.equal(after["head.weight"][3], before["head.weight"][3]) == same


def test_it_is_reproducible_and_differs_from_a_run_without_an_earlier_model(finished: Path, tmp_path: Path) -> None:
    one, two = (start_from(tmp_path / name, finished).path for name in ("one", "two"))
    alone = fedwild.run(TABLES, clients=2, workers=0, out=tmp_path / "alone").path
    again = fedwild.run(one / "config.toml", out=tmp_path / "again").path
    assert model_bytes(one) == model_bytes(two) == model_bytes(again)
    assert model_bytes(one) != model_bytes(alone)


def test_starting_from_a_run_that_started_from_another(finished: Path, tmp_path: Path) -> None:
    still = {"method": {"epochs": 0, "rounds": 1}}
    second = start_from(tmp_path / "second", finished, still).path
    assert equal(model_of(start_from(tmp_path / "third", second, still).path), model_of(finished))


def test_the_config_has_the_absolute_path_without_links(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("latest").symlink_to("finished")
    run = start_from(tmp_path / "on", Path("latest"))
    assert run.config.federation.start_from == os.path.realpath(finished)


# --- kill and resume ----------------------------------------------------------------------------------------


def stop_at(index: int) -> Callable[[dict[str, Any]], None]:
    def listen(event: dict[str, Any]) -> None:
        if event["event"] == "round-start" and event["index"] == index:
            raise KeyboardInterrupt

    return listen


@pytest.fixture
def expected(finished: Path, tmp_path: Path) -> bytes:
    return model_bytes(start_from(tmp_path / "expected", finished).path)


def test_a_run_killed_before_its_first_checkpoint_starts_again_from_the_earlier_run(
    finished: Path, expected: bytes, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        start_from(tmp_path / "on", finished, listener=stop_at(0))
    assert not list((tmp_path / "on" / "checkpoints").iterdir())
    fedwild.resume(tmp_path / "on", workers=0)
    assert model_bytes(tmp_path / "on") == expected
    assert len([text for text in notes(tmp_path / "on") if text.startswith("starts from")]) == 2


def test_after_a_checkpoint_the_earlier_run_may_be_deleted(finished: Path, expected: bytes, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        start_from(tmp_path / "on", finished, listener=stop_at(1))
    shutil.rmtree(finished)
    run = fedwild.resume(tmp_path / "on", workers=0)
    assert model_bytes(run.path) == expected
    assert run.evaluate(workers=0).metrics == pytest.approx(run.metrics, nan_ok=True)


def test_before_a_checkpoint_the_earlier_run_must_not_be_deleted_or_replaced(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        start_from(tmp_path / "on", finished, listener=stop_at(0))
    other = fedwild.run(TABLES, clients=2, workers=0, seed=7, out=tmp_path / "other").path
    finished.rename(tmp_path / "away")
    with pytest.raises(UserError, match="does not exist"):
        fedwild.resume(tmp_path / "on", workers=0)
    other.rename(finished)
    with pytest.raises(UserError) as caught:
        fedwild.resume(tmp_path / "on", workers=0)
    assert caught.value.problems == (
        f"federation.start_from = {str(finished)!r}: its model has changed since run {str(tmp_path / 'on')!r} was "
        "created. Restore it, or start a new run.",
    )


# --- rejected runs ------------------------------------------------------------------------------------------


def test_an_unfinished_run_is_rejected(finished: Path, tmp_path: Path) -> None:
    assert rejection(tmp_path / "on", unfinish(finished)) == (
        f"federation.start_from = {str(finished)!r}: that run is unfinished: run `fedwild resume {finished}` first."
    )


@pytest.mark.parametrize("method", ["local-only", "close-set-voting"])
def test_a_run_without_a_global_model_is_rejected(method: str, tmp_path: Path) -> None:
    tables = {**TABLES, "method": {"name": method, "epochs": 1}}
    first = fedwild.run(tables, clients=2, workers=0, out=tmp_path / "first").path
    sentence = rejection(tmp_path / "on", first)
    assert sentence.startswith(
        f"federation.start_from = {str(first)!r}: a run of method {method!r} has no single global model; "
        "use a run of another method, such as "
    )
    assert "fedavg" in sentence


def test_another_network_is_rejected(finished: Path, tmp_path: Path) -> None:
    prefix = f"federation.start_from = {str(finished)!r}: both runs need the same network, but "
    assert rejection(tmp_path / "on", finished, {"model": {"hidden": [5]}}) == (
        f"{prefix}model.hidden was {[4]!r} and is {[5]!r}."
    )
    assert rejection(tmp_path / "on", finished, {"model": {"name": "simple-cnn"}}) == (
        f"{prefix}model.name was 'mlp' and is 'simple-cnn'."
    )


def test_another_input_shape_is_rejected(finished: Path, tmp_path: Path) -> None:
    assert rejection(tmp_path / "on", finished, {"data": {"size": 12}}) == (
        f"federation.start_from = {str(finished)!r}: its samples have shape (1, 8, 8), "
        "those of this run (1, 12, 12): they must be equal."
    )


@pytest.mark.parametrize("method", ["local-only", "close-set-voting"])
def test_a_method_that_ignores_earlier_models_is_rejected(method: str) -> None:
    with pytest.raises(UserError) as caught:
        configure(method=method, start_from="runs/one")
    (sentence,) = caught.value.problems
    assert sentence.startswith(
        f"federation.start_from = 'runs/one' is not allowed: method {method!r} cannot begin with another run's model. "
        "These can: "
    )
    assert "fedavg" in sentence


@pytest.mark.parametrize("value", ["", 3, True, ["a"]])
def test_an_invalid_path_is_rejected(value: Any) -> None:
    with pytest.raises(UserError, match=r"federation\.start_from = .* is not allowed"):
        configure({"federation": {"start_from": value}})


def test_a_network_whose_code_has_changed_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    code = (
        "from torch import nn\n"
        "class Net(nn.Sequential):\n"
        "    def __init__(self, outputs):\n"
        "        super().__init__(nn.Flatten(), nn.Linear(64, {width}), nn.ReLU(), nn.Linear({width}, outputs))\n"
    )
    model = {"model": {"name": "changing_net:Net"}}
    (tmp_path / "changing_net.py").write_text(code.format(width=4))
    tables = {**TABLES, **model}
    first = fedwild.run(tables, clients=2, workers=0, out=tmp_path / "first").path
    monkeypatch.delitem(sys.modules, "changing_net")
    shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
    (tmp_path / "changing_net.py").write_text(code.format(width=17))
    sentence = rejection(tmp_path / "on", first, model)
    assert "model.name = 'changing_net:Net' has changed since that run" in sentence
    assert "its model tensor" in sentence


@pytest.mark.parametrize("spoilt", ["run.json", "model.safetensors", "result.json"])
def test_damaged_files_are_rejected(spoilt: str, finished: Path, tmp_path: Path) -> None:
    (finished / spoilt).write_bytes(b"not what it was")
    sentence = rejection(tmp_path / "on", finished)
    assert sentence.startswith(f"federation.start_from = {str(finished)!r}: ")
    assert "damaged" in sentence


@pytest.mark.parametrize("missing", ["config", "input"])
def test_missing_facts_are_rejected(missing: str, finished: Path, tmp_path: Path) -> None:
    change_json(finished / "run.json", lambda facts: facts.pop(missing))
    assert rejection(tmp_path / "on", finished) == (
        f"federation.start_from = {str(finished)!r}: its files are damaged (KeyError('{missing}'))."
    )


# --- the command line ---------------------------------------------------------------------------------------

RUN = ("run", *TINY, "--rounds", "1")


def test_the_command_line_rejects_and_writes_nothing(finished: Path, refused: Refused) -> None:
    start = ("--start-from", finished)
    for arguments, words in (
        ((*RUN, "--start-from", "nowhere"), "/nowhere' does not exist."),
        ((*RUN, "--start-from", "x" * 5000), "cannot be read: File name too long."),
        ((*RUN, "--start-from", finished / "config.toml"), "is not a folder."),
        ((*RUN, "--start-from", finished / "checkpoints"), "is not a run folder"),
        ((*RUN, *start, "--set", "model.hidden=[5]"), "model.hidden was"),
        ((*RUN, *start, "--set", "data.size=12"), "(1, 12, 12)"),
        (("run", *TINY, "--method", "close-set-voting", *start), "cannot begin with another run's model."),
    ):
        said = refused(*arguments)
        assert said.startswith("error: federation.start_from = "), said
        assert words in said
        assert len(said.splitlines()) == 1
    unfinish(finished)
    assert "that run is unfinished" in refused(*RUN, *start)


def test_option_setting_and_config_file_are_equivalent(cli: Cli, finished: Path) -> None:
    Path("my.toml").write_text('[federation]\nstart_from = "finished"\n')
    ways = (("--start-from", "finished"), ("--set", "federation.start_from=finished"), ("my.toml",))
    for number, way in enumerate(ways):
        assert cli(*RUN, *way, "--out", f"run-{number}").code == 0
    assert model_bytes(Path("run-0")) == model_bytes(Path("run-1")) == model_bytes(Path("run-2"))


def test_the_help_explains_it(cli: Cli) -> None:
    said = cli("run", "--help").out
    assert "--start-from RUN" in said
    assert "fedwild run --start-from" in said


def test_fedprox_starts_from_a_run_on_the_embedded_digits(cli: Cli) -> None:
    small = ("--clients", "3", "--workers", "0", "--set", "data.train_samples=400")
    assert cli("run", *small, "--rounds", "6", "--out", "first", "--quiet").code == 0
    prox = ("--set", "correction.name=prox", "--set", "correction.mu=0.1", "--start-from", "first")
    outcome = cli("run", *small, *prox, "--rounds", "2", "--out", "second", "--json")
    assert outcome.code == 0
    assert f"note: starts from {Path('first').resolve()} (method fedavg, round 6)" in outcome.err
    first = json.loads(Path("first/result.json").read_text())["metrics"]["closed_accuracy"]
    second = json.loads(outcome.out.splitlines()[-1])["metrics"]["closed_accuracy"]
    # Two rounds from new weights stay near chance; two more rounds from the first run's model do not.
    assert cli("run", *small, "--rounds", "2", "--out", "alone", "--quiet").code == 0
    alone = json.loads(Path("alone/result.json").read_text())["metrics"]["closed_accuracy"]
    assert second > alone
    assert second > first - 0.1
