"""A run that starts from another one keeps its classes, members and thresholds, whatever its method."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedwild import api
from fedwild.api import Run, welcome
from tests.tiny import image_file

GAL: dict[str, Any] = {"name": "gal", "rounds": 6, "epochs": 4, "lr": 0.05, "batch_size": 16}
GAL |= {"novel_rounds": 4, "min_count": 1}
TABLES: dict[str, Any] = {"model": {"name": "mlp", "hidden": [32, 16]}, "partition": {"name": "iid"}}
ORIGINS = {"a": "known", "b": "known", "c": "known", "deer": "novel", "eagle": "novel", "f": "new", "g": "new"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the data of a federation (a, b, c, and d, e without labels) and of a newcomer (f, g)."""
    folder = tmp_path_factory.mktemp("continue")
    image_file(folder / "home.npz", {name: row for row, name in enumerate("abcde")}, per_class=80)
    image_file(folder / "new.npz", {"f": 5, "g": 6}, per_class=60, seed=6)
    return folder


def run(place: Path, name: str, method: dict[str, Any], **given: Any) -> Run:
    data = {"name": str(place / "home.npz"), "known": ["a", "b", "c"], "novel": ["d", "e"]}
    tables = {**TABLES, "data": data, "method": method, **given.pop("tables", {})}
    return api.run(tables, clients=4, workers=0, out=place / name, **given)


@pytest.fixture(scope="module")
def named(place: Path) -> Run:
    """A run that discovered d and e, which were then named."""
    found = run(place, "gal", GAL, tables={"estimator": {"name": "given", "classes": 2}})
    for entry, name in zip(found.novel_classes(), ("deer", "eagle"), strict=True):
        found.name_class(entry.name, name)
    return found


@pytest.fixture(scope="module")
def welcomed(place: Path, named: Run) -> Run:
    """The run after the newcomer joined it."""
    return welcome(named, place / "new.npz", out=place / "welcomed", rounds=4, workers=0)


def notes(run: Run) -> list[str]:
    return [event["text"] for event in run.events() if event["event"] == "note"]


def answers_with(run: Run, names: set[str]) -> float:
    """Return the share of the test samples of d and e that are answered with one of these classes."""
    outcome = run.outcome(workers=0)
    ids = [run.server().classes.names.index(name) for name in names]
    best = outcome.prediction.logits.argmax(1).tolist()
    hits = [guess in ids for guess, true in zip(best, outcome.true_names, strict=True) if true in ("d", "e")]
    return sum(hits) / len(hits)


@pytest.mark.parametrize(
    "method",
    [
        {"name": "fedavg", "rounds": 1, "epochs": 1},
        {"name": "fedoss", "rounds": 1, "epochs": 1, "finetune_rounds": 1},
        {**GAL, "rounds": 1, "novel_rounds": 1},
    ],
    ids=lambda method: method["name"],
)
def test_classes_and_members_stay(place: Path, welcomed: Run, method: dict[str, Any], tmp_path: Path) -> None:
    after = run(place, str(tmp_path / "run"), method, start_from=welcomed.path)
    assert {entry.name: entry.origin for entry in after.server().classes.entries} == ORIGINS
    assert (after.result["clients"], welcomed.result["clients"]) == (5, 5)
    assert after.server().clients == welcomed.server().clients
    before = {entry.name: entry for entry in welcomed.server().classes.entries}
    assert all(entry == before[entry.name] for entry in after.server().classes.entries)


def test_a_second_discovery_does_not_find_named_classes_again(place: Path, welcomed: Run, tmp_path: Path) -> None:
    after = run(place, str(tmp_path / "run"), {**GAL, "rounds": 2}, start_from=welcomed.path)
    assert [entry.name for entry in after.server().classes.novel] == ["deer", "eagle"]
    # Classes with labels come first in GAL's head, and rows are found by name.
    assert after.server().classes.names == ("a", "b", "c", "f", "g", "deer", "eagle")
    assert after.metrics["known_accuracy"] > 0.9
    assert answers_with(after, {"deer", "eagle"}) > 0.9


def test_thresholds_stay_until_the_first_evaluation(place: Path, named: Run, tmp_path: Path) -> None:
    from fedwild.contract import Rng
    from fedwild.lifecycle.first_server import first_server

    after = run(place, str(tmp_path / "run"), {**GAL, "rounds": 1, "stages": 0}, start_from=named.path)
    assert first_server(after.experiment, after.folder, Rng(0), 0).thresholds == named.server().thresholds


def test_a_run_with_other_data_has_its_own_members(place: Path, welcomed: Run, tmp_path: Path) -> None:
    other = image_file(tmp_path / "other.npz", {"a": 0, "b": 1})
    tables = {**TABLES, "data": {"name": str(other)}, "method": {"name": "fedavg", "rounds": 1, "epochs": 1}}
    after = api.run(tables, clients=2, workers=0, start_from=welcomed.path, out=tmp_path / "run")
    assert after.result["clients"] == 2
    assert after.result["classes"] == list(ORIGINS)


# --- a welcome keeps discovered classes ----------------------------------------------------------------------


def test_a_welcome_rehearses_and_judges_discovered_classes(named: Run, welcomed: Run) -> None:
    assert answers_with(named, {"deer", "eagle"}) > 0.9
    assert answers_with(welcomed, {"deer", "eagle"}) > 0.9
    (judgement,) = welcomed.findings("judgement")
    found = judgement["discovered"]
    assert found["samples"] > 0
    assert found["before"] == 1.0
    assert any(note.startswith("discovered classes (deer, eagle): ") for note in notes(welcomed))


def test_max_forgetting_sees_discovered_classes(
    place: Path, named: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fedwild.methods.gains.adapt as adapt

    # Without rehearsal, labelled samples are kept and discovered classes are lost.
    monkeypatch.setattr(adapt, "training_also_on", lambda client, more: client)
    given: dict[str, Any] = {"rounds": 4, "workers": 0, "settings": {"method": {"keep": 0.0, "epochs": 5}}}
    after = welcome(named, place / "new.npz", out=tmp_path / "run", max_forgetting=0.1, **given)
    (judgement,) = after.findings("judgement")
    assert judgement["forgotten"] <= 0.1
    assert judgement["discovered"]["now"] < 0.9
    assert judgement["refused"]
    assert after.result["classes"] == named.result["classes"]
