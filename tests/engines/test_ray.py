"""The Ray engine: bit-equal to the local engine, robust to failures, and no Ray is left after a run."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from fedwild.contract import Server, Step
from fedwild.contract.engine import Answer, Job
from fedwild.core.classes import ClassRegistry
from fedwild.core.errors import UserError
from fedwild.core.rng import Rng
from fedwild.data import Dataset, Split
from fedwild.engines import ray_cluster
from fedwild.engines.choice import engine_of
from fedwild.engines.executor import Executor
from fedwild.lifecycle.rounds import Federation
from fedwild.runs.checkpoints import state_file
from fedwild.runs.events import read_events
from fedwild.runs.experiment import Experiment
from fedwild.runs.folder import RunFolder
from fedwild.runs.settings import EngineSettings
from tests.conftest import TINY, Refused
from tests.methods.by_hand import WITH_NORMS
from tests.processes import living
from tests.tiny import even_shares, model_bytes, run_experiment, run_tiny, split_by, tiny_dataset, tiny_experiment

ray = pytest.importorskip("ray", reason="needs fedwild[ray]")

from fedwild.engines.ray import ActorWorker, RayEngine, pack, unpack  # noqa: E402  (needs Ray)

pytestmark = pytest.mark.slow

LOOPBACK = {"127.0.0.1", "::ffff:127.0.0.1", "::1"}
# Processes end slowly on busy machines; otherwise nothing takes a tenth of this.
PATIENCE = 240.0


@pytest.fixture(scope="module")
def private() -> Iterator[str]:
    """Start a private Ray that all engines of this module use; yield its folder. Nothing is left at the end."""
    environment, handler = dict(os.environ), signal.getsignal(signal.SIGTERM)
    connection = ray_cluster.connect(None, 2, 10**6)
    changed = {key for key in os.environ if environment.get(key) != os.environ[key]}
    assert changed <= {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN"}
    assert signal.getsignal(signal.SIGTERM) is handler
    assert connection.watchdog is not None
    folder = psutil.Process(connection.watchdog.pid).cmdline()[-2]
    yield folder
    family = psutil.Process().children(recursive=True)
    assert len(family) > 3
    connection.close()
    assert until(lambda: not living(family))
    assert ray_cluster.marked_processes(folder) == []
    assert not Path(folder).exists()


def until(condition: Callable[[], Any]) -> bool:
    """Wait until a condition is true; return whether it is."""
    end = time.monotonic() + PATIENCE
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return bool(condition())


@pytest.fixture(scope="module")
def data() -> Dataset:
    return tiny_dataset(classes=3, per_class=24)


@pytest.fixture(scope="module")
def split(data: Dataset) -> Split:
    rows = even_shares(data, 3, 1)[0]
    return split_by(data, 3, [rows[:20], rows[20:44], rows[44:]])


# --- the same bits ------------------------------------------------------------------------------------------


def test_results_equal_those_of_the_local_engine(private: str, data: Dataset, split: Split, tmp_path: Path) -> None:
    """More methods are in tests/engines/test_engines.py."""
    threads = torch.get_num_threads()
    local = run_tiny(tmp_path / "local", "fedavg", data, split)
    result = run_tiny(tmp_path / "ray", "fedavg", data, split, {"engine": {"name": "ray", "workers": 2}})
    assert model_bytes(tmp_path / "ray") == model_bytes(tmp_path / "local")
    for figures in ("metrics", "by", "thresholds", "bytes_up", "bytes_down"):
        assert repr(result[figures]) == repr(local[figures])
    assert not list((tmp_path / "ray").glob(".spool*"))
    assert ray.is_initialized()
    assert torch.get_num_threads() == threads
    assert float(torch.tensor(1e-40) * 1) > 0  # denormal numbers are no longer flushed


def test_a_run_may_change_its_engine_between_rounds(private: str, data: Dataset, split: Split, tmp_path: Path) -> None:
    """FedBN's clients have durable state: files of the run folder with any engine."""

    class Stop(Exception):
        pass

    def until_round(index: int) -> Callable[[dict[str, Any]], None]:
        def stopping(event: dict[str, Any]) -> None:
            if event["event"] == "round-start" and event["index"] == index:
                raise Stop

        return stopping

    def experiment(engine: str) -> Experiment:
        settings = {"method": {"rounds": 3}, "engine": {"name": engine, "workers": 1 if engine == "ray" else 0}}
        return tiny_experiment("fedbn", data, split, {**WITH_NORMS, **settings})

    def states(run: str) -> dict[str, bytes]:
        folder = tmp_path / run / "clients"
        return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*.*")}

    run_experiment(tmp_path / "whole", experiment("local"))
    with pytest.raises(Stop):
        run_experiment(tmp_path / "pieces", experiment("local"), until_round(1))
    with pytest.raises(Stop):
        Federation(experiment("ray"), RunFolder.open(tmp_path / "pieces"), until_round(2)).run()
    Federation(experiment("local"), RunFolder.open(tmp_path / "pieces")).run()
    assert model_bytes(tmp_path / "pieces") == model_bytes(tmp_path / "whole")
    assert len(states("whole")) == 6
    assert states("pieces") == states("whole")


# --- failures -----------------------------------------------------------------------------------------------


def test_a_client_that_raises_is_reported_and_the_round_continues(private: str, data: Dataset, tmp_path: Path) -> None:
    split = split_by(data, 2, even_shares(data, 2, 2))
    settings = {"engine": {"name": "ray", "workers": 1}}
    run_tiny(tmp_path / "run", "tests.sketches:Mischief", data, split, settings)
    events = read_events(tmp_path / "run" / "events.jsonl")
    failed = [event for event in events if event["event"] == "client-failed"]
    assert {event["client"] for event in failed} == {"client-01"}
    assert "ZeroDivisionError" in failed[0]["reason"]
    assert "1 / 0" in failed[0]["traceback"]
    assert [event["participants"] for event in events if event["event"] == "round"] == [["client-00"]] * 2


def test_actors_get_the_privacy_settings(data: Dataset, tmp_path: Path) -> None:
    split = split_by(data, 2, even_shares(data, 2, 2))
    privacy = {"level": "sample", "clip": 0.5, "noise": 2.0, "delta": 1e-3}
    e = tiny_experiment("fedavg", data, split, {"privacy": privacy})
    executor = Executor(data, split, e.config.data, e.method, e.task, 0, tmp_path, tmp_path, e.config.privacy)
    assert unpack(pack(executor)).privacy == e.config.privacy


class Clients:
    """Mischievous clients, of which client-00 is honest, and an engine that runs jobs for them."""

    def __init__(self, data: Dataset, folder: Path) -> None:
        split = split_by(data, 2, even_shares(data, 2, 6))
        experiment = tiny_experiment("tests.sketches:Mischief", data, split)
        states, spool = folder / "states", folder / "spool"
        spool.mkdir()
        method, task = experiment.method, experiment.task
        self.executor = Executor(data, split, experiment.config.data, method, task, 0, states, spool)
        classes = ClassRegistry.of(split.known)
        self.server = Server(task, classes, Step("train", 0, 0), Rng(0), tuple(c.name for c in split.clients))
        method.start(self.server)
        self.engine = RayEngine(self.executor, 0, None)

    def job(self, client: str, file: str = "down", state: int | None = None) -> Job:
        path = self.executor.spool / file
        if not path.exists():
            self.executor.method.phases()[0].send(self.server, client).write(path)
        return Job("local", self.server.step, str(path), client, self.server.classes.names, state)

    def ask(self, *jobs: Job, started: Callable[[Job], None] = lambda job: None) -> list[Answer]:
        return list(self.engine.run(jobs, started))


@pytest.fixture(scope="module")
def clients(private: str, data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clients]:
    clients = Clients(data, tmp_path_factory.mktemp("clients"))
    yield clients
    clients.engine.close()


def actors(folder: str) -> list[int]:
    """Return the processes of our actors in a Ray."""
    found = []
    for pid in ray_cluster.marked_processes(folder):
        with contextlib.suppress(psutil.Error):
            found += [pid] if psutil.Process(pid).cmdline()[0].startswith("ray::ClientActor") else []
    return found


def test_without_workers_there_is_one_actor_and_it_answers_like_an_executor(private: str, clients: Clients) -> None:
    assert until(lambda: len(actors(private)) == 1)
    jobs = [clients.job("client-00"), clients.job("client-00", "own")]
    here = [clients.executor.execute(job) for job in jobs]
    there = clients.ask(*jobs)
    assert [Path(str(answer.path)).name for answer in there] == ["up-0-local-ray"] * 2
    assert [answer.offset for answer in there] == [0, there[0].size]
    assert [a.read().encode() for a in there] == [a.read().encode() for a in here]
    assert all(answer.seconds > 0 and answer.error is None for answer in there)


def test_a_payload_is_put_once_and_released_with_its_file(clients: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    put = ray.put

    def counted(array: np.ndarray) -> Any:
        sizes.append(array.nbytes)
        return put(array)

    monkeypatch.setattr(ray, "put", counted)
    clients.ask(*(clients.job("client-00", file) for file in ("first", "first", "second", "first", "second")))
    files = [clients.executor.spool / name for name in ("first", "second", "third")]
    assert sizes == [file.stat().st_size for file in files[:2]]
    files[0].unlink()
    clients.ask(clients.job("client-00", "third"))
    assert len(sizes) == 3
    assert str(files[0]) not in clients.engine._payloads
    assert {str(file) for file in files[1:]} <= clients.engine._payloads.keys()


def test_file_errors_are_not_failures_of_the_client(clients: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    gone, cut = clients.job("client-00", "gone"), clients.job("client-00", "cut")
    Path(gone.payload).unlink()
    Path(cut.payload).write_bytes(Path(cut.payload).read_bytes()[:-1])
    missing, damaged = clients.job("client-00", state=3), clients.job("client-00", state=4)
    file = state_file(clients.executor.states, "client-00", 4)
    file.parent.mkdir(parents=True)
    file.write_bytes(b"not a state")
    answers = {answer.job: answer for answer in clients.ask(gone, cut, missing, damaged)}
    assert all(answer.disk_failed and answer.traceback is None for answer in answers.values())
    assert "gone" in str(answers[gone].error)
    assert "truncated" in str(answers[cut].error)
    assert "000003" in str(answers[missing].error)
    job = clients.job("client-00")
    monkeypatch.setattr(clients.executor, "spool", clients.executor.spool / "full")
    (answer,) = clients.ask(job)
    assert answer.disk_failed
    assert "up-0-local-ray" in str(answer.error)


def test_a_killed_actor_is_replaced_and_its_job_is_done(private: str, clients: Clients) -> None:
    victims: list[int] = []

    def kill(job: Job) -> None:
        if not victims:
            assert until(lambda: len(actors(private)) == 1)
            victims.extend(actors(private))
            os.kill(victims[0], signal.SIGKILL)

    jobs = [clients.job("client-00"), clients.job("client-01"), clients.job("client-00", "again")]
    answers = {answer.job: answer for answer in clients.ask(*jobs, started=kill)}
    assert len(answers) == 3
    assert answers[jobs[0]].read().encode() == clients.executor.execute(jobs[0]).read().encode()
    assert "ZeroDivisionError" in str(answers[jobs[1]].error)
    assert until(lambda: len(actors(private)) == 1)
    assert actors(private) != victims


def test_without_a_free_core_the_least_busy_worker_takes_over(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedwild.engines.ray.START_SECONDS", 0.0)
    busy, idle, dead = ActorWorker(None), ActorWorker(None), ActorWorker(None)
    busy.pending.append(clients.job("client-00"))
    monkeypatch.setattr(clients.engine, "workers", [busy, dead, idle])
    assert clients.engine.replace(dead) is idle
    assert clients.engine.workers == [busy, idle]
    monkeypatch.setattr(clients.engine, "workers", [dead])
    with pytest.raises(UserError, match="no free core"):
        clients.engine.replace(dead)


def test_a_job_that_kills_two_actors_is_a_failure_of_the_client(clients: Clients) -> None:
    jobs = [clients.job("client-05"), clients.job("client-00")]
    answers = {answer.job: answer for answer in clients.ask(*jobs)}
    assert "the worker process died" in str(answers[jobs[0]].error)
    assert not answers[jobs[0]].disk_failed
    assert answers[jobs[1]].error is None


def test_a_worker_that_does_not_start_is_one_sentence(
    private: str, clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Homeless:
        """An actor on a node without the user's module."""

        def __init__(self, home: dict[str, Any]) -> None:
            raise ModuleNotFoundError("No module named 'mine'")

        def ready(self) -> None:
            """Never called."""

    monkeypatch.setattr("fedwild.engines.ray.ClientActor", Homeless)
    with pytest.raises(UserError, match=r"^engine.name = 'ray': a worker cannot start: .*No module named 'mine'"):
        RayEngine(clients.executor, 1, None)


def test_a_cluster_without_a_free_core_is_one_sentence(
    private: str, clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedwild.engines.ray.START_SECONDS", 0.0)
    with pytest.raises(UserError, match="no free core"):
        RayEngine(clients.executor, 1, None)
    assert torch.get_num_threads() == 1


# --- Ray itself ---------------------------------------------------------------------------------------------


def test_ray_listens_on_this_machine_only(private: str, clients: Clients) -> None:
    listening = []
    for pid in (os.getpid(), *ray_cluster.marked_processes(private)):
        # A process of another test may just be ending.
        with contextlib.suppress(psutil.NoSuchProcess):
            listening += [c for c in psutil.Process(pid).net_connections() if c.status == psutil.CONN_LISTEN]
    assert len(listening) > 3
    assert {connection.laddr.ip for connection in listening} <= LOOPBACK


JOINING = """
import sys, ray
from fedwild.engines.ray_cluster import connect

connection = connect(sys.argv[1], 1, 0)
print(sorted(node["Alive"] for node in ray.nodes()), connection.watchdog)
connection.close()
"""


def test_an_existing_cluster_is_joined_and_left_running(private: str, tmp_path: Path) -> None:
    address = ray.get_runtime_context().gcs_address
    # Without this, Ray would replace 127.0.0.1 by the machine's external address.
    environment = {**os.environ, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    joined = run_python("-c", JOINING, address, env=environment)
    assert (joined.returncode, joined.stdout, joined.stderr) == (0, "[True] None\n", "")
    assert [node["Alive"] for node in ray.nodes()] == [True]


def run_python(*arguments: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], env=env, capture_output=True, text=True, timeout=PATIENCE)


OWN = """
from fedwild.methods.fedavg import FedAvg
from fedwild.runs.checkpoints import state_file

class Mine(FedAvg):
    pass
"""


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Return a folder for temporary files with a path short enough for sockets."""
    folder = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


def test_a_killed_run_with_a_users_method_leaves_nothing(tmp_path: Path, short_folder: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    ours = ("--method", "own:Mine", "--rounds", "100000", "--set", "engine.name=ray", "--out", "run", "--quiet")
    driver = subprocess.Popen(
        [sys.executable, "-m", "fedwild", "run", *TINY, *ours],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(short_folder), "PYTHONPATH": str(Path(__file__).parents[2])},
    )

    def rounds() -> list[dict[str, Any]]:
        log = tmp_path / "run" / "events.jsonl"
        return [event for event in read_events(log) if event["event"] == "round"] if log.exists() else []

    try:
        assert until(lambda: rounds() or driver.poll() is not None)
        family = psutil.Process(driver.pid).children(recursive=True)
        (folder,) = short_folder.glob("fw-*")
        marked = ray_cluster.marked_processes(str(folder))
        (watchdog,) = [process for process in living(family) if process.pid not in marked]
        assert "fedwild.engines.ray_cluster" in watchdog.cmdline()
    finally:
        driver.kill()
        driver.wait()
    assert len(rounds()[0]["participants"]) == 2
    assert len(marked) > 5
    assert until(lambda: not living(family))
    assert until(lambda: not folder.exists())
    assert ray_cluster.marked_processes(str(folder)) == []
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(folder) in " ".join(p.info["cmdline"] or [])]


def test_an_address_where_nothing_listens_is_rejected(refused: Refused) -> None:
    begin = time.monotonic()
    said = refused("run", *TINY, "--set", "engine.name=ray", "--set", "engine.address=127.0.0.1:1")
    assert time.monotonic() - begin < 60
    (line,) = said.splitlines()
    assert line.startswith("error: engine.address = '127.0.0.1:1': nothing listens there")
    assert f"Ray {ray.__version__}" in line


@pytest.mark.parametrize("address", ["ray://127.0.0.1:10001", "somewhere", ":6379", "here:there"])
def test_an_invalid_address_is_rejected(address: str) -> None:
    with pytest.raises(UserError, match=r"this is not an address. It must be auto, or HOST:PORT"):
        ray_cluster.join(address)


@pytest.fixture
def listener() -> Iterator[str]:
    """Return an address where something other than Ray listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_joining_something_other_than_ray_fails_soon(listener: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "JOIN_SECONDS", 1.0)
    with pytest.raises(UserError, match="Ray does not answer there"):
        ray_cluster.join(listener)


def test_another_version_of_ray_is_named(listener: str, monkeypatch: pytest.MonkeyPatch) -> None:
    says = "print('Version mismatch: The cluster was started with: Ray: 1.0'); raise SystemExit(1)"
    monkeypatch.setattr(ray_cluster, "own_command", lambda *arguments: [sys.executable, "-c", says])
    with pytest.raises(UserError, match=rf"with: Ray: 1.0. It must be .* Ray {ray.__version__} and Python"):
        ray_cluster.join(listener)


def test_without_ray_the_message_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "fedwild.engines.ray")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"pip install 'fedwild\[ray\]'"):
        engine_of(EngineSettings(name="ray"))
