"""Tables in files: the format by name, whole files or none, and refusals before any work."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedwild.core.errors import UserError
from fedwild.results.tables import FORMATS, Cell, ResultTable, format_of, words, write_table

TABLE = ResultTable("t", ("name", "n"), ((words("ä"), Cell("1")),))


@pytest.mark.parametrize("format", FORMATS)
def test_a_file_has_the_format_that_its_name_says(tmp_path: Path, format: str) -> None:
    path = tmp_path / "new" / f"table.{format.upper()}"
    write_table(TABLE, path)
    assert path.read_text(encoding="utf-8") == FORMATS[format](TABLE)
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("name", ["table", "table.xlsx", "table.html.gz", ".csv"])
def test_another_ending_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=r"must end with \.html, \.csv, \.tex, \.md"):
        format_of(Path(name))


def test_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.csv").mkdir()
    with pytest.raises(UserError, match="is a folder"):
        format_of(tmp_path / "x.csv")


def test_a_place_that_cannot_be_written_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        write_table(TABLE, tmp_path / "file" / "x.csv")


def test_a_place_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written: nothing can be put into"):
        format_of(tmp_path / "file" / "deep" / "t.md")


def test_a_name_that_is_no_text_is_written_all_the_same(tmp_path: Path) -> None:
    name = b"caf\xe9".decode("utf-8", "surrogateescape")
    for format in FORMATS:
        write_table(ResultTable(name, ("a",), ((words(name),),), (name,)), tmp_path / f"t.{format}")
        assert (tmp_path / f"t.{format}").read_text().count("caf") >= 1
