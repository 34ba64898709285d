"""Finding runs below folders and reading their figures."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from fedwild.core.errors import UserError
from fedwild.results.comparison import compare, find_runs, read_run
from fedwild.runs.format import FORMAT
from tests.folders import change_json
from tests.results.comparison.made import made_run


def test_runs_are_found_below_folders_but_not_inside_runs_nor_while_they_are_created(tmp_path: Path) -> None:
    made_run(tmp_path / "b" / "deep" / "two")
    made_run(tmp_path / "a")
    made_run(tmp_path / "a" / "clients" / "inner")
    made_run(tmp_path / ".x.building")
    found = find_runs([tmp_path])
    assert [run.path for run in found.finished] == [tmp_path / "a", tmp_path / "b" / "deep" / "two"]


def test_runs_of_a_folder_are_sorted_by_settings_and_folders_keep_their_order(tmp_path: Path) -> None:
    for name, lr, seed in (("a", 10, 1), ("b", 9, 0), ("c", 10, 0)):
        made_run(tmp_path / "one" / name, seed=seed, settings={"method": {"lr": lr}})
    made_run(tmp_path / "two", settings={"method": {"lr": 1}})
    for places, names in ((["one", "two"], "b c a two"), (["two", "one"], "two b c a"), (["one/a", "one"], "a b c")):
        found = find_runs([tmp_path / place for place in places])
        assert " ".join(run.path.name for run in found.finished) == names


def test_a_run_that_is_given_twice_is_read_once(tmp_path: Path) -> None:
    made_run(tmp_path / "a")
    (tmp_path / "latest").symlink_to(tmp_path / "a")
    assert len(find_runs([tmp_path / "a", tmp_path, tmp_path / "latest"]).finished) == 1


def test_unfinished_runs_are_listed_separately(tmp_path: Path) -> None:
    made_run(tmp_path / "a")
    made_run(tmp_path / "b", finished=False)
    found = find_runs([tmp_path])
    assert ([run.path.name for run in found.finished], [path.name for path in found.unfinished]) == (["a"], ["b"])


def test_all_numbers_of_a_result_are_figures_and_settings_are_flat_without_the_seed(tmp_path: Path) -> None:
    run = made_run(tmp_path / "a", None, seed=4, by={"client-1": {"auroc": 0.25}})
    assert run is not None
    assert run.seed == 4
    assert run.settings["method.name"] == "fedavg"
    assert not any(key.startswith("seed") for key in run.settings)
    assert run.figures["auroc"] is None
    assert (run.figures["seconds"], run.figures["rounds"], run.figures["by.client-1.auroc"]) == (2.0, 3, 0.25)


def test_a_real_run_can_be_read(finished_once: Path) -> None:
    run = read_run(finished_once)
    assert run.settings["method.rounds"] == 3
    assert 0 <= (run.figures["closed_accuracy"] or 0) <= 1


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("result.json", "{", "is damaged"),
        ("result.json", "[]", "is damaged"),
        ("result.json", "{}", "delete it, then run `fedwild resume"),
        ("run.json", f'{{"format": {FORMAT}}}', "does not match its digest"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, file: str, content: str, message: str) -> None:
    made_run(tmp_path / "a")
    (tmp_path / "a" / file).write_text(content)
    with pytest.raises(UserError, match=message) as problem:
        find_runs([tmp_path])
    assert str(tmp_path / "a" / file) in str(problem.value)


def test_a_run_without_settings_is_rejected(tmp_path: Path) -> None:
    made_run(tmp_path / "a")
    change_json(tmp_path / "a" / "run.json", config={})
    with pytest.raises(UserError, match=r"run\.json' has no settings of the run"):
        find_runs([tmp_path])


def test_a_run_of_another_format_is_rejected(tmp_path: Path) -> None:
    made_run(tmp_path / "a")
    (tmp_path / "a" / "run.json").write_text('{"format": 99, "versions": {"fedwild": "7.0.0"}}')
    with pytest.raises(UserError, match=r"was made by fedwild 7\.0\.0 \(format 99\)"):
        find_runs([tmp_path])


def test_a_result_without_clients_or_domains_is_read(tmp_path: Path) -> None:
    made_run(tmp_path / "a")
    change_json(tmp_path / "a" / "result.json", by={})
    (run,) = find_runs([tmp_path]).finished
    assert not [name for name in run.figures if name.startswith("by.")]


def test_a_place_without_runs_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    for place, message in (("file", "is not a folder"), ("empty", "contains no runs"), ("gone", "does not exist")):
        with pytest.raises(UserError, match=message):
            find_runs([tmp_path / place])


def test_five_hundred_runs_are_read_and_compared_within_two_seconds(tmp_path: Path) -> None:
    for number in range(500):
        made_run(tmp_path / f"{number:03}", number / 500, seed=number % 5, settings={"method": {"lr": number // 5}})
    began = time.process_time()
    comparison = compare(find_runs([tmp_path]))
    comparison.table()
    assert time.process_time() - began < 2
    assert len(comparison.rows) == 100


def test_a_result_whose_parts_are_not_tables_is_damaged(tmp_path: Path) -> None:
    made_run(tmp_path / "run")
    path = tmp_path / "run" / "result.json"
    for by in ([1], {"client-00": 3}):
        change_json(path, by=by)
        with pytest.raises(UserError, match=r"result\.json' is damaged"):
            find_runs([tmp_path])
