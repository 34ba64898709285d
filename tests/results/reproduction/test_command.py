"""`fedwild reproduce`: a row of each paper's main table on the digits, and every invalid input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedwild.lifecycle import start as starting
from fedwild.lifecycle.rounds import Federation
from fedwild.lifecycle.run import Run
from fedwild.results.papers import tables
from tests.conftest import Cli, Refused
from tests.tiny import fail_for_seed_0

QUICK = ("--stand-in", "--workers", "0", "--quiet", "--scale", "0.005", "--set", "federation.clients=2")
ROWS = {
    "fedov/table1": ("data=mnist,partition=dir0.5,method=fedov", 1),
    "fedpd/table2": ("known=6,method=fedpd", 2),
    "fedoss/table1": ("unknown=3,method=fedoss", 4),
    "gal/table1": ("data=cifar-100,method=gal", 3),
    "gains/table1": ("setting=mild-15,method=gains", 3),
}
ONE = ("reproduce", "fedov/table1", "--only", "data=mnist,partition=dir0.5,method=close-set")


def result_of(cli: Cli, *arguments: str) -> dict[str, Any]:
    outcome = cli(*arguments, "--json")
    assert outcome.code == 0, outcome
    about: dict[str, Any] = json.loads(outcome.out)
    return about


@pytest.mark.parametrize("name", ROWS)
def test_a_row_of_each_papers_main_table_runs_end_to_end_and_is_marked(cli: Cli, name: str) -> None:
    only, cells = ROWS[name]
    about = result_of(cli, "reproduce", name, "--only", only, *QUICK, "--set", "method.batch_size=64")
    assert len(about["cells"]) == cells
    for cell in about["cells"]:
        assert 0 <= cell["ours"] <= 100
        assert cell["difference"] == pytest.approx(cell["ours"] - cell["paper"])
        assert cell["stand_in"].startswith("digits for ")
    assert all(about["runs"].values())
    assert any(note.startswith("†") for note in about["notes"])


@pytest.mark.parametrize(("limit", "kind"), [("1e9", "nothing"), ("0", "classes")])
def test_table_6_of_gains_runs_discovery_with_its_limits(cli: Cli, limit: str, kind: str) -> None:
    given = ("--only", "t-f=1000", *QUICK, "--set", "method.batch_size=64", "--set", f"method.t_f={limit}")
    about = result_of(cli, "reproduce", "gains/table6", *given, "--set", "method.t_c=0", "--set", "method.probes=50")
    (folder,) = {run for cell in about["cells"] for run in cell["runs"]}
    (found,) = Run(Path(folder)).findings("discovery")
    assert found["kind"] == kind
    assert found["decided"]["Diff^F"][1] == float(limit)


def test_the_table_is_printed_and_written_with_its_notes(cli: Cli) -> None:
    outcome = cli(*ONE, *QUICK, "--seeds", "0,1", "--out", "tables/one.md", "--out", "one.csv")
    assert outcome.code == 0
    assert "44.3" not in outcome.out
    assert "98.30" in outcome.out
    assert "† not the paper's data: digits for mnist." in outcome.out
    assert "98.30" in Path("tables/one.md").read_text()
    assert Path("one.csv").read_text().startswith("data,partition,method,paper,paper deviation,ours")
    assert len(list(Path("runs/reproduce").iterdir())) == 2


def test_a_figure_is_drawn_with_a_run_that_starts_from_another(cli: Cli) -> None:
    row = ("reproduce", "fedov/figure4", *QUICK, "--set", "data.train_samples=100", "--out", "figure4.svg")
    about = result_of(cli, *row)
    ours = {(cell["keys"]["method"], cell["keys"]["round"]): cell["ours"] for cell in about["cells"]}
    assert all((value is None) == (method == "fedkt-fedprox") for (method, _), value in ours.items())
    assert {cell["paper"] for cell in about["cells"]} == {None}
    assert len(about["runs"]) == 4
    drawn = Path("figure4.svg").read_text()
    assert all(f"<!-- {text} -->" in drawn for text in ("fedov-fedprox†", "fedavg†", "round at full scale"))


def test_finished_runs_are_kept(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    first = result_of(cli, *ONE, *QUICK)
    monkeypatch.setattr(starting, "start", pytest.fail)
    monkeypatch.setattr(starting, "resume", pytest.fail)
    assert result_of(cli, *ONE, *QUICK) == first


def test_the_same_command_continues_interrupted_work(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    row = ("reproduce", "fedoss/table1", "--only", "unknown=3,method=softmax", *QUICK, "--set", "method.rounds=3")
    whole = result_of(cli, *row, "--runs", "whole")
    checkpoint = Federation._checkpoint

    def interrupted(self: Federation, server: Any, ledger: Any) -> Any:
        done = checkpoint(self, server, ledger)
        if ledger.next_index == 2:
            raise KeyboardInterrupt
        return done

    with monkeypatch.context() as patch:
        patch.setattr(Federation, "_checkpoint", interrupted)
        outcome = cli(*row, "--runs", "cut")
    assert outcome.code == 130
    assert "repeat the command to continue" in outcome.err
    (folder,) = Path("cut").iterdir()
    assert not (folder / "result.json").exists()
    after = result_of(cli, *row, "--runs", "cut")
    assert [cell["ours"] for cell in after["cells"]] == [cell["ours"] for cell in whole["cells"]]
    events = [json.loads(line)["event"] for line in (folder / "events.jsonl").read_text().splitlines()]
    assert "resume" in events


def test_a_failed_run_does_not_stop_the_others(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_for_seed_0(monkeypatch)
    outcome = cli(*ONE, *QUICK, "--seeds", "0,1", "--json")
    assert outcome.code == 1
    (cell,) = json.loads(outcome.out)["cells"]
    assert len(cell["values"]) == 1


def test_a_dry_run_lists_the_runs_without_running_them(cli: Cli, tmp_path: Path) -> None:
    outcome = cli(*ONE, *QUICK, "--dry-run")
    assert outcome.code == 0
    assert "to do  runs/reproduce/close-set-voting-digits-" in outcome.out
    assert not list(tmp_path.iterdir())


def test_without_a_terminal_progress_is_plain_lines(cli: Cli) -> None:
    outcome = cli(*ONE, *(option for option in QUICK if option != "--quiet"))
    assert "1 run\n" in outcome.err
    assert "run 1/1: mnist, dir0.5, close-set, seed 0\n" in outcome.err
    assert "closed accuracy" in outcome.err
    assert cli(*ONE, *QUICK).err == ""


def test_all_tables_are_listed_with_what_is_missing(cli: Cli) -> None:
    outcome = cli("reproduce", "--list")
    assert outcome.code == 0
    for table in tables():
        assert table.name in outcome.out
    assert "method: FedNova is not implemented" in outcome.out
    listed = json.loads(cli("reproduce", "--list", "--json").out)
    assert [row["table"] for row in listed] == [table.name for table in tables()]


def test_generated_stand_ins_are_listed(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Generated stand-ins" not in cli("reproduce", "--list").out
    monkeypatch.setenv("FEDWILD_DATA", str(tmp_path))
    (tmp_path / "mnist-m.npz").touch()
    for arguments in ((), ("gains/table2",)):
        outcome = cli("reproduce", *arguments, "--list")
        assert "Generated stand-ins (marked †):\n  rendered-digits for synth-digits (3 cells)\n" in outcome.out


def test_the_rows_of_a_table_are_listed_with_what_is_missing(cli: Cli) -> None:
    outcome = cli("reproduce", "fedoss/table1", "--list", "--only", "method=softmax,unknown=3")
    assert outcome.code == 0
    assert "blood-mnist is not on this machine" in " ".join(outcome.out.replace("│", " ").split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fedov/tabel1",), "table 'fedov/tabel1' is not known. Did you mean 'fedov/table1"),
        (("table1",), "Did you mean"),
        (("fedov/table1", "--stand-in", "--out", "table.txt"), "'table.txt' is not allowed: it must end with"),
        ((), "TABLE is missing"),
        (("fedov/table1",), "none of the chosen cells can be run here"),
        (("fedov/table1", "--only", "data=minst"), "data of fedov/table1 'minst' is not known. Did you mean 'mnist'?"),
        (("fedov/table1", "--only", "set=mnist"), "key of fedov/table1 'set' is not known"),
        (("fedov/table1", "--only", "mnist"), "--only mnist is not allowed: write KEY=VALUE"),
        (("fedov/table1", "--scale", "2"), "--scale 2 is not allowed"),
        (("fedov/table1", "--scale", "0"), "--scale 0 is not allowed"),
        (("fedov/table1", "--scale", "nan"), "--scale nan is not allowed"),
        (("fedov/table1", "--scale", "small"), "--scale small is not allowed"),
        (("fedov/table1", "--seeds", "1,1"), "--seeds 1,1 is not allowed"),
        (("fedov/table1", "--seeds", "1,01"), "--seeds 1,01 is not allowed"),
        (("fedov/table1", "--seeds", "-1"), "--seeds -1 is not allowed"),
        (("fedov/table1", "--seeds", "1,,2"), "--seeds 1,,2 is not allowed"),
        (("fedov/table1", "--seeds", str(2**63)), "is not allowed"),
        (("fedov/table1", "--stand-in", "--out", "table.pdf"), "Only figures are drawn"),
        (("fedov/table1", "--stand-in", "--set", "method.lr=fast"), "method.lr = 'fast'"),
    ],
)
def test_invalid_input_is_rejected_before_anything_is_written(
    refused: Refused, arguments: tuple[str, ...], message: str
) -> None:
    assert message in refused("reproduce", *arguments)


def test_a_run_fails_if_its_folder_contains_other_files(cli: Cli) -> None:
    (folder,) = result_of(cli, *ONE, *QUICK, "--dry-run")["runs"]
    Path(folder).mkdir(parents=True)
    (Path(folder) / "mine.txt").write_text("mine")
    outcome = cli(*ONE, *QUICK, "--json")
    assert outcome.code == 1
    assert "is not a run folder" in json.loads(outcome.out)["cells"][0]["problem"]


def test_the_full_reason_of_a_failure_is_on_standard_error_and_in_json(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_for_seed_0(monkeypatch)
    outcome = cli(*ONE, *QUICK, "--seeds", "0,1", "--json")
    assert outcome.code == 1
    assert outcome.err == "failed: mnist, dir0.5, close-set, seed 0: no replies\n"
    assert json.loads(outcome.out)["failures"] == {"mnist, dir0.5, close-set, seed 0": "no replies"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--workers", "many"), "--workers many is not allowed"),
        (("--runs", "/proc/nothing"), "--runs '/proc/nothing' cannot be created"),
        (("--out", "/dev/null/t.md"), "--out '/dev/null/t.md' cannot be written"),
    ],
)
def test_problems_of_all_runs_are_reported_before_the_first(
    refused: Refused, arguments: tuple[str, str], message: str
) -> None:
    rest = [word for word in QUICK if word not in ("--workers", "0")]
    assert message in refused(*ONE, *rest, *arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--only", "data=mnist"), "--only data=mnist is not allowed without TABLE"),
        (("fedov/table1", "--scale", "0.1"), "--scale 0.1 is not allowed with --list"),
        (("fedov/table1", "--seeds", "1"), "--seeds 1 is not allowed"),
        (("--dry-run",), "--dry-run is not allowed with --list"),
        (("--stand-in",), "--stand-in is not allowed"),
        (("--out", "list.png"), "--out list.png is not allowed with --list"),
    ],
)
def test_options_without_effect_on_a_list_are_rejected(
    refused: Refused, arguments: tuple[str, ...], message: str
) -> None:
    assert message in refused("reproduce", "--list", *arguments)


def test_a_list_can_be_written(cli: Cli) -> None:
    outcome = cli("reproduce", "fedov/table1", "--list", "--out", "list.md")
    assert outcome.code == 0
    assert "waiting" in Path("list.md").read_text()
    assert "written to list.md" in outcome.out


def test_the_title_of_a_selection_names_its_keys(cli: Cli) -> None:
    chosen = ("reproduce", "fedov/table1", "--only", "data=mnist,partition=c2", *QUICK, "--dry-run")
    assert cli(*chosen, "--out", "some.md").code == 0
    assert "data=mnist, partition=c2; at scale 0.005" in Path("some.md").read_text()


def test_missing_data_is_listed_once(cli: Cli) -> None:
    lines = [line.strip() for line in cli("reproduce", "--list").out.splitlines() if "is not on this machine" in line]
    assert lines
    assert all(line.startswith("data: ") for line in lines)
    assert len({line.partition(" (")[0] for line in lines}) == len(lines)


def test_a_damaged_result_is_named(cli: Cli, refused: Refused) -> None:
    result_of(cli, *ONE, *QUICK)
    (folder,) = Path("runs/reproduce").iterdir()
    (folder / "result.json").write_text("{}")
    assert "result.json' is damaged (its content does not match its digest): delete it" in refused(*ONE, *QUICK)
