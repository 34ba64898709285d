"""Sites under attack: real processes with TLS and keys on loopback, and requests that are sent twice.

1. Two sites and a coordinator. The coordinator and a site are killed with SIGKILL after the first round. Both are
   started again, together with a site whose key is not registered and a site that gives another name than its key.
   The final model must be bit-equal to that of one process, and both strangers must be rejected.
2. Every request reaches its site twice, as if somebody replayed it. The final model must not change.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.hostile.tally import Tally
from fedwild import api
from fedwild.core.toml import dump_toml
from fedwild.runs.verify import verify_run
from fedwild.sites.envelope import Envelope
from fedwild.sites.keys import make_keys
from fedwild.sites.processes import free_port
from tests.sites.inprocess import InProcessSites, connected_sites, coordinated, site_files, tables
from tests.sites.real import Programs, fedwild, have_ended, running_programs, wait_until


def run(folder: Path, quick: bool = False) -> Tally:
    """Run both trials; the quick one only replays requests."""
    tally = Tally()
    for trial in (replayed_requests, *(() if quick else (killed_and_strange,))):
        place = folder / trial.__name__
        place.mkdir()
        tally.trials += 1
        try:
            trial(tally, place)
        except AssertionError as problem:
            tally.fail("wrong", f"{trial.__name__}: {problem}")
    return tally


def settings(wait: float = 0.5) -> dict[str, Any]:
    """Return the settings of a run whose clients keep state."""
    config = tables(correction={"name": "scaffold"}, evaluation={"every": 0}, engine={"wait": wait})
    config["method"] |= {"rounds": 2, "epochs": 1}
    return config


def model_of(run: Path) -> bytes:
    return (run / "model.safetensors").read_bytes()


def local_model(folder: Path) -> bytes:
    """Return the model of the same settings in one process."""
    more = {"data": {"name": str(folder / "all.npz")}, "engine": {"workers": 0}}
    return model_of(api.run(settings(), settings=more, out=folder / "local").path)


class Replaying(InProcessSites):
    """Sites to which every request is sent twice; the coordinator gets the second answer."""

    def send(self, node: int, envelope: Envelope) -> str:
        if node in self.servers:
            self.servers[node].answer(Envelope.parse(envelope.head_text(), bytearray(envelope.body)))
        return super().send(node, envelope)


def replayed_requests(tally: Tally, folder: Path) -> None:
    sites = Replaying(*connected_sites(folder).servers.values())
    run = coordinated(sites, settings(), folder / "run").path
    tally.facts["replayed_requests"] = len(sites.sent)
    assert model_of(run) == local_model(folder), "requests that were sent twice changed the model"


def killed_and_strange(tally: Tally, folder: Path) -> None:
    files, config = site_files(folder, ["a", "b"]), folder / "my.toml"
    config.write_text(dump_toml(settings(900)))
    make_keys(folder / "keys", [], ["a", "b", "c"])
    make_keys(folder / "others", [], ["mallory"])
    address = f"127.0.0.1:{free_port()}"
    with running_programs(folder) as programs:
        command = fedwild("coordinate", config, "--listen", address, "--certificates", "keys", "--out", "run")
        coordinator = programs.start(command, "coordinator")
        sites = {name: programs.site(name, files[name], address, *key(folder, name)) for name in ("a", "b")}
        programs.wait_until((folder / "run" / "checkpoints" / "000001.safetensors").exists, "the first checkpoint")
        killed = [*coordinator.kill(), *sites["b"].kill()]
        wait_until(lambda: have_ended(killed), "the end of killed processes", 60)
        strangers(programs, folder, files["a"], address, tally)
        programs.site("b", files["b"], address, *key(folder, "b"), log="site-b-again")
        resumed = programs.start(fedwild("resume", "run"), "resumed")
        wait_until((folder / "run" / "result.json").exists, "the result")
        wait_until(lambda: "its key is registered for 'c'" in resumed.output(), "the rejection of the false name")
        for program in programs.programs:
            if "Traceback" in program.output():
                tally.fail("tracebacks", f"{' '.join(program.command[3:5])}: {program.output()[-300:]!r}")
    assert model_of(folder / "run") == local_model(folder), "the model differs after two kills"
    damaged = [row.file for row in verify_run(folder / "run") if not row.good]
    assert not damaged, f"damaged after two kills: {damaged}"


def key(folder: Path, name: str, keys: str = "keys") -> list[object]:
    return ["--ca", folder / "keys" / "ca.pem", "--key", folder / keys / "sites" / f"{name}.key"]


def strangers(programs: Programs, folder: Path, data: Path, address: str, tally: Tally) -> None:
    """Start a site with a key that is not registered, and one that gives another name than its key."""
    programs.site("mallory", data, address, *key(folder, "mallory", "others"))
    programs.site("d", data, address, *key(folder, "c"))
    tally.facts["strangers"] = 2
