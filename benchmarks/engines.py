"""What it costs to carry payloads to clients and back: in processes, through Ray, and to real sites through Flower.

    python -m benchmarks.engines [--quick] [--only packing|round_trips|fedavg] [--engines local,ray,flower]

1. Packing 45 MB in 600 tensors into bytes and back (at most 0.1 s).
2. A round with two clients that send back what they get: 250 kB, 5 MB and 45 MB, by engine. Flower's sites are real:
   a SuperLink, two SuperNodes with TLS and keys, all on 127.0.0.1.
3. FedAvg with 10 clients, Ray against local, two workers each, without start-up (at most 1.15x).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.echo import Echo, blob
from fedwild import api
from fedwild.core.payload import Payload
from fedwild.core.toml import dump_toml
from fedwild.sites.keys import make_keys
from fedwild.sites.processes import free_port

SIZES = {"250 kB": (250, 10), "5 MB": (5_000, 60), "45 MB": (45_000, 600)}
"""Kilobytes and tensors of a payload."""
ROOT = Path(__file__).resolve().parent.parent


# --- packing ----------------------------------------------------------------------------------------------


def packing(repeats: int) -> dict[str, float]:
    """Seconds to make 45 MB in 600 tensors into bytes, and to read them: the fastest of several, by the clock."""
    payload = Payload.of(blob=blob(*SIZES["45 MB"]))
    encode, decode = [], []
    for _ in range(repeats):
        begin = time.perf_counter()
        data = payload.encode()
        middle = time.perf_counter()
        Payload.decode(data)
        decode.append(time.perf_counter() - middle)
        encode.append(middle - begin)
    return {"megabytes": len(data) / 1e6, "encode_s": min(encode), "decode_s": min(decode), "wanted_s": 0.1}


# --- round trips ------------------------------------------------------------------------------------------


def echo_settings(size: str, rounds: int) -> dict[str, Any]:
    kilobytes, tensors = SIZES[size]
    return {
        "method": {"name": Echo.name, "kilobytes": kilobytes, "tensors": tensors, "rounds": rounds},
        "model": {"name": "mlp", "hidden": [4]},
        "evaluation": {"every": 0},
    }


def round_trip(run: Path) -> dict[str, float]:
    """Median seconds of a round after the first, and bytes per client, from a run's log."""
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    seconds = [event["seconds"] for event in events if event["event"] == "round"]
    clients = [event for event in events if event["event"] == "client"]
    return {
        "first_s": seconds[0],
        "seconds": statistics.median(seconds[1:]),
        "bytes_down": clients[-1]["bytes_down"],
        "bytes_up": clients[-1]["bytes_up"],
    }


def here(engine: str, rounds: int, folder: Path) -> dict[str, dict[str, float]]:
    """Round trips on this machine's own engines."""
    measured = {}
    for size in SIZES:
        settings = {**echo_settings(size, rounds), "engine": {"name": engine, "workers": 2}}
        out = folder / f"{engine}-{size.replace(' ', '')}"
        api.run(settings, data="digits", clients=2, out=out)
        measured[size] = round_trip(out)
    return measured


def at_sites(rounds: int, folder: Path) -> dict[str, dict[str, float]]:
    """Round trips to two real sites, which stay while three runs come and go."""
    make_keys(folder / "keys", [], ["a", "b"])
    address = f"127.0.0.1:{free_port()}"
    measured = {}
    with contextlib.ExitStack() as programs:
        for name, seed in (("a", 0), ("b", 1)):
            data = folder / f"{name}.npz"
            rng = np.random.default_rng(seed)
            labels = np.arange(80) % 4
            np.savez(data, x_train=rng.integers(0, 255, (80, 8, 8), dtype=np.uint8), y_train=labels)
            keys = ["--ca", folder / "keys/ca.pem", "--key", folder / f"keys/sites/{name}.key"]
            site = ["site", "--superlink", address, "--data", data, "--name", name, "--folder", folder / f"site-{name}"]
            programs.enter_context(fedwild(*site, *keys, "--wait", "300", log=folder / f"{name}.log"))
        for size in SIZES:
            config, out = folder / "config.toml", folder / f"flower-{size.replace(' ', '')}"
            config.write_text(dump_toml(echo_settings(size, rounds)))
            place = ["--listen", address, "--certificates", folder / "keys", "--out", out]
            with fedwild("coordinate", config, *place, log=folder / "coordinator.log") as process:
                if process.wait(900):
                    raise RuntimeError((folder / "coordinator.log").read_text())
            measured[size] = round_trip(out)
    return measured


@contextlib.contextmanager
def fedwild(*arguments: object, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A fedwild command under way, ended afterwards."""
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "fedwild", *map(str, arguments)], cwd=ROOT, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.wait(60)


# --- FedAvg -----------------------------------------------------------------------------------------------


def fedavg(pairs: int, rounds: int, folder: Path) -> dict[str, Any]:
    """Seconds of a round of FedAvg with ten clients, Ray and local in turn; the first round of each is start-up."""
    seconds: dict[str, list[float]] = {"local": [], "ray": []}
    for pair in range(pairs):
        for engine in ("local", "ray"):
            out = folder / f"fedavg-{engine}-{pair}"
            settings = {
                "data": {"name": "synthetic:28x28x1:10:6000", "known": 6},
                "partition": {"name": "iid"},
                "model": {"name": "simple-cnn"},
                "method": {"name": "fedavg", "epochs": 1, "batch_size": 64},
                "evaluation": {"every": 0},
                "engine": {"name": engine, "workers": 2},
            }
            api.run(settings, clients=10, rounds=rounds + 1, out=out)
            events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
            times = [event["seconds"] for event in events if event["event"] == "round"]
            seconds[engine].append(statistics.median(times[1:]))
    ratios = [ray / local for ray, local in zip(seconds["ray"], seconds["local"], strict=True)]
    return {"seconds": seconds, "ratios": ratios, "ratio": statistics.median(ratios), "wanted": 1.15}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--only", choices=["packing", "round_trips", "fedavg"])
    parser.add_argument("--engines", default="local,ray,flower", help="for round_trips")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    rounds = 3 if options.quick else 6
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="fedwild-bench-") as name:
        folder = Path(name)
        if options.only in (None, "packing"):
            figures["packing"] = packing(5 if options.quick else 20)
        if options.only in (None, "round_trips"):
            figures["round_trips"] = {
                engine: at_sites(rounds, folder) if engine == "flower" else here(engine, rounds, folder)
                for engine in options.engines.split(",")
            }
        if options.only in (None, "fedavg"):
            figures["fedavg"] = fedavg(2 if options.quick else 5, rounds, folder)
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
