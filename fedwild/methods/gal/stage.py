"""What phases have in common: the server's records for the next phase, and rounds in which clients send clusters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from fedwild.contract import Draw, Initial, Payload, Phase, Server, Tensors
from fedwild.core.classes import NOVEL
from fedwild.core.errors import BadReply
from fedwild.core.payload import check_like
from fedwild.discovery import ClassCount, Clusters, KnownClasses

if TYPE_CHECKING:
    from fedwild.methods.gal.method import GAL


def count_labelled(server: Server) -> int:
    """Return the number of classes that came with labels. Their rows are the first ones of the head."""
    return sum(entry.origin != NOVEL for entry in server.classes.entries)


def inherited_bias(initial: Initial) -> float:
    """Return the bias against novel classes of an earlier run: how much lower its head's biases are for them."""
    biases = initial.weights.get("head.bias")
    novel = torch.tensor([entry.origin == NOVEL for entry in initial.registry.entries])
    if biases is None or not novel.any() or novel.all():
        return 0.0
    biases = biases[: len(novel)]
    return max(0.0, float(biases[~novel].mean() - biases[novel].mean()))


def head_of(server: Server) -> Tensor:
    """Return the rows of the head (C, d)."""
    return server.state.group("model")["head.weight"]


def request_info(server: Server) -> dict[str, Any]:
    """Return the plain values of every request. The novelty threshold is None before the first description."""
    info = {"labelled": count_labelled(server), "novelty": server.state.info.get("novelty")}
    inherited = server.state.info.get("inherited", 0)
    return {**info, "inherited": inherited} if inherited else info


def inherited_rows(info: Mapping[str, Any]) -> range:
    """Return the rows of classes that an earlier run discovered, from the plain values of a request."""
    return range(info["labelled"], info["labelled"] + info.get("inherited", 0))


def class_counts(server: Server) -> list[ClassCount]:
    """Return the number of novel classes that was estimated in each stage so far."""
    return [ClassCount.from_json(values) for values in server.state.info.get("estimates", [])]


@dataclass(frozen=True)
class Description:
    """What `describe` leaves: how known samples differ from novel ones."""

    novelty: float
    """A sample is novel if its largest cosine to a known row is below this."""
    bias: float
    """Is subtracted from the logits of novel classes."""
    centroids: Tensor
    """Clusters of the validation samples of all clients (m, d)."""
    counts: Tensor
    """Samples in each cluster (m,)."""
    labels: Tensor
    """Samples of each labelled class in each cluster (m, C)."""

    def put(self, state: Payload) -> None:
        state.info |= {"novelty": self.novelty, "bias": self.bias}
        state.put("known_clusters", {"centroids": self.centroids, "counts": self.counts, "labels": self.labels})

    @classmethod
    def of(cls, state: Payload) -> Description:
        return cls(state.info["novelty"], state.info["bias"], **state.group("known_clusters"))

    def known_classes(self, head: Tensor) -> KnownClasses:
        """Return the known classes as estimators need them; `head` (C, d) has their rows."""
        clusters = Clusters(self.centroids.double().numpy(), self.counts.numpy())
        return KnownClasses(head.double().numpy(), clusters, self.labels.numpy())


@dataclass(frozen=True)
class Discovery:
    """What `discover` leaves, and the server sends in every `novel` round of the stage."""

    anchor: dict[str, Tensor]
    """The model before the stage."""
    prototypes: Tensor
    """Where the novel classes were found (C, d)."""
    stretch: Tensor
    """The length of each prototype divided by that of the initial row of its class (C,)."""
    clients: Tensor
    """How many clients were asked for clusters: so many samples are replayed per known class (Eq. 12)."""
    noise: Tensor
    """Standard deviation of the replayed samples of a class (Eq. 12); 0 if none are replayed."""

    @property
    def known(self) -> int:
        """The number of rows of the head before the stage."""
        return len(self.anchor["head.weight"])

    def put(self, payload: Payload) -> None:
        payload.put("anchor", self.anchor)
        found = {"prototypes": self.prototypes, "stretch": self.stretch, "clients": self.clients, "noise": self.noise}
        payload.put("found", found)

    @classmethod
    def of(cls, payload: Payload) -> Discovery:
        return cls(payload.group("anchor"), **payload.group("found"))


class Survey(Phase):
    """One round in which all clients send clusters of embeddings."""

    has_labels: ClassVar[bool] = False
    """Whether clients also send how many samples of each labelled class a cluster has."""

    def __init__(self, name: str, stage: int, method: GAL) -> None:
        super().__init__(name, 1)
        self.stage, self.method, self.params = stage, method, method.params

    def who(self, server: Server, present: Sequence[str], draw: Draw) -> Sequence[str]:
        return present

    def send(self, server: Server, client: str) -> Payload:
        return Payload.of(request_info(server), model=server.state.group("model"))

    def check(self, server: Server, reply: Payload) -> None:
        super().check(server, reply)
        width, max_clusters = head_of(server).shape[1], self.params.clusters_for(len(server.classes))
        labelled = count_labelled(server) if self.has_labels else None
        check_clusters(reply.group("clusters"), width, max_clusters, reply.info["samples"], labelled)


def to_tensors(**arrays: Any) -> dict[str, Tensor]:
    """Return arrays as tensors, real numbers in single precision."""
    tensors = {name: torch.as_tensor(array) for name, array in arrays.items()}
    return {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}


def read_clusters(reply: Payload) -> Clusters:
    """Return a copy of the clusters in a reply, so that the rest of the reply can be freed."""
    group = reply.group("clusters")
    return Clusters(group["centroids"].double().numpy().copy(), group["counts"].numpy().copy())


def check_clusters(group: Tensors, width: int, max_clusters: int, samples: int, classes: int | None = None) -> None:
    """Reject clusters with wrong names, shapes, types or counts. With `classes`, they must have label counts."""
    m = group["counts"].numel() if "counts" in group else 0
    shapes = {"centroids": (m, width), "counts": (m,)} | ({} if classes is None else {"labels": (m, classes)})
    kinds = {"centroids": torch.float32, "counts": torch.int64, "labels": torch.int64}
    spec = {name: torch.empty(shape, dtype=kinds[name], device="meta") for name, shape in shapes.items()}
    check_like(group, spec, "clusters")
    if m > max_clusters:
        raise BadReply(f"{m} clusters, expected at most {max_clusters}")
    # In double precision, since a sum of integers could overflow.
    counts = group["counts"]
    total = float(counts.double().sum())
    if m and (int(counts.min()) < 1 or total > samples):
        raise BadReply(f"counts add up to {total:.0f}, with {samples} samples")
    labels = group.get("labels")
    if labels is not None and m and (int(labels.min()) < 0 or not torch.equal(labels.sum(1), counts)):
        raise BadReply("labels do not add up to the counts")
