"""All engines give the same bits: one process, worker processes, Ray and real sites."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedwild import api
from fedwild.core.toml import dump_toml
from tests.sites.inprocess import site_files, tables
from tests.tiny import model_bytes

pytestmark = pytest.mark.slow

METHODS: dict[str, dict[str, dict[str, Any]]] = {
    "fedavg": {},
    "fedov": {},
    "fedoss": {},
    # Clients keep their batch-norm.
    "fedbn": {"model": {"name": "digit-cnn", "width": 0.05}, "data": {"size": 32}},
}


def settings_of(method: str) -> dict[str, Any]:
    """Return quick settings: one round of each kind, measured at the end."""
    config = tables(method, evaluation={"every": 0}, engine={"wait": 200})
    for section, table in METHODS[method].items():
        config[section] = {**({} if section == "model" else config[section]), **table}
    rounds = [key for key in config["method"] if key.endswith("rounds")]
    config["method"] |= dict.fromkeys(rounds, 1)
    return config


def run_here(method: str, folder: Path, engine: dict[str, Any], secure: str = "no") -> bytes:
    """Return the final model of a run on this machine."""
    federation = {"clients": None, "secure": secure}
    settings = {"data": {"name": str(folder / "all.npz")}, "engine": engine, "federation": federation}
    config = {**settings_of(method), "engine": {}}
    return model_bytes(api.run(config, settings=settings, out=folder / f"{method}-{len(list(folder.iterdir()))}").path)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bytes]]:
    """Return the folder of the data, and every method's final model in one process."""
    folder = tmp_path_factory.mktemp("engines")
    site_files(folder, ["a", "b"])
    return folder, {method: run_here(method, folder, {"workers": 0}) for method in METHODS}


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Start one Ray for all runs of this module."""
    pytest.importorskip("ray", reason="needs fedwild[ray]")
    from fedwild.engines.ray_cluster import connect

    connection = connect(None, 2, 0)
    yield
    connection.close()


@pytest.mark.parametrize("method", METHODS)
def test_worker_processes_give_the_bits_of_one_process(method: str, local: tuple[Path, dict[str, bytes]]) -> None:
    folder, expected = local
    assert run_here(method, folder, {"workers": 2}) == expected[method]


@pytest.mark.parametrize("method", METHODS)
def test_ray_gives_the_bits_of_one_process(method: str, local: tuple[Path, dict[str, bytes]], cluster: None) -> None:
    folder, expected = local
    # Actors take long to start, so only one run has two of them.
    assert run_here(method, folder, {"name": "ray", "workers": 2 if method == "fedavg" else 1}) == expected[method]


def test_secure_sums_give_the_same_bits_on_ray(local: tuple[Path, dict[str, bytes]], cluster: None) -> None:
    folder, plain = local
    expected = run_here("fedavg", folder, {"workers": 0}, "required")
    assert run_here("fedavg", folder, {"name": "ray", "workers": 1}, "required") == expected != plain["fedavg"]


@pytest.mark.real_sites
def test_two_real_sites_with_tls_and_keys_give_the_bits_of_one_process(
    local: tuple[Path, dict[str, bytes]], tmp_path: Path
) -> None:
    """All methods at once, over an existing SuperLink: sites serve several runs at a time.

    FedAvg, with state at its clients and the coordinator's own SuperLink, is in tests/sites/test_real_sites.py.
    """
    pytest.importorskip("flwr", reason="needs fedwild[flower]")
    from fedwild.sites.keys import make_keys
    from fedwild.sites.processes import environment, free_port
    from fedwild.sites.superlink import start_registration, write_connection
    from tests.sites.real import fedwild, flower, running_programs

    folder, expected = local
    keys, home, port = tmp_path / "keys", tmp_path / "home", free_port()
    make_keys(keys, [], ["a", "b"])
    home.mkdir()
    write_connection(home, f"127.0.0.1:{port}", keys)
    tls = ["--ssl-ca-certfile", keys / "ca.pem", "--ssl-certfile", keys / "server.pem"]
    tls += ["--ssl-keyfile", keys / "server.key", "--enable-supernode-auth"]
    with running_programs(tmp_path) as programs, contextlib.ExitStack() as cleanup:
        superlink = flower("flower-superlink", "--host", "127.0.0.1", "--port", port, *tls)
        programs.start(superlink, "superlink", **environment(home)).wait_for("Application startup complete")
        start_registration(cleanup, home, keys)
        for name in ("a", "b"):
            own = ["--ca", keys / "ca.pem", "--key", keys / "sites" / f"{name}.key"]
            programs.site(name, folder / f"{name}.npz", f"127.0.0.1:{port}", *own)
        runs = {}
        for method in set(METHODS) - {"fedavg"}:
            (tmp_path / f"{method}.toml").write_text(dump_toml(settings_of(method)))
            place = ["--superlink", f"127.0.0.1:{port}", "--certificates", keys, "--out", method]
            runs[method] = programs.start(fedwild("coordinate", f"{method}.toml", *place), f"coordinate-{method}")
        for run in runs.values():
            assert run.exit_code() == 0, run.output()
    for method in runs:
        assert model_bytes(tmp_path / method) == expected[method], method
