"""The contract between a method and an engine.

A method is one class with two halves. The *server half* (`start`, `send`, `merge`, `predictor`) sees the
`Server`; the *client half* (`local`) sees one `Client` and runs wherever that client's data is. Payloads
travel between them. A method never learns which engine runs it, and an engine never asks which method it runs.

One round, in the engine's words:

    names   = method.participants(server, present, participation, rng)
    replies = [method.local(method.send(server, name), client(name), rng) for name in names]
    method.merge(server, replies)            # replies in the order of the clients' names
"""

from __future__ import annotations

import contextlib
import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedwild.classes import ClassRegistry
from fedwild.data.samples import Samples
from fedwild.errors import BadReply, UserError
from fedwild.hyper import Hyper
from fedwild.initial import Initial
from fedwild.models import Network
from fedwild.payload import Payload, check_like
from fedwild.rng import Rng
from fedwild.task import Task

EVERYONE = "*"
# Numbers of glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


@dataclass(frozen=True)
class Phase:
    """A named stretch of equal rounds: "train" x 10, then "distil" x 1."""

    name: str
    rounds: int


@dataclass(frozen=True)
class Step:
    """One round: its phase, its number within the phase, and its number within the run."""

    phase: str
    round: int
    index: int

    @property
    def stage(self) -> int:
        """The stage of a phase such as adapt-2, counted from 1."""
        return int(self.phase.rpartition("-")[2])


@dataclass
class Server:
    """What the server keeps. The state, classes, clients, thresholds and step are in every checkpoint.

    Every round goes on from what its checkpoint gives back, so that a resumed run cannot differ: names in
    `state` come in sorted order, and `state.info` is what JSON makes of it.
    """

    task: Task
    classes: ClassRegistry
    step: Step
    rng: Rng
    clients: tuple[str, ...] = ()
    state: Payload = field(default_factory=Payload)
    thresholds: dict[str, float] = field(default_factory=dict)
    public: Samples | None = None
    newcomers: tuple[str, ...] = ()
    """The clients that are no members yet when the run begins, in the order in which they arrive."""
    initial: Initial | None = None
    """For `Method.start` alone: the earlier run's model to begin with."""
    notes: list[str] = field(default_factory=list)
    findings: list[dict[str, Any]] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Say something in the run's log."""
        self.notes.append(text)

    def finding(self, what: str, **figures: Any) -> None:
        """Put figures, as plain values, into the run's log."""
        self.findings.append({"what": what, **figures})

    def to_payload(self) -> Payload:
        """All that a predictor or the next round needs, as one payload."""
        return Payload(
            dict(self.state.tensors),
            {
                "state": self.state.info,
                "classes": self.classes.to_json(),
                "clients": list(self.clients),
                # As text, since JSON cannot say "infinite".
                "thresholds": {name: repr(value) for name, value in self.thresholds.items()},
                "step": vars(self.step),
            },
        )

    @classmethod
    def from_payload(cls, payload: Payload, task: Task, rng: Rng) -> Server:
        return cls(
            task=task,
            classes=ClassRegistry.from_json(payload.info["classes"]),
            step=Step(**payload.info["step"]),
            rng=rng,
            clients=tuple(payload.info["clients"]),
            state=Payload(dict(payload.tensors), payload.info["state"]),
            thresholds={name: float(value) for name, value in payload.info["thresholds"].items()},
        )


@dataclass
class Client:
    """One client, where its data is. Labels are ids in the server's registry, found by class *name*."""

    name: str
    task: Task
    step: Step
    classes: tuple[str, ...]
    """The server's classes, in the order of their ids."""
    view: Callable[..., Samples]
    """A part of the client's data by name; of the unlabelled samples also those of one stage."""
    labels: Mapping[str, int]
    """How many labelled training samples it has of each class, by name; the server may not know some of them yet."""
    state: Payload = field(default_factory=Payload)
    """Durable: what is left here by one round is here in the next, also after a crash and resume."""
    notes: list[str] = field(default_factory=list)

    @cached_property
    def train(self) -> Samples:
        """Labelled training samples of the server's classes."""
        return self.view("train")

    def train_as(self, classes: Sequence[str]) -> Samples:
        """Labelled training samples of these classes, numbered in this order, whatever the server knows."""
        return self.view("train", classes=tuple(classes))

    @cached_property
    def validation(self) -> Samples:
        """Labelled samples of the server's classes that are never trained on."""
        return self.view("validation")

    @cached_property
    def unlabelled(self) -> Samples:
        """Samples whose labels this client does not have."""
        return self.view("unlabelled")

    def unlabelled_in(self, stage: int) -> Samples:
        """Those of the unlabelled samples that turn up in a stage, counted from 1."""
        return self.view("unlabelled", stage)

    def note(self, text: str) -> None:
        """Say something in the run's log, such as a step that was skipped and why."""
        self.notes.append(text)


@dataclass(frozen=True)
class Reply:
    """A client's accepted answer."""

    client: str
    payload: Payload

    @property
    def samples(self) -> int:
        """How many training samples stand behind this reply."""
        return int(self.payload.info["samples"])


class Replies:
    """The round's accepted replies in the order of the clients' names, read one at a time.

    Every pass reads them anew, one at a time, so that a round costs the same for ten clients and ten thousand, and
    a merge may change what it is given.
    """

    def __init__(self, readers: dict[str, Callable[[], Payload]]) -> None:
        self._readers = dict(sorted(readers.items()))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._readers)

    def __len__(self) -> int:
        return len(self._readers)

    def __iter__(self) -> Iterator[Reply]:
        for name, read in self._readers.items():
            yield Reply(name, read())


class Prediction(NamedTuple):
    """Answers for a batch: logits (n, K) over the known classes and unknown scores (n,), larger = more unknown."""

    logits: Tensor
    unknown: Tensor
    details: Mapping[str, Tensor] = MappingProxyType({})
    """Whatever else `Method.measure` wants to see, a row (n, ...) per sample."""


@dataclass(frozen=True)
class Outcome:
    """A predictor's answers on the test set, beside the truth."""

    prediction: Prediction
    decision: Tensor
    """Class ids in the server's registry (n,), or UNKNOWN."""
    truth: Tensor
    """The same for the true classes (n,): UNKNOWN where the registry does not have the class."""
    true_names: Sequence[str]
    """The true classes' names (n,), also of classes the registry does not have."""
    novel: tuple[tuple[str, ...], ...] = ()
    """The classes that clients hold without labels, by the stage in which they turn up."""


class Predictor(ABC):
    """Answers with a class or with UNKNOWN: unknown is what scores above a threshold."""

    @abstractmethod
    def predict(self, x: Tensor) -> Prediction:
        """Logits and unknown scores for a batch x (n, *input_shape), in evaluation mode."""

    def embed(self, x: Tensor) -> Tensor:
        """Embeddings (n, d) of a batch, the input of the head that answers; an ensemble has none in common."""
        raise UserError(f"{type(self).__name__} does not answer with one network, so it has no common embedding.")


class Method(ABC):
    """A federated method: client half and server half in one file, the paper on top."""

    name: ClassVar[str]
    Params: ClassVar[type[Hyper]] = Hyper
    composes: ClassVar[tuple[str, ...]] = ()
    """The exchangeable parts this method is built from: any of "objective", "correction", "score", "estimator"."""
    parts: ClassVar[dict[str, dict[str, Any]]] = {}
    """The parts taken when the user names none, where they are not the usual ones, and settings that are not theirs:
    {"objective": {"name": "proser", "open_weight": 0.01}}."""
    personal: ClassVar[bool] = False
    """Whether each client has a predictor of its own."""
    starts_from: ClassVar[bool] = False
    """Whether `start` can begin with another run's global model, as `initial_weights` does."""
    sends_embeddings: ClassVar[bool] = False
    """Whether clients send embeddings or means of them; the network must then have layers that make some of samples."""
    needs_public: ClassVar[bool] = False
    """Whether the server must have public unlabelled data."""
    grows: ClassVar[bool] = False
    """Whether classes that newcomers bring join the registry in the run; without it they are in it from the start."""
    digits: ClassVar[dict[str, dict[str, Any]]] = {}
    """Settings, by section, that suit the embedded digits when the user names none."""

    def __init__(self, params: Any, **parts: Any) -> None:
        self.params = params
        for part in self.composes:
            setattr(self, part, parts[part])

    @classmethod
    def summary(cls) -> str:
        """The first line of the docstring."""
        return (cls.__doc__ or "").strip().splitlines()[0]

    @classmethod
    def scores_unknown_output(cls, parts: Mapping[str, Any]) -> bool:
        """Whether the network that answers has an output for "unknown": by default if its objective trains one."""
        return "objective" in parts and parts["objective"].extra_outputs == 1

    def is_personal(self, server: Server) -> bool:
        """`personal`, for methods where it is decided in the run."""
        return self.personal

    def check_network(self, network: Network) -> None:
        """Refuse a network that this method cannot train, before a run begins, by raising `UserError`."""

    @abstractmethod
    def phases(self) -> Sequence[Phase]:
        """The phases of a run, in order."""

    def start(self, server: Server) -> None:
        """Put the initial state into `server.state`. Draws come from `server.rng`."""

    def arrivals(self, newcomers: Sequence[str]) -> dict[str, int | str]:
        """Since which round or phase newcomers are there, where the user does not say: by default from the first on."""
        return {}

    def wants(self, server: Server) -> bool:
        """Whether the round `server.step` should take place; False skips it (converged, nothing to adapt to)."""
        return True

    def participants(self, server: Server, present: Sequence[str], participation: float, rng: Rng) -> Sequence[str]:
        """Who takes part in this round: by default a random share of the clients present, at least one."""
        count = max(1, round(participation * len(present)))
        if count >= len(present):
            return present
        chosen = rng.numpy("participants").choice(len(present), size=count, replace=False)
        return [present[i] for i in sorted(chosen)]

    def bears_silence(self, server: Server) -> bool:
        """Whether a round that nobody answers counts, since the method knows what that means; else it fails."""
        return False

    @abstractmethod
    def send(self, server: Server, client: str) -> Payload:
        """What goes down to one client. Payloads made of the same tensor objects are encoded once for all."""

    @abstractmethod
    def local(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        """The client's work. The reply's info must hold "samples"."""

    def expects(self, server: Server) -> dict[str, Mapping[str, Tensor]]:
        """The groups that a reply of this round must have, with the names, shapes and types of their tensors."""
        return {}

    def check(self, server: Server, reply: Payload) -> None:
        """Refuse a reply that does not fit by raising `BadReply`; finiteness is checked already."""
        samples = reply.info.get("samples")
        if not isinstance(samples, int) or isinstance(samples, bool) or not 0 <= samples <= 2**53:
            raise BadReply(f"info 'samples' is {str(samples)[:40]}, expected a whole number from 0 to 2**53")
        for group, spec in self.expects(server).items():
            check_like(reply.group(group), spec, group)

    @abstractmethod
    def merge(self, server: Server, replies: Replies) -> None:
        """Fold the replies into `server.state`."""

    @abstractmethod
    def predictor(self, server: Server, client: Client | None = None) -> Predictor:
        """The answerer after the rounds so far; `client` is given only to personal methods."""

    def threshold(self) -> float | None:
        """A threshold that is part of the method, such as 0 for p_unknown - max p_known (K+1 argmax).

        None has the engine choose the one that accepts most known validation samples.
        """
        return None

    def members(self, server: Server) -> Sequence[str]:
        """Whose validation samples set the common threshold: the clients that were there in the last round."""
        return server.clients

    def weights(self, server: Server) -> dict[str, Tensor]:
        """The global model that another run may begin with; nothing where there is none."""
        return server.state.group("model")

    def owners(self, server: Server) -> Sequence[str]:
        """For personal methods: the clients that have a predictor of their own by now."""
        return server.clients

    def truth(self, server: Server, outcome: Outcome) -> Tensor:
        """The true ids (n,) for the common figures, where some classes of the registry have no true name yet."""
        return outcome.truth

    def measure(self, server: Server, outcome: Outcome) -> dict[str, float]:
        """Figures of the method's own, beside the common open-set metrics."""
        return {}


def single_thread() -> None:
    """One thread per process, denormals flushed: speed, and equal bits in every process."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    keep_memory()


def keep_memory() -> None:
    """Have glibc keep freed memory: else each batch's tensors are fetched anew from the system, page by page."""
    with contextlib.suppress(AttributeError, OSError):
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_THRESHOLD, 2**25)
        library.mallopt(M_TRIM_THRESHOLD, 2**29)
