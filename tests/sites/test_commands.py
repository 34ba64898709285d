"""Bad input to `fedwild site` and `fedwild coordinate`: one sentence, exit code 2, nothing left."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs fedwild[flower]")

from fedwild.core.toml import read_toml
from fedwild.core.errors import UserError
from fedwild.sites import link
from fedwild.sites.app import write_app
from fedwild.sites.transport import accept, listen
from fedwild.sites.processes import free_port
from fedwild.sites.site import default_folder, locked
from tests.conftest import Cli, Refused
from tests.sites.inprocess import ANIMALS, images, saved


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return saved(tmp_path / "a.npz", images(ANIMALS, 0))


@pytest.fixture
def busy() -> Iterator[str]:
    """An address where something listens that is no SuperLink."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_no_superlink_at_the_address(cli: Cli, data: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    outcome = cli("site", "--superlink", address, "--data", data, "--name", "a", "--folder", "f", "--wait", "0.1")
    assert outcome.code == 2
    assert f"error: --superlink '{address}': nobody answers there. Is the coordinator running" in outcome.err


def test_a_name_that_cannot_be_found_is_said_to_be_one(data: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without asking any name server."""

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    address = "coordinater.example:8443"
    outcome = cli("site", "--superlink", address, "--data", data, "--name", "a", "--folder", "f", "--wait", "0.1")
    assert outcome.code == 2
    assert f"error: --superlink '{address}': the name 'coordinater.example' cannot be found." in outcome.err
    outcome = cli("coordinate", "--superlink", address)
    assert outcome.code == 2
    assert f"error: engine.superlink = '{address}': the name 'coordinater.example' cannot be found." in outcome.err


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--superlink", "nowhere"], "--superlink = 'nowhere' is not allowed: write HOST:PORT"),
        (["--superlink", "host:99999"], "write HOST:PORT"),
        (["--name", "a/b"], "--name 'a/b' is not allowed"),
        (["--data", "missing.npz"], "--data 'missing.npz': there is no such file or folder."),
        (["--key", "missing.key"], "--key 'missing.key': there is no such file."),
        (["--ca", "missing.pem"], "--ca 'missing.pem': there is no such file."),
        (["--key", "a.npz", "--ca", "a.npz"], "--key 'a.npz' is no private key without a passphrase: `"),
        (["--key", "a.npz"], "needs TLS: give the authority's certificate with --ca."),
        (["--wait", "long"], "--wait long is not allowed: it must be a number of seconds."),
        (["--label", "ant"], "--label ant is not allowed: write OWN=NAME"),
    ],
)
def test_what_is_wrong_with_a_site_is_said_at_once(
    options: list[str], sentence: str, data: Path, refused: Refused
) -> None:
    good = ["--superlink", "127.0.0.1:1", "--data", "a.npz", "--name", "a", "--folder", "f"]
    assert sentence in refused("site", *good, *options)


def test_a_site_runs_once(tmp_path: Path) -> None:
    with locked(tmp_path / "site"):
        second = locked(tmp_path / "site")
        with pytest.raises(UserError, match="is in use by another process"):
            second.__enter__()


def test_a_sites_folder_follows_the_systems_custom(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_folder("a") == tmp_path / "fedwild" / "sites" / "a"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--set", "data.name=digits"], "data.name = 'digits' is not allowed here: the sites have the data"),
        (["--set", "partition.name=iid"], "partition.name = 'iid' is not allowed here: every site has its own data."),
        (["--listen", "0.0.0.0:18443"], "engine.listen = '0.0.0.0:18443' without TLS is not allowed"),
        (["--listen", "nowhere"], "engine.listen = 'nowhere' is not allowed: write HOST:PORT"),
        (["--certificates", "none"], "has no ca.pem, server.pem, server.key"),
        (["--superlink", "127.0.0.1:1"], "engine.superlink = '127.0.0.1:1': nobody answers there."),
        (["--set", "engine.wait=-1"], "engine.wait = -1 is not allowed"),
        (["--sites", "0"], "federation.clients = 0 is not allowed"),
        (["--method", "fedavgg"], "method 'fedavgg' is not known. Did you mean 'fedavg'?"),
        (["--set", "data.coordinator=missing.npz"], "data.coordinator='missing.npz': there is no such file"),
        (["--out", "a.npz"], "--out 'a.npz' exists already"),
        (["missing.toml"], "config file 'missing.toml' does not exist"),
    ],
)
def test_what_is_wrong_with_a_coordinator_is_said_before_anything_starts(
    options: list[str], sentence: str, data: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(*_: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(link, "Child", started)
    assert sentence in refused("coordinate", *options)


def test_an_address_that_is_taken_is_named(refused: Refused, busy: str) -> None:
    sentence = f"engine.listen = '{busy}' cannot be listened on: Address already in use. Choose another port"
    assert sentence in refused("coordinate", "--listen", busy)


def test_the_engine_of_sites_is_for_coordinate_alone(refused: Refused) -> None:
    assert "`fedwild coordinate` brings real sites together" in refused("run", "--engine", "flower")
    assert "which `fedwild coordinate` brings together" in refused("run", "--data", "sites")


def test_an_app_is_written_once_and_whole(cli: Cli, refused: Refused, tmp_path: Path) -> None:
    assert cli("flower", "app", "app", "--set", "method.rounds=3").code == 0
    names = sorted(str(path.relative_to(tmp_path / "app")) for path in (tmp_path / "app").rglob("*") if path.is_file())
    package = [f"fedwild_app/{name}" for name in ("__init__.py", "client.py", "config.toml", "server.py")]
    assert names == [*package, "pyproject.toml"]
    assert "rounds = 3" in (tmp_path / "app" / "fedwild_app" / "config.toml").read_text()
    assert "folder 'app' exists already" in refused("flower", "app", "app")
    assert "data.name = 'digits' is not allowed here" in refused("flower", "app", "other", "--set", "data.name=digits")


def test_quotes_in_an_apps_paths_stay_text(tmp_path: Path) -> None:
    write_app(tmp_path / "app", "", desk='/tmp/a "b"\\c')
    table = read_toml(tmp_path / "app" / "pyproject.toml")
    assert table["tool"]["flwr"]["app"]["config"]["desk"] == '/tmp/a "b"\\c'


def test_a_courier_that_does_not_come_is_not_awaited_for_ever(tmp_path: Path) -> None:
    with (
        listen(tmp_path / "desk") as server,
        pytest.raises(UserError, match="ServerApp did not start within 0 seconds"),
    ):
        accept(server, 0.0, lambda: None)
