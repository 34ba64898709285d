"""FedOSS's speed: sampling by lengths against ranking by density, and a fine-tuning step against a plain one.

    python -m benchmarks.fedoss [--quick]

Prints one JSON object. CPU seconds of one thread; what is compared alternates, and the smallest time of each counts.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from benchmarks.fedov import smallest
from fedwild.aggregation import Mean
from fedwild.contract import Client, Step, Task
from fedwild.core.payload import Payload
from fedwild.core.rng import Rng
from fedwild.data import Samples
from fedwild.engines.threads import single_thread
from fedwild.methods.fedoss.boundary import InformedAgreement
from fedwild.methods.fedoss.finetune import Finetune
from fedwild.methods.fedoss.heads import Layouts, make_branch
from fedwild.methods.fedoss.settings import BranchKind, FedOSSParams
from fedwild.methods.fedoss.synthesis import PersonalTraining
from fedwild.models import Network, build
from fedwild.statistics import Gaussian, compute_moments, draw_least_likely
from fedwild.training.corrections import ClientCorrection, Correction
from fedwild.training.loop import PLAIN, Descent, LocalTraining
from fedwild.training.objectives import CrossEntropy

CLASSES, HEADS, BATCH = 5, 8, 32
NETWORKS: dict[str, dict[str, Any]] = {"simple-cnn": {}, "digit-cnn": {"width": 0.25}, "resnet-18": {"width": 16}}
SHAPE = (3, 28, 28)


def sampling(repeats: int, dims: int = 1024, draws: int = 100, keep: int = 6) -> dict[str, Any]:
    """Milliseconds for the least likely of a class's draws: ours, and by the density of torch's own distribution."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(3 * dims, dims, generator=generator) @ torch.randn(dims, dims, generator=generator) / 30
    report: dict[str, Any] = {}
    for name, rows in (("full", 3 * dims), ("thin", 200)):
        gaussian = Gaussian.of(compute_moments(features[:rows]))
        rng = np.random.default_rng(0)
        covariance = torch.cov(features.T) + 1e-4 * torch.eye(dims)
        mean = features.mean(0)

        def ours(gaussian: Gaussian = gaussian, rng: np.random.Generator = rng) -> Tensor:
            return gaussian.transform(draw_least_likely(dims, draws, keep, rng))

        def by_density(mean: Tensor = mean, covariance: Tensor = covariance) -> Tensor:
            # As it is usually written: the distribution is made from the covariance that arrived, for every batch.
            distribution = torch.distributions.MultivariateNormal(mean, covariance)
            x = distribution.sample((draws,))
            return x[distribution.log_prob(x).argsort()[:keep]]

        def by_density_once(
            distribution: Any = torch.distributions.MultivariateNormal(mean, covariance),
        ) -> Tensor:
            x = distribution.sample((draws,))
            return x[distribution.log_prob(x).argsort()[:keep]]

        times = {"ours_ms": 1e3 * smallest(ours, repeats)}
        times["log_prob_ms"] = 1e3 * smallest(by_density, repeats, 1)
        times["log_prob_distribution_kept_ms"] = 1e3 * smallest(by_density_once, repeats, 2)
        report[name] = {
            **times,
            "ratio": times["log_prob_ms"] / times["ours_ms"],
            "ratio_distribution_kept": times["log_prob_distribution_kept_ms"] / times["ours_ms"],
        }
    return report


class Everything(InformedAgreement):
    """Pushes all samples, as in the most expensive batch. The heads answer all the same."""

    def __call__(self, model: Network, h: Tensor, y: Tensor, draws: torch.Generator) -> Tensor:
        return super().__call__(model, h, y, draws) | True


def no_samples(part: str) -> Samples:
    return Samples(torch.empty(0, *SHAPE), torch.empty(0).long(), torch.empty(0).long())


def step(name: str, params: dict[str, Any], branch: BranchKind, repeats: int) -> dict[str, Any]:
    """Milliseconds of a training step: plain, pre-training with a personal head, and fine-tuning with DUSS and FOSS."""
    torch.manual_seed(0)
    model = build(name, SHAPE, CLASSES + 1, params=params).train()
    settings = FedOSSParams(branch=branch, boundary="all")
    task, layouts = Task(SHAPE, name, params), Layouts(settings)
    layout = layouts.of(task, CLASSES)
    x, y = torch.rand(BATCH, *SHAPE), torch.randint(0, CLASSES, (BATCH,))
    training = LocalTraining(optimizer="adam", lr=1e-5)
    head = make_branch(settings.branch, model, layout.cut, CLASSES)
    personal = PersonalTraining(layout.cut, head, training.optimiser(head), torch.zeros(CLASSES))

    payload = Payload(info={"held": {f"client-{i}": list(range(CLASSES)) for i in range(HEADS)}})
    for i in range(HEADS):
        payload.put(f"bank/client-{i}", make_branch(settings.branch, model, layout.cut, CLASSES).state_dict())
    for k in range(CLASSES):
        payload.put(f"gaussians/{k}", Gaussian.of(compute_moments(torch.rand(300, layout.grid.dims))).tensors())
    phase = Finetune("finetune", 1, settings, Correction(Correction.Params()), Mean(Mean.Params()), layouts)
    classes = tuple(str(k) for k in range(CLASSES))
    client = Client("client-0", task, Step("finetune", 0, 0), classes, no_samples, {})
    phase.rule = Everything
    synthesis = phase.synthesis(personal, payload, client, model, Rng(0))
    synthesis.epoch(0)
    optimiser, draws = training.optimiser(model), torch.Generator()
    objective = CrossEntropy(CrossEntropy.Params())

    def one(descent: Descent) -> None:
        descent.gradients(model, objective, ClientCorrection(), x, y, draws)
        optimiser.step()

    kinds = {"plain": PLAIN, "pretraining": personal, "finetuning": synthesis}
    for descent in kinds.values():
        one(descent)
    rounds = [{kind: smallest(partial(one, descent), 1, 4) for kind, descent in kinds.items()} for _ in range(repeats)]
    best = {kind: min(times[kind] for times in rounds) for kind in kinds}
    return {
        **{f"{kind}_ms": 1e3 * seconds for kind, seconds in best.items()},
        "pretraining_ratio": best["pretraining"] / best["plain"],
        "finetuning_ratio": best["finetuning"] / best["plain"],
        "dims": layout.grid.dims,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few repeats")
    repeats = 3 if parser.parse_args().quick else 15
    single_thread()
    report: dict[str, Any] = {"sampling": sampling(repeats)}
    for name, params in NETWORKS.items():
        for branch in get_args(BranchKind):
            report[f"{name} {branch}"] = step(name, params, branch, repeats)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
