"""Approval of runs by the operator of a site: at the terminal, by command, in time, and for exactly one config."""

from __future__ import annotations

import os
import pty
import threading
from pathlib import Path
from typing import Any

import pytest

from fedwild.core.errors import UserError
from fedwild.sites import permits as permits_module
from fedwild.sites.permits import MAX_ANSWERS, Permits, decide, read_permit, waiting_runs
from fedwild.sites.policy import Policy
from fedwild.sites.review import Refused as PolicyRefused
from tests.conftest import Cli, Refused
from tests.sites.inprocess import TINY_DATA, InProcessSites, coordinated, site_files, site_server, tables

CONFIG: dict[str, Any] = {"method": {"name": "fedavg", "rounds": 3, "lr": 1}, "model": {"name": "mlp"}}
ASK = Policy(approve="ask", approve_within=20)


@pytest.fixture(autouse=True)
def short_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permits_module, "POLL_SECONDS", 0.01)


def permits_of(folder: Path, policy: Policy = ASK, **options: Any) -> tuple[Permits, list[str]]:
    notices: list[str] = []
    return Permits(folder, policy, notices.append, **options), notices


def test_without_asking_a_run_starts_at_once(tmp_path: Path) -> None:
    permits, notices = permits_of(tmp_path, Policy())
    assert permits.admit("r", CONFIG, 0).run == "r"
    assert notices == []


def test_a_run_waits_until_it_is_approved(tmp_path: Path) -> None:
    def approve() -> None:
        while not waiting_runs([tmp_path]):
            pass
        decide(tmp_path, "r", True)

    helper = threading.Thread(target=approve)
    helper.start()
    permits, notices = permits_of(tmp_path)
    permits.admit("r", CONFIG, 0)
    helper.join()
    assert "run r asks to use this site: method fedavg (rounds 3), network mlp" in notices[0]
    assert "`fedwild site approve r`" in notices[0]
    assert notices[1] == "run r is approved"
    # The next job of the run is not asked for again, also after a restart.
    again, silent = permits_of(tmp_path)
    again.admit("r", CONFIG, 0)
    assert silent == []


@pytest.mark.parametrize(("typed", "allowed"), [("maybe\nYES\n", True), ("no\n", False)])
def test_the_operator_answers_at_the_terminal(typed: str, allowed: bool, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.write(writer, typed.encode())
    # A terminal returns one line at a time.
    with open(reader, buffering=1) as terminal:
        permits, notices = permits_of(tmp_path, terminal=OneLine(terminal))
        if allowed:
            permits.admit("r", CONFIG, 0)
        else:
            with pytest.raises(PolicyRefused, match="its operator refused it"):
                permits.admit("r", CONFIG, 0)
    os.close(writer)
    assert "type yes or no" in notices[0]


@pytest.mark.parametrize("early", [True, False])
def test_what_was_typed_before_the_question_is_no_answer(early: bool, tmp_path: Path) -> None:
    master, slave = pty.openpty()

    def answer(text: str) -> None:
        if not early and "asks to use this site" in text:
            # After the question, and after what was typed before it has been dropped.
            threading.Timer(0.2, os.write, (master, b"yes\n")).start()

    if early:
        os.write(master, b"yes\n")
    with open(slave) as terminal:
        permits = Permits(tmp_path, Policy(approve="ask", approve_within=0.3 if early else 20), answer, terminal)
        if early:
            with pytest.raises(PolicyRefused, match="it was not approved in time"):
                permits.admit("r", CONFIG, 0)
        else:
            permits.admit("r", CONFIG, 0)
    os.close(master)


class OneLine:
    """A stream that reads byte by byte, so that `select` sees the lines that are left."""

    def __init__(self, stream: Any) -> None:
        self._descriptor = stream.fileno()

    def fileno(self) -> int:
        return int(self._descriptor)

    def readline(self) -> str:
        line = b""
        while not line.endswith(b"\n"):
            line += os.read(self._descriptor, 1)
        return line.decode()


def test_a_run_that_is_not_approved_in_time_is_refused(tmp_path: Path) -> None:
    permits, _ = permits_of(tmp_path, Policy(approve="ask", approve_within=0.05))
    with pytest.raises(PolicyRefused, match="it was not approved in time"):
        permits.admit("r", CONFIG, 0)


def test_an_approval_holds_for_one_config_and_one_plan(tmp_path: Path) -> None:
    permits, _ = permits_of(tmp_path, Policy())
    permits.count(permits.admit("r", CONFIG, 4), "local", 3)
    other = {**CONFIG, "method": {**CONFIG["method"], "lr": 2}}
    with pytest.raises(PolicyRefused, match="a change of the settings of run r"):
        permits.admit("r", other, 4)
    with pytest.raises(PolicyRefused, match="a change of the plan of run r"):
        permits.admit("r", CONFIG, 5)
    # A resumed run sends 1.0 where it sent 1 before.
    permits.admit("r", {**CONFIG, "method": {**CONFIG["method"], "lr": 1.0}}, 4)


def test_a_job_is_answered_only_as_often_as_the_plan_needs(tmp_path: Path) -> None:
    permits, _ = permits_of(tmp_path, Policy())
    for _ in range(2 * MAX_ANSWERS):
        permits.count(permits.admit("r", CONFIG, 0), "local", 2)
    restarted, _ = permits_of(tmp_path, Policy())
    with pytest.raises(PolicyRefused, match="another local job of run r"):
        restarted.count(restarted.admit("r", CONFIG, 0), "local", 2)
    restarted.count(restarted.admit("r", CONFIG, 0), "measure", 2)


def test_a_damaged_permit_is_named(tmp_path: Path) -> None:
    permits, _ = permits_of(tmp_path, Policy())
    permits.count(permits.admit("r", CONFIG, 0), "local", 2)
    file = tmp_path / "r" / "permit.json"
    file.write_text("{}")
    with pytest.raises(UserError, match=r"permit\.json' is damaged"):
        read_permit(file)


def test_a_run_over_sites_starts_when_both_operators_agree(tmp_path: Path) -> None:
    files = site_files(tmp_path, ["a", "b"])
    policy = TINY_DATA.model_copy(update={"approve": "ask", "approve_within": 30.0})
    sites = InProcessSites(*(site_server(name, file, tmp_path, policy) for name, file in files.items()))
    folders = [tmp_path / f"site-{name}" / "permits" for name in files]

    def approve() -> None:
        done = 0
        while done < 2:
            for folder, permit in waiting_runs(folders):
                decide(folder, permit.run, True)
                done += 1

    helper = threading.Thread(target=approve)
    helper.start()
    run = coordinated(sites, tables(), tmp_path / "run")
    helper.join()
    assert run.metrics


def test_a_refused_run_is_refused_at_the_coordinator(tmp_path: Path) -> None:
    files = site_files(tmp_path, ["a", "b"])
    policy = TINY_DATA.model_copy(update={"approve": "ask", "approve_within": 0.05})
    sites = InProcessSites(*(site_server(name, file, tmp_path, policy) for name, file in files.items()))
    with pytest.raises(UserError, match="is refused by the policy of this site"):
        coordinated(sites, tables(), tmp_path / "run")


# --- the command ----------------------------------------------------------------------------------------------


@pytest.fixture
def waiting(tmp_path: Path) -> Path:
    """The folder of a site at which run r waits."""
    permits, _ = permits_of(tmp_path / "site" / "permits", Policy(approve="ask", approve_within=0.01))
    with pytest.raises(PolicyRefused):
        permits.admit("r", CONFIG, 0)
    return tmp_path / "site"


def test_the_command_lists_and_approves_waiting_runs(waiting: Path, cli: Cli) -> None:
    assert cli("site", "approve", "--folder", waiting).out == "r at site: method fedavg (rounds 3), network mlp\n"
    assert cli("site", "approve", "r", "--folder", waiting).out == "run r is approved at site\n"
    assert cli("site", "approve", "--folder", waiting).out == "no run is waiting\n"
    permits_of(waiting / "permits")[0].admit("r", CONFIG, 0)


def test_the_command_refuses_runs(waiting: Path, cli: Cli) -> None:
    assert cli("site", "approve", "r", "--refuse", "--folder", waiting).out == "run r is refused at site\n"
    with pytest.raises(PolicyRefused, match="its operator refused it"):
        permits_of(waiting / "permits")[0].admit("r", CONFIG, 0)


def test_the_command_finds_all_sites_of_the_user(
    tmp_path: Path, waiting: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    home = tmp_path / "state" / "fedwild" / "sites" / "hospital-a"
    home.parent.mkdir(parents=True)
    waiting.rename(home)
    assert cli("site", "approve").out.startswith("r at hospital-a: ")


def test_the_command_rejects_what_does_not_wait(waiting: Path, refused: Refused) -> None:
    message = refused("site", "approve", "q", "--folder", waiting)
    assert message == "error: run 'q' does not wait for approval. Waiting: r.\n"
    assert "does not exist" in refused("site", "approve", "--folder", waiting / "nowhere")
