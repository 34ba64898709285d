"""Tables in files: the format by suffix, complete files or none, and errors before any work."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedwild.core.errors import UserError
from fedwild.results.tables.formats import FORMATS, format_of, write_table
from fedwild.results.tables.model import Cell, ResultTable, words

TABLE = ResultTable("t", ("name", "n"), ((words("ä"), Cell("1")),))


@pytest.mark.parametrize("format", FORMATS)
def test_a_file_has_the_format_of_its_suffix(tmp_path: Path, format: str) -> None:
    path = tmp_path / "new" / f"table.{format.upper()}"
    write_table(TABLE, path)
    assert path.read_text(encoding="utf-8") == FORMATS[format](TABLE)
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("name", ["table", "table.xlsx", "table.html.gz", ".csv"])
def test_another_suffix_is_rejected(name: str) -> None:
    with pytest.raises(UserError, match=r"must end with \.html, \.csv, \.tex, \.md"):
        format_of(Path(name))


def test_a_folder_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "x.csv").mkdir()
    with pytest.raises(UserError, match="is a folder"):
        format_of(tmp_path / "x.csv")


def test_an_unwritable_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        write_table(TABLE, tmp_path / "file" / "x.csv")


def test_an_unwritable_folder_is_rejected_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot be written: the folder .* is not writable"):
        format_of(tmp_path / "file" / "deep" / "t.md")


def test_a_name_that_is_not_valid_unicode_is_written(tmp_path: Path) -> None:
    name = b"caf\xe9".decode("utf-8", "surrogateescape")
    for format in FORMATS:
        write_table(ResultTable(name, ("a",), ((words(name),),), (name,)), tmp_path / f"t.{format}")
        assert (tmp_path / f"t.{format}").read_text().count("caf") >= 1
