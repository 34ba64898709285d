"""FedOV's speed: local training against a plain PyTorch formulation, and the ensemble against its distilled student.

    python -m benchmarks.fedov [--quick]

Prints one JSON object. CPU seconds of one thread; the two formulations alternate, and the smallest time of each counts.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedwild.engines.threads import single_thread
from fedwild.methods.fedov.voting import stacked_outputs
from fedwild.models import Network, build, kernels
from fedwild.openset.adversarial import enhance
from fedwild.openset.outliers import OUTLIERS
from fedwild.training.objectives import OutlierAware

BATCH, CLASSES = 64, 10
SHAPES = {"mnist": (1, 28, 28), "cifar-10": (3, 32, 32)}
WANTED = {"mnist": 0.40, "cifar-10": 0.70}


def plain_loss(model: Network, x: Tensor, y: Tensor, destroyed: Tensor, lam: float, partner: Tensor) -> Tensor:
    """The loss as one writes it down from the paper: a pass per term, PyTorch's own layers, autograd throughout."""
    unknown = torch.full_like(y, CLASSES)
    hidden = model.upto(x, "fc1")
    logits = model.after(hidden, "fc1")
    loss = F.cross_entropy(logits, y)
    loss = loss + F.cross_entropy(logits.scatter(1, y.unsqueeze(1), -1e9), unknown)
    differ = y != y[partner]
    mixed = model.after((lam * hidden + (1 - lam) * hidden[partner])[differ], "fc1")
    loss = loss + 0.01 * F.cross_entropy(mixed, unknown[differ])
    loss = loss + F.cross_entropy(model(destroyed), unknown)
    moved = destroyed
    for _ in range(5):
        moved = moved.detach().requires_grad_(True)
        (gradient,) = torch.autograd.grad(F.cross_entropy(model(moved), unknown), moved)
        moved = moved + 0.002 * gradient.sign()
    return loss + F.cross_entropy(model(moved.detach()), unknown)


class Bench:
    """One network, one batch, and a training step in both formulations."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        torch.manual_seed(0)
        self.model = build("simple-cnn", shape, CLASSES + 1)
        self.objective = OutlierAware(OutlierAware.Params())
        self.optimiser = torch.optim.Adam(self.model.parameters(), lr=1e-3, weight_decay=1e-5, fused=True)
        self.x, self.y = torch.rand(BATCH, *shape), torch.randint(0, CLASSES, (BATCH,))
        self.draws = torch.Generator().manual_seed(0)

    def ours(self) -> None:
        self.step(self.objective.loss(self.model, self.x, self.y, self.draws))

    def plain(self) -> None:
        with kernels.plain():
            self.step(self.plainly())

    def plainly(self) -> Tensor:
        destroyed = OUTLIERS["destruction"](self.x, self.draws)
        lam = float(torch.rand((), generator=self.draws))
        partner = torch.randperm(BATCH, generator=self.draws)
        return plain_loss(self.model, self.x, self.y, destroyed, lam, partner)

    def step(self, loss: Tensor) -> None:
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self.optimiser.step()

    def largest_difference(self) -> float:
        """Between the two formulations' gradients from the same draws, relative to the largest entry of each tensor."""
        gradients = []
        for formulation in (self.plainly, lambda: self.objective.loss(self.model, self.x, self.y, self.draws)):
            self.draws.manual_seed(1)
            self.model.zero_grad()
            formulation().backward()
            gradients.append([parameter.grad.clone() for parameter in self.model.parameters()])  # type: ignore[union-attr]
        return max(float((a - b).abs().max() / a.abs().max()) for a, b in zip(*gradients, strict=True))

    def parts(self, repeats: int) -> dict[str, float]:
        """Milliseconds of a step's parts."""
        destroyed = OUTLIERS["destruction"](self.x, self.draws)
        batches = [destroyed, destroyed + 0.01]

        def learn() -> None:
            self.step(self.objective.total(self.objective.terms(self.model, self.x, self.y, batches, self.draws)))

        parts: dict[str, Callable[[], object]] = {
            "destruction": lambda: OUTLIERS["destruction"](self.x, self.draws),
            "adversarial_steps": lambda: enhance(self.model, destroyed, 5, 0.002),
            "forward_backward_update": learn,
        }
        return {name: 1000 * smallest(part, repeats) for name, part in parts.items()}


def smallest(work: Callable[[], object], repeats: int, each: int = 8) -> float:
    """The smallest CPU time of a call, over repeats of a few calls."""
    times = []
    for _ in range(repeats):
        begin = time.process_time()
        for _ in range(each):
            work()
        times.append((time.process_time() - begin) / each)
    return min(times)


def training(shape: tuple[int, ...], wanted: float, repeats: int) -> dict[str, Any]:
    """Seconds per 1,000 samples and epoch in both formulations, and where ours spends them."""
    bench = Bench(shape)
    difference = bench.largest_difference()
    bench.ours()
    # In a process of its own, since an ordinary program does not have the engine's memory settings.
    with multiprocessing.get_context("spawn").Pool(1) as ordinary:
        ordinary.apply(plain_seconds, (shape,))
        pairs = [(ordinary.apply(plain_seconds, (shape,)), smallest(bench.ours, 1)) for _ in range(repeats)]
    plain, ours = (min(times) * 1000 / BATCH for times in zip(*pairs, strict=True))
    return {
        "plain_s_per_1000": plain,
        "ours_s_per_1000": ours,
        "wanted_s_per_1000": wanted,
        "ratio": plain / ours,
        "gradient_difference": difference,
        "ms_per_step": bench.parts(repeats),
    }


@cache
def ordinary_bench(shape: tuple[int, ...]) -> Bench:
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    return Bench(shape)


def plain_seconds(shape: tuple[int, ...]) -> float:
    """CPU seconds of a step in the plain formulation."""
    return smallest(ordinary_bench(shape).plain, 1)


def two_workers(seconds: float = 4.0) -> float:
    """Steps per second of two processes together over those of one alone."""
    context = multiprocessing.get_context("spawn")
    rates = []
    for count in (1, 2):
        with context.Pool(count) as pool:
            rates.append(sum(pool.map(steps_per_second, [seconds] * count, chunksize=1)))
    return rates[1] / rates[0]


def steps_per_second(seconds: float) -> float:
    single_thread()
    bench = Bench(SHAPES["mnist"])
    for _ in range(5):
        bench.ours()
    begin, steps = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        bench.ours()
        steps += 1
    return steps / (time.perf_counter() - begin)


def inference(repeats: int) -> dict[str, Any]:
    """Milliseconds per 1,000 samples: N models voting, by loop and by vmap, and one student."""
    x = torch.rand(250, 1, 28, 28)
    student = build("simple-cnn", (1, 28, 28), CLASSES).eval()
    report: dict[str, Any] = {}
    with torch.inference_mode():
        report["student_ms"] = 4000 * smallest(lambda: student(x), repeats, 2)
        for count in (10, 80):
            models = [build("simple-cnn", (1, 28, 28), CLASSES + 1).eval() for _ in range(count)]
            report[f"{count}_models_ms"] = 4000 * smallest(partial(stacked_outputs, models, x), repeats, 1)
            report[f"{count}_models_vmap_ms"] = 4000 * smallest(by_vmap(models, x), max(1, repeats // 3), 1)
    return report


def by_vmap(models: list[Network], x: Tensor) -> Callable[[], Tensor]:
    """All models as one batched network."""
    parameters, buffers = torch.func.stack_module_state(models)

    def forward(weights: dict[str, Tensor], rest: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(models[0], (weights, rest), (x,))

    def run() -> Tensor:
        with kernels.plain():
            return torch.vmap(forward)(parameters, buffers)

    return run


def gemm_peak() -> float:
    """GFLOP/s of a large matrix product on one thread."""
    a = torch.rand(1024, 1024)
    return 2 * 1024**3 / smallest(lambda: a @ a, 5) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repeats: noisier")
    repeats = 3 if parser.parse_args().quick else 12
    single_thread()
    report: dict[str, Any] = {"gemm_peak_gflops": gemm_peak()}
    for name, shape in SHAPES.items():
        report[name] = training(shape, WANTED[name], repeats)
    report["inference_ms_per_1000"] = inference(repeats)
    report["two_workers_speedup"] = two_workers()
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
