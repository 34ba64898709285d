"""Requirements on every registered method."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import numpy as np
import pytest
import torch

from fedwild.api import configure
from fedwild.cli import main
from fedwild.contract import Answering, Server, Welcomes
from fedwild.contract.engine import Job
from fedwild.contract.schedule import plan_of
from fedwild.core.errors import UserError
from fedwild.core.payload import Payload
from fedwild.core.rng import Rng
from fedwild.data.sources.builtin import load_digits
from fedwild.lifecycle.rounds import Federation
from fedwild.methods import METHODS, demonstration
from fedwild.methods.registry import data_file
from fedwild.runs.components import KINDS, default_parts
from fedwild.runs.events import read_events
from fedwild.runs.experiment import Experiment
from fedwild.runs.folder import RunFolder
from tests.methods.by_hand import executor_of
from tests.tiny import (
    brief,
    even_shares,
    joined_by,
    model_bytes,
    opened,
    own,
    run_tiny,
    split_by,
    tiny_dataset,
    tiny_experiment,
)

ALL = own(METHODS)
PRESETS = sorted(data_file("presets.toml"))
BASES = [name for name in ALL if name not in PRESETS]
"""Presets are methods with other defaults, so few tests include them."""
KEEPING = [*BASES, "gains-paper"]
"""This preset keeps more in clients' durable state than the method that it is a variant of."""
WELCOMING = [name for name in ALL if issubclass(METHODS.get(name), Welcomes)]


def small(method: str) -> tuple[Any, Any]:
    dataset = tiny_dataset(classes=2)
    return dataset, with_newcomer(method, dataset, split_by(dataset, 2, even_shares(dataset, 2, 3)))


def with_newcomer(method: str, dataset: Any, split: Any) -> Any:
    """Add a newcomer with the last class and a few samples of the first, if the method welcomes newcomers."""
    if method not in WELCOMING:
        return split
    labels = dataset.y_train
    new = (labels == len(dataset.classes) - 1).nonzero().flatten().tolist()
    return joined_by(split, dataset, [*new, *(labels == 0).nonzero().flatten().tolist()[:4]])


FINISHED: dict[str, Path] = {}


@pytest.fixture
def finished(method: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a finished run of a method, made once; do not change it."""
    if method not in FINISHED:
        FINISHED[method] = tmp_path_factory.mktemp("finished") / "run"
        run_tiny(FINISHED[method], method, *small(method))
    return FINISHED[method]


@pytest.fixture
def final(method: str, finished: Path) -> tuple[Experiment, Server]:
    """Return the experiment and the final server of that run."""
    experiment = tiny_experiment(method, *small(method))
    server = Server.from_payload(Payload.read(finished / "model.safetensors"), experiment.task, Rng(0))
    server.newcomers = experiment.split.newcomers
    return experiment, server


@pytest.mark.parametrize("method", BASES)
@pytest.mark.parametrize(("classes", "clients"), [(1, 1), (1, 3), (2, 4), (3, 1), (3, 2)])
def test_any_number_of_classes_and_clients(method: str, classes: int, clients: int, tmp_path: Path) -> None:
    dataset = tiny_dataset(classes)
    split = with_newcomer(method, dataset, split_by(dataset, classes, even_shares(dataset, classes, clients)))
    result = run_tiny(tmp_path / "run", method, dataset, split)
    assert 0 <= result["metrics"]["closed_accuracy"] <= 1
    assert result["bytes_up"] > 0
    assert (tmp_path / "run" / "model.safetensors").stat().st_size > 0


@pytest.mark.parametrize("method", BASES)
def test_clients_with_one_sample_one_class_or_none(method: str, tmp_path: Path) -> None:
    dataset = tiny_dataset(classes=3)
    rows = even_shares(dataset, 3, 1)[0]
    one_class = [row for row in rows if int(dataset.y_train[row]) == 1]
    split = with_newcomer(method, dataset, split_by(dataset, 3, [rows, rows[:1], one_class, []]))
    events: list[dict[str, Any]] = []
    result = run_tiny(tmp_path / "run", method, dataset, split, listener=events.append)
    assert not [event for event in events if event["event"] == "client-failed"]
    assert 0 <= result["metrics"]["closed_accuracy"] <= 1


@pytest.mark.parametrize("method", BASES)
def test_no_client_has_a_sample(method: str, tmp_path: Path) -> None:
    dataset = tiny_dataset(classes=2)
    result = run_tiny(tmp_path / "run", method, dataset, split_by(dataset, 2, [[], []]))
    assert result["clients"] == 2


# Phases in which all clients take part: without training, or (afl) because a mixture needs all losses.
ALL_CLIENTS = {**dict.fromkeys(("gal", "gal-paper"), ("describe", "discover-1")), "afl": ("train",)}


@pytest.mark.parametrize("method", BASES)
def test_partial_participation(method: str, tmp_path: Path) -> None:
    dataset = tiny_dataset(classes=2)
    split = split_by(dataset, 2, even_shares(dataset, 2, 4))
    asked: dict[str, int] = {}

    def listen(event: dict[str, Any]) -> None:
        if event["event"] == "round-start":
            asked[event["phase"]] = event["clients"]

    run_tiny(tmp_path / "run", method, dataset, split, {"federation": {"participation": 0.5}}, listener=listen)
    everyone = [phase for phase in asked if phase in ALL_CLIENTS.get(method, ())]
    assert {asked.pop(phase) for phase in everyone} <= {4}
    assert set(asked.values()) <= {0, 2}
    assert asked or everyone


@pytest.mark.parametrize("method", KEEPING)
def test_the_model_is_bit_equal_with_workers(method: str, finished: Path, tmp_path: Path) -> None:
    for workers in (1, 2, 4):
        run_tiny(tmp_path / str(workers), method, *small(method), workers=workers)
        assert model_bytes(tmp_path / str(workers)) == model_bytes(finished)


class Killed(Exception):
    """Ends a run, with the same effect on its files as the end of its process."""


@pytest.mark.parametrize("model", [{}, {"model": {"name": "digit-cnn", "width": 0.05}}])
@pytest.mark.parametrize("method", KEEPING)
def test_a_run_killed_in_every_round_resumes_to_the_same_model(
    method: str, model: dict[str, Any], finished: Path, tmp_path: Path
) -> None:
    dataset, split = small(method)
    whole = tmp_path / "whole" if model else finished
    if model:
        run_tiny(whole, method, dataset, split, model)
    events = read_events(whole / "events.jsonl")
    rounds = [event["index"] for event in events if event["event"] == "round" and event["participants"]]
    killed = []

    def kill_once(event: dict[str, Any]) -> None:
        # A client of the round has replied, and nothing of the round is on disk except its state.
        if event["event"] == "client" and event["index"] not in killed:
            killed.append(event["index"])
            raise Killed

    with pytest.raises(Killed):
        run_tiny(tmp_path / "killed", method, dataset, split, model, listener=kill_once)
    while True:
        experiment = tiny_experiment(method, dataset, split, {"engine": {"workers": 0}, **model})
        try:
            Federation(experiment, RunFolder.open(tmp_path / "killed"), kill_once).run()
            break
        except Killed:
            continue
    assert killed == rounds
    assert model_bytes(tmp_path / "killed") == model_bytes(whole)


@pytest.mark.parametrize("method", BASES)
def test_another_seed_gives_another_model(method: str, finished: Path, tmp_path: Path) -> None:
    run_tiny(tmp_path / "other", method, *small(method), {"seed": 1})
    assert model_bytes(finished) != model_bytes(tmp_path / "other")


@pytest.mark.parametrize("method", BASES)
def test_server_state_survives_a_checkpoint(method: str, finished: Path, final: tuple[Experiment, Server]) -> None:
    assert final[1].to_payload().encode(sealed=True) == (finished / "model.safetensors").read_bytes()


@pytest.mark.parametrize("method", BASES)
def test_payloads_survive_encoding(method: str, final: tuple[Experiment, Server], tmp_path: Path) -> None:
    experiment, server = final
    server.step, phase = round_to_try(experiment)
    sent = phase.send(server, "client-00")
    request = tmp_path / "request.safetensors"
    sent.write(request)
    executor = executor_of(experiment, tmp_path)
    answer = executor.execute(Job("local", server.step, str(request), "client-00", server.classes.names))
    executor.close()
    assert answer.error is None
    for original in (sent, answer.read()):
        copy = Payload.decode(original.encode())
        assert copy.info == original.info
        assert copy.tensors.keys() == original.tensors.keys()
        assert all(torch.equal(copy.tensors[name], tensor) for name, tensor in original.tensors.items())


def round_to_try(experiment: Experiment) -> Any:
    """Return the last round of a run or, if it welcomed newcomers, the first one about the last newcomer."""
    plan = plan_of(experiment.method)
    if not isinstance(experiment.method, Welcomes):
        # A round in which only the server works sends nothing.
        return next(planned for planned in reversed(plan) if planned.phase.name != "distil")
    first = experiment.method.arrivals(experiment.split.newcomers)["newcomer"]
    return next(planned for planned in plan if planned.phase.name == first)


@pytest.mark.parametrize("method", BASES)
def test_the_predictor_accepts_batches_of_any_size(
    method: str, final: tuple[Experiment, Server], tmp_path: Path
) -> None:
    experiment, server = final
    client = executor_of(experiment, tmp_path).client(Job("test", server.step, "", "client-00", server.classes.names))
    answering: Answering = experiment.method.answers(server)
    predictor = answering.predictor(client if answering.personal else None)
    x = torch.rand(1000, *experiment.dataset.input_shape)
    answer, first = predictor.predict(x), predictor.predict(x[:1])
    for count, part in ((1000, answer), (1, first)):
        assert part.logits.shape == (count, len(server.classes))
        assert part.unknown.shape == (count,)
        assert torch.isfinite(part.unknown).all()
    assert torch.allclose(first.logits, answer.logits[:1], atol=1e-5)


def other_value(annotation: Any, default: Any, value: Any) -> Any:
    """Return a valid value that differs from the current one."""
    if get_origin(annotation) in (Union, UnionType):
        annotation = get_args(annotation)[0]
    if get_origin(annotation) is Literal:
        return next(choice for choice in get_args(annotation) if choice != value)
    if annotation is str:
        return "fc2"
    if annotation is bool:
        return not value
    if annotation is int:
        return value + 1 if isinstance(value, int) else 1
    if annotation is float:
        return value / 2 if value else 0.1
    pytest.fail(f"no other value known for {annotation} = {default!r}: extend this test")


def effect_cases() -> list[tuple[str, str, str]]:
    """Return every setting of every method and of its components."""
    cases = [(name, "method", key) for name in BASES for key in METHODS.get(name).Params.model_fields]
    for name in BASES:
        for kind, default in default_parts(METHODS.get(name)).items():
            cases += [(name, kind, key) for key in KINDS[kind][0].get(default).Params.model_fields]
    # GAL and a distilled student have no output for "unknown", so they reject argmax.
    without = {(name, "method", "decision") for name in ("gal", "distilled-fedov")}
    return [case for case in cases if case not in without]


# Alignment permutes neurons only if clients begin with different weights.
OWN_START = {"method": {"start": "own"}}
WITH_NORMS = {"model": {"name": "digit-cnn", "width": 0.1}}
# All samples count as boundary samples, enough for Gaussians; untrained heads disagree.
PUSHED = {"method": {"boundary": "all", "min_count": 1}}
DISAGREEING = {"method": {"boundary": "agreement", "lr": 1e-6, "branch": "light"}}
FEDOSS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(
        ("steps", "step_size", "step_unit", "away", "masked", "duss", "foss", "aggregate", "rectify"), PUSHED
    ),
    **dict.fromkeys(("draws", "keep", "refresh", "min_count", "cut", "accept", "max_drawn", "first_refresh"), PUSHED),
    "own_pass": {**PUSHED, **WITH_NORMS},
    # Single samples, so that some batches have no boundary sample.
    "draw_in": {"method": {"boundary": "margin", "width": 0.9, "min_count": 1, "batch_size": 1}},
    **dict.fromkeys(("low", "high"), DISAGREEING),
    # One of two heads is not more than half of them, two of three are.
    "bank": {"method": {**DISAGREEING["method"], "low": 0.5}},
    "boundary": {"method": {"lr": 1e-6, "branch": "light", "width": 1e-3}},
    "width": {"method": {"boundary": "margin"}},
    "log_density": {"method": {**PUSHED["method"], "select": "density", "log_density": 1e9}},
    "select": {"method": {**PUSHED["method"], "log_density": -1e9}},
    "dims": {**PUSHED, **WITH_NORMS},
    "temperature": {"method": {"decision": "calibrated"}},
}
# All unlabelled samples belong to two novel classes.
FINDING: dict[str, Any] = {
    "method": {"novelty": "fixed", "r": 1.0, "min_count": 1},
    "estimator": {"name": "given", "classes": 2},
}
PULLED = {**FINDING, "method": {**FINDING["method"], "loss": "swl", "rehearse": False}}
GAL: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("novel_rounds", "clusters", "min_count", "init", "rows", "loss", "rehearse", "r"), FINDING),
    **dict.fromkeys(("prototypes", "temperature", "normalised"), PULLED),
    "against_forgetting": FINDING,
    "beta": {**FINDING, "method": {**FINDING["method"], "against_forgetting": "ema"}},
    # Some unlabelled samples look known.
    "pseudo_labels": {**FINDING, "method": {**FINDING["method"], "r": 0.8}},
    "novelty": {"method": {"r": 0.3}},
    "accept": {"method": {"novelty": "accept"}},
    # In an untrained head, random rows win over known samples.
    "keep_known": {**FINDING, "method": {**FINDING["method"], "init": "random", "lr": 1e-6}},
    "smallest": {"method": {"novelty": "fixed", "r": 1.0, "min_count": 1, "clusters": 6}},
    "steps": {"method": {"novelty": "fixed", "r": 1.0}},
}
ANY_SHIFT = {"rule": "federation", "min_count": 2, "least_shift": 0.0}
GAINS: dict[str, dict[str, Any]] = {
    **{key: {"rule": "fixed"} for key in ("t_f", "t_c")},
    "least_shift": {**ANY_SHIFT, "times": 0.0},
    # Without enough samples, every newcomer counts as new.
    "min_count": {**ANY_SHIFT, "least_shift": 1e9},
    # These clients have too few validation samples to measure shifts within a client, but they differ.
    "times": {**ANY_SHIFT, "yardstick": "between", "times": 1e9},
    "yardstick": {**ANY_SHIFT, "times": 1e9},
    "synonym": {"min_count": 2},
    "rule": {"t_f": 1e9},
    "decide": {"t_f": 1e9},
    # With such a learning rate nothing moves, so that Diff^F is 0.
    "inclusive": {"rule": "fixed", "t_f": 0.0, "lr": 1e-30},
    # Half of the rounds is more than one.
    "tail": {"adapt_rounds": 4},
    "calibrate": {"lr": 0.01},
    "max_forgetting": {"lr": 0.3, "calibrate": False, "adapt_rounds": 0, "new_rows": "newcomer"},
}
SAME_CLASSES = ("least_shift", "times", "yardstick", "min_count")
"""Settings about domains, which act only if the newcomer has no new classes."""
WITH_UNKNOWN = {"objective": {"name": "proser"}, "score": {"name": "proser"}}
NEEDED_SETTINGS: dict[tuple[str, str], dict[str, Any]] = {
    **{(name, "decision"): WITH_UNKNOWN for name in ("afl", "fedavg", "fedbn", "fedheal", "fedma", "gains", "qffl")},
    ("local-only", "decision"): WITH_UNKNOWN,
    ("fedproto", "decision"): {**WITH_UNKNOWN, "method": {"answer": "head"}},
    ("fedov", "decision"): {"method": {"voting": "all"}},
    **{(method, key): {"method": needs} for method in WELCOMING for key, needs in GAINS.items()},
    ("gains-released", "max_forgetting"): {"method": {"lr": 0.3, "calibrate": False, "adapt_rounds": 3}},
    **{(method, key): needs for method in ("gal", "gal-paper") for key, needs in GAL.items()},
    **{(method, key): needs for method in ("fedoss", "fedoss-paper") for key, needs in FEDOSS.items()},
    # The share of agreeing rounds is 0 or 1 after one round, and can be a half after two.
    ("fedheal", "tau"): {"method": {"rounds": 4}},
    ("fedpd", "closed_share"): {"method": {"stages": "two", "rounds": 3}},
    ("fedpd", "maps"): {"method": {"start": "own", "target": 0, "mean": "all"}},
    ("fedpd", "align"): OWN_START,
    ("fedpd", "sweeps"): OWN_START,
    ("fedpd", "target"): OWN_START,
    ("fedpd", "norms"): WITH_NORMS,
    ("fedpd", "calibrate"): {**WITH_NORMS, "method": {"norms": "merged"}},
    ("fedpd-paper", "mean"): {"method": {"maps": "one"}},
    ("fedpd-paper", "norms"): WITH_NORMS,
    ("fedpd-paper", "calibrate"): WITH_NORMS,
}
"""Other settings that a setting needs to take effect, by method and setting."""
# Increasing these by one would change nothing in such a small federation.
SMALLER = {
    "halve_after": 1,
    "boundary": "margin",
    "bank": 2,
    "low": 0.5,
    "width": 0.01,
    "log_density": -1e9,
    "dims": 13,
    "min_count": 100,
}
OTHER_VALUES: dict[tuple[str, str], Any] = {
    **{
        (method, key): value
        for method in WELCOMING
        for key, value in {
            **dict.fromkeys(("t_f", "t_c", "least_shift", "synonym"), 1e9),
            "times": 0.0,
            "probes": 3,
            "max_classes": 1,
            "min_count": 1000,
            "max_forgetting": 0.0,
        }.items()
    },
    **{(method, "min_count"): 1000 for method in ("gal", "gal-paper")},
    **{(method, "min_known_count"): 1000 for method in ("gal", "gal-paper")},
    **{(method, "novelty"): "fixed" for method in ("gal", "gal-paper")},
    ("gal", "keep_known"): 0.5,
    ("gal-paper", "keep_known"): 1.0,
    # GAL's default differs from that of the objective.
    ("gal", "balanced"): False,
    ("gal", "smallest"): 0.2,
    **{(method, key): value for method in ("fedoss", "fedoss-paper") for key, value in SMALLER.items()},
    ("fedheal", "tau"): 0.6,
    # The updates of so few steps are short.
    **{(method, "clip"): 1e-3 for method in BASES},
    # Sweeps end when nothing changes, so that one more has no effect.
    ("fedpd", "sweeps"): 0,
    ("fedpd", "closed_share"): 0.2,
    # For clients with similar labels, "auto" equals the next choice.
    ("fedpd", "mean"): "all",
    ("fedpd", "norms"): "merged",
}


UNCHANGED: dict[str, Path] = {}
"""Runs without a changed setting, by their settings: most settings of a method are compared with the same run."""


@pytest.mark.parametrize(("method", "section", "key"), effect_cases())
def test_every_setting_takes_effect(
    method: str, section: str, key: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    dataset = tiny_dataset(classes=2, per_class=24)
    rows = even_shares(dataset, 2, 1)[0]
    unknown = (dataset.y_train == 2).nonzero().flatten().tolist()
    split = split_by(dataset, 2, [rows[:6], rows[6:14], rows[14:]], unlabelled=unknown)
    split = with_newcomer(method, dataset, split)
    if method in WELCOMING and key in SAME_CLASSES:
        dataset = replace(dataset, y_train=dataset.y_train.where(dataset.y_train < 2, 0))
    part = default_parts(METHODS.get(method)).get(section)
    params = METHODS.get(method).Params if part is None else KINDS[section][0].get(part).Params
    field = params.model_fields[key]
    base = {"epochs": 2, **brief(method)} if section == "method" else {}
    value = base.get(key, field.default)
    needs = NEEDED_SETTINGS.get((method, key), {})
    other = OTHER_VALUES.get((method, key), other_value(field.annotation, field.default, value))
    changed = {**needs, section: {**needs.get(section, {}), key: other}}
    settings_key = f"{method} {needs} {dataset.y_train.unique().tolist()}"
    if settings_key not in UNCHANGED:
        UNCHANGED[settings_key] = tmp_path_factory.mktemp("unchanged") / "run"
        run_tiny(UNCHANGED[settings_key], method, dataset, split, needs)
    before = UNCHANGED[settings_key]
    run_tiny(tmp_path / "after", method, dataset, split, changed)
    effect: Callable[[Path], object] = notes if key in ONLY_LOGGED else model_bytes
    assert effect(before) != effect(tmp_path / "after")


ONLY_LOGGED = ("synonym",)
"""Settings that change only the log."""


def notes(folder: Path) -> list[str]:
    return [event["text"] for event in read_events(folder / "events.jsonl") if event["event"] == "note"]


@pytest.mark.parametrize("method", ALL)
def test_a_wrong_setting_is_rejected_by_name(method: str) -> None:
    dataset, split = small(method)
    with pytest.raises(UserError, match=r"method\.no_such_thing"):
        tiny_experiment(method, dataset, split, {"method": {"no_such_thing": 1}})


def test_a_run_folder_opens_as_a_run(tmp_path: Path) -> None:
    dataset, split = small("fedavg")
    result = run_tiny(tmp_path / "run", "fedavg", dataset, split)
    assert opened(tmp_path / "run").metrics["closed_accuracy"] == result["metrics"]["closed_accuracy"]


@pytest.mark.parametrize("method", [name for name in BASES if name != "fedma"])
def test_layers_that_a_users_network_freezes_are_never_trained(method: str, tmp_path: Path) -> None:
    """FedMA rebuilds its networks with other widths, so a frozen layer has no meaning there."""
    settings = {"model": {"name": "tests.models.own_modules:FrozenFirst"}}
    run_tiny(tmp_path / "run", method, *small(method), settings)
    files = [tmp_path / "run" / "model.safetensors", *(tmp_path / "run" / "clients").rglob("*.safetensors")]
    tensors = [(name, t) for file in files for name, t in Payload.read(file).tensors.items()]
    models = [(name, t) for name, t in tensors if name.startswith(("model/", "models/", "network/"))]
    frozen = [tensor for name, tensor in models if name.endswith("/fc1.1.weight")]
    assert frozen
    expected = torch.linspace(-0.2, 0.2, frozen[0].numel()).reshape(frozen[0].shape)
    assert all(torch.equal(tensor, expected) for tensor in frozen)


@pytest.mark.slow
@pytest.mark.parametrize("method", BASES)
def test_the_defaults_learn_the_embedded_digits(
    method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # To save time, with a part of the samples at few clients; methods with one round need more of them.
    digits, step = load_digits(), 4 if "rounds" in METHODS.get(method).Params.model_fields else 2
    fewer = replace(digits, train=digits.train.rows(np.arange(0, len(digits.train.y), step)))
    monkeypatch.setattr(sys.modules["fedwild.data.sources.load"], "load_digits", lambda: fewer)
    with pytest.raises(SystemExit) as exit_:
        main(["run", "--method", method, "--clients", "3", "--out", str(tmp_path / "run"), "--json", "--workers", "0"])
    assert exit_.value.code == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["seconds"] < 120
    chance = 1 / len(result["classes"])
    assert result["metrics"]["closed_accuracy"] > 2.5 * chance
    # If a method discovers all other classes, none is unknown.
    novel = demonstration(METHODS.get(method)).get("data", {}).get("novel", 0)
    assert result["metrics"]["auroc"] is not None or novel == 4
    assert Payload.read(tmp_path / "run" / "model.safetensors").tensors


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_is_its_method_with_other_defaults(preset: str, tmp_path: Path) -> None:
    about, kind = data_file("presets.toml")[preset], METHODS.get(preset)
    base = METHODS.get(about["base"])
    assert issubclass(kind, base)
    defaults = {key: field.default for key, field in kind.Params.model_fields.items()}
    assert defaults == {**{k: f.default for k, f in base.Params.model_fields.items()}, **about.get("params", {})}
    # Every entry changes a default, and descriptions stay.
    for key, value in about.get("params", {}).items():
        assert base.Params.model_fields[key].default != value, key
        assert kind.Params.model_fields[key].description == base.Params.model_fields[key].description
    result = run_tiny(tmp_path / "run", preset, *small(preset))
    assert 0 <= result["metrics"]["closed_accuracy"] <= 1
    assert isinstance(configure(method=preset).make_method(), kind)
