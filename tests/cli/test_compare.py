"""`fedwild compare` through the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import fedwild
from tests.conftest import Cli, Refused
from tests.results.comparison.made import made_run, made_seeds


def test_the_table_is_printed_and_written_in_each_format(cli: Cli, tmp_path: Path) -> None:
    made_seeds(tmp_path / "runs", "a", [0.5, 0.6, 0.7])
    made_seeds(tmp_path / "runs", "b", [0.8, 0.9, 0.9], settings={"method": {"name": "fedov"}})
    files = ["t.html", "new/t.csv", "t.tex", "t.md"]
    outcome = cli("compare", "runs", *(part for file in files for part in ("--out", file)))
    assert outcome.code == 0
    for text in (outcome.out, *(Path(file).read_text() for file in files if not file.endswith("csv"))):
        assert "method=fedov" in text
        assert "60.0" in text
    assert "method=fedov,3,0.9,0.0,1.0,0.8666" in Path("new/t.csv").read_text()
    assert "<strong>86.7 ± 5.8 %</strong>" in Path("t.html").read_text()
    assert "table written to t.tex" in outcome.out


def test_json_is_one_line(cli: Cli, tmp_path: Path) -> None:
    made_run(tmp_path / "a")
    outcome = cli("compare", "a", "--json", "--metric", "auroc", "--out", "t.md")
    (line,) = outcome.out.splitlines()
    printed = json.loads(line)
    assert printed["columns"] == [{"name": "auroc", "label": "AUROC", "better": "large"}]
    assert printed["files"] == ["t.md"]


def test_an_unknown_file_format_is_rejected_before_any_run_is_read(refused: Refused) -> None:
    assert "must end with" in refused("compare", "gone", "--out", "table.xlsx")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gone",), "run folder 'gone' does not exist"),
        (("a", "--metric", "acc"), "--metric 'acc' is not known"),
        (("a", "--by", "method.rate"), "--by 'method.rate' is not known"),
    ],
)
def test_invalid_input_is_one_sentence(
    refused: Refused, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    made_run(tmp_path / "a")
    assert message in refused("compare", *arguments)


def test_a_comparison_on_a_terminal_does_not_import_torch(tmp_path: Path) -> None:
    made_run(tmp_path / "a")
    script = "import sys, fedwild.cli\ntry: fedwild.cli.main(['compare', 'a'])\nfinally: print('torch' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(Path(fedwild.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert "method=fedavg" in done.stdout
    assert done.stdout.splitlines()[-1] == "False"
