"""What the phases of a stage have in common: its newcomer, the members, and how a stage ends."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from fedwild.contract import Draw, Initial, Phase, Reply, Server, Tensors, weights_of
from fedwild.core.classes import ClassEntry, ClassRegistry
from fedwild.methods.gains.contributions import (
    class_model,
    client_weights,
    domain_model,
    relative_differences,
    sample_weights,
)
from fedwild.methods.gains.probes import embed_probes, feature_difference, feature_norm

if TYPE_CHECKING:
    from fedwild.methods.gains.method import Gains

Kind = Literal["nothing", "domain", "classes"]
"""What a newcomer brings."""
Status = Literal["declared", "domain", "classes", "nothing", "refused", "nobody", "welcomed"]
"""How far the stage is: the newcomer has declared its classes, it brings a new domain or new classes, or it is over."""
ACTIVE = ("declared", "domain", "classes")


@dataclass(frozen=True)
class Arrival:
    """The newcomer of a stage. It is part of the server's state, so that a resumed run continues with it."""

    kind: Status
    before: tuple[ClassEntry, ...] = ()
    """The classes before the newcomer came."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """`state.info` before the newcomer came."""
    declared: tuple[str, ...] = ()
    """The newcomer's classes that were not known; after discovery, those of them that are new."""
    samples: int = 0
    """Number of training samples of all source clients."""
    sources: int = 0
    """Number of source clients that replied."""
    shift: float = math.nan
    """S: the shift of the newcomer's samples from the source clients' samples of the same classes."""
    limit: float = 0.0
    """T_D: the largest S that is not a new domain."""
    alike: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    """The nearest known class of each declared class, and the shift from it."""

    @classmethod
    def of(cls, server: Server) -> Arrival:
        """Return the record in the server's state."""
        row = server.state.info["arrival"]
        if row["kind"] not in ACTIVE:
            return cls(row["kind"])
        before = tuple(ClassRegistry.from_json(row["before"]).entries)
        alike = {name: (known, shift) for name, (known, shift) in row["alike"].items()}
        return cls(**{**row, "before": before, "declared": tuple(row["declared"]), "alike": alike})

    def store(self, server: Server) -> None:
        """Put this record into the server's state: all fields while the stage is active, then only the kind."""
        server.state.info["arrival"] = asdict(self) if self.kind in ACTIVE else {"kind": self.kind}

    @property
    def known(self) -> int:
        """The number of classes before the newcomer came."""
        return len(self.before)

    def classes(self) -> ClassRegistry:
        """Return a new registry with the classes before the newcomer came."""
        return ClassRegistry(list(self.before))


def members(server: Server, present: Sequence[str]) -> list[str]:
    """Return the clients present that are members: all but the newcomers that have not been welcomed."""
    outside = set(server.newcomers) - set(server.state.info.get("welcomed", []))
    return [name for name in present if name not in outside]


class Stage(Phase):
    """A phase of a stage: the rounds in which one newcomer is welcomed."""

    def __init__(self, name: str, rounds: int, method: Gains, stage: int) -> None:
        # Not super(): for Adapt, this is AveragingRounds, whose attributes are set here.
        Phase.__init__(self, name, rounds)
        self.method, self.params, self.stage = method, method.params, stage
        self.objective, self.correction = method.objective, method.correction

    def wants(self, server: Server) -> bool:
        """Whether the newcomer brings something to adapt to."""
        return Arrival.of(server).kind in ("domain", "classes")

    def who(self, server: Server, present: Sequence[str], draw: Draw) -> Sequence[str]:
        """Return all members and the newcomer, or nobody if the newcomer is absent."""
        newcomer = self.newcomer(server)
        return sorted([*members(server, present), newcomer]) if newcomer in present else []

    def newcomer(self, server: Server) -> str:
        """Return the newcomer of this stage."""
        return server.newcomers[self.stage - 1]

    def about(self, server: Server) -> dict[str, Any]:
        """Return the JSON part of a request: the newcomer, and the number of classes before it came."""
        return {"newcomer": self.newcomer(server), "known": Arrival.of(server).known, **self.about_anchors(server)}

    def about_anchors(self, server: Server) -> dict[str, Any]:
        """Return the stages after which the federation was restored, if clients keep their own models as anchors."""
        if self.params.anchor == "received":
            return {}
        outside = server.state.info.get("outside", [])
        return {"undone": [stage for stage, name in enumerate(server.newcomers, start=1) if name in outside]}

    def refit(self, server: Server, weights: Tensors, classes: ClassRegistry) -> dict[str, Tensor]:
        """Return weights whose head is for `classes` with a head for the server's classes; new rows are random."""
        fresh = weights_of(server.task.build(self.method.outputs(len(server.classes)), server.rng, self.method.bias))
        return Initial(dict(weights), classes, "before").onto(fresh, server.classes.names)

    def embed(self, server: Server, weights: Tensors, probes: Tensor) -> Tensor:
        """Return a model's embeddings (P, d) of the probes."""
        model = server.task.network(weights, len(weights["head.weight"]), self.method.bias, slot="probed")
        return embed_probes(model, probes)

    def diff_f(self, first: Tensor, second: Tensor) -> float:
        """Return Diff^F of two embeddings (P, d) of the probes."""
        return (feature_norm if self.params.difference == "norm" else feature_difference)(first, second)

    def combine(
        self,
        server: Server,
        replies: Iterable[Reply],
        differences: Mapping[str, tuple[float, float]],
        sources: int,
        kind: Kind,
    ) -> None:
        """Make the joint model from the models of all clients (Eq. 2-7), and log their weights.

        differences: Diff^F and Diff^C between each source client's model and the newcomer's. sources: number of clients
        that stand behind them. kind: what the newcomer brings; for "nothing", clients are weighted by samples alone.
        """
        newcomer, p = self.newcomer(server), self.params
        sizes = {reply.client: reply.samples for reply in replies}
        by_samples, target_weight = p.sources == "samples", sources if p.target_weight == "released" else None
        diff_f, diff_c = ({name: pair[i] for name, pair in differences.items()} for i in (0, 1))
        if p.scale == "mean":
            diff_f, diff_c = relative_differences(diff_f), relative_differences(diff_c)
        encoder, classifier = (
            sample_weights(sizes)
            if kind == "nothing"
            else client_weights(differences, sizes, newcomer, by_samples, target_weight)
            for differences in (diff_f, diff_c)
        )
        if kind == "classes":
            new = range(Arrival.of(server).known, len(server.classes))
            model = class_model(replies, encoder, newcomer, new, halfway=p.new_rows == "both")
            server.finding("weights", encoder=encoder)
        else:
            model = domain_model(replies, encoder, classifier)
            server.finding("weights", encoder=encoder, classifier=classifier)
        if all(bool(torch.isfinite(tensor).all()) for tensor in model.values() if tensor.is_floating_point()):
            server.state.put("model", model)
        else:
            server.note("the joint model has NaN or infinite weights: the model does not change in this round")

    def admit(self, server: Server) -> None:
        """Make the newcomer a member, and drop what only this stage needed."""
        info = server.state.info
        info["welcomed"] = [*info.get("welcomed", []), self.newcomer(server)]
        Arrival("welcomed").store(server)
        for group in ("before", "moments", "means", "mean"):
            server.state.drop(group)

    def exclude(self, server: Server) -> None:
        """Record that the newcomer, though it may be present, is not a member."""
        info = server.state.info
        info["outside"] = [*info.get("outside", []), self.newcomer(server)]

    def restore(self, server: Server, kind: Status) -> None:
        """Restore classes and state from before the newcomer came, bit for bit."""
        arrival = Arrival.of(server)
        server.classes = arrival.classes()
        server.state.tensors = server.state.group("before")
        server.state.info = dict(arrival.info)
        Arrival(kind).store(server)
