"""What the local engine costs over bare PyTorch, per client, and with many clients.

    python -m benchmarks.engine [--quick]

Three measurements, each as a ratio in one run on a quiet machine with two cores:

1. FedAvg, 10 clients, simple-cnn, MNIST-shaped data, 2 workers, against a bare PyTorch loop over the same batches
   in two processes (at most 1.05x).
2. A client that does nothing with a 250 kB payload, down and up (at most 2 ms).
3. 1,000 clients against 10 with the same total data: peak memory (at most 1.2x) and time (at most 1.3x).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.echo import Echo
from fedwild.api import configure
from fedwild.contract.task import weights_of
from fedwild.core.rng import Rng
from fedwild.data import samples_of
from fedwild.engines.threads import single_thread
from fedwild.lifecycle.rounds import Federation
from fedwild.models import build
from fedwild.runs.experiment import Experiment, fingerprint, prepare
from fedwild.runs.folder import RunFolder

BATCH = 64


def experiment_of(samples: int, clients: int, rounds: int, method: str = "fedavg", epochs: int = 1) -> Experiment:
    """MNIST-shaped data, partitioned at random, evaluated once at the end on few samples."""
    settings = ["evaluation.every=0", "data.test_samples=200", "data.validation=0", f"method.rounds={rounds}"]
    if method == "fedavg":
        settings += [f"method.epochs={epochs}", f"method.batch_size={BATCH}"]
    config = configure(
        data=f"synthetic:28x28x1:10:{samples}",
        method=method,
        partition="iid",
        clients=clients,
        model="simple-cnn",
        workers=2,
        settings=settings,
    )
    return prepare(config)


def federated_seconds(experiment: Experiment) -> float:
    """Seconds from the first round's start to the last round's end, checkpoints included, evaluation not."""
    times: dict[str, float] = {}

    def listen(event: dict[str, Any]) -> None:
        if event["event"] == "start":
            times["begin"] = time.perf_counter()
        if event["event"] == "round":
            times["end"] = time.perf_counter() - event["evaluation_seconds"]

    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder.create(
            Path(folder) / "run",
            "bench",
            experiment.config.to_toml(),
            experiment.split,
            {"data": fingerprint(experiment.dataset)},
        )
        Federation(experiment, run, listen).run()
    return times["end"] - times["begin"]


def bare_worker(shares: dict[str, tuple[Tensor, Tensor]], lr: float, momentum: float, pipe: Connection) -> None:
    """What a careful person writes by hand: load the weights, loop over batches, send the weights back."""
    single_thread()
    model = build("simple-cnn", (1, 28, 28), 10)
    number = 0
    while True:
        weights = pipe.recv()
        if weights is None:
            return
        replies = []
        for name, (x, y) in shares.items():
            model.load_state_dict(weights)
            optimiser = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum, fused=True)
            # The engine's own key, so that the batches are the same.
            key = Rng(0).child("train", number, "client", name)
            order = torch.randperm(len(x), generator=key.torch("batches"))
            for rows in order.split(BATCH):
                loss = F.cross_entropy(model(x[rows]), y[rows])
                optimiser.zero_grad(set_to_none=True)
                loss.backward()
                optimiser.step()
            replies.append({key: tensor.clone() for key, tensor in model.state_dict().items()})
        pipe.send(replies)
        number += 1


def bare_seconds(experiment: Experiment, rounds: int) -> float:
    """The same clients, start and batches in two plain processes, with a plain mean (the clients are equally large)."""
    shares = {c.name: samples_of(experiment.dataset, c.train).all() for c in experiment.split.clients}
    context = multiprocessing.get_context("fork")
    single_thread()
    torch.optim.SGD([torch.zeros(1)], lr=1.0)
    pipes, processes = [], []
    params: Any = experiment.config.method.params
    for half in (dict(list(shares.items())[0::2]), dict(list(shares.items())[1::2])):
        ours, theirs = context.Pipe()
        process = context.Process(target=bare_worker, args=(half, params.lr, params.momentum, theirs))
        process.start()
        pipes.append(ours)
        processes.append(process)
    weights = weights_of(experiment.task.build(10, Rng(0).child("start")))
    begin = time.perf_counter()
    for _ in range(rounds):
        for pipe in pipes:
            pipe.send(weights)
        replies = [reply for pipe in pipes for reply in pipe.recv()]
        weights = {name: torch.stack([r[name] for r in replies]).mean(0) for name in weights}
    seconds = time.perf_counter() - begin
    for pipe, process in zip(pipes, processes, strict=True):
        pipe.send(None)
        process.join()
    return seconds


def against_bare(samples: int, rounds: int, repeats: int) -> dict[str, float]:
    """Ratio of FedAvg through the engine to the bare loop; the two alternate so that both see the same machine."""
    experiment = experiment_of(samples, 10, rounds)
    ours, bare = [], []
    for _ in range(repeats):
        bare.append(bare_seconds(experiment, rounds))
        ours.append(federated_seconds(experiment))
    ratios = [a / b for a, b in zip(ours, bare, strict=True)]
    return {
        "engine_s": statistics.median(ours),
        "bare_s": statistics.median(bare),
        "ratio": statistics.median(ratios),
        "ratio_of_minima": min(ours) / min(bare),
    }


def no_op(clients: int) -> dict[str, float]:
    seconds = federated_seconds(experiment_of(clients * 4, clients, 1, Echo.name))
    return {"ms_per_client": 1000 * seconds / clients}


def measured(samples: int, clients: int, rounds: int, epochs: int = 1) -> dict[str, float]:
    """Seconds and peak memory (proportional set size over all processes) of a run in a process of its own."""
    sizes = [str(number) for number in (samples, clients, rounds, epochs)]
    command = [sys.executable, "-m", "benchmarks.engine", "--child", *sizes]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    peak = 0
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        root = psutil.Process(child.pid)
        while not done.wait(0.05):
            total = 0
            try:
                for process in [root, *root.children(recursive=True)]:
                    total += process.memory_full_info().pss
            except psutil.Error:
                continue
            peak = max(peak, total)

    watcher = threading.Thread(target=watch)
    watcher.start()
    output, _ = child.communicate()
    done.set()
    watcher.join()
    return {"seconds": json.loads(output.splitlines()[-1])["seconds"], "peak_mb": peak / 1e6}


def many_clients(samples: int, rounds: int, repeats: int, epochs: int) -> dict[str, float]:
    few, many = [], []
    for _ in range(repeats):
        few.append(measured(samples, 10, rounds, epochs))
        many.append(measured(samples, 1000, rounds, epochs))
    seconds = [statistics.median(m["seconds"] for m in runs) for runs in (few, many)]
    memory = [statistics.median(m["peak_mb"] for m in runs) for runs in (few, many)]
    return {
        "seconds_10": seconds[0],
        "seconds_1000": seconds[1],
        "time_ratio": seconds[1] / seconds[0],
        "peak_mb_10": memory[0],
        "peak_mb_1000": memory[1],
        "memory_ratio": memory[1] / memory[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one repeat of one round: noisier, under a minute")
    parser.add_argument("--child", nargs=4, type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if arguments.child:
        samples, clients, rounds, epochs = arguments.child
        seconds = federated_seconds(experiment_of(samples, clients, rounds, epochs=epochs))
        print(json.dumps({"seconds": seconds}))
        return
    rounds, repeats = (1, 1) if arguments.quick else (3, 5)
    report = {
        "against_bare": against_bare(60_000, rounds, repeats),
        "no_op": no_op(1000),
        "many_clients_1_epoch": many_clients(60_000, rounds, max(1, repeats // 2), epochs=1),
        "many_clients_5_epochs": many_clients(60_000, 1, max(1, repeats // 2), epochs=5),
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
