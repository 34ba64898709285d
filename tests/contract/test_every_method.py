"""What every registered method must do."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import numpy as np
import pytest
import torch

from fedwild.cli import main
from fedwild.contract import Answering, Server, Welcomes
from fedwild.contract.engine import Job
from fedwild.contract.schedule import plan_of
from fedwild.core.errors import UserError
from fedwild.core.payload import Payload
from fedwild.core.rng import Rng
from fedwild.data.sources.builtin import load_digits
from fedwild.engines.executor import Executor
from fedwild.lifecycle.rounds import Federation
from fedwild.methods import METHODS, demonstration
from fedwild.methods.registry import data_file
from fedwild.runs.components import KINDS, default_parts
from fedwild.runs.events import read_events
from fedwild.runs.experiment import Experiment
from fedwild.runs.folder import RunFolder
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
"""Presets are methods with other defaults: they are tested where defaults matter."""
WELCOMING = [name for name in ALL if issubclass(METHODS.get(name), Welcomes)]


def small(method: str) -> tuple[Any, Any]:
    dataset = tiny_dataset(classes=2)
    return dataset, welcoming(method, dataset, split_by(dataset, 2, even_shares(dataset, 2, 3)))


def welcoming(method: str, dataset: Any, split: Any) -> Any:
    """For a method that takes in newcomers, the split with one that has the last class and a little of the first."""
    if method not in WELCOMING:
        return split
    labels = dataset.y_train
    new = (labels == len(dataset.classes) - 1).nonzero().flatten().tolist()
    return joined_by(split, dataset, [*new, *(labels == 0).nonzero().flatten().tolist()[:4]])


FINISHED: dict[str, Path] = {}


@pytest.fixture
def finished(method: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run of a method, made once; it must not be changed."""
    if method not in FINISHED:
        FINISHED[method] = tmp_path_factory.mktemp("finished") / "run"
        run_tiny(FINISHED[method], method, *small(method))
    return FINISHED[method]


@pytest.fixture
def final(method: str, finished: Path) -> tuple[Experiment, Server]:
    """The experiment and the final server of that run."""
    experiment = tiny_experiment(method, *small(method))
    server = Server.from_payload(Payload.read(finished / "model.safetensors"), experiment.task, Rng(0))
    server.newcomers = experiment.split.newcomers
    return experiment, server


@pytest.mark.parametrize("method", BASES)
@pytest.mark.parametrize(("classes", "clients"), [(1, 1), (1, 3), (2, 4), (3, 1), (3, 2)])
def test_runs_for_any_number_of_classes_and_clients(method: str, classes: int, clients: int, tmp_path: Path) -> None:
    dataset = tiny_dataset(classes)
    split = welcoming(method, dataset, split_by(dataset, classes, even_shares(dataset, classes, clients)))
    result = run_tiny(tmp_path / "run", method, dataset, split)
    assert 0 <= result["metrics"]["closed_accuracy"] <= 1
    assert result["bytes_up"] > 0
    assert (tmp_path / "run" / "model.safetensors").stat().st_size > 0


@pytest.mark.parametrize("method", BASES)
def test_survives_a_client_with_one_sample_one_class_or_nothing(method: str, tmp_path: Path) -> None:
    dataset = tiny_dataset(classes=3)
    rows = even_shares(dataset, 3, 1)[0]
    one_class = [row for row in rows if int(dataset.y_train[row]) == 1]
    split = welcoming(method, dataset, split_by(dataset, 3, [rows, rows[:1], one_class, []]))
    events: list[dict[str, Any]] = []
    result = run_tiny(tmp_path / "run", method, dataset, split, listener=events.append)
    assert not [event for event in events if event["event"] == "client-failed"]
    assert 0 <= result["metrics"]["closed_accuracy"] <= 1


@pytest.mark.parametrize("method", BASES)
def test_survives_when_nobody_has_a_sample(method: str, tmp_path: Path) -> None:
    dataset = tiny_dataset(classes=2)
    result = run_tiny(tmp_path / "run", method, dataset, split_by(dataset, 2, [[], []]))
    assert result["clients"] == 2


# Where everybody has a say: nobody trains, or (afl) a mixture of clients needs the losses of all.
EVERYBODY = {**dict.fromkeys(("gal", "gal-paper"), ("describe", "discover-1")), "afl": ("train",)}


@pytest.mark.parametrize("method", BASES)
def test_partial_participation_asks_only_a_share_of_the_clients(method: str, tmp_path: Path) -> None:
    dataset = tiny_dataset(classes=2)
    split = split_by(dataset, 2, even_shares(dataset, 2, 4))
    asked: dict[str, int] = {}

    def listen(event: dict[str, Any]) -> None:
        if event["event"] == "round-start":
            asked[event["phase"]] = event["clients"]

    run_tiny(tmp_path / "run", method, dataset, split, {"federation": {"participation": 0.5}}, listener=listen)
    everybody = [phase for phase in asked if phase in EVERYBODY.get(method, ())]
    assert {asked.pop(phase) for phase in everybody} <= {4}
    assert set(asked.values()) <= {0, 2}
    assert asked or everybody


@pytest.mark.parametrize("method", BASES)
def test_final_model_is_bit_equal_for_any_number_of_workers(method: str, finished: Path, tmp_path: Path) -> None:
    dataset, split = small(method)
    for workers in (1, 3):
        run_tiny(tmp_path / str(workers), method, dataset, split, workers=workers)
        assert model_bytes(tmp_path / str(workers)) == model_bytes(finished)


class Killed(Exception):
    """The end of a process, as far as the run's files can tell."""


@pytest.mark.parametrize("model", [{}, {"model": {"name": "digit-cnn", "width": 0.05}}])
@pytest.mark.parametrize("method", BASES)
def test_a_run_killed_in_every_round_ends_as_the_undisturbed_one(
    method: str, model: dict[str, Any], tmp_path: Path
) -> None:
    dataset, split = small(method)
    run_tiny(tmp_path / "whole", method, dataset, split, model)
    events = read_events(tmp_path / "whole" / "events.jsonl")
    rounds = [event["index"] for event in events if event["event"] == "round" and event["participants"]]
    killed = []

    def kill_once(event: dict[str, Any]) -> None:
        # When a client of the round has answered, and nothing of the round is on disk but what it left.
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
    assert model_bytes(tmp_path / "killed") == model_bytes(tmp_path / "whole")


@pytest.mark.parametrize("method", BASES)
def test_another_seed_gives_another_model(method: str, finished: Path, tmp_path: Path) -> None:
    run_tiny(tmp_path / "other", method, *small(method), {"seed": 1})
    assert model_bytes(finished) != model_bytes(tmp_path / "other")


@pytest.mark.parametrize("method", BASES)
def test_server_state_survives_a_checkpoint(method: str, finished: Path, final: tuple[Experiment, Server]) -> None:
    assert final[1].to_payload().encode() == (finished / "model.safetensors").read_bytes()


@pytest.mark.parametrize("method", BASES)
def test_payloads_survive_encoding(method: str, final: tuple[Experiment, Server], tmp_path: Path) -> None:
    experiment, server = final
    server.step, phase = first_round_of_its_last_stage(experiment)
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


def first_round_of_its_last_stage(experiment: Experiment) -> Any:
    """The last round of a run, or, where newcomers were welcomed, the first one about the last newcomer."""
    plan = plan_of(experiment.method)
    if not isinstance(experiment.method, Welcomes):
        # A round in which only the server works sends nothing.
        return next(planned for planned in reversed(plan) if planned.phase.name != "distil")
    first = experiment.method.arrivals(experiment.split.newcomers)["newcomer"]
    return next(planned for planned in plan if planned.phase.name == first)


def executor_of(experiment: Experiment, folder: Path) -> Executor:
    e = experiment
    return Executor(e.dataset, e.split, e.config.data, e.method, e.task, 0, folder, folder)


@pytest.mark.parametrize("method", BASES)
def test_predictor_answers_for_a_batch_of_any_size(
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
    """A legal value that differs from the one in use."""
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
    """Every setting of every method and of every part that it composes."""
    cases = [(name, "method", key) for name in BASES for key in METHODS.get(name).Params.model_fields]
    for name in BASES:
        for kind, default in default_parts(METHODS.get(name)).items():
            cases += [(name, kind, key) for key in KINDS[kind][0].get(default).Params.model_fields]
    return cases


# Neurons find other places only if clients do not begin with equal ones.
STRANGERS = {"method": {"start": "own"}}
WITH_NORMS = {"model": {"name": "digit-cnn", "width": 0.1}}
# Samples are at a boundary, and enough of them for Gaussians; heads that have learnt nothing disagree.
PUSHED = {"method": {"boundary": "all", "min_count": 1}}
DISAGREEING = {"method": {"boundary": "agreement", "lr": 1e-6, "branch": "light"}}
FEDOSS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("steps", "step_size", "step_unit", "away", "masked", "duss", "foss", "aggregate"), PUSHED),
    **dict.fromkeys(("draws", "keep", "refresh", "min_count", "cut"), PUSHED),
    **dict.fromkeys(("low", "high"), DISAGREEING),
    # One of two heads is not above a half, two of three are.
    "bank": {"method": {**DISAGREEING["method"], "low": 0.5}},
    "boundary": {"method": {"lr": 1e-6, "branch": "light", "width": 1e-3}},
    "width": {"method": {"boundary": "margin"}},
    "log_density": {"method": {**PUSHED["method"], "select": "density", "log_density": 1e9}},
    "select": {"method": {**PUSHED["method"], "log_density": -1e9}},
    "dims": {**PUSHED, **WITH_NORMS},
    "temperature": {"method": {"decision": "calibrated"}},
}
# All that clients hold without labels is two novel classes.
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
    # Some of them look known.
    "pseudo_labels": {**FINDING, "method": {**FINDING["method"], "r": 0.8}},
    "novelty": {"method": {"r": 0.3}},
    "accept": {"method": {"novelty": "accept"}},
    # Random rows win over known samples of a head that has learnt nothing.
    "keep_known": {**FINDING, "method": {**FINDING["method"], "init": "random", "lr": 1e-6}},
    "smallest": {"method": {"novelty": "fixed", "r": 1.0, "min_count": 1, "clusters": 6}},
    "steps": {"method": {"novelty": "fixed", "r": 1.0}},
}
ANY_SHIFT = {"rule": "federation", "min_count": 2, "least_shift": 0.0}
GAINS: dict[str, dict[str, Any]] = {
    **{key: {"rule": "fixed"} for key in ("t_f", "t_c")},
    "least_shift": {**ANY_SHIFT, "times": 0.0},
    # Without enough samples there is nothing to compare, which is something new.
    "min_count": {**ANY_SHIFT, "least_shift": 1e9},
    # These clients hold too little out to tell of shifts of their own, but they differ.
    "times": {**ANY_SHIFT, "yardstick": "between", "times": 1e9},
    "yardstick": {**ANY_SHIFT, "times": 1e9},
    "synonym": {"min_count": 2},
    "rule": {"t_f": 1e9},
    # Half of two rounds is the last one.
    "tail": {"adapt_rounds": 4},
    "calibrate": {"lr": 0.01},
    "max_forgetting": {"lr": 0.3, "calibrate": False, "adapt_rounds": 0, "new_rows": "newcomer"},
}
SAME_CLASSES = ("least_shift", "times", "yardstick", "min_count")
"""Settings that decide about domains, so that the newcomer must not bring classes."""
WHERE_IT_ACTS: dict[tuple[str, str], dict[str, Any]] = {
    **{(method, key): {"method": needs} for method in WELCOMING for key, needs in GAINS.items()},
    ("gains-released", "max_forgetting"): {"method": {"lr": 0.3, "calibrate": False, "adapt_rounds": 3}},
    **{(method, key): needs for method in ("gal", "gal-paper") for key, needs in GAL.items()},
    **{(method, key): needs for method in ("fedoss", "fedoss-paper") for key, needs in FEDOSS.items()},
    # Agreement is all or nothing after one round, a half after two.
    ("fedheal", "tau"): {"method": {"rounds": 4}},
    ("fedpd", "maps"): {"method": {"start": "own", "target": 0, "mean": "all"}},
    ("fedpd", "align"): STRANGERS,
    ("fedpd", "sweeps"): STRANGERS,
    ("fedpd", "target"): STRANGERS,
    ("fedpd", "norms"): WITH_NORMS,
    ("fedpd", "calibrate"): {**WITH_NORMS, "method": {"norms": "merged"}},
    ("fedpd-paper", "mean"): {"method": {"maps": "one"}},
    ("fedpd-paper", "norms"): WITH_NORMS,
    ("fedpd-paper", "calibrate"): WITH_NORMS,
}
"""By method and setting, what it needs to act."""
# One more of these would change nothing in a federation as small as this.
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
            "min_count": 1000,
            "max_forgetting": 0.0,
        }.items()
    },
    **{(method, "min_count"): 1000 for method in ("gal", "gal-paper")},
    **{(method, "min_known_count"): 1000 for method in ("gal", "gal-paper")},
    **{(method, "novelty"): "fixed" for method in ("gal", "gal-paper")},
    ("gal", "keep_known"): 0.5,
    ("gal-paper", "keep_known"): 1.0,
    # GAL's own value is not the objective's default.
    ("gal", "balanced"): False,
    ("gal", "smallest"): 0.2,
    **{(method, key): value for method in ("fedoss", "fedoss-paper") for key, value in SMALLER.items()},
    ("fedheal", "tau"): 0.6,
    # Sweeps end when nothing moves, so that one more changes nothing.
    ("fedpd", "sweeps"): 0,
    # What "auto" decides for clients whose labels are alike is the next choice.
    ("fedpd", "mean"): "all",
    ("fedpd", "norms"): "merged",
}


UNCHANGED: dict[str, Path] = {}
"""Runs without a changed setting, by what they were made of: most settings of a method are compared with the same."""


@pytest.mark.parametrize(("method", "section", "key"), effect_cases())
def test_every_setting_takes_effect(
    method: str, section: str, key: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    dataset = tiny_dataset(classes=2, per_class=24)
    rows = even_shares(dataset, 2, 1)[0]
    unknown = (dataset.y_train == 2).nonzero().flatten().tolist()
    split = split_by(dataset, 2, [rows[:6], rows[6:14], rows[14:]], unlabelled=unknown)
    split = welcoming(method, dataset, split)
    if method in WELCOMING and key in SAME_CLASSES:
        dataset = replace(dataset, y_train=dataset.y_train.where(dataset.y_train < 2, 0))
    part = default_parts(METHODS.get(method)).get(section)
    params = METHODS.get(method).Params if part is None else KINDS[section][0].get(part).Params
    field = params.model_fields[key]
    base = {"epochs": 2, **brief(method)} if section == "method" else {}
    value = base.get(key, field.default)
    needs = WHERE_IT_ACTS.get((method, key), {})
    other = OTHER_VALUES.get((method, key), other_value(field.annotation, field.default, value))
    changed = {**needs, section: {**needs.get(section, {}), key: other}}
    made_of = f"{method} {needs} {dataset.y_train.unique().tolist()}"
    if made_of not in UNCHANGED:
        UNCHANGED[made_of] = tmp_path_factory.mktemp("unchanged") / "run"
        run_tiny(UNCHANGED[made_of], method, dataset, split, needs)
    before = UNCHANGED[made_of]
    run_tiny(tmp_path / "after", method, dataset, split, changed)
    seen = notes if key in ONLY_TOLD else model_bytes
    assert seen(before) != seen(tmp_path / "after")


ONLY_TOLD = ("synonym",)
"""Settings that change what is said, not what is learnt."""


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


@pytest.mark.parametrize("method", ALL)
def test_its_name_alone_is_enough_for_a_job_on_the_embedded_digits(
    method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Every second sample, in half the time: enough to learn from, unless a teacher must pass it on.
    digits, step = load_digits(), 1 if METHODS.get(method).traits.public_data else 2
    fewer = replace(digits, train=digits.train.rows(np.arange(0, len(digits.train.y), step)))
    monkeypatch.setattr(sys.modules["fedwild.data.sources.load"], "load_digits", lambda: fewer)
    with pytest.raises(SystemExit) as exit_:
        main(["run", "--method", method, "--out", str(tmp_path / "run"), "--json", "--workers", "0"])
    assert exit_.value.code == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["seconds"] < 120
    chance = 1 / len(result["classes"])
    assert result["metrics"]["closed_accuracy"] > 1.5 * chance
    # A method that discovers all classes that are not known leaves none unknown.
    novel = demonstration(METHODS.get(method)).get("data", {}).get("novel", 0)
    assert result["metrics"]["auroc"] is not None or novel == 4
    assert Payload.read(tmp_path / "run" / "model.safetensors").tensors


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_is_its_method_with_other_defaults(preset: str) -> None:
    about, kind = data_file("presets.toml")[preset], METHODS.get(preset)
    base = METHODS.get(about["base"])
    assert issubclass(kind, base)
    defaults = {key: field.default for key, field in kind.Params.model_fields.items()}
    assert defaults == {**{k: f.default for k, f in base.Params.model_fields.items()}, **about.get("params", {})}
    # Every entry changes something, and limits and descriptions stay.
    for key, value in about.get("params", {}).items():
        assert base.Params.model_fields[key].default != value, key
        assert kind.Params.model_fields[key].description == base.Params.model_fields[key].description
