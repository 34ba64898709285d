"""Wrong input to `fedwild site` and `fedwild coordinate`: one sentence, exit code 2, no file changed."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs fedwild[flower]")

from fedwild.core.errors import UserError
from fedwild.core.toml import dump_toml, read_toml
from fedwild.sites import superlink
from fedwild.sites.app import write_app
from fedwild.sites.coordinator import run_in_server_app
from fedwild.sites.processes import free_port
from fedwild.sites.site import default_folder, locked
from fedwild.sites.transport import accept, listen
from tests.conftest import Cli, Refused
from tests.sites.inprocess import ANIMALS, connected_sites, images, saved, tables


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return saved(tmp_path / "a.npz", images(ANIMALS, 0))


@pytest.fixture
def busy() -> Iterator[str]:
    """An address where something other than a SuperLink listens."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_unreachable_superlink_is_reported(cli: Cli, data: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    outcome = cli("site", "--superlink", address, "--data", data, "--name", "a", "--folder", "f", "--wait", "0.1")
    assert outcome.code == 2
    assert f"error: --superlink '{address}' does not answer: check that the coordinator runs" in outcome.err


def test_host_name_that_does_not_resolve_is_reported(data: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tested without a name server."""

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    address = "coordinater.example:8443"
    outcome = cli("site", "--superlink", address, "--data", data, "--name", "a", "--folder", "f", "--wait", "0.1")
    assert outcome.code == 2
    assert f"error: --superlink '{address}': the host name 'coordinater.example' does not resolve." in outcome.err
    outcome = cli("coordinate", "--superlink", address)
    assert outcome.code == 2
    assert (
        f"error: engine.superlink = '{address}': the host name 'coordinater.example' does not resolve." in outcome.err
    )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--superlink", "nowhere"], "--superlink = 'nowhere' is not allowed: write HOST:PORT"),
        (["--superlink", "host:99999"], "write HOST:PORT"),
        (["--name", "a/b"], "--name 'a/b' is not allowed"),
        (["--data", "missing.npz"], "--data 'missing.npz' does not exist."),
        (["--key", "missing.key"], "--key 'missing.key': the file does not exist."),
        (["--ca", "missing.pem"], "--ca 'missing.pem': the file does not exist."),
        (
            ["--key", "a.npz", "--ca", "a.npz"],
            "--key 'a.npz' is not a private key without a passphrase: create",
        ),
        (["--key", "a.npz"], "needs TLS: give the authority's certificate with --ca."),
        (["--wait", "long"], "--wait long is not allowed: it must be a number of seconds."),
        (["--label", "ant"], "--label ant is not allowed: write OWN=NAME"),
        (["--label", "lion=cat"], "--label: class 'lion' is not known"),
        (["--label", "ant=Unknown"], "a.npz: class name 'Unknown' is not allowed"),
    ],
)
def test_wrong_options_of_a_site_are_rejected_at_once(
    options: list[str], sentence: str, data: Path, refused: Refused
) -> None:
    good = ["--superlink", "127.0.0.1:1", "--data", "a.npz", "--name", "a", "--folder", "f"]
    assert sentence in refused("site", *good, *options)


def test_site_runs_only_once(tmp_path: Path) -> None:
    with locked(tmp_path / "site"):
        second = locked(tmp_path / "site")
        with pytest.raises(UserError, match="is in use by another process"):
            second.__enter__()


def test_default_folder_of_a_site_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_folder("a") == tmp_path / "fedwild" / "sites" / "a"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--set", "data.name=digits"], "data.name = 'digits' is not allowed here: the sites have the data"),
        (
            ["--set", "pool_partition.name=iid"],
            "pool_partition.name = 'iid' is not allowed here: every site has its own data.",
        ),
        (["--set", "partition.name=iid"], "partition.name = 'iid' is not allowed here: every site has its own data."),
        (["--listen", "0.0.0.0:18443"], "engine.listen = '0.0.0.0:18443' without TLS is not allowed"),
        (["--listen", "nowhere"], "engine.listen = 'nowhere' is not allowed: write HOST:PORT"),
        (["--certificates", "none"], "has no ca.pem, server.pem, server.key"),
        (["--superlink", "127.0.0.1:1"], "engine.superlink = '127.0.0.1:1' does not answer."),
        (["--set", "engine.wait=-1"], "engine.wait = -1 is not allowed"),
        (["--sites", "0"], "federation.clients = 0 is not allowed"),
        (["--method", "fedavgg"], "method 'fedavgg' is not known. Did you mean 'fedavg'?"),
        (["--set", "data.coordinator=missing.npz"], "data.coordinator = 'missing.npz' does not exist."),
        (["--out", "a.npz"], "--out 'a.npz' exists already"),
        (["missing.toml"], "config file 'missing.toml' does not exist"),
    ],
)
def test_wrong_settings_of_a_coordinator_are_rejected_before_anything_starts(
    options: list[str], sentence: str, data: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(*_: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(superlink, "Child", started)
    assert sentence in refused("coordinate", *options)


def test_address_in_use_is_reported(refused: Refused, busy: str) -> None:
    sentence = f"engine.listen = '{busy}' cannot be used: Address already in use. Choose another port"
    assert sentence in refused("coordinate", "--listen", busy)


def test_engine_of_sites_is_only_for_coordinate(refused: Refused) -> None:
    assert "use `fedwild coordinate` for a run over real sites" in refused("run", "--engine", "flower")
    assert "use `fedwild coordinate` for data at real sites" in refused("run", "--data", "sites")


def test_app_is_complete_and_never_overwritten(cli: Cli, refused: Refused, tmp_path: Path) -> None:
    assert cli("flower", "app", "app", "--set", "method.rounds=3").code == 0
    names = sorted(str(path.relative_to(tmp_path / "app")) for path in (tmp_path / "app").rglob("*") if path.is_file())
    package = [f"fedwild_app/{name}" for name in ("__init__.py", "client.py", "config.toml", "server.py")]
    assert names == [*package, "pyproject.toml"]
    assert "rounds = 3" in (tmp_path / "app" / "fedwild_app" / "config.toml").read_text()
    assert "folder 'app' exists already" in refused("flower", "app", "app")
    assert "data.name = 'digits' is not allowed here" in refused("flower", "app", "other", "--set", "data.name=digits")


def test_quotes_in_paths_of_an_app_are_escaped(tmp_path: Path) -> None:
    write_app(tmp_path / "app", "", socket='/tmp/a "b"\\c')
    table = read_toml(tmp_path / "app" / "pyproject.toml")
    assert table["tool"]["flwr"]["app"]["config"]["socket"] == '/tmp/a "b"\\c'


def test_server_app_that_does_not_start_is_reported(tmp_path: Path) -> None:
    with (
        listen(tmp_path / "socket") as server,
        pytest.raises(UserError, match="ServerApp did not start within 0 seconds"),
    ):
        accept(server, 0.0, lambda: None)


def test_run_inside_flowers_server_app_prints_a_line_per_event(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.toml").write_text(dump_toml(tables(evaluation={"every": 0})))
    run_in_server_app(connected_sites(tmp_path), tmp_path / "config.toml", str(tmp_path / "run"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "waiting sites=2"
    assert [line for line in lines if line.startswith("round phase=train round=1 index=1")]
    assert lines[-1] == f"run folder: {tmp_path / 'run'}"


def test_free_ports_are_outside_the_range_of_outgoing_connections() -> None:
    ports = {free_port() for _ in range(20)}
    assert len(ports) > 10 and max(ports) < 32_768
