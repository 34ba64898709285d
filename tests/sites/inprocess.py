"""Sites without Flower: site servers in this process, and a transport that calls them directly."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedwild.lifecycle.run import Run
from fedwild.runs.events import Listener
from fedwild.sites.coordinator import coordinate_over, settings_for_sites
from fedwild.sites.envelope import Envelope
from fedwild.sites.policy import Policy
from fedwild.sites.site_server import SiteServer
from fedwild.sites.transport import Delivery, Node
from tests.tiny import brief

Change = Callable[[Envelope], Envelope | None]


class InProcessSites:
    """A transport to site servers in this process. Envelopes are encoded on the way, and all of them are recorded."""

    def __init__(self, *servers: SiteServer) -> None:
        self.servers: dict[int, SiteServer] = {}
        self.names: dict[int, str] = {}
        self.sent: list[tuple[int, Envelope]] = []
        self.answered: list[tuple[int, Envelope]] = []
        self.changes: dict[str, Change] = {}
        """By site, a function that changes its answers on the way, or loses them by returning None."""
        self._answers: dict[str, Delivery] = {}
        for server in servers:
            self.connect(server)

    def connect(self, server: SiteServer, registered: str = "") -> int:
        node = 1000 + len(self.sent) + 10 * len(self.servers)
        self.servers[node], self.names[node] = server, registered
        return node

    def disconnect(self, name: str) -> None:
        for node in [node for node, server in self.servers.items() if server.name == name]:
            del self.servers[node]

    def nodes(self) -> list[Node]:
        return [Node(node, self.names[node]) for node in self.servers]

    def send(self, node: int, envelope: Envelope) -> str:
        key = f"message-{len(self.sent)}"
        self.sent.append((node, envelope))
        if node not in self.servers:
            self._answers[key] = Delivery(key, error="its site disconnected")
            return key
        server = self.servers[node]
        answer: Envelope | None = server.answer(Envelope.parse(envelope.head_text(), bytearray(envelope.body)))
        assert answer is not None
        self.answered.append((node, answer))
        if server.name in self.changes:
            answer = self.changes[server.name](answer)
        if answer is not None:
            self._answers[key] = Delivery(key, Envelope.parse(answer.head_text(), bytearray(answer.body)))
        return key

    def collect(self, ids: Iterable[str]) -> list[Delivery]:
        return [self._answers.pop(key) for key in list(ids) if key in self._answers]


def images(
    classes: Mapping[str, int], seed: int, train: int = 16, test: int = 5, side: int = 8
) -> dict[str, np.ndarray]:
    """Return images in which each class brightens one row of pixels."""
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
"""The first three are known, the last is unknown."""


def saved(path: Path, arrays: Mapping[str, np.ndarray]) -> Path:
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path


def site_files(folder: Path, names: Sequence[str], classes: Mapping[str, int] = ANIMALS) -> dict[str, Path]:
    """Write a file for each site, and `all.npz` with all samples and their owners."""
    parts = {name: images(classes, seed) for seed, name in enumerate(names)}
    joint = {key: np.concatenate([part[key] for part in parts.values()]) for key in next(iter(parts.values()))}
    for part in ("train", "test"):
        joint[f"client_{part}"] = np.concatenate([np.full(len(p[f"y_{part}"]), name) for name, p in parts.items()])
    saved(folder / "all.npz", joint)
    return {name: saved(folder / f"{name}.npz", arrays) for name, arrays in parts.items()}


TINY_DATA = Policy(min_batch_size=1, min_count=1)
"""A policy that lets sites work with a handful of samples."""


def site_server(name: str, data: Path, folder: Path, policy: Policy = TINY_DATA, **options: Any) -> SiteServer:
    return SiteServer(name, str(data), folder / f"site-{name}", policy=policy, **options)


def connected_sites(folder: Path, names: Sequence[str] = ("a", "b")) -> InProcessSites:
    """Write files for these sites and connect a server for each."""
    return InProcessSites(*(site_server(name, file, folder) for name, file in site_files(folder, names).items()))


def tables(method: str = "fedavg", **sections: Any) -> dict[str, Any]:
    """Return the settings of a tiny run."""
    base = {
        "data": {"known": ["ant", "bee", "cat"]},
        "method": {"name": method, **brief(method)},
        "model": {"name": "mlp", "hidden": [8, 6]},
        "federation": {"clients": 2},
        "engine": {"wait": 0.5},
    }
    return {key: {**base.get(key, {}), **sections.get(key, {})} for key in {**base, **sections}}


def coordinated(
    sites: InProcessSites, settings: Mapping[str, Any], out: Path, listener: Listener = lambda event: None
) -> Run:
    """Run over these sites."""
    return coordinate_over(sites, settings_for_sites(settings), out, listener)
