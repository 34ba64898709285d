"""Real processes on loopback: crashes, keys, latecomers, and Flower's own programs without ours around them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs fedwild[flower]")

from fedwild import api
from fedwild.core.toml import dump_toml
from fedwild.core.errors import UserError
from fedwild.sites.keys import make_keys
from fedwild.sites.link import write_connection
from fedwild.sites.processes import call, environment, free_port
from fedwild.sites.site import SiteOptions, check_coordinator
from tests.sites.inprocess import site_files, tables
from tests.sites.real import Stage, fedwild, flower, gone, stage, wait_until
from tests.tiny import model_bytes


def config_file(folder: Path, rounds: int, epochs: int = 1, **sections: object) -> Path:
    """Settings of a run whose clients keep state, measured at the end alone."""
    config = tables(correction={"name": "scaffold"}, evaluation={"every": 0}, engine={"wait": 900}, **sections)
    config["method"] |= {"rounds": rounds, "epochs": epochs}
    path = folder / "my.toml"
    path.write_text(dump_toml(config))
    return path


def local_model(folder: Path, config: Path) -> bytes:
    """The final model of the same settings in one process."""
    settings = {"data": {"name": str(folder / "all.npz")}, "engine": {"workers": 0}}
    return model_bytes(api.run(config, settings=settings, out=folder / "local").path)


def rounds_in(run: Path) -> list[dict[str, object]]:
    lines = (run / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == "round"]


def secure(folder: Path, name: str) -> list[object]:
    return ["--ca", folder / "keys" / "ca.pem", "--key", folder / "keys" / "sites" / f"{name}.key"]


@pytest.mark.real_sites
def test_a_killed_coordinator_goes_on_and_strangers_stay_outside(tmp_path: Path) -> None:
    files, config = site_files(tmp_path, ["a", "b"]), config_file(tmp_path, rounds=3)
    make_keys(tmp_path / "keys", [], ["a", "b", "c"])
    make_keys(tmp_path / "others", [], ["mallory"])
    address = f"127.0.0.1:{free_port()}"
    with stage(tmp_path) as programs:
        command = fedwild("coordinate", config, "--listen", address, "--certificates", "keys", "--out", "run")
        first = programs.start(command, "coordinator")
        sites = {name: programs.site(name, files[name], address, *secure(tmp_path, name)) for name in ("a", "b")}
        first.wait_for("round 1/3")
        assert gone_soon([*first.kill(), *sites["b"].kill()])
        again = programs.start(fedwild("resume", "run"), "resumed")
        # It waits for b, and meanwhile greets whoever comes.
        again.wait_for("sites are expected")
        assert_strangers_are_refused(programs, tmp_path, files["a"], address)
        assert_only_sites_are_served(tmp_path, address)
        programs.site("b", files["b"], address, *secure(tmp_path, "b"), said="site-b-again")
        assert again.ended() == 0, again.said()
        assert "going on with round" in again.said()
        assert "a site is refused: its key is registered for 'c', and it calls itself 'd'" in again.said()
    assert model_bytes(tmp_path / "run") == local_model(tmp_path, config)


def gone_soon(processes: list) -> bool:  # type: ignore[type-arg]
    wait_until(lambda: gone(processes), "processes to end", 60)
    return True


def assert_strangers_are_refused(programs: Stage, folder: Path, data: Path, address: str) -> None:
    """A key that is not registered, or for another name, no TLS, and an authority that signed nothing here."""
    stranger = ["--ca", folder / "keys" / "ca.pem", "--key", folder / "others" / "sites" / "mallory.key"]
    unregistered = programs.site("mallory", data, address, *stranger)
    other_name = programs.site("d", data, address, *secure(folder, "c"))
    without_tls = SiteOptions(address, str(data), "mallory", wait=0)
    with pytest.raises(UserError, match=r"it wants TLS. Give the authority's certificate with --ca"):
        check_coordinator(without_tls, print)
    with pytest.raises(UserError, match="its certificate is not one that --ca"):
        check_coordinator(replace(without_tls, authority=folder / "others" / "ca.pem"), print)
    assert unregistered.ended() == 2
    assert "does not let this site in" in unregistered.said()
    other_name.wait_for("does not take us in: its key is registered for 'c', and it calls itself 'd'")


def assert_only_sites_are_served(folder: Path, address: str) -> None:
    """Whoever reaches the address of the sites can start no app and register no key."""
    home = folder / "flwr-home"
    home.mkdir()
    write_connection(home, address, folder / "keys")
    key = folder / "others" / "sites" / "mallory.pub"
    for command in (["flwr", "list", "coordinator"], ["flwr", "supernode", "register", str(key), "coordinator"]):
        assert call(command, home).returncode != 0, command


@pytest.mark.real_sites
def test_a_killed_site_comes_back_with_its_state_and_a_latecomer_joins(tmp_path: Path) -> None:
    files, config = site_files(tmp_path, ["a", "b", "c"]), config_file(tmp_path, rounds=6, epochs=300)
    address = f"127.0.0.1:{free_port()}"
    with stage(tmp_path) as programs:
        run = programs.start(fedwild("coordinate", config, "--listen", address, "--out", "run"), "coordinator")
        programs.site("a", files["a"], address)
        site = programs.site("b", files["b"], address)
        site.wait_for("round 2 (train): training")
        assert gone_soon(site.kill())
        programs.site("b", files["b"], address, said="site-b-again")
        programs.site("c", files["c"], address)
        assert run.ended() == 0, run.said()
    history = rounds_in(tmp_path / "run")
    assert history[1]["participants"] == ["a"]
    assert history[-1]["participants"] == ["a", "b", "c"]
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    failed = [(event["client"], event["reason"]) for event in events if event["event"] == "client-failed"]
    assert failed[0][0] == "b"
    assert [event["client"] for event in events if event["event"] == "join"] == ["c"]
    (kept,) = (tmp_path / "site-b" / "runs").iterdir()
    versions = sorted(int(path.stem) for path in (kept / "b").iterdir())
    assert 1 not in versions and versions[-1] == 5


@pytest.mark.real_sites
def test_plain_flower_programs_run_the_app_that_fedwild_writes(tmp_path: Path) -> None:
    files, config = site_files(tmp_path, ["a", "b"]), config_file(tmp_path, rounds=1)
    port, home = free_port(), tmp_path / "flwr-home"
    home.mkdir()
    write_connection(home, f"127.0.0.1:{port}", None)
    offline = environment(home)
    with stage(tmp_path) as programs:
        written = programs.start(fedwild("flower", "app", "app", config, "--out", tmp_path / "run"), "app")
        superlink = flower("flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", port)
        programs.start(superlink, "superlink", **offline).wait_for("Application startup complete")
        assert written.ended() == 0, written.said()
        for name in ("a", "b"):
            node = f'name="{name}" data="{files[name]}" folder="{tmp_path / name}"'
            command = flower("flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}")
            command += ["--host", "127.0.0.1", "--port", str(free_port()), "--node-config", node]
            programs.start(command, f"supernode-{name}", **offline)
        started = programs.start(flower("flwr", "run", "app", "coordinator"), "flwr-run", **offline)
        assert started.ended() == 0, started.said()
        wait_until((tmp_path / "run" / "result.json").exists, "the result")
    assert model_bytes(tmp_path / "run") == local_model(tmp_path, config)
