"""Sites without Flower: desks in this process, and a transport that walks from one to the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedwild.api import Run
from fedwild.sites.coordinator import coordinate_over, settings_for_sites
from fedwild.sites.transport import Delivery, Node
from fedwild.sites.site_server import SiteServer
from fedwild.sites.envelope import Envelope, letter_of
from tests.tiny import brief

Listener = Callable[[dict[str, Any]], None]
Change = Callable[[Envelope], Envelope | None]


class Desks:
    """A transport to desks in this process. Envelope travel as text and bytes, and everything that was sent is kept."""

    def __init__(self, *desks: SiteServer) -> None:
        self.desks: dict[int, SiteServer] = {}
        self.names: dict[int, str] = {}
        self.sent: list[tuple[int, Envelope]] = []
        self.answered: list[tuple[int, Envelope]] = []
        self.changes: dict[str, Change] = {}
        """By site, what becomes of its answers on their way; None for one that gets lost with its node."""
        self._answers: dict[str, Delivery] = {}
        for desk in desks:
            self.connect(desk)

    def connect(self, desk: SiteServer, registered: str = "") -> int:
        node = 1000 + len(self.sent) + 10 * len(self.desks)
        self.desks[node], self.names[node] = desk, registered
        return node

    def disconnect(self, name: str) -> None:
        for node in [node for node, desk in self.desks.items() if desk.name == name]:
            del self.desks[node]

    def nodes(self) -> list[Node]:
        return [Node(node, self.names[node]) for node in self.desks]

    def send(self, node: int, letter: Envelope) -> str:
        key = f"letter-{len(self.sent)}"
        self.sent.append((node, letter))
        if node not in self.desks:
            self._answers[key] = Delivery(key, error="its site is gone")
            return key
        desk = self.desks[node]
        answer: Envelope | None = desk.answer(letter_of(letter.head_text(), bytearray(letter.body)))
        assert answer is not None
        self.answered.append((node, answer))
        if desk.name in self.changes:
            answer = self.changes[desk.name](answer)
        if answer is not None:
            self._answers[key] = Delivery(key, letter_of(answer.head_text(), bytearray(answer.body)))
        return key

    def collect(self, ids: Iterable[str]) -> list[Delivery]:
        return [self._answers.pop(key) for key in list(ids) if key in self._answers]


def images(
    classes: Mapping[str, int], seed: int, train: int = 16, test: int = 5, side: int = 8
) -> dict[str, np.ndarray]:
    """Images whose classes, by name, are bright rows."""
    rng = np.random.default_rng(seed)
    arrays: dict[str, np.ndarray] = {}
    for part, count in (("train", train), ("test", test)):
        names = rng.permutation(np.repeat(sorted(classes), count))
        x = rng.integers(0, 80, (len(names), side, side), dtype=np.uint8)
        for i, name in enumerate(names):
            x[i, classes[str(name)]] += 150
        arrays |= {f"x_{part}": x, f"y_{part}": names}
    return arrays


ANIMALS = {"ant": 0, "bee": 2, "cat": 4, "dog": 6}
"""Of these the first three are known, and the last is unknown."""


def saved(path: Path, arrays: Mapping[str, np.ndarray]) -> Path:
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path


def site_files(folder: Path, names: Sequence[str], classes: Mapping[str, int] = ANIMALS) -> dict[str, Path]:
    """A file for each site, and `all.npz`, which has all of them and says whose each sample is."""
    parts = {name: images(classes, seed) for seed, name in enumerate(names)}
    joint = {key: np.concatenate([part[key] for part in parts.values()]) for key in next(iter(parts.values()))}
    for part in ("train", "test"):
        joint[f"client_{part}"] = np.concatenate([np.full(len(p[f"y_{part}"]), name) for name, p in parts.items()])
    saved(folder / "all.npz", joint)
    return {name: saved(folder / f"{name}.npz", arrays) for name, arrays in parts.items()}


def desk(name: str, data: Path, folder: Path, **options: Any) -> SiteServer:
    return SiteServer(name, str(data), folder / f"site-{name}", **options)


def tables(method: str = "fedavg", **sections: Any) -> dict[str, Any]:
    """Settings of a run that is over in a blink."""
    base = {
        "data": {"known": ["ant", "bee", "cat"]},
        "method": {"name": method, **brief(method)},
        "model": {"name": "mlp", "hidden": [8, 6]},
        "federation": {"clients": 2},
        "engine": {"wait": 0.5},
    }
    return {key: {**base.get(key, {}), **sections.get(key, {})} for key in {**base, **sections}}


def coordinated(desks: Desks, settings: Mapping[str, Any], out: Path, listener: Listener = lambda event: None) -> Run:
    """A run over desks."""
    return coordinate_over(desks, settings_for_sites(settings), out, listener)
