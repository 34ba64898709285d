"""Client-level differential privacy: clipped updates, their noisy mean with a fixed denominator.

McMahan, Ramage, Talwar, Zhang: Learning differentially private recurrent language models. ICLR 2018.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from fedwild.contract import Reply

Model = Mapping[str, Tensor]


def update_of(sent: Model, trained: Model) -> dict[str, Tensor]:
    """Return trained - sent for every floating tensor, in float64 and in the order of names."""
    return {
        name: trained[name].double() - sent[name].double() for name in sorted(sent) if sent[name].is_floating_point()
    }


def norm_of(update: Model) -> float:
    """Return the L2 norm of all tensors as one vector."""
    return math.sqrt(sum(float(tensor.square().sum()) for tensor in update.values()))


def clip_update(update: dict[str, Tensor], clip: float) -> dict[str, Tensor]:
    """Return update * min(1, clip / ||update||): the norm of all tensors as one vector is at most `clip`."""
    norm = norm_of(update)
    return {name: tensor * (clip / norm) for name, tensor in update.items()} if norm > clip else update


def clip_model(sent: Model, trained: Model, clip: float) -> dict[str, Tensor]:
    """Return `sent` plus the clipped update. Integer tensors, which no noise could protect, are those of `sent`."""
    update = clip_update(update_of(sent, trained), clip)
    return {name: (t.double() + update[name]).to(t.dtype) if name in update else t for name, t in sent.items()}


def share_noise(model: Model, clip: float, noise: float, sharers: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Return a clipped model plus one client's share of the noise of a secure sum, which the server cannot see alone.

    The variance is (noise * clip)^2 / sharers. A sum over fewer than `sharers` clients is never unmasked, so that the
    noise of the sum has at least the variance (noise * clip)^2 of `private_mean`, whoever drops out.
    """
    deviation = noise * clip / math.sqrt(sharers)

    def add(tensor: Tensor) -> Tensor:
        drawn = torch.randn(tensor.shape, generator=generator, dtype=torch.float64) * deviation
        return (tensor.double() + drawn).to(tensor.dtype)

    return {name: add(t) if t.is_floating_point() else t for name, t in sorted(model.items())}


def rescale_mean(sent: Model, mean: Model, clients: int, expected: float) -> dict[str, Tensor]:
    """Return w + sum_k (w_k - w) / expected from the mean of `clients` models w_k, as `private_mean` does."""
    update = update_of(sent, mean)
    factor = clients / expected
    return {name: (t.double() + factor * update[name]).to(t.dtype) if name in update else t for name, t in sent.items()}


def private_mean(
    sent: Model, replies: Iterable[Reply], clip: float, noise: float, expected: float, generator: torch.Generator
) -> dict[str, Tensor]:
    """Return w + (sum_k clip(w_k - w) + noise * clip * z) / expected, z standard normal (the paper's f_f).

    `expected` is q N, the expected number of participants. It does not depend on who takes part.

    Sensitivity: let A and B be the participants with and without one client j. The sums over A and B have the same
    terms but one, clip(w_j - w), so they differ by a vector of norm at most `clip`, and the means by at most
    `clip / expected`. With the number of replies as the denominator, all other terms would change as well. The standard
    deviation of the noise is `noise` times this bound, so that `noise` is the multiplier of the Gaussian mechanism. A
    client that does not reply, or that has no samples, adds zero, and the bound holds.

    Updates are clipped again here: the bound does not depend on what a client does. Sums are computed in float64 in the
    order of the clients' names, with one reply in memory at a time.
    """
    sums = {name: torch.zeros_like(t, dtype=torch.float64) for name, t in sorted(sent.items()) if t.is_floating_point()}
    for reply in replies:
        for name, tensor in clip_update(update_of(sent, reply.payload.group("model")), clip).items():
            sums[name] += tensor
    for total in sums.values():
        total += torch.randn(total.shape, generator=generator, dtype=torch.float64) * (noise * clip)
    return {name: (t.double() + sums[name] / expected).to(t.dtype) if name in sums else t for name, t in sent.items()}
