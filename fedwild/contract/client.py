"""One client, where its data is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from fedwild.contract.server import Step
from fedwild.contract.task import Task
from fedwild.core.payload import Payload
from fedwild.data.samples import Samples


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
