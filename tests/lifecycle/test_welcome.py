"""`welcome`: a newcomer joins a finished run of any method; the new run continues its history."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedwild import api
from fedwild.api import Run, welcome
from fedwild.core.errors import UserError
from fedwild.core.payload import Payload
from fedwild.methods.gains.discover import Discover
from fedwild.runs.events import without_nan
from tests.conftest import DISCOVERING, Cli, contents, unfinish
from tests.tiny import image_file

KNOWN = {"a": 0, "b": 1, "c": 2}
METHOD = {"name": "fedavg", "rounds": 4, "epochs": 2, "lr": 0.1, "batch_size": 16}
TABLES: dict[str, Any] = {"model": {"name": "mlp", "hidden": [16, 8]}, "method": METHOD, "partition": {"name": "iid"}}
LEARNS: dict[str, Any] = {"rounds": 3, "workers": 0}
"""A few rounds of adaptation, in this process."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the data of all clients."""
    folder = tmp_path_factory.mktemp("welcome")
    image_file(folder / "home.npz", KNOWN, per_class=60)
    image_file(folder / "held.npz", KNOWN, seed=5)
    image_file(folder / "new.npz", {"d": 4, "e": 5}, seed=6)
    image_file(folder / "mixed.npz", {"a": 0, "d": 4, "f": 6}, seed=7)
    image_file(folder / "dark.npz", KNOWN, seed=8, inverted=True)
    return folder


def federation(place: Path, name: str, **tables: Any) -> Run:
    """Make a finished run of three clients on home.npz."""
    method = {**METHOD, **tables.pop("method", {})}
    given = {**TABLES, **tables, "method": method, "data": {"name": str(place / "home.npz"), **tables.pop("data", {})}}
    return api.run(given, clients=3, workers=0, out=place / name)


@pytest.fixture(scope="module")
def source(place: Path) -> Run:
    return federation(place, "source")


@pytest.fixture(scope="module")
def welcomed(place: Path, source: Run) -> Run:
    """The newcomer `new` has joined, with classes d and e."""
    return welcome(source, place / "new.npz", out=place / "welcomed", **LEARNS)


@pytest.fixture(scope="module")
def chain(place: Path, welcomed: Run) -> Run:
    """Then `mixed` has joined, with classes a, d and f."""
    return welcome(welcomed, place / "mixed.npz", out=place / "chain", **LEARNS)


def kinds(run: Run) -> list[tuple[str, str, list[str]]]:
    return [(found["client"], found["kind"], found["classes"]) for found in run.findings("discovery")]


def model(run: Run) -> dict[str, torch.Tensor]:
    return Payload.read(run.path / "model.safetensors").group("model")


def assert_equal_models(first: Run, second: Run) -> None:
    one, two = model(first), model(second)
    assert one.keys() == two.keys()
    assert all(torch.equal(tensor, two[name]) for name, tensor in one.items())


# --- what is new in a newcomer's data ------------------------------------------------------------------------


def test_new_classes_are_added(source: Run, welcomed: Run) -> None:
    assert kinds(welcomed) == [("new", "classes", ["d", "e"])]
    assert welcomed.result["classes"] == ["a", "b", "c", "d", "e"]
    assert [entry.origin for entry in welcomed.server().classes.entries] == ["known"] * 3 + ["new"] * 2
    assert welcomed.metrics["target_accuracy"] > 0.9
    assert welcomed.metrics["source_accuracy"] > 0.9
    assert (welcomed.config.method.name, welcomed.result["clients"]) == ("gains", 4)


def test_a_newcomer_with_nothing_new_does_not_change_the_model(place: Path, source: Run, tmp_path: Path) -> None:
    run = welcome(source, place / "held.npz", out=tmp_path / "run", **LEARNS)
    assert kinds(run) == [("held", "nothing", [])]
    assert_equal_models(source, run)
    assert run.server().state.info["welcomed"] == ["held"]
    # Only the threshold changes, which one more client helps to calibrate.
    assert run.server().classes == source.server().classes


def test_a_new_domain_adds_no_classes(place: Path, source: Run, tmp_path: Path) -> None:
    run = welcome(source, place / "dark.npz", name="night", out=tmp_path / "run", **LEARNS)
    assert kinds(run) == [("night", "domain", [])]
    assert run.result["classes"] == ["a", "b", "c"]
    assert set(run.result["by"]) == {"home", "night"}


def test_labels_map_class_names_to_those_of_the_federation(place: Path, source: Run, tmp_path: Path) -> None:
    own = image_file(tmp_path / "own.npz", {"Ah": 0, "Beh": 1, "Deh": 4}, seed=9)
    run = welcome(source, own, labels={"Ah": "a", "Beh": "b", "Deh": "d"}, out=tmp_path / "run", **LEARNS)
    assert kinds(run) == [("own", "classes", ["d"])]
    assert run.result["classes"] == ["a", "b", "c", "d"]


def test_only_the_requested_classes_are_used(place: Path, source: Run, tmp_path: Path) -> None:
    run = welcome(source, place / "mixed.npz", classes=["a", "f"], out=tmp_path / "run", **LEARNS)
    assert run.result["classes"] == ["a", "b", "c", "f"]


def test_images_of_another_size_are_converted_with_resize(place: Path, source: Run, tmp_path: Path) -> None:
    large = image_file(tmp_path / "large.npz", {"d": 9}, side=16)
    with pytest.raises(UserError, match="--resize"):
        welcome(source, large, out=tmp_path / "none", **LEARNS)
    assert not (tmp_path / "none").exists()
    run = welcome(source, large, resize=True, out=tmp_path / "run", **LEARNS)
    assert run.result["classes"][-1] == "d"
    assert run.config.data.newcomers["large"].resize is True


# --- history -------------------------------------------------------------------------------------------------


def test_the_source_run_does_not_change(place: Path, tmp_path: Path) -> None:
    run = federation(place, "untouched")
    before = contents(run.path)
    times = {path: path.stat().st_mtime_ns for path in run.path.rglob("*")}
    welcome(run.path, place / "new.npz", out=tmp_path / "run", **LEARNS)
    assert contents(run.path) == before
    assert {path: path.stat().st_mtime_ns for path in run.path.rglob("*")} == times


def test_the_log_and_the_round_numbers_continue_those_of_the_source_run(source: Run, welcomed: Run, chain: Run) -> None:
    old, new, newest = (run.folder.events.read_bytes() for run in (source, welcomed, chain))
    assert new.startswith(old)
    assert newest.startswith(new)
    indices = [event["index"] for event in chain.events() if event["event"] == "round"]
    assert indices == list(range(len(indices)))
    first = welcomed.events()[len(source.events())]
    assert first["event"] == "start"
    assert first["next_index"] == source.result["rounds"]
    assert welcomed.result["rounds"] == indices.index(max(indices[: welcomed.result["rounds"]])) + 1


def test_the_history_names_every_earlier_run(source: Run, welcomed: Run, chain: Run) -> None:
    assert "history" not in source.folder.facts()
    steps = chain.folder.facts()["history"]
    assert [step["run"] for step in steps] == [str(source.path.resolve()), str(welcomed.path.resolve())]
    assert [step["method"] for step in steps] == ["fedavg", "gains"]
    assert [step["rounds"] for step in steps] == [source.result["rounds"], welcomed.result["rounds"]]
    assert welcomed.folder.facts()["history"] == steps[:1]


def test_later_newcomers_match_earlier_ones_by_class_name(welcomed: Run, chain: Run) -> None:
    assert kinds(chain) == [("new", "classes", ["d", "e"]), ("mixed", "classes", ["f"])]
    assert chain.result["classes"] == ["a", "b", "c", "d", "e", "f"]
    assert [entry.origin for entry in chain.server().classes.entries][3:] == ["new", "new", "mixed"]
    # The first newcomer is a member now.
    taking_part = {
        e["phase"]: e["participants"] for e in chain.events()[len(welcomed.events()) :] if e["event"] == "round"
    }
    assert set(taking_part["declare-1"]) == {"client-00", "client-01", "client-02", "new", "mixed"}
    assert chain.config.data.newcomers["new"].welcomed is True
    assert chain.config.data.newcomers["mixed"].welcomed is False


def test_all_clients_keep_their_rows(source: Run, welcomed: Run, chain: Run) -> None:
    def held(run: Run) -> dict[str, tuple[list[int], list[int]]]:
        return {c.name: (c.train.tolist(), c.validation.tolist()) for c in run.folder.split().clients}

    first, second, third = held(source), held(welcomed), held(chain)
    assert {name: second[name] for name in first} == first
    assert {name: third[name] for name in second} == second
    assert welcomed.folder.split().newcomers == ("new",)
    assert chain.folder.split().newcomers == ("mixed",)
    tests = [len(run.folder.split().test) for run in (source, welcomed, chain)]
    assert tests == [45, 45 + 14, 45 + 14 + 21]


def test_a_welcome_that_is_killed_in_every_round_gives_a_bit_equal_model(
    place: Path, source: Run, welcomed: Run, tmp_path: Path
) -> None:
    class Killed(Exception):
        pass

    killed: list[int] = []

    def kill_once(event: dict[str, Any]) -> None:
        if event["event"] == "client" and event["index"] not in killed:
            killed.append(event["index"])
            raise Killed

    with pytest.raises(Killed):
        welcome(source, place / "new.npz", out=tmp_path / "run", listener=kill_once, **LEARNS)
    for _ in range(9):
        try:
            api.resume(tmp_path / "run", workers=0, listener=kill_once)
            break
        except Killed:
            continue
    assert killed == list(range(source.result["rounds"], welcomed.result["rounds"]))
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == (welcomed.path / "model.safetensors").read_bytes()
    again = Run(tmp_path / "run")
    assert again.metrics == welcomed.metrics
    kinds_of_events = [event["event"] for event in again.events()[len(source.events()) :]]
    assert kinds_of_events[0] == "start"
    assert kinds_of_events.count("resume") == len(killed)


# --- the new run ---------------------------------------------------------------------------------------------


def test_the_new_run_predicts_and_evaluates(place: Path, chain: Run) -> None:
    assert without_nan(chain.evaluate(workers=0).metrics) == pytest.approx(chain.metrics)
    with np.load(place / "mixed.npz") as arrays:
        x, y = arrays["x_test"][:, None], arrays["y_test"]
    answers = chain.predict(x)
    assert answers.classes == ("a", "b", "c", "d", "e", "f")
    best = [answers.classes[i] for i in answers.logits.argmax(1).tolist()]
    assert np.mean(np.array(best) == y) > 0.8


def test_the_config_of_the_new_run_repeats_it(place: Path, welcomed: Run, chain: Run, tmp_path: Path) -> None:
    for run in (welcomed, chain):
        again = api.run(run.path / "config.toml", out=tmp_path / run.path.name)
        assert_equal_models(run, again)
        assert again.metrics == pytest.approx(run.metrics)
        assert again.result["classes"] == run.result["classes"]


def test_the_number_of_workers_changes_nothing(place: Path, source: Run, welcomed: Run, tmp_path: Path) -> None:
    run = welcome(source, place / "new.npz", out=tmp_path / "run", rounds=3, workers=2)
    assert_equal_models(run, welcomed)
    assert run.config.engine.workers == 2


def test_settings_of_the_source_run_are_kept_where_the_method_has_them(source: Run, welcomed: Run) -> None:
    then, now = source.config.method.params.model_dump(), welcomed.config.method.params.model_dump()
    for key in ("epochs", "lr", "batch_size", "momentum", "optimizer", "weight_decay"):
        assert now[key] == then[key], key
    assert (now["rounds"], now["stages"], now["adapt_rounds"]) == (0, 1, 3)
    assert welcomed.config.seed == source.config.seed
    assert welcomed.config.model == source.config.model


def test_settings_override_those_of_the_source_run(place: Path, source: Run, tmp_path: Path) -> None:
    given = ["method.epochs=1", "method.keep=0", "evaluation.accept=0.8"]
    run = welcome(source, place / "new.npz", out=tmp_path / "run", settings=given, **LEARNS)
    params = run.config.method.params.model_dump()
    assert (params["epochs"], params["keep"], run.config.evaluation.accept) == (1, 0, 0.8)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("seed=3", "seed was 0 and is 3"),
        ("data.known=2", "data.known"),
        ("data.validation=0.5", "data.validation was 0.1 and is 0.5"),
        ("partition.name=dirichlet", "partition.name was 'iid' and is 'dirichlet'"),
        ("federation.clients=2", "federation.clients was 3 and is 2"),
        ("federation.start_from=elsewhere", "federation.start_from"),
        ("model.hidden=[4]", "model.hidden"),
    ],
)
def test_seed_data_partition_and_network_of_the_source_run_cannot_change(
    setting: str, message: str, place: Path, source: Run, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as caught:
        welcome(source, place / "new.npz", out=tmp_path / "none", settings=[setting], **LEARNS)
    assert message in str(caught.value)
    assert not (tmp_path / "none").exists()


def test_a_source_run_whose_data_has_changed_is_rejected(place: Path, tmp_path: Path) -> None:
    home = Path(shutil.copy(place / "home.npz", tmp_path / "home.npz"))
    tables = {**TABLES, "method": {**METHOD, "rounds": 1}, "data": {"name": str(home)}}
    run = api.run(tables, clients=2, workers=0, out=tmp_path / "run")
    image_file(home, {"a": 2, "b": 1, "c": 0}, per_class=60, seed=3)
    with pytest.raises(UserError, match=r"is not what run .* began with"):
        welcome(run.path, place / "new.npz", out=tmp_path / "none", **LEARNS)


def test_components_are_kept_and_a_note_names_replaced_ones(place: Path, tmp_path: Path) -> None:
    def notes(run: Run) -> str:
        return " ".join(event["text"] for event in run.events() if event["event"] == "note")

    source = federation(place, "energetic", method={"rounds": 1}, score={"name": "energy"})
    kept = welcome(source, place / "new.npz", out=tmp_path / "kept", **LEARNS)
    assert kept.config.parts["score"] == source.config.parts["score"]
    assert "is not used" not in notes(kept)
    lost = welcome(source, place / "new.npz", out=tmp_path / "lost", settings=["score.name=msp"], **LEARNS)
    assert "score.name = energy of the source run is not used: msp replaces it" in notes(lost)


def test_a_method_with_other_defaults_trains_with_them(place: Path, source: Run, tmp_path: Path) -> None:
    run = welcome(source, place / "new.npz", method="gains-paper", out=tmp_path / "run", **LEARNS)
    params = run.config.method.params.model_dump()
    assert (params["epochs"], params["batch_size"], params["momentum"]) == (5, 128, 0.2)
    assert params["lr"] == 0.1


# --- after any method ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tables",
    [
        {"correction": {"name": "prox"}},
        {"correction": {"name": "scaffold"}},
        {"objective": {"name": "proser"}},
        {"score": {"name": "energy"}},
        {"method": {"name": "fedoss", "finetune_rounds": 2}},
        {"method": {"name": "afl"}},
        {"method": {"name": "qffl"}},
        {"method": {"name": "fedheal"}},
        {"method": {"name": "fedpd"}},
        {"method": {"name": "gal", "novel_rounds": 1}},
        {"method": {"name": "gains", "stages": 0}},
    ],
    ids=lambda tables: "-".join(table["name"] for table in tables.values()),
)
def test_a_newcomer_can_join_a_run_of_any_method_with_a_global_model(
    tables: dict[str, Any], place: Path, tmp_path: Path
) -> None:
    source = federation(place, f"from-{'-'.join(table['name'] for table in tables.values())}", **tables)
    run = welcome(source, place / "new.npz", out=tmp_path / "run", **LEARNS)
    assert run.result["classes"] == ["a", "b", "c", "d", "e"]
    assert not [event for event in run.events() if event["event"] == "client-failed"]
    if "method" not in tables:
        assert run.metrics["target_accuracy"] > 0.7
    if "correction" in tables:
        assert run.config.parts["correction"] == source.config.parts["correction"]
    if "objective" in tables:
        # The output for "unknown" is still the last one.
        assert run.config.parts["objective"].name == "proser"
        assert len(model(run)["head.weight"]) == 6
        assert run.config.parts["score"] == source.config.parts["score"]


def test_with_nothing_new_the_predictions_are_those_of_the_source_run(place: Path, source: Run, tmp_path: Path) -> None:
    image_file(tmp_path / "held.npz", KNOWN, seed=5)
    run = welcome(source, tmp_path / "held.npz", out=tmp_path / "run", **LEARNS)
    with np.load(place / "home.npz") as arrays:
        x = arrays["x_test"][:, None]
    assert torch.equal(run.predict(x).logits, source.predict(x).logits)


@pytest.mark.parametrize("method", ["local-only", "fedov"])
def test_a_run_without_a_global_model_is_rejected(method: str, place: Path, tmp_path: Path) -> None:
    tables = {"data": {"name": str(place / "home.npz"), "public": 0.1}, "model": TABLES["model"]}
    method_ = {"name": method, "epochs": 1}
    source = api.run({**tables, "method": method_}, clients=2, workers=0, out=tmp_path / "source")
    with pytest.raises(UserError, match=f"a run of method '{method}' has no single global model"):
        welcome(source, place / "new.npz", out=tmp_path / "none", **LEARNS)
    assert not (tmp_path / "none").exists()


def test_an_unfinished_run_is_rejected(place: Path, source: Run, tmp_path: Path) -> None:
    folder = unfinish(Path(shutil.copytree(source.path, tmp_path / "half")))
    with pytest.raises(UserError, match="unfinished"):
        welcome(folder, place / "new.npz", out=tmp_path / "none", **LEARNS)
    assert not (tmp_path / "none").exists()


# --- after a discovery ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of GAL that discovered novel-1 and novel-2."""
    tables = {**DISCOVERING, "data": {**DISCOVERING["data"], "stages": []}}
    tables["method"] = {**DISCOVERING["method"], "stages": 1}
    return api.run(tables, clients=3, workers=0, out=tmp_path_factory.mktemp("gal") / "run")


def newcomer_like(found: Run, folder: Path, classes: dict[str, str]) -> Path:
    """Write some of the training images under other class names, and return the file."""
    dataset = found.experiment.dataset
    names = np.array(dataset.classes)[dataset.y_train.numpy()]
    rows = np.nonzero(np.isin(names, list(classes)))[0][::2]
    labels = np.array([classes[name] for name in names[rows]])
    np.savez(folder / "late.npz", x=dataset.x_train[rows].numpy().transpose(0, 2, 3, 1), y=labels)
    return folder / "late.npz"


def test_discovered_classes_are_kept(found: Run, tmp_path: Path) -> None:
    before = found.server().classes
    assert [entry.name for entry in before.novel] == ["novel-1", "novel-2"]
    run = welcome(found, newcomer_like(found, tmp_path, {"5": "new"}), out=tmp_path / "run", **LEARNS)
    assert run.result["classes"] == [*before.names, "new"]
    assert run.server().classes.entries[: len(before)] == before.entries
    assert without_nan(run.evaluate(workers=0).metrics) == pytest.approx(run.metrics)


def test_a_discovered_class_matches_by_the_name_that_the_user_gave_it(found: Run, tmp_path: Path) -> None:
    named = Run(Path(shutil.copytree(found.path, tmp_path / "named")))
    named.name_class("novel-1", "cat")
    file = newcomer_like(found, tmp_path, {"3": "cat", "5": "dog"})
    run = welcome(named, file, out=tmp_path / "run", **LEARNS)
    assert kinds(run)[0][2] == ["dog"]
    names = run.result["classes"]
    assert names == [*named.server().classes.names, "dog"]
    assert names.count("cat") == 1
    assert run.server().classes.entries[names.index("cat")].origin == "novel"


# --- other methods -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedavg", "fedheal", "fedproto", "fedbn"])
def test_other_methods_add_the_newcomer_without_discovery(
    method: str, place: Path, source: Run, tmp_path: Path
) -> None:
    run = welcome(source, place / "new.npz", method=method, out=tmp_path / "run", **LEARNS)
    assert run.result["classes"] == ["a", "b", "c", "d", "e"]
    assert [entry.origin for entry in run.server().classes.entries][3:] == ["new", "new"]
    assert run.result["rounds"] == source.result["rounds"] + 3
    assert {"target_accuracy", "source_accuracy", "global_accuracy"} <= run.metrics.keys()
    assert run.findings() == []
    assert {name for event in run.events() if event["event"] == "round" for name in event["participants"]} >= {"new"}


def test_fedavg_keeps_the_classes_of_an_earlier_newcomer(place: Path, welcomed: Run, tmp_path: Path) -> None:
    more = image_file(tmp_path / "more.npz", {"g": 7}, seed=3)
    run = welcome(welcomed, more, method="fedavg", out=tmp_path / "run", **LEARNS)
    assert run.result["classes"] == ["a", "b", "c", "d", "e", "g"]
    # Head rows match by class name, and all clients train on all their samples.
    trained = {
        e["client"]: e["info"]["samples"] for e in run.events() if e["event"] == "client" and e["phase"] == "train"
    }
    assert trained["new"] == 54
    assert trained["more"] == 27


def test_a_newcomer_can_join_after_another_method_added_one(place: Path, source: Run, tmp_path: Path) -> None:
    first = welcome(source, place / "new.npz", method="fedavg", out=tmp_path / "first", **LEARNS)
    run = welcome(first, place / "mixed.npz", out=tmp_path / "run", **LEARNS)
    assert run.result["classes"] == ["a", "b", "c", "d", "e", "f"]
    taking_part = {e["phase"]: e["participants"] for e in run.events() if e["event"] == "round"}
    assert "new" in taking_part["declare-1"]


# --- rejected newcomers --------------------------------------------------------------------------------------

FORGETFUL = ["method.discover_epochs=9", "method.new_rows=newcomer", "method.calibrate=false"]


@pytest.fixture(scope="module")
def refused(place: Path, source: Run) -> Run:
    given: dict[str, Any] = {"rounds": 0, "workers": 0, "max_forgetting": 0.0, "settings": FORGETFUL}
    return welcome(source, place / "new.npz", out=place / "refused", **given)


def test_if_a_newcomer_is_rejected_the_model_is_bit_equal_to_that_of_the_source_run(source: Run, refused: Run) -> None:
    (judgement,) = refused.findings("judgement")
    assert judgement["refused"] is True
    assert judgement["forgotten"] > 0
    assert_equal_models(source, refused)
    assert refused.server().classes == source.server().classes
    assert refused.server().thresholds == source.server().thresholds
    assert refused.server().state.info["outside"] == ["new"]
    notes = " ".join(event["text"] for event in refused.events() if event["event"] == "note")
    assert "new is not welcomed: source clients forgot" in notes


def test_a_rejected_newcomer_is_not_a_member_later(place: Path, refused: Run, tmp_path: Path) -> None:
    run = welcome(refused, place / "mixed.npz", out=tmp_path / "run", **LEARNS)
    assert run.result["classes"] == ["a", "b", "c", "d", "f"]
    assert run.result["clients"] == 4
    assert list(run.config.data.newcomers) == ["mixed"]
    # It can be welcomed again.
    again = welcome(refused, place / "new.npz", out=tmp_path / "again", **LEARNS)
    assert again.result["classes"] == ["a", "b", "c", "d", "e"]


def test_a_newcomer_that_does_not_reply_is_not_a_member_later(
    place: Path, source: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(self: Discover, *rest: Any) -> Payload:
        raise OSError("connection lost")

    with monkeypatch.context() as patch:
        patch.setattr(Discover, "local", silent)
        first = welcome(source, place / "new.npz", out=tmp_path / "first", **LEARNS)
    assert first.result["classes"] == ["a", "b", "c"]
    assert_equal_models(source, first)
    run = welcome(first, place / "mixed.npz", out=tmp_path / "run", **LEARNS)
    assert list(run.config.data.newcomers) == ["mixed"]
    assert run.result["clients"] == 4


# --- the command line ----------------------------------------------------------------------------------------


def test_the_command_prints_what_is_new_and_the_result(place: Path, source: Run, cli: Cli) -> None:
    outcome = cli("welcome", source.path, "--client", place / "new.npz", "--name", "bob", "--rounds", "2")
    assert outcome.code == 0, outcome.err
    assert "bob brings new classes (d, e)" in outcome.err
    assert (Path("runs/gains-home-001") / "result.json").exists()
    outcome = cli(
        *("welcome", source.path, "--client", place / "mixed.npz", "--class", "a", "--class", "d", "--label", "d=z"),
        *("--rounds", "2", "--workers", "0", "--out", "mine", "--json", "--set", "method.keep=0"),
    )
    assert outcome.code == 0, outcome.err
    result = json.loads(outcome.out.splitlines()[-1])
    assert result["classes"] == ["a", "b", "c", "z"]
    assert {"target_accuracy", "source_accuracy", "global_accuracy"} <= result["metrics"].keys()


def test_a_killed_welcome_is_resumed_by_the_command(place: Path, source: Run, welcomed: Run, cli: Cli) -> None:
    folder = Path(shutil.copytree(welcomed.path, "half"))
    unfinish(folder, rounds=welcomed.result["rounds"] - 1)
    outcome = cli("resume", "half", "--workers", "0")
    assert outcome.code == 0, outcome.err
    assert (folder / "model.safetensors").read_bytes() == (welcomed.path / "model.safetensors").read_bytes()
