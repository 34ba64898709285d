"""A small FedOSS federation, round by round and by hand."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from fedwild.contract import Replies, Server, Step
from fedwild.contract.engine import Job
from fedwild.core.classes import ClassRegistry
from fedwild.core.payload import Payload
from fedwild.core.rng import Rng
from fedwild.data import Dataset, Split
from fedwild.engines.executor import Executor
from fedwild.methods.fedoss import FedOSS
from fedwild.methods.fedoss.finetune import Finetune
from fedwild.methods.fedoss.pretrain import Pretrain
from tests.tiny import even_shares, split_by, tiny_experiment

BRIEF: dict[str, Any] = {"rounds": 1, "finetune_rounds": 2, "batch_size": 8}
EVERYTHING = {**BRIEF, "boundary": "all", "min_count": 1}


def uneven(data: Dataset) -> Split:
    rows = even_shares(data, 3, 1)[0]
    return split_by(data, 3, [rows[:20], rows[20:44], rows[44:]])


def split_by_class(data: Dataset, counts: list[dict[int, int]]) -> Split:
    """Clients with the given number of samples of each class."""
    pools = {k: (data.y_train == k).nonzero().flatten().tolist() for k in range(3)}
    return split_by(data, 3, [[pools[k].pop() for k, n in own.items() for _ in range(n)] for own in counts])


def final(folder: Path) -> Payload:
    return Payload.read(folder / "model.safetensors")


class Federation:
    """A federation by hand: clients reply in any order, and their states are kept here."""

    def __init__(
        self, data: Dataset, split: Split, folder: Path, settings: dict[str, Any], method: str = "fedoss"
    ) -> None:
        experiment = tiny_experiment(method, data, split, settings)
        assert isinstance(experiment.method, FedOSS)
        self.method: FedOSS = experiment.method
        self.phases = {phase.name: phase for phase in self.method.phases()}
        self.names = [client.name for client in split.clients]
        registry = ClassRegistry.of(split.known)
        self.server = Server(experiment.task, registry, Step("pretrain", 0, 0), Rng(0), tuple(self.names))
        self.method.start(self.server)
        self.states = {name: Payload() for name in self.names}
        self.executor = Executor(data, split, experiment.config.data, self.method, experiment.task, 0, folder, folder)

    @property
    def phase(self) -> Pretrain:
        phase = self.phases[self.server.step.phase]
        assert isinstance(phase, Pretrain)
        return phase

    @property
    def finetune(self) -> Finetune:
        phase = self.phases["finetune"]
        assert isinstance(phase, Finetune)
        return phase

    def replies(self, order: list[str] | None = None) -> dict[str, Payload]:
        """Every client's reply in this round; the state of each stays."""
        found = {}
        for name in order or self.names:
            step = self.server.step
            client = self.executor.client(Job("local", step, "", name, self.server.classes.names), self.states[name])
            rng = Rng(0).child(step.phase, step.round, name)
            reply = self.phase.local(self.phase.send(self.server, name), client, rng)
            self.phase.check(self.server, Payload.decode(reply.encode()))
            found[name] = reply
        return found

    def merge(self, replies: dict[str, Payload]) -> None:
        self.phase.merge(self.server, Replies({name: partial(replies.__getitem__, name) for name in replies}))

    def go_to(self, phase: str, round_: int) -> None:
        self.server.step = Step(phase, round_, round_)


def pretrained(data: Dataset, split: Split, folder: Path, method: str = "fedoss", **settings: Any) -> Federation:
    """A federation before its first round of fine-tuning."""
    federation = Federation(data, split, folder, {"method": {**EVERYTHING, **settings}}, method)
    federation.merge(federation.replies())
    federation.go_to("finetune", 0)
    return federation
