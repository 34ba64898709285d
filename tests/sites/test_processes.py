"""Programs that we start for Flower end when they should, with all that they started, and say how they ended."""

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
from fedwild.sites.link import WatchedTransport, write_connection
from fedwild.sites.processes import Child
from tests.sites.real import gone, wait_until

STUBBORN = "import signal, sys, time; [signal.signal(s, signal.SIG_IGN) for s in (2, 15)]; "
PARENT_OF_A_DETACHED_ONE = f"""
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {STUBBORN + "print('there', flush=True); time.sleep(600)"!r}],
                 start_new_session=True)
"""


def child(folder: Path, code: str, descriptors: tuple[int, ...] = ()) -> Child:
    return Child([sys.executable, "-c", code], folder / "said.log", folder, descriptors)


def family(started: Child) -> list[psutil.Process]:
    return [psutil.Process(started.process.pid), *psutil.Process(started.process.pid).children(recursive=True)]


def test_a_child_ends_with_the_exit_code_of_its_program(tmp_path: Path) -> None:
    assert child(tmp_path, "raise SystemExit(7)").process.wait(60) == 7


def test_a_module_is_called_by_its_own_name(tmp_path: Path) -> None:
    started = Child([sys.executable, "-m", "this"], tmp_path / "said.log", tmp_path)
    assert (started.process.wait(60), started.name) == (0, "this")


def test_a_program_that_is_killed_is_told_from_one_that_ends(tmp_path: Path) -> None:
    started = child(tmp_path, "import os; os.kill(os.getpid(), 9)")
    assert started.process.wait(60) == 128 + signal.SIGKILL


def test_a_program_that_cannot_be_started_is_an_exit_code_and_a_word(tmp_path: Path) -> None:
    log = tmp_path / "said.log"
    with open(log, "wb") as output:
        missing = subprocess.Popen(processes.kept([str(tmp_path / "nothing")]), stderr=output)
    assert missing.wait(60) == 127
    assert "No such file" in log.read_text()


def test_what_a_program_left_running_ends_with_it(tmp_path: Path) -> None:
    started = child(tmp_path, PARENT_OF_A_DETACHED_ONE + "time.sleep(600)")
    wait_until(lambda: "there" in started.said(), "the detached process")
    everybody = family(started)
    assert len(everybody) == 3
    everybody[1].kill()
    assert started.process.wait(60) == 128 + signal.SIGKILL
    assert gone(everybody)


def test_all_end_when_their_starter_is_killed_though_nobody_collects_them(tmp_path: Path) -> None:
    holder = (
        "import sys, time; from pathlib import Path; from fedwild.sites.processes import Child; "
        f"Child([sys.executable, '-c', {PARENT_OF_A_DETACHED_ONE + 'time.sleep(600)'!r}], Path('said.log'), Path()); "
        "time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", holder], cwd=tmp_path) as starter:
        said = tmp_path / "said.log"
        wait_until(lambda: said.exists() and "there" in said.read_text(), "the detached process")
        everybody = psutil.Process(starter.pid).children(recursive=True)
        assert len(everybody) == 3
        starter.kill()
    wait_until(lambda: gone(everybody), "processes to end", 30)


def test_a_program_may_tidy_up_when_it_is_stopped(tmp_path: Path) -> None:
    tidy = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(print('tidied up'))); "
    started = child(tmp_path, tidy + "print('there', flush=True); time.sleep(600)")
    wait_until(lambda: "there" in started.said(), "the program")
    started.stop()
    assert started.code == 0
    assert "tidied up" in started.said()


def test_a_program_that_will_not_end_is_killed_with_all_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "POLITE_SECONDS", 0.5)
    started = child(tmp_path, STUBBORN + PARENT_OF_A_DETACHED_ONE + "time.sleep(600)")
    wait_until(lambda: "there" in started.said(), "the program")
    everybody, began = family(started), time.monotonic()
    started.stop()
    assert started.code == 128 + signal.SIGKILL
    assert gone(everybody)
    assert time.monotonic() - began < 10


def test_a_child_gets_the_descriptors_it_is_given(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    with open(reader) as answer:
        started = child(tmp_path, f"import os; os.write({writer}, b'through')", (writer,))
        os.close(writer)
        assert started.process.wait(60) == 0
        assert answer.read() == "through"


def test_an_address_that_is_no_name_is_one_sentence() -> None:
    with pytest.raises(UserError, match=r"engine\.listen = 'a\.\.b:8443' cannot be listened on"):
        processes.bound("a..b:8443", "engine.listen")


def test_a_program_that_does_not_end_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="did not end within 1 seconds"):
        processes.call([sys.executable, "-c", "import time; time.sleep(600)"], tmp_path, seconds=1.0)
    mine = psutil.Process().children(recursive=True)
    wait_until(lambda: gone([p for p in mine if "time.sleep(600)" in " ".join(p.cmdline())]), "the end", 30)


def test_a_program_without_which_no_site_is_reached_is_missed(tmp_path: Path) -> None:
    class Nobody:
        def nodes(self) -> list[object]:
            return []

        send = collect = nodes

    started = child(tmp_path, "import time; time.sleep(600)")
    transport = WatchedTransport(Nobody(), [started])  # type: ignore[arg-type]
    assert transport.nodes() == []
    started.stop()
    with pytest.raises(UserError, match=r"has ended .*`fedwild resume` goes on"):
        transport.nodes()


def test_a_key_that_cannot_be_registered_is_named(tmp_path: Path) -> None:
    write_connection(tmp_path, "127.0.0.1:1", None)
    (tmp_path / "damaged.pub").write_text("no key")
    command = [sys.executable, "-m", "fedwild.sites.registrar", "coordinator", "a", str(tmp_path / "damaged.pub")]
    done = processes.call(command, tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"key '{tmp_path / 'damaged.pub'}' cannot be registered: ")
