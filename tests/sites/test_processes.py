"""Flower's programs end when they should, with all their descendants, and report how they ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytest.importorskip("flwr", reason="needs fedwild[flower]")

from fedwild.core.errors import UserError
from fedwild.sites import processes
from fedwild.sites.processes import Child
from fedwild.sites.superlink import WatchedTransport, write_connection
from tests.sites.real import have_ended, wait_until

STUBBORN = "import signal, sys, time; [signal.signal(s, signal.SIG_IGN) for s in (2, 15)]; "
PARENT_OF_DETACHED = f"""
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {STUBBORN + "print('started', flush=True); time.sleep(600)"!r}],
                 start_new_session=True)
"""


def child(folder: Path, code: str, descriptors: tuple[int, ...] = ()) -> Child:
    return Child([sys.executable, "-c", code], folder / "output.log", folder, descriptors)


def processes_of(started: Child) -> list[psutil.Process]:
    return [psutil.Process(started.process.pid), *psutil.Process(started.process.pid).children(recursive=True)]


def test_child_has_the_exit_code_of_its_program(tmp_path: Path) -> None:
    assert child(tmp_path, "raise SystemExit(7)").process.wait(60) == 7


def test_module_is_known_by_its_own_name(tmp_path: Path) -> None:
    started = Child([sys.executable, "-m", "this"], tmp_path / "output.log", tmp_path)
    assert (started.process.wait(60), started.name) == (0, "this")


def test_killed_program_has_the_exit_code_of_its_signal(tmp_path: Path) -> None:
    started = child(tmp_path, "import os; os.kill(os.getpid(), 9)")
    assert started.process.wait(60) == 128 + signal.SIGKILL


def test_program_that_cannot_be_started_gives_an_exit_code_and_a_reason(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    with open(log, "wb") as output:
        missing = subprocess.Popen(processes.supervised([str(tmp_path / "nothing")]), stderr=output)
    assert missing.wait(60) == 127
    assert "No such file" in log.read_text()


def test_detached_descendants_end_with_the_program(tmp_path: Path) -> None:
    started = child(tmp_path, PARENT_OF_DETACHED + "time.sleep(600)")
    wait_until(lambda: "started" in started.output(), "the detached process")
    family = processes_of(started)
    assert len(family) == 3
    family[1].kill()
    assert started.process.wait(60) == 128 + signal.SIGKILL
    assert have_ended(family)


def test_all_descendants_end_when_our_process_is_killed(tmp_path: Path) -> None:
    source = (
        "import sys, time; from pathlib import Path; from fedwild.sites.processes import Child; "
        f"Child([sys.executable, '-c', {PARENT_OF_DETACHED + 'time.sleep(600)'!r}], Path('output.log'), Path()); "
        "time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", source], cwd=tmp_path) as starter:
        log = tmp_path / "output.log"
        wait_until(lambda: log.exists() and "started" in log.read_text(), "the detached process")
        family = psutil.Process(starter.pid).children(recursive=True)
        assert len(family) == 3
        starter.kill()
    wait_until(lambda: have_ended(family), "processes to end", 30)


def test_program_can_clean_up_when_it_is_stopped(tmp_path: Path) -> None:
    code = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(print('cleaned up'))); "
    started = child(tmp_path, code + "print('started', flush=True); time.sleep(600)")
    wait_until(lambda: "started" in started.output(), "the program")
    started.stop()
    assert started.code == 0
    assert "cleaned up" in started.output()


def test_program_that_ignores_sigterm_is_killed_with_its_descendants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "TERMINATE_SECONDS", 0.5)
    started = child(tmp_path, STUBBORN + PARENT_OF_DETACHED + "time.sleep(600)")
    wait_until(lambda: "started" in started.output(), "the program")
    family, began = processes_of(started), time.monotonic()
    started.stop()
    assert started.code == 128 + signal.SIGKILL
    assert have_ended(family)
    assert time.monotonic() - began < 10


def test_child_inherits_the_given_descriptors(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    with open(reader) as answer:
        started = child(tmp_path, f"import os; os.write({writer}, b'through')", (writer,))
        os.close(writer)
        assert started.process.wait(60) == 0
        assert answer.read() == "through"


def test_invalid_host_name_is_one_sentence() -> None:
    with pytest.raises(UserError, match=r"engine\.listen = 'a\.\.b:8443' cannot be used"):
        processes.bind("a..b:8443", "engine.listen")


def test_program_that_exceeds_its_time_is_ended_and_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="did not end within 1 seconds"):
        processes.run_program([sys.executable, "-c", "import time; time.sleep(600)"], tmp_path, seconds=1.0)
    mine = psutil.Process().children(recursive=True)
    wait_until(lambda: have_ended([p for p in mine if "time.sleep(600)" in " ".join(p.cmdline())]), "the end", 30)


def test_transport_fails_when_a_required_program_has_ended(tmp_path: Path) -> None:
    class NoNodes:
        def nodes(self) -> list[object]:
            return []

        send = collect = nodes

    started = child(tmp_path, "import time; time.sleep(600)")
    transport = WatchedTransport(NoNodes(), [started])  # type: ignore[arg-type]
    assert transport.nodes() == []
    started.stop()
    with pytest.raises(UserError, match=r"has ended .*`fedwild resume` continues"):
        transport.nodes()


def test_key_that_cannot_be_registered_is_named(tmp_path: Path) -> None:
    write_connection(tmp_path, "127.0.0.1:1", None)
    (tmp_path / "keys" / "sites").mkdir(parents=True)
    (tmp_path / "keys" / "sites" / "a.pub").write_text("no key")
    command = [sys.executable, "-m", "fedwild.sites.registration", "coordinator", str(tmp_path / "keys")]
    done = processes.run_program(command, tmp_path)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].startswith(
        f"key '{tmp_path / 'keys' / 'sites' / 'a.pub'}' cannot be registered: "
    )
