"""Keeps the keys at a SuperLink as they are in a folder, until it is stopped.

    python -m fedwild.sites.registration CONNECTION DIR

`flwr supernode register` takes seconds to start for each key. This process registers all keys at the start, prints
`READY`, and then follows the folder: a new key is registered, and a key that is revoked, expired or removed is
unregistered, which disconnects its site. Each later change is printed as one line.
"""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from typing import Protocol

from flwr.cli.flower_config import read_superlink_connection
from flwr.cli.utils import flwr_cli_exc_handler, init_http_client_from_connection
from flwr.proto.control_pb2 import RegisterNodeRequest, UnregisterNodeRequest

from fedwild.sites.site_keys import KeyFolder, SiteKey
from fedwild.sites.superlink import CHANGE, READY

POLL_SECONDS = 1.0


class Control(Protocol):
    """The calls of Flower's Control API that are needed here."""

    def register(self, key: SiteKey) -> int:
        """Register a key and return the id of its node."""
        ...

    def unregister(self, node: int) -> None:
        """Remove a node; its site is disconnected."""
        ...


class FlowerControl:
    """The Control API of a SuperLink."""

    def __init__(self, connection: str) -> None:
        self._client = init_http_client_from_connection(read_superlink_connection(connection))

    def register(self, key: SiteKey) -> int:
        with flwr_cli_exc_handler():
            node = int(self._client.RegisterNode(RegisterNodeRequest(public_key=key.pem, name=key.name)).node_id)
        if not node:
            raise RuntimeError("the SuperLink does not accept it")
        return node

    def unregister(self, node: int) -> None:
        self._client.UnregisterNode(UnregisterNodeRequest(node_id=node))


class Registrar:
    """The keys that are registered, and what changes them."""

    def __init__(self, folder: KeyFolder, control: Control) -> None:
        self._folder, self._control = folder, control
        self._nodes: dict[bytes, int] = {}
        self._names: dict[bytes, str] = {}
        self._failed: dict[bytes, str] = {}

    def update(self) -> list[str]:
        """Register new keys and unregister those that are not valid any more. Returns a line for each change."""
        known, valid = [*self.problems], {key.pem: key for key in self._folder.valid().values()}
        lines = [self._remove(pem) for pem in sorted(self._nodes.keys() - valid.keys())]
        for pem, key in valid.items():
            if pem not in self._nodes and pem not in self._failed:
                lines += self._add(key)
        return lines + [problem for problem in self.problems if problem not in known]

    @property
    def problems(self) -> list[str]:
        """Why keys of the folder are not registered."""
        return [*self._folder.problems, *self._failed.values()]

    def _add(self, key: SiteKey) -> list[str]:
        self._names[key.pem] = key.name
        try:
            self._nodes[key.pem] = self._control.register(key)
        except (Exception, SystemExit) as problem:
            # Flower accepts a key only once, even after it was removed.
            self._failed[key.pem] = f"key {str(key.path)!r} cannot be registered: {problem}"
            return []
        return [f"the key of {key.name} is registered"]

    def _remove(self, pem: bytes) -> str:
        # Flower 1.41 fails for a node that has never been connected. The proxy rejects its key anyway.
        with contextlib.suppress(Exception):
            self._control.unregister(self._nodes.pop(pem))
        return f"the key of {self._names[pem]} is not valid any more"


def main(connection: str, folder: str) -> int:
    """Register all keys, then follow the folder. Returns 1 if a key cannot be registered at the start."""
    registrar = Registrar(KeyFolder(Path(folder)), FlowerControl(connection))
    registrar.update()
    if registrar.problems:
        print(registrar.problems[0], flush=True)
        return 1
    print(READY, flush=True)
    while True:
        time.sleep(POLL_SECONDS)
        for line in registrar.update():
            print(f"{CHANGE}{line}", flush=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
