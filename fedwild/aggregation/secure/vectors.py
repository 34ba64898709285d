"""A client's summands as one vector, and one reply from the sum of all clients' vectors.

    vector = [ n, w, loss, 1 if there is a loss,  w * t for t in means,  t for t in plain means,  t for t in totals ]

with the number of samples n and the weight w. The sum of such vectors gives every mean and total: for example,
sum_k w_k t_k / sum_k w_k. Integers in means, such as batch-norm's counters, become the rounded mean.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedwild.contract.phase import Groups
from fedwild.contract.sums import Sums
from fedwild.core.errors import BadReply
from fedwild.core.payload import Payload, check_like

HEAD = 4
"""Samples, weight, loss, and whether there is a loss."""


@dataclass(frozen=True)
class Layout:
    """The groups of tensors in a vector, in the order of their names within each kind."""

    sums: Sums
    spec: Mapping[str, Mapping[str, Tensor]]
    """Names, shapes and types by group."""

    @classmethod
    def of(cls, sums: Sums, groups: Groups) -> Layout:
        return cls(sums, {group: dict(sorted(groups.get(group, {}).items())) for group in sums.groups})

    @property
    def size(self) -> int:
        """The length of a vector."""
        return HEAD + sum(tensor.numel() for tensors in self.spec.values() for tensor in tensors.values())

    def digest(self) -> str:
        """Return a hash, by which clients and server find out whether they mean the same vector."""
        rows = {
            group: [[name, str(t.dtype), list(t.shape)] for name, t in tensors.items()]
            for group, tensors in self.spec.items()
        }
        return hashlib.sha256(json.dumps([vars(self.sums), rows]).encode()).hexdigest()

    def to_vector(self, reply: Payload, weight: float) -> np.ndarray:
        """Return the vector of a client's summands, float64 (d,)."""
        samples, loss = reply.info["samples"], reply.info.get("loss")
        has_loss = isinstance(loss, float) and math.isfinite(loss)
        parts = [np.array([samples, weight, loss if has_loss else 0.0, has_loss], dtype=np.float64)]
        for group, tensors in self.spec.items():
            own, factor = reply.group(group), weight if group in self.sums.means else 1.0
            check_like(own, tensors, group)
            parts += [own[name].detach().cpu().double().flatten().numpy() * factor for name in tensors]
        return np.concatenate(parts)

    def check_range(self, vector: np.ndarray, limit: float) -> None:
        """Reject a vector that is not finite or exceeds the agreed limit, and name the tensor."""
        if np.abs(vector).max() <= limit:
            return
        begin = HEAD
        for group, tensors in self.spec.items():
            for name, tensor in tensors.items():
                largest = np.abs(vector[begin : begin + tensor.numel()]).max(initial=0.0)
                if not largest <= limit:
                    raise BadReply(
                        f"tensor {group}/{name} has a weighted value of {largest:.3g}, larger than the agreed "
                        f"{limit:.3g}: raise federation.secure_range, or train with a smaller learning rate"
                    )
                begin += tensor.numel()
        raise BadReply(f"samples or loss are larger than the agreed {limit:.3g}: raise federation.secure_range")

    def to_reply(self, total: np.ndarray, clients: int) -> Payload:
        """Return the combined reply of the sum of vectors, float64 (d,), over this number of clients."""
        samples, weight, loss, losses = total[:HEAD].tolist()
        combined = Payload(info={"samples": round(samples), **({"loss": loss / losses} if losses > 0 else {})})
        begin = HEAD
        for group, tensors in self.spec.items():
            divisor = self._divisor(group, weight, clients)
            for name, like in tensors.items():
                values = total[begin : begin + like.numel()] / divisor
                begin += like.numel()
                # A copy: the slice would keep the whole vector in memory.
                tensor = torch.from_numpy(np.array(values if like.is_floating_point() else np.rint(values)))
                combined.tensors[f"{group}/{name}"] = tensor.to(like.dtype).reshape(like.shape)
        return combined

    def _divisor(self, group: str, weight: float, clients: int) -> float:
        if group in self.sums.means:
            # Without any sample, all means are zero, and the merge ignores them.
            return weight if weight > 0 else 1.0
        return float(clients) if group in self.sums.plain_means else 1.0
