"""What secure sums cost, as a ratio to plain rounds.

    python -m benchmarks.secure [--quick]

FedAvg on MNIST-shaped data with 2 workers, 10 and 100 clients of 100 samples each, one round. Of the clients, 0, 10 and
30 % drop out after they have shared their keys, which is the most expensive moment: their masks are removed from the
sum one by one. The plain round loses the same clients. `time_ratio` is the wall-clock time of the round, including the
work of all clients on this machine. `client_ms` is the processor time of all steps at one client, `server_ms` that of
unmasking the sum at the server. Bytes are those of all messages of the round.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from fedwild.aggregation.secure.protocol import ClientRound
from fedwild.aggregation.secure.unmasking import ServerRound
from fedwild.api import configure
from fedwild.contract.engine import Answer, Job
from fedwild.engines.executor import Executor
from fedwild.engines.local import LocalEngine
from fedwild.lifecycle.rounds import Federation
from fedwild.runs.experiment import Experiment, fingerprint, prepare
from fedwild.runs.folder import RunFolder

SAMPLES = 100
DROPPED = (0.0, 0.1, 0.3)


class Losing(LocalEngine):
    """Two workers; the replies of some clients to their training jobs are lost."""

    def __init__(self, executor: Executor, lost: Sequence[str]) -> None:
        super().__init__(executor, 2)
        self.lost = lost

    def run(self, jobs: Iterable[Job], started: Callable[[Job], None] = lambda job: None) -> Iterator[Answer]:
        for answer in super().run(jobs, started):
            if answer.job.kind in ("local", "masked") and answer.job.client in self.lost:
                yield Answer(answer.job, error="lost")
            else:
                yield answer


def experiment_of(clients: int, secure: str, model: str) -> Experiment:
    """Return one round of FedAvg, measured on few samples."""
    settings = ["evaluation.every=0", "data.test_samples=50", "data.validation=0", "method.rounds=1", "method.epochs=1"]
    return prepare(
        configure(
            data=f"synthetic:28x28x1:10:{SAMPLES * clients}",
            partition="iid",
            clients=clients,
            model=model,
            settings=[*settings, f"federation.secure={secure}"],
        )
    )


def measure(clients: int, secure: str, dropped: float, model: str) -> dict[str, float]:
    """Run one round and return its seconds and bytes."""
    experiment = experiment_of(clients, secure, model)
    names = sorted(client.name for client in experiment.split.clients)
    found: dict[str, Any] = {}

    def connect(executor: Executor) -> Losing:
        return Losing(executor, names[: round(dropped * clients)])

    def listen(event: dict[str, Any]) -> None:
        if event["event"] == "round":
            found["seconds"] = event["seconds"]

    with tempfile.TemporaryDirectory() as folder, timed_unmasking(found):
        facts = {"data": fingerprint(experiment.dataset)}
        run = RunFolder.create(Path(folder) / "run", "bench", experiment.config.to_toml(), experiment.split, facts)
        result = Federation(experiment, run, listen, connect).run()
    return {**found, "up": result["bytes_up"], "down": result["bytes_down"]}


@contextlib.contextmanager
def timed_unmasking(found: dict[str, Any]) -> Iterator[None]:
    """Measure the size of the sum, and how long the server takes to unmask it."""
    plain = ServerRound.unmask

    def unmask(self: ServerRound, total: np.ndarray, revealed: Any) -> None:
        begin = time.process_time()
        plain(self, total, revealed)
        found["server"], found["size"] = time.process_time() - begin, len(total)

    with mock.patch.object(ServerRound, "unmask", unmask):
        yield


def client_seconds(clients: int, size: int) -> float:
    """Return the processor time of one client's steps with a vector of this size."""
    rounds = {f"client-{i:03d}": ClientRound("round", f"client-{i:03d}") for i in range(clients)}
    keys = {name: client.keys for name, client in rounds.items()}
    threshold = clients * 2 // 3 + 1
    name, *others = rounds
    sealed = {other: rounds[other].share(keys, threshold).sealed[name] for other in others}
    begin = time.process_time()
    one = ClientRound.from_json(rounds[name].to_json())
    one.share(keys, threshold)
    one.mask(np.zeros(size, dtype=np.uint64), list(rounds))
    one.reveal(list(rounds), sealed)
    return time.process_time() - begin


def compare(clients: int, dropped: float, model: str, repeats: int) -> dict[str, float]:
    """Return ratios of secure to plain rounds: medians over alternating repeats."""
    pairs = [[measure(clients, secure, dropped, model) for secure in ("no", "required")] for _ in range(repeats)]

    def median(value: Callable[[dict[str, float], dict[str, float]], float]) -> float:
        return statistics.median(value(plain, secure) for plain, secure in pairs)

    return {
        "clients": clients,
        "dropped": dropped,
        "size": median(lambda plain, secure: secure["size"]),
        "plain_s": round(median(lambda plain, secure: plain["seconds"]), 2),
        "secure_s": round(median(lambda plain, secure: secure["seconds"]), 2),
        "time_ratio": round(median(lambda plain, secure: secure["seconds"] / plain["seconds"]), 2),
        "client_ms": round(1000 * median(lambda plain, secure: client_seconds(clients, int(secure["size"]))), 1),
        "server_ms": round(1000 * median(lambda plain, secure: secure["server"]), 1),
        "up_ratio": round(median(lambda plain, secure: secure["up"] / plain["up"]), 2),
        "down_ratio": round(median(lambda plain, secure: secure["down"] / plain["down"]), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="10 clients, one repeat")
    parser.add_argument("--model", default="simple-cnn")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    repeats = 1 if options.quick else options.repeats
    for clients in (10,) if options.quick else (10, 100):
        for dropped in DROPPED:
            print(json.dumps(compare(clients, dropped, options.model, repeats)), flush=True)


if __name__ == "__main__":
    main()
