"""The names of rows."""

from __future__ import annotations

from pathlib import Path

from fedwild.results.comparison import compare, find_runs
from fedwild.results.comparison.grouping import phrases
from tests.results.comparison.made import made_run


def test_paths_are_short_unless_two_names_would_be_equal() -> None:
    rows = [({"data.name": path}, ["data.name"]) for path in ("/x/a/d.npz", "/x/b/d.npz", "/x/c/e.npz")]
    assert phrases(rows) == ["data=/x/a/d.npz", "data=/x/b/d.npz", "data=e.npz"]


def test_rows_of_equally_named_files_get_full_paths(tmp_path: Path) -> None:
    for place in ("a", "b"):
        made_run(tmp_path / place, settings={"data": {"name": f"/x/{place}/d.npz"}})
    names = [row["name"] for row in compare(find_runs([tmp_path])).to_json()["rows"]]
    assert names == ["data=/x/a/d.npz", "data=/x/b/d.npz"]


def test_rows_that_differ_only_in_a_setting_that_some_lack_get_different_names(tmp_path: Path) -> None:
    made_run(tmp_path / "old", seed=0)
    made_run(tmp_path / "new", seed=1, settings={"evaluation": {"every": 1}})
    names = [row["name"] for row in compare(find_runs([tmp_path])).to_json()["rows"]]
    assert sorted(names) == ["method=fedavg evaluation.every=1", "method=fedavg evaluation.every=unset"]
