"""Sample-level differential privacy. Abadi et al.: Deep learning with differential privacy. CCS 2016 (DP-SGD).

Each step draws its batch by Poisson sampling, clips the gradient of every sample and adds Gaussian noise to their sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedwild.data.samples import Samples
from fedwild.models import Network
from fedwild.models.kernels import plain
from fedwild.training.corrections.base import ClientCorrection
from fedwild.training.loop import PLAIN, Descent, LocalTraining
from fedwild.training.objectives import Objective

MAX_GRADIENT_NUMBERS = 2**23
"""The gradients of a batch are computed in parts of at most this many numbers (32 MB), at least one sample. Larger
parts do not fit into the processor's cache and take twice as long."""
SMALLEST_NORM = 1e-6
"""Added to every norm, so that a gradient of zero stays zero and rounding never exceeds the limit."""


class Protected:
    """A mix-in for phases that differential privacy can protect."""

    protects: ClassVar[tuple[str, ...]] = ()
    """The levels that hold for this phase. They do not hold for subclasses that override a function, unless these
    repeat them (`core.declared`).

    client: clients send the group `model` only, and `merge` replaces the server's group `model` by their mean.
    sample: clients use their samples only in the steps of `train` with `descent`.
    """
    descent: Descent = PLAIN
    """How the clients of this phase compute gradients. Sample-level privacy replaces it."""
    params: LocalTraining


def sampling_rate(batch_size: int, samples: int) -> float:
    """Return the probability with which each sample is in a batch: batch_size / samples, at most 1."""
    return min(1.0, batch_size / samples) if samples else 0.0


def steps_per_epoch(batch_size: int, samples: int) -> int:
    """Return ceil(samples / batch_size), as many steps as without privacy."""
    return -(-samples // batch_size)


class PrivateDescent(Descent):
    """Gradients of DP-SGD: (sum_i clip(g_i) + noise * clip * z) / (q n), with z standard normal."""

    def __init__(self, clip: float, noise: float) -> None:
        self.clip, self.noise = clip, noise
        self.expected = 1.0
        """q n, the expected size of a batch of the current client. The real size depends on who is in it."""

    def batches(
        self, model: Network, samples: Samples, settings: LocalTraining, generator: torch.Generator
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches that contain each sample independently with probability q. A batch may be empty."""
        size, count = settings.batch_size, len(samples)
        rate = sampling_rate(size, count)
        self.expected = rate * count
        for _ in range(steps_per_epoch(size, count)):
            # float64: the 24 bits of a float32 would round the probability.
            drawn = torch.rand(count, generator=generator, dtype=torch.float64) < rate
            batch = samples.take(drawn.nonzero().flatten())
            yield next(batch.batches(len(batch), generator, augment=True)) if len(batch) else batch.all()

    def gradients(
        self,
        model: Network,
        objective: Objective,
        correction: ClientCorrection,
        x: Tensor,
        y: Tensor,
        draws: torch.Generator,
    ) -> Tensor | None:
        """Set the model's gradients to private ones. The loss is not returned: no noise protects it."""
        sums = clipped_sum(model, objective, x, y, self.clip, draws)
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                noise = torch.randn(parameter.shape, generator=draws) * (self.noise * self.clip)
                parameter.grad = (sums[name] + noise.to(parameter)) / self.expected
        return None


class SampleLoss(nn.Module):
    """The loss of one sample as a function of the model's parameters."""

    def __init__(self, model: Network, objective: Objective, draws: torch.Generator) -> None:
        super().__init__()
        self.model, self.objective, self.draws = model, objective, draws

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss of x (*shape) with label y ()."""
        return self.objective.loss(self.model, x.unsqueeze(0), y.unsqueeze(0), self.draws)


def clipped_sum(
    model: Network, objective: Objective, x: Tensor, y: Tensor, clip: float, draws: torch.Generator
) -> dict[str, Tensor]:
    """Return sum_i g_i min(1, clip / ||g_i||) by parameter, g_i being the gradient for sample i of x (n, *shape).

    Adding or removing one sample changes the sum by a vector of norm at most `clip`.
    """
    parameters = {f"model.{name}": p.detach() for name, p in model.named_parameters() if p.requires_grad}
    sums = {name: torch.zeros_like(p) for name, p in parameters.items()}
    loss = SampleLoss(model, objective, draws)

    def sample_loss(values: Mapping[str, Tensor], one: Tensor, label: Tensor) -> Tensor:
        result: Tensor = functional_call(loss, dict(values), (one, label))
        return result

    size = max(1, MAX_GRADIENT_NUMBERS // max(1, sum(p.numel() for p in parameters.values())))
    gradient = vmap(grad(sample_loss), in_dims=(None, 0, 0), randomness="different")
    with plain():
        for xs, ys in zip(x.split(size), y.split(size), strict=True):
            if not len(ys):
                continue
            gradients = gradient(parameters, xs, ys)
            norms = torch.stack([g.flatten(1).square().sum(1) for g in gradients.values()]).sum(0).sqrt()
            factors = (clip / (norms + SMALLEST_NORM)).clamp_max(1.0)
            for name, g in gradients.items():
                sums[name] += torch.tensordot(factors, g, dims=1)
    return {name.removeprefix("model."): total for name, total in sums.items()}
