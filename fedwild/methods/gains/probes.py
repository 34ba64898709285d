"""The samples on which the server compares models: public samples, or images drawn around the source clients' means.

Without public data, each source client sends the mean of its samples of each class, if the class has enough samples,
and their mean square, pixel by pixel. The server draws probes around these means.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from fedwild.contract import HEAD, Rng, Server, Tensors
from fedwild.core.errors import BadReply
from fedwild.core.payload import check_like
from fedwild.data.samples import Samples
from fedwild.models import Network
from fedwild.models.inference import INFERENCE_BATCH

MOMENTS_BATCH = 1024
NOISE = 0.3
"""The share of the pixels' standard deviation in drawn probes. Of the values tried, it came closest to real samples."""


def probe_samples(server: Server, stage: int, count: int) -> Tensor:
    """Return the probes (P, *input_shape) of a stage, the same in every round.

    They are at most `count` public samples, chosen at random, or drawn from moments, or uniform noise without any.
    """
    generator = Rng(server.rng.seed).torch(f"probes of stage {stage}")
    if server.public is not None:
        chosen = torch.randperm(len(server.public), generator=generator)[:count].sort().values
        return server.public.take(chosen).all()[0]
    moments = server.state.group("moments")
    if moments:
        return draw_probes(moments, count, generator)
    return torch.rand((count, *server.task.input_shape), generator=generator)


def class_moments(samples: Samples, classes: int, at_least: int) -> dict[str, Tensor]:
    """Return mean and mean square of the samples of every class, each (K, *input_shape), and counts (K,).

    Classes with fewer than `at_least` samples get zeros: the mean of one sample is that sample.
    """
    shape = (classes, *samples.x.shape[1:])
    sums, squares = torch.zeros(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64)
    for x, y in samples.batches(MOMENTS_BATCH):
        sums.index_add_(0, y, x.double())
        squares.index_add_(0, y, x.double().square())
    counts = torch.bincount(samples.y, minlength=classes)
    counts[counts < at_least] = 0
    enough = (counts > 0).view(-1, *([1] * (len(shape) - 1)))
    divisor = counts.clamp_min(1).view(enough.shape)
    mean, square = (torch.where(enough, total / divisor, 0.0).float() for total in (sums, squares))
    return {"mean": mean, "square": square, "count": counts}


def check_moments(moments: Tensors, classes: int, shape: tuple[int, ...], samples: int) -> None:
    """Reject moments of other shapes or types than those of `class_moments`, or that no `samples` samples can have."""
    moment, counts = torch.empty((classes, *shape), device="meta"), torch.empty(classes, dtype=torch.int64)
    check_like(moments, {"mean": moment, "square": moment, "count": counts}, "moments")
    counts = moments["count"]
    if bool((counts < 0).any()) or int(counts.sum()) > samples:
        raise BadReply(f"class counts {counts.tolist()[:10]} do not fit {samples} samples")
    mean, square = moments["mean"].double(), moments["square"].double()
    if bool((square < mean.square() * (1 - 1e-3) - 1e-6).any()):
        raise BadReply("a mean square is less than the square of its mean")


def merge_moments(moments: Iterable[Tensors]) -> dict[str, Tensor]:
    """Return mean and standard deviation (K', *input_shape) over all clients, for the classes that any client sent."""
    total: dict[str, Tensor] = {}
    for own in moments:
        weight = own["count"].double().view(-1, *([1] * (own["mean"].dim() - 1)))
        parts = {"count": own["count"].double(), **{k: weight * own[k].double() for k in ("mean", "square")}}
        total = {k: total[k] + parts[k] if total else parts[k] for k in parts}
    if not total or not bool((total["count"] > 0).any()):
        return {}
    sent = total["count"] > 0
    counts = total["count"][sent].view(-1, *([1] * (total["mean"].dim() - 1)))
    mean = total["mean"][sent] / counts
    deviation = (total["square"][sent] / counts - mean.square()).clamp_min(0).sqrt()
    return {"mean": mean.float(), "deviation": deviation.float()}


def draw_probes(moments: Tensors, count: int, generator: torch.Generator) -> Tensor:
    """Return `count` probes (P, *input_shape): mixtures of two class means, with noise of the mixed deviation."""
    mean, deviation = moments["mean"].flatten(1), moments["deviation"].flatten(1)
    first, second = torch.randint(len(mean), (2, count), generator=generator)
    share = torch.rand((count, 1), generator=generator)
    centres = share * mean[first] + (1 - share) * mean[second]
    spreads = share * deviation[first] + (1 - share) * deviation[second]
    noise = torch.randn(centres.shape, generator=generator)
    return (centres + NOISE * spreads * noise).view(count, *moments["mean"].shape[1:])


@torch.inference_mode()
def embed_probes(model: Network, probes: Tensor) -> Tensor:
    """Return F (P, d): embeddings of the probes (P, *input_shape) in evaluation mode, on the CPU."""
    model.eval()
    device = next(model.parameters()).device
    return torch.cat([model.embed(x.to(device)) for x in probes.split(INFERENCE_BATCH)]).cpu()


def feature_difference(first: Tensor, second: Tensor) -> float:
    """Return Diff^F = 1 / (P d) sum_p sum_k |F_pk - F'_pk| of two embeddings (P, d)."""
    return float((first.double() - second.double()).abs().mean())


def feature_norm(first: Tensor, second: Tensor) -> float:
    """Return ||F - F'||_F of two embeddings (P, d), as the released program does. It grows with the root of P d."""
    return float((first.double() - second.double()).norm())


def classifier_difference(first: Tensors, second: Tensors) -> float:
    """Return Diff^C = (||W - W'||_F + ||b - b'||) / 2 of two heads. A head without bias counts as one with bias 0."""
    parts = [(first[name].double() - second[name].double()).norm() for name in HEAD if name in first]
    return float(sum(parts)) / 2
