"""What the server compares models on: public samples, or images that it draws from class means of the sources.

Where there is no public data, each source client offers the mean of its samples of each class, of classes that it has
enough of, and their standard deviation in every pixel. The server draws probes around them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from fedwild.data.samples import Samples
from fedwild.errors import BadReply

MEASURED_AT_ONCE = 1024
NOISE = 0.3
"""How much of the pixels' deviation drawn probes have; of all that was tried, the most like real samples."""


def public_probes(public: Samples, count: int, generator: torch.Generator) -> Tensor:
    """At most `count` public samples (P, *input_shape), drawn by lot."""
    chosen = torch.randperm(len(public), generator=generator)[:count].sort().values
    return public.take(chosen).all()[0]


def class_moments(samples: Samples, classes: int, at_least: int) -> dict[str, Tensor]:
    """Mean and mean square of a client's samples of every class, each (K, *input_shape), and counts (K,).

    Classes with fewer than `at_least` samples count nothing: the mean of one sample is that sample.
    """
    shape = (classes, *samples.x.shape[1:])
    sums, squares = torch.zeros(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64)
    for x, y in samples.batches(MEASURED_AT_ONCE):
        sums.index_add_(0, y, x.double())
        squares.index_add_(0, y, x.double().square())
    counts = torch.bincount(samples.y, minlength=classes)
    counts[counts < at_least] = 0
    told = (counts > 0).view(-1, *([1] * (len(shape) - 1)))
    by = counts.clamp_min(1).view(told.shape)
    return {
        "mean": torch.where(told, sums / by, 0.0).float(),
        "square": torch.where(told, squares / by, 0.0).float(),
        "count": counts,
    }


def moments_spec(classes: int, shape: tuple[int, ...]) -> dict[str, Tensor]:
    """Names, shapes and types of `class_moments`."""
    moment = torch.empty((classes, *shape), device="meta")
    return {"mean": moment, "square": moment, "count": torch.empty(classes, dtype=torch.int64, device="meta")}


def check_moments(moments: Mapping[str, Tensor], samples: int) -> None:
    """Refuse counts that the client's samples do not allow."""
    counts = moments["count"]
    if bool((counts < 0).any()) or int(counts.sum()) > samples:
        raise BadReply(f"class counts {counts.tolist()[:10]} do not fit {samples} samples")
    mean, square = moments["mean"].double(), moments["square"].double()
    if bool((square < mean.square() * (1 - 1e-3) - 1e-6).any()):
        raise BadReply("a mean square is below the square of its mean")


def merged_moments(offers: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Mean and standard deviation (K, *input_shape) over all clients' samples of each class that anybody offers."""
    total: dict[str, Tensor] = {}
    for offer in offers:
        weight = offer["count"].double().view(-1, *([1] * (offer["mean"].dim() - 1)))
        parts = {"count": offer["count"].double(), **{k: weight * offer[k].double() for k in ("mean", "square")}}
        total = {k: total[k] + parts[k] if total else parts[k] for k in parts}
    if not total or not bool((total["count"] > 0).any()):
        return {}
    offered = total["count"] > 0
    counts = total["count"][offered].view(-1, *([1] * (total["mean"].dim() - 1)))
    mean = total["mean"][offered] / counts
    deviation = (total["square"][offered] / counts - mean.square()).clamp_min(0).sqrt()
    return {"mean": mean.float(), "deviation": deviation.float()}


def drawn_probes(moments: Mapping[str, Tensor], count: int, generator: torch.Generator) -> Tensor:
    """`count` probes (P, *input_shape): mixtures of two class means, with some noise of the mixed deviation."""
    mean, deviation = moments["mean"].flatten(1), moments["deviation"].flatten(1)
    first, second = torch.randint(len(mean), (2, count), generator=generator)
    share = torch.rand((count, 1), generator=generator)
    centres = share * mean[first] + (1 - share) * mean[second]
    spreads = share * deviation[first] + (1 - share) * deviation[second]
    noise = torch.randn(centres.shape, generator=generator)
    return (centres + NOISE * spreads * noise).view(count, *moments["mean"].shape[1:])
