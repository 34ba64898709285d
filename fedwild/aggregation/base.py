"""The base class of aggregations: rules that merge the replies of a round into one set of tensors.

`Mean`, the default, is the weighted mean of `means.py`. The other rules limit what some malicious clients can do.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from fedwild.aggregation.means import Weight, by_samples, weighted_mean
from fedwild.contract import Payload, Reply, Server, Settings, Tensors
from fedwild.contract.sums import NotSummable, Sums
from fedwild.core.component import Component
from fedwild.core.payload import check_like
from fedwild.core.registry import Registry
from fedwild.models.norms import comparable


class Aggregation(Component, ABC):
    """Merges a group of tensors over the clients of a round."""

    class Params(Settings):
        clip: float | None = Field(
            None, gt=0, description="shorten updates to at most this norm before they are merged (default: no limit)"
        )

    streams: ClassVar[bool] = False
    """Whether one pass over the replies suffices, with one reply in memory at a time and none on disk."""

    protects: ClassVar[tuple[str, ...]] = ()
    """`("client",)` if it is the plain mean, whose sensitivity client-level privacy knows."""

    @abstractmethod
    def mean(
        self, replies: Iterable[Reply], group: str, weight: Weight = by_samples, reference: Tensors | None = None
    ) -> dict[str, Tensor] | None:
        """Return one tensor for every tensor of a group, or None if all weights are 0.

        `replies` come in the order of the clients' names, can be read once, and have the same tensors in the group.
        Replies of weight 0 do not count. `reference` is what the server sent, if the group has such a thing.
        """

    def sums(self, group: str) -> Sums:
        """Return what secure sums add for this rule. Only a mean needs no single replies."""
        raise NotSummable(f"aggregation {self.name!r} needs the replies of single clients")

    def update(
        self, server: Server, replies: Iterable[Reply], group: str = "model", weight: Weight = by_samples
    ) -> dict[str, Tensor] | None:
        """Replace a group of the server's state by the mean, and return it; without weights, only write a note."""
        before = server.state.group(group)
        clip = getattr(self.params, "clip", None)
        mean = self.mean(clip_updates(replies, group, before, clip) if clip else replies, group, weight, before)
        if mean is None:
            server.note("no client has a training sample: the model does not change")
        else:
            check_like(mean, before, f"the aggregation's {group}")
            server.state.put(group, mean)
        return mean


def clip_updates(replies: Iterable[Reply], group: str, before: Tensors, limit: float) -> Iterator[Reply]:
    """Yield replies with x <- w + (x - w) min(1, limit / ||x - w||), where w are the tensors before the round.

    Norms are over all floating-point tensors; running variances count by their square roots.
    """
    for reply in replies:
        tensors = reply.payload.group(group)
        floats = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}
        changes = (comparable(name, t).double() - comparable(name, before[name]).double() for name, t in floats.items())
        norm = math.sqrt(sum(float(change.square().sum()) for change in changes))
        if norm > limit:
            for name, tensor in floats.items():
                old = before[name].double()
                tensors[name] = (old + (tensor.double() - old) * (limit / norm)).to(tensor.dtype)
        yield Reply(reply.client, Payload.of(reply.payload.info, **{group: tensors}))


AGGREGATIONS: Registry[Aggregation] = Registry("aggregation", Aggregation)


@AGGREGATIONS.add("mean")
class Mean(Aggregation):
    """The weighted mean, by default weighted by samples. One malicious client can move it anywhere."""

    streams = True
    protects = ("client",)

    def sums(self, group: str) -> Sums:
        # A subclass with its own rule is not a sum.
        if type(self).mean is not Mean.mean:
            return super().sums(group)
        if getattr(self.params, "clip", None):
            raise NotSummable("aggregation.clip shortens the updates of single clients")
        return Sums(means=(group,))

    def mean(
        self, replies: Iterable[Reply], group: str, weight: Weight = by_samples, reference: Tensors | None = None
    ) -> dict[str, Tensor] | None:
        return weighted_mean(replies, group, weight)
