"""Who may have how many open connections and how many bytes in memory.

Strangers, which have not shown a registered key yet, compete among themselves: a new one takes the place of the oldest,
first of its own address. Registered sites have their own slots, so strangers cannot take them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Limits:
    """Limits of the proxy: connections, bytes and seconds."""

    strangers: int = 128
    """Open connections without a registered key, in total."""
    strangers_per_address: int = 32
    connections_per_site: int = 32
    request_bytes: int = 16_000_000
    """One request. Flower cuts arrays into chunks of 5 MB, so no valid request comes near it."""
    site_bytes: int = 64_000_000
    """All requests of one site in memory."""
    total_bytes: int = 512_000_000
    """All requests in memory."""
    head_bytes: int = 16_384
    handshake_seconds: float = 10.0
    head_seconds: float = 10.0
    """The time to send a request's head, from the connection on."""
    idle_seconds: float = 60.0
    """The time between two requests of a registered site, and between two pieces of a request or reply."""


class Full(Exception):
    """A registered site uses everything that it may use."""


@dataclass
class Slots:
    """The open connections, each served by one task, and the bytes that they hold."""

    limits: Limits
    strangers: dict[asyncio.Task[None], str] = field(default_factory=dict)
    """The connections without a registered key, the oldest first, with their address."""
    sites: dict[asyncio.Task[None], str] = field(default_factory=dict)
    """The connections of registered sites, with the site's name."""
    held: Counter[str] = field(default_factory=Counter)
    """The bytes of unfinished requests, by site."""

    def enter(self, connection: asyncio.Task[None], address: str) -> None:
        """Add a connection of a stranger; the oldest one is closed if there are too many."""
        by_address = Counter(self.strangers.values())
        if by_address[address] >= self.limits.strangers_per_address:
            self.close_oldest(address)
        elif len(self.strangers) >= self.limits.strangers:
            self.close_oldest(by_address.most_common(1)[0][0])
        self.strangers[connection] = address

    def close_oldest(self, address: str | None = None) -> None:
        """Close the oldest connection of a stranger, of this address if one is given."""
        for connection, other in self.strangers.items():
            if address in (None, other):
                connection.cancel()
                del self.strangers[connection]
                return

    def identify(self, connection: asyncio.Task[None], site: str) -> None:
        """Move a connection to the site that has shown its key."""
        self.strangers.pop(connection, None)
        self.sites.setdefault(connection, site)
        if Counter(self.sites.values())[site] > self.limits.connections_per_site:
            raise Full(f"at most {self.limits.connections_per_site} connections per site are allowed")

    def leave(self, connection: asyncio.Task[None]) -> None:
        """Remove a connection that has ended."""
        self.strangers.pop(connection, None)
        self.sites.pop(connection, None)

    def hold(self, site: str, count: int) -> None:
        """Count bytes that a site has sent."""
        if self.held[site] + count > self.limits.site_bytes or self.held.total() + count > self.limits.total_bytes:
            raise Full("too many bytes are in transit")
        self.held[site] += count

    def release(self, site: str, count: int) -> None:
        """Forget bytes that were forwarded or rejected."""
        self.held[site] -= count
