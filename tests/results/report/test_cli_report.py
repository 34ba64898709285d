"""`fedwild report`, and the report at the end of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import TINY, Cli, Refused
from tests.folders import read_json


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs end with a report, as by default."""
    monkeypatch.delenv("FEDWILD_REPORT")


def test_command_writes_the_page_and_prints_its_path(cli: Cli, finished: Path) -> None:
    outcome = cli("report", finished)
    assert (outcome.code, outcome.out, outcome.err) == (0, f"report: {finished}/report.html\n", "")
    assert (finished / "report.html").read_text().startswith("<!doctype html>")


def test_json_gives_file_and_size_and_quiet_prints_nothing(cli: Cli, finished: Path, tmp_path: Path) -> None:
    printed = json.loads(cli("report", finished, "--out", "x.html", "--json").out)
    assert printed == {"run": str(finished), "report": "x.html", "bytes": (tmp_path / "x.html").stat().st_size}
    assert cli("report", finished, "--quiet").out == ""


def test_page_does_not_depend_on_workers(cli: Cli, finished: Path, tmp_path: Path) -> None:
    cli("report", finished, "--out", "a.html")
    assert cli("report", finished, "--out", "b.html", "--workers", "1").code == 0
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_invalid_arguments_are_rejected(refused: Refused, finished: Path, tmp_path: Path) -> None:
    assert "run folder 'nowhere' does not exist" in refused("report", "nowhere")
    assert "--workers x is not allowed" in refused("report", finished, "--workers", "x")
    assert "is a folder" in refused("report", finished, "--out", tmp_path)
    assert "the folder 'no' does not exist" in refused("report", finished, "--out", "no/x.html")


@pytest.mark.usefixtures("reports")
def test_runs_end_with_a_report_unless_disabled(cli: Cli) -> None:
    outcome = cli("run", *TINY, "--rounds", "1", "--quiet", "--out", "a")
    assert outcome.out.splitlines()[-1] == "report: a/report.html"
    assert Path("a/report.html").exists()
    outcome = cli("run", *TINY, "--rounds", "1", "--quiet", "--no-report", "--out", "b")
    assert "report" not in outcome.out
    assert not Path("b/report.html").exists()
    assert cli("resume", "b").out.splitlines()[-1] == "report: b/report.html"


@pytest.mark.usefixtures("reports")
def test_with_json_standard_output_is_only_the_result(cli: Cli) -> None:
    outcome = cli("run", *TINY, "--rounds", "1", "--quiet", "--json", "--out", "a")
    assert json.loads(outcome.out) == read_json(Path("a/result.json"))
    assert Path("a/report.html").exists()


def test_environment_variable_disables_reports(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDWILD_REPORT", "no")
    assert "report" not in cli("run", *TINY, "--rounds", "1", "--quiet", "--out", "a").out
    assert not Path("a/report.html").exists()


@pytest.mark.usefixtures("reports")
def test_ctrl_c_while_the_report_is_written_leaves_the_run_finished(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedwild.results.report.page.page_of", interrupted)
    outcome = cli("run", *TINY, "--rounds", "1", "--quiet", "--out", "a")
    assert outcome.code == 0
    assert outcome.err == "interrupted: the run is finished; run `fedwild report a` to write its report.\n"


@pytest.mark.usefixtures("reports")
def test_failure_of_the_report_does_not_affect_the_run(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no\nroom")

    monkeypatch.setattr("fedwild.results.report.page.page_of", broken)
    outcome = cli("run", *TINY, "--rounds", "1", "--quiet", "--out", "a")
    assert outcome.code == 0
    assert outcome.err == "warning: the run is finished, but its report could not be written: no room\n"
    assert "run folder: a" in outcome.out
    assert Path("a/result.json").exists()
