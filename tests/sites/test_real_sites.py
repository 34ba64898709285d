"""Real processes on loopback: crashes, keys, sites that join late, and Flower's own programs without ours."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("flwr", reason="needs fedwild[flower]")

from fedwild import api
from fedwild.core.errors import UserError
from fedwild.core.toml import dump_toml
from fedwild.runs.events import read_events
from fedwild.sites.keys import make_keys
from fedwild.sites.processes import environment, free_port, is_reachable, run_program
from fedwild.sites.site import SiteOptions, check_coordinator
from fedwild.sites.site_keys import renew, revoke
from fedwild.sites.superlink import write_connection
from tests.sites.inprocess import site_files, tables
from tests.sites.real import Program, Programs, fedwild, flower, have_ended, policy_file, running_programs, wait_until
from tests.tiny import model_bytes


def config_file(folder: Path, rounds: int, clients: int = 2, epochs: int = 1) -> Path:
    """Write the settings of a run whose clients keep state. It is measured only at the end."""
    config = tables(
        correction={"name": "scaffold"},
        evaluation={"every": 0},
        engine={"wait": 900},
        federation={"clients": clients},
    )
    config["method"] |= {"rounds": rounds, "epochs": epochs}
    path = folder / "my.toml"
    path.write_text(dump_toml(config))
    return path


def local_model(folder: Path, config: Path) -> bytes:
    """Return the final model of the same settings in one process."""
    settings = {"data": {"name": str(folder / "all.npz")}, "engine": {"workers": 0}}
    return model_bytes(api.run(config, settings=settings, out=folder / "local").path)


def events_of(run: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_events(run / "events.jsonl") if event["event"] == kind]


def keys_of(folder: Path, name: str) -> list[object]:
    return ["--ca", folder / "keys" / "ca.pem", "--key", folder / "keys" / "sites" / f"{name}.key"]


def wait_for_end(processes: list[psutil.Process]) -> None:
    wait_until(lambda: have_ended(processes), "processes to end", 60)


@pytest.mark.real_sites
def test_killed_coordinator_is_resumed_and_strangers_are_rejected(tmp_path: Path) -> None:
    files, config = site_files(tmp_path, ["a", "b"]), config_file(tmp_path, rounds=2)
    make_keys(tmp_path / "keys", [], ["a", "b", "c"])
    make_keys(tmp_path / "others", [], ["mallory"])
    port = free_port()
    address = f"127.0.0.1:{port}"
    with running_programs(tmp_path) as programs:
        command = fedwild("coordinate", config, "--listen", address, "--certificates", "keys", "--out", "run")
        first = programs.start(command, "coordinator")
        sites = {name: programs.site(name, files[name], address, *keys_of(tmp_path, name)) for name in ("a", "b")}
        programs.wait_until((tmp_path / "run" / "checkpoints" / "000001.safetensors").exists, "the first checkpoint")
        wait_for_end([*first.kill(), *sites["b"].kill()])
        # All of them wait for the coordinator, which waits for b.
        strangers = start_strangers(programs, tmp_path, files["a"], address)
        second = programs.start(fedwild("resume", "run"), "resumed")
        programs.wait_until(lambda: is_reachable("127.0.0.1", port), "the coordinator")
        assert_wrong_tls_is_rejected(tmp_path, files["a"], address)
        assert_only_sites_are_served(tmp_path, address)
        assert_strangers_are_rejected(*strangers)
        assert_revoked_site_is_cut_off(tmp_path / "keys", second, strangers[1])
        renew(tmp_path / "keys", ["b"], days=10)
        second.wait_for("the key of b is registered")
        restarted = programs.site("b", files["b"], address, *keys_of(tmp_path, "b"), log="site-b-restarted")
        wait_until((tmp_path / "run" / "result.json").exists, "the result")
        assert "its key is registered for 'c', but its --name is 'd'" in second.output()
        assert "the coordinator says: warning: your key expires on" in restarted.output()
    assert [event["index"] for event in events_of(tmp_path / "run", "round")] == [0, 1]
    assert model_bytes(tmp_path / "run") == local_model(tmp_path, config)


def start_strangers(programs: Programs, folder: Path, data: Path, address: str) -> tuple[Program, Program]:
    """Start a site with a key that is not registered, and one with a key that is registered for another name."""
    other_key = ["--ca", folder / "keys" / "ca.pem", "--key", folder / "others" / "sites" / "mallory.key"]
    unregistered = programs.site("mallory", data, address, *other_key)
    # A copy, as a site has it: the coordinator deletes its own copy of a revoked key.
    copy = shutil.copy(folder / "keys" / "sites" / "c.key", folder / "c.key")
    return unregistered, programs.site("d", data, address, "--ca", folder / "keys" / "ca.pem", "--key", copy)


def assert_strangers_are_rejected(unregistered: Program, other_name: Program) -> None:
    assert unregistered.exit_code() == 2
    assert "rejected this site" in unregistered.output()
    other_name.wait_for("rejected this site: its key is registered for 'c', but its --name is 'd'")


def assert_revoked_site_is_cut_off(keys: Path, coordinator: Program, site: Program) -> None:
    """The site has the key of c and is connected. The SuperLink drops it, and the proxy rejects its requests."""
    site.wait_for("connected to")
    revoke(keys, ["c"])
    coordinator.wait_for("the key of c is not valid any more")
    site.wait_for("its key is not registered")


def assert_wrong_tls_is_rejected(folder: Path, data: Path, address: str) -> None:
    """A site without TLS, and one with another authority's certificate."""
    without_tls = SiteOptions(address, str(data), "mallory", wait=0)
    with pytest.raises(UserError, match=r"requires TLS: give the authority's certificate with --ca"):
        check_coordinator(without_tls, print)
    with pytest.raises(UserError, match="its certificate does not pass --ca"):
        check_coordinator(replace(without_tls, authority=folder / "others" / "ca.pem"), print)


def assert_only_sites_are_served(folder: Path, address: str) -> None:
    """Flower's commands cannot use the sites' address, neither to list runs nor to register a key."""
    home = folder / "flwr-home"
    home.mkdir()
    write_connection(home, address, folder / "keys")
    key = folder / "others" / "sites" / "mallory.pub"
    for command in (["flwr", "list", "coordinator"], ["flwr", "supernode", "register", str(key), "coordinator"]):
        assert run_program(command, home).returncode != 0, command


@pytest.mark.real_sites
def test_killed_site_returns_with_its_state_and_a_late_site_joins(tmp_path: Path) -> None:
    """The run is stopped after the first round with all three: a slow machine needs more rounds for that."""
    files, config = site_files(tmp_path, ["a", "b", "c"]), config_file(tmp_path, rounds=50, epochs=100)
    address, run = f"127.0.0.1:{free_port()}", tmp_path / "run"
    with running_programs(tmp_path) as programs:
        programs.start(fedwild("coordinate", config, "--listen", address, "--out", run), "coordinator")
        programs.site("a", files["a"], address)
        site = programs.site("b", files["b"], address)
        programs.wait_until(run.exists, "the run folder")
        programs.site("c", files["c"], address)
        site.wait_for("round 2 (train): training")
        wait_for_end(site.kill())
        programs.site("b", files["b"], address, log="site-b-restarted")
        programs.wait_until(lambda: {"a", "b", "c"} in replies_by_round(run).values(), "a round with a, b and c")
    rounds = replies_by_round(run)
    together = next(index for index, clients in rounds.items() if clients == {"a", "b", "c"})
    assert rounds[0] == {"a", "b"} and rounds[1] - {"c"} == {"a"}
    assert [event["client"] for event in events_of(run, "client-failed")] == ["b"]
    assert [event["client"] for event in events_of(run, "join")] == ["c"]
    # A site that had lost its state would have failed once more. It keeps only the latest versions.
    (states,) = (tmp_path / "site-b" / "runs").iterdir()
    assert max(int(path.stem) for path in (states / "b").iterdir()) >= together


def replies_by_round(run: Path) -> dict[int, set[str]]:
    """Return the clients whose replies were accepted, by the index of the round."""
    replies = events_of(run, "client") if (run / "events.jsonl").exists() else []
    return {index: {event["client"] for event in replies if event["index"] == index} for index in range(50)}


@pytest.mark.real_sites
def test_plain_flower_programs_run_the_app_that_fedwild_writes(tmp_path: Path) -> None:
    """One site is enough: every message starts a process that imports torch."""
    files, config = site_files(tmp_path, ["a"]), config_file(tmp_path, rounds=1, clients=1)
    port, home = free_port(), tmp_path / "flwr-home"
    home.mkdir()
    write_connection(home, f"127.0.0.1:{port}", None)
    offline = environment(home)
    with running_programs(tmp_path) as programs:
        written = programs.start(fedwild("flower", "app", "app", config, "--out", tmp_path / "run"), "app")
        superlink = flower("flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", port)
        programs.start(superlink, "superlink", **offline).wait_for("Application startup complete")
        node = f'name="a" data="{files["a"]}" folder="{tmp_path / "site"}" policy="{policy_file(tmp_path)}"'
        command = flower("flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}")
        command += ["--host", "127.0.0.1", "--port", str(free_port()), "--node-config", node]
        programs.start(command, "supernode", **offline)
        assert written.exit_code() == 0, written.output()
        started = programs.start(flower("flwr", "run", "app", "coordinator"), "flwr-run", **offline)
        assert started.exit_code() == 0, started.output()
        programs.wait_until((tmp_path / "run" / "result.json").exists, "the result")
    assert model_bytes(tmp_path / "run") == local_model(tmp_path, config)
