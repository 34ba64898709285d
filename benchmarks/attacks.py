"""Attacks by malicious clients, for tests and benchmarks.

An attack changes the data on which some clients train (`poison`), or what they send (`Attacked`, an engine around
another engine). The forged replies may depend on those of all clients: the strongest attackers collude and know
everything. fedwild itself contains no attack.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedwild.contract.engine import Answer, Engine, Job, Presence
from fedwild.core.payload import Payload
from fedwild.core.rng import Rng
from fedwild.data import Dataset, Split
from fedwild.engines.choice import Connect

Weights = Mapping[str, Tensor]
SCALE = 10.0
"""How much `scaling` enlarges an update."""
Z_ALIE = 1.5
"""ALIE's number of standard deviations; its authors use 1.5 for MNIST."""
EPSILON_IPM = 0.5
TRIGGER, TARGET = 3, 0
"""The back door: the side of a bright square in a corner, and the class that it stands for."""


@dataclass(frozen=True)
class Situation:
    """What an attacker knows: the weights that the server sent, its own trained weights, and all honest weights."""

    sent: Weights
    own: Weights
    honest: Sequence[Weights]
    clients: int
    attackers: int
    rng: np.random.Generator


def negate(s: Situation) -> Weights:
    """Sign flip: send -x in place of the trained weights x."""
    return {name: -tensor for name, tensor in s.own.items()}


def scale(s: Situation) -> Weights:
    """Scaling: an update ten times as long."""
    return {name: s.sent[name] + SCALE * (tensor - s.sent[name]) for name, tensor in s.own.items()}


def noise(s: Situation) -> Weights:
    """Random weights, drawn from N(0, 1)."""
    return {name: torch.from_numpy(s.rng.normal(size=tuple(t.shape))).to(t.dtype) for name, t in s.own.items()}


def alie(s: Situation) -> Weights:
    """Baruch, Baruch, Goldberg: A little is enough. NeurIPS 2019: mean - z * deviation of the honest weights."""
    return {name: mean - Z_ALIE * deviation for name, (mean, deviation) in moments(s.honest).items()}


def ipm(s: Situation) -> Weights:
    """Xie, Koyejo, Gupta: Fall of empires. UAI 2019 (inner product manipulation): -epsilon * the honest mean update."""
    return {name: s.sent[name] - EPSILON_IPM * (mean - s.sent[name]) for name, (mean, _) in moments(s.honest).items()}


def replace_model(s: Situation) -> Weights:
    """Bagdasaryan et al.: How to backdoor federated learning. AISTATS 2020: the mean becomes the attackers' model."""
    factor = s.clients / s.attackers
    return {name: s.sent[name] + factor * (tensor - s.sent[name]) for name, tensor in s.own.items()}


def send_own(s: Situation) -> Weights:
    """The weights as trained: the attack is in the data."""
    return s.own


FORGERIES: dict[str, Callable[[Situation], Weights]] = {
    "none": send_own,
    "sign-flip": negate,
    "scaling": scale,
    "noise": noise,
    "label-flip": send_own,
    "alie": alie,
    "ipm": ipm,
    "backdoor": replace_model,
}
"""What attackers send, by attack."""


def moments(models: Sequence[Weights]) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the mean and the standard deviation of each weight over models."""
    stacked = {name: torch.stack([model[name].double() for model in models]) for name in models[0]}
    return {
        name: (values.mean(0).to(models[0][name].dtype), values.std(0, correction=0).to(models[0][name].dtype))
        for name, values in stacked.items()
    }


def poison(dataset: Dataset, split: Split, attack: str, attackers: Sequence[str]) -> Dataset:
    """Return the data with other labels, or with triggers, in the attackers' training rows."""
    rows = np.concatenate([client.train for client in split.clients if client.name in attackers])
    x, y = dataset.x_train.clone(), dataset.y_train.clone()
    known = [dataset.classes.index(name) for name in split.known]
    if attack == "label-flip":
        flipped = dict(zip(known, reversed(known), strict=True))
        y[rows] = torch.tensor([flipped[label] for label in y[rows].tolist()])
    elif attack == "backdoor":
        half = torch.as_tensor(rows[::2])
        x[half], y[half] = add_trigger(x[half]), known[TARGET]
    return replace(dataset, x_train=x, y_train=y)


def add_trigger(images: Tensor) -> Tensor:
    """Return images (n, channels, height, width) with the back door's bright square in a corner."""
    marked = images.clone()
    marked[..., -TRIGGER:, -TRIGGER:] = 255 if images.dtype == torch.uint8 else float(images.max())
    return marked


class Attacked:
    """An engine whose attackers forge their replies of a round after all clients have replied."""

    def __init__(self, inner: Engine, folder: Path, attack: str, attackers: Sequence[str], seed: int) -> None:
        self._inner, self._folder = inner, folder
        self._forge, self._attackers, self._seed = FORGERIES[attack], set(attackers), seed

    def present(self) -> Mapping[str, Presence] | None:
        return self._inner.present()

    def close(self) -> None:
        self._inner.close()

    def run(self, jobs: Iterable[Job], started: Callable[[Job], None] = lambda job: None) -> Iterator[Answer]:
        answers = list(self._inner.run(jobs, started))
        honest = [self._model(a) for a in answers if a.error is None and a.job.client not in self._attackers]
        for answer in answers:
            if answer.job.kind == "local" and answer.job.client in self._attackers and answer.error is None:
                yield self._forged(answer, honest, len(answers))
            else:
                yield answer

    def _model(self, answer: Answer) -> dict[str, Tensor]:
        return {name: t for name, t in answer.read().group("model").items() if t.is_floating_point()}

    def _forged(self, answer: Answer, honest: Sequence[Weights], clients: int) -> Answer:
        """Return the answer with forged weights in the group `model`; integers and everything else stay."""
        reply, sent = answer.read(), Payload.decode(Path(answer.job.payload).read_bytes()).group("model")
        own = self._model(answer)
        rng = Rng(self._seed).child("attack", answer.job.step.index, answer.job.client or "").numpy("forge")
        situation = Situation(sent, own, honest, clients, len(self._attackers), rng)
        forged = self._forge(situation)
        reply.put("model", {**reply.group("model"), **forged})
        path = self._folder / f"up-forged-{answer.job.step.index}-{answer.job.client}"
        return dataclasses.replace(answer, path=str(path), offset=0, size=reply.write(path, durable=False))


def attacked_by(connect: Connect, attack: str, attackers: Sequence[str], seed: int) -> Connect:
    """Return a function that makes the engine of a run in which some clients attack."""
    return lambda executor: Attacked(connect(executor), executor.spool, attack, attackers, seed)
