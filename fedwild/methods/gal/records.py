"""What the phases leave for each other in the server's state, and what every request tells clients about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedwild.contract import Server
from fedwild.core.classes import NOVEL
from fedwild.core.payload import Payload
from fedwild.discovery import ClassCount, Clusters, KnownClasses


def count_labelled(server: Server) -> int:
    """Return the number of classes that came with labels. Their rows are the first ones of the head."""
    return sum(entry.origin != NOVEL for entry in server.classes.entries)


def request_info(server: Server) -> dict[str, Any]:
    """Return the plain values of every request. The novelty threshold is None before the first description."""
    return {"labelled": count_labelled(server), "novelty": server.state.info.get("novelty")}


def class_counts(state: Payload) -> list[ClassCount]:
    """Return the number of novel classes that was estimated in each stage so far."""
    return [ClassCount.from_json(values) for values in state.info.get("estimates", [])]


def add_class_count(state: Payload, count: ClassCount) -> None:
    """Append the estimate of a stage."""
    state.info.setdefault("estimates", []).append(count.to_json())


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

    @property
    def known(self) -> int:
        """The number of rows of the head before the stage."""
        return len(self.anchor["head.weight"])

    def put(self, payload: Payload) -> None:
        payload.put("anchor", self.anchor)
        payload.put("found", {"prototypes": self.prototypes, "stretch": self.stretch})

    @classmethod
    def of(cls, payload: Payload) -> Discovery:
        return cls(payload.group("anchor"), **payload.group("found"))
