"""What aligning models costs: FedPD's digit network (14 M weights), five clients, the others aligned to the first.

    python -m benchmarks.alignment [--quick]

Prints one JSON object. CPU seconds of one thread, each measurement in a process of its own, the smallest of repeats.

1. `align`: by whole weights without and with sweeps, by three parts, by two subnetworks; for clients with random
   weights of their own (the hardest case) and for clients that left a common start by a little (as after a round).
   Wanted: at most 8 s for the five of them, and a peak below 1 GB above the models.
2. `solver`: the exact assignment against POT's optimal transport and against plain scipy, on costs of fc1's neurons.
   Wanted: the same permutation.
3. `costs`: squared distances by one matrix product against the naive difference of all pairs, on conv3's neurons.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import os
import resource
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ParamSpec, TypeVar
from unittest import mock

import psutil
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from benchmarks.fedov import gemm_peak, smallest
from fedwild.engines.threads import single_thread
from fedwild.methods.fedpd import matching
from fedwild.methods.fedpd.parts import Aligned, Alignment, Disentangled, align_three, align_two, align_whole
from fedwild.methods.fedpd.solvers import solve_assignment
from fedwild.methods.fedpd.subnetworks import Masks, top_mask, weight_names
from fedwild.models import LayerGraph, build

SHAPE, OUTPUTS = (3, 28, 28), 7
CASES = ("different", "noisy")
NOISE = 1e-3
"""Of a weight in the noisy case; fc1's weights have a standard deviation of 7e-3."""

P = ParamSpec("P")
R = TypeVar("R")


def clients(case: str, count: int) -> Iterator[Disentangled]:
    """Models with subnetworks that keep half of each layer's weights, and that agree where the models do."""
    for number in range(count):
        torch.manual_seed(number if case == "different" else 0)
        network = build("digit-cnn", SHAPE, OUTPUTS)
        state = {name: tensor.clone() for name, tensor in network.state_dict().items()}
        names = weight_names(network.graph())
        close, open_ = (importance(state, names) for _ in range(2))
        own = torch.Generator().manual_seed(number)
        for name in names:
            noise = NOISE * torch.randn(state[name].shape, generator=own)
            state[name] += noise
            for scores in (close, open_):
                scores[name] += 0.1 * noise.abs()
        yield Disentangled(state, *({name: top_mask(score, 0.5) for name, score in s.items()} for s in (close, open_)))


def importance(state: dict[str, Tensor], names: tuple[str, ...]) -> Masks:
    return {name: state[name].abs() * torch.rand(state[name].shape) for name in names}


Align = Callable[[LayerGraph, Disentangled, Disentangled], Aligned]


def by_whole(sweeps: int, graph: LayerGraph, model: Disentangled, target: Disentangled) -> Aligned:
    return align_whole(Alignment(graph, assignment_timed, sweeps), model.state, target.state)


def by_three(graph: LayerGraph, model: Disentangled, target: Disentangled) -> Aligned:
    return align_three(Alignment(graph, assignment_timed), model, target, "kept")


def by_two(graph: LayerGraph, model: Disentangled, target: Disentangled) -> Aligned:
    return align_two(Alignment(graph, assignment_timed), model, target, "kept")


WAYS: dict[str, Align] = {
    "whole": partial(by_whole, 0),
    "whole_5_sweeps": partial(by_whole, 5),
    "three_parts": by_three,
    "two_subnetworks": by_two,
}
SPENT: defaultdict[str, float] = defaultdict(float)


def timed(name: str, function: Callable[P, R]) -> Callable[P, R]:
    """The same function; its CPU seconds add up in SPENT."""

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        begin = time.process_time()
        try:
            return function(*args, **kwargs)
        finally:
            SPENT[name] += time.process_time() - begin

    return call


assignment_timed = timed("solver", solve_assignment)


def align_all(case: str, way: str, count: int) -> dict[str, Any]:
    """Seconds and peak memory of aligning all clients but the first to the first, and where the seconds go."""
    single_thread()
    models = list(clients(case, count))
    graph = build("digit-cnn", SHAPE, OUTPUTS).graph()
    before = psutil.Process().memory_info().rss
    with mock.patch.object(matching, "squared_distances", timed("costs", matching.squared_distances)):
        begin = time.process_time()
        for model in models[1:]:
            result = WAYS[way](graph, model, models[0])
        seconds = time.process_time() - begin
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    parts = {f"{name}_s": value for name, value in sorted(SPENT.items())}
    return {"seconds": seconds, **parts, "peak_mb": peak / 2**20, "moved_last": result.moved}


def smallest_of(case: str, way: str, count: int, repeats: int) -> dict[str, Any]:
    """The repeat that took the least time; each in a new process."""
    return min((alone(align_all, case, way, count) for _ in range(repeats)), key=lambda found: found["seconds"])


def alone(work: Callable[..., Any], *args: Any) -> Any:
    with multiprocessing.get_context("spawn").Pool(1) as process:
        return process.apply(work, args)


def solver(n: int, masked: bool, repeats: int) -> dict[str, Any]:
    """One assignment of the first n neurons of fc1 in two different models."""
    single_thread()
    weights = []
    for model in clients("different", 2):
        weight = model.state["fc1.fc.weight"]
        weights.append((weight * model.part("share")("fc1.fc.weight") if masked else weight)[:n])
    costs = matching.squared_distances(*weights)
    found = solve_assignment(costs)
    report: dict[str, Any] = {"n": n, "weights": "shared part" if masked else "whole"}
    report["ours_ms"] = 1000 * smallest(lambda: solve_assignment(costs), repeats, 1)
    report["scipy_ms"] = 1000 * smallest(lambda: linear_sum_assignment(costs.double().numpy()), repeats, 1)
    if importlib.util.find_spec("ot") is not None:
        import ot

        masses, doubles = torch.full((n,), 1 / n, dtype=torch.float64).numpy(), costs.double().numpy()
        exact = partial(ot.emd, masses, masses, doubles, numItermax=10**7)
        report["pot_ms"] = 1000 * smallest(exact, 1, 1)
        report["pot_over_ours"] = report["pot_ms"] / report["ours_ms"]
        theirs = torch.from_numpy(exact()).argmax(dim=1)
        report["same_permutation"] = torch.equal(found, theirs)
        places = torch.arange(n)
        report["cost_over_pot_minus_1"] = float(
            costs.double()[places, found].sum() / costs.double()[places, theirs].sum() - 1
        )
    return report


def costs(repeats: int) -> dict[str, Any]:
    """conv3: 128 neurons of 1,600 weights. For fc1's 2,048 neurons of 6,272 weights the naive tensor has 105 GB."""
    single_thread()
    a, b = (model.state["conv3.conv.weight"].flatten(1) for model in clients("different", 2))

    def naive(a: Tensor, b: Tensor) -> Tensor:
        return (a[:, None] - b[None]).square().sum(dim=2)

    ours_s, naive_s = (
        smallest(partial(way, a, b), repeats, each) for way, each in ((matching.squared_distances, 20), (naive, 1))
    )
    exact = naive(a.double(), b.double())
    return {
        "ours_ms": 1000 * ours_s,
        "naive_ms": 1000 * naive_s,
        "ratio": naive_s / ours_s,
        "largest_relative_error": float(((matching.squared_distances(a, b) - exact) / exact).abs().max()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two clients instead of five, one repeat: noisier")
    quick = parser.parse_args().quick
    count, repeats = (2, 1) if quick else (5, 3)
    single_thread()
    report: dict[str, Any] = {"load_average": os.getloadavg()[0], "gemm_peak_gflops": gemm_peak(), "clients": count}
    report["align"] = {case: {way: smallest_of(case, way, count, repeats) for way in WAYS} for case in CASES}
    sizes = (128, 512) if quick else (128, 512, 2048)
    report["solver"] = [alone(solver, n, masked, repeats) for n in sizes for masked in (False, True)]
    report["costs"] = alone(costs, repeats)
    report["load_average_after"] = os.getloadavg()[0]
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
