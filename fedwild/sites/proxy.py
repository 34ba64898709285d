"""The proxy in front of the SuperLink: the only part of the coordinator that sites can reach.

A SuperLink serves sites, `flwr run` and the registration of keys on one port without a password, so anyone who reaches
it can run code at all sites. The coordinator's own SuperLink therefore listens on the loopback interface only. This
process listens on the address that sites know, and forwards what registered sites need and nothing else. A stranger's
request is rejected by its head: its body is never read.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import resource
import socket
import ssl
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import h11
import httpx

from fedwild.sites.identify import NotRegistered, RegisteredSites
from fedwild.sites.slots import Full, Limits, Slots

FLEET = "/v1/fleet/"
"""The paths that Flower's SuperNodes use begin with this."""
TARGET = re.compile(r"/v1/fleet/[A-Za-z0-9_-]+(\?[!-~]*)?")
HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "host", "content-length"}
NOT_REGISTERED = 22
"""The number of Flower's error for an invalid public key. A SuperNode prints it with the reason."""
PIECE = 65_536
MAX_LOCAL_CONNECTIONS = 10_000
"""Connections without TLS and keys, which are possible on this machine only."""


class Rejected(Exception):
    """A request that is answered by the proxy itself. The connection is closed afterwards."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Proxy:
    """Forwards the requests of registered sites to the SuperLink; without `sites`, those of everyone."""

    def __init__(
        self, superlink: str, authority: str | None, sites: RegisteredSites | None, limits: Limits | None = None
    ) -> None:
        verify: ssl.SSLContext | bool = ssl.create_default_context(cafile=authority) if authority else False
        timeout, pool = httpx.Timeout(300.0, connect=10.0), httpx.Limits(max_connections=256)
        self.client = httpx.AsyncClient(base_url=superlink, verify=verify, timeout=timeout, limits=pool)
        self.sites, self.limits = sites, limits or Limits()
        if sites is None:
            # Everyone counts as the same site.
            everything = {"site_bytes": self.limits.total_bytes, "connections_per_site": MAX_LOCAL_CONNECTIONS}
            self.limits = replace(self.limits, **everything)
        self.slots = Slots(self.limits)

    async def serve(self, listening: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Accept connections until cancelled."""
        loop = asyncio.get_running_loop()
        listening.setblocking(False)
        listening.listen(256)
        while True:
            try:
                connection, address = await loop.sock_accept(listening)
            except OSError:
                # Too many open files: a stranger's is given up.
                self.slots.close_oldest()
                await asyncio.sleep(0.05)
                continue
            task = loop.create_task(self._serve_connection(connection, tls))
            self.slots.enter(task, str(address[0]))
            task.add_done_callback(self.slots.leave)

    async def _serve_connection(self, connection: socket.socket, tls: ssl.SSLContext | None) -> None:
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader(PIECE)
        seconds = None if tls is None else self.limits.handshake_seconds
        try:
            transport, protocol = await loop.connect_accepted_socket(
                lambda: asyncio.StreamReaderProtocol(reader), connection, ssl=tls, ssl_handshake_timeout=seconds
            )
        except (OSError, asyncio.CancelledError):
            connection.close()
            return
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        try:
            exchange = Exchange(self, reader, writer)
            while await exchange.run():
                pass
            writer.close()
            async with asyncio.timeout(self.limits.head_seconds):
                await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.CancelledError, h11.RemoteProtocolError, h11.LocalProtocolError):
            # The peer left, is too slow, does not speak HTTP, or its place was taken.
            pass
        finally:
            transport.abort()

    def admit(self, request: h11.Request) -> str:
        """Return the site that sent a request; reject requests that no site sends."""
        target = request.target.decode("ascii", "replace")
        path = unquote(target.partition("?")[0])
        if not path.startswith(FLEET) or ".." in path:
            raise Rejected(403, "only sites are served here")
        if not TARGET.fullmatch(target):
            raise Rejected(400, "the path is invalid")
        if self.sites is None:
            return ""
        try:
            return self.sites.site_of(headers_of(request))
        except NotRegistered as problem:
            raise Rejected(400, json.dumps({"code": NOT_REGISTERED, "detail": str(problem)})) from problem

    async def forward(self, request: h11.Request, body: bytes) -> httpx.Response:
        """Return the SuperLink's answer."""
        headers = [(key, value) for key, value in request.headers if key.decode("ascii") not in HOP_BY_HOP]
        try:
            return await self.client.request(
                request.method.decode(), request.target.decode(), headers=headers, content=body
            )
        except httpx.InvalidURL as error:
            raise Rejected(400, "the path is invalid") from error
        except httpx.HTTPError as error:
            raise Rejected(503, "the SuperLink does not answer") from error


class Exchange:
    """One connection: requests and replies, one after the other, each within its time."""

    def __init__(self, proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._proxy, self._limits, self._slots = proxy, proxy.limits, proxy.slots
        self._reader, self._writer = reader, writer
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=self._limits.head_bytes)
        self._seconds = self._limits.head_seconds

    async def run(self) -> bool:
        """Answer one request. Returns whether another one may follow."""
        async with asyncio.timeout(self._seconds):
            request = await self._next_event()
        if not isinstance(request, h11.Request):
            return False
        try:
            reply = await self._answer(request)
        except Rejected as problem:
            await self._send(problem.status, [("connection", "close")], str(problem).encode())
            await self._discard()
            return False
        dropped = {*HOP_BY_HOP, "content-encoding"}
        headers = [(key, value) for key, value in reply.headers.items() if key not in dropped]
        await self._send(reply.status_code, headers, reply.content)
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True

    async def _answer(self, request: h11.Request) -> httpx.Response:
        site, task = self._proxy.admit(request), asyncio.current_task()
        assert task is not None
        body = bytearray()
        try:
            self._slots.identify(task, site)
            self._seconds = self._limits.idle_seconds
            await self._read_body(request, site, body)
            return await self._proxy.forward(request, bytes(body))
        except Full as problem:
            raise Rejected(503, str(problem)) from problem
        finally:
            self._slots.release(site, len(body))

    async def _read_body(self, request: h11.Request, site: str, body: bytearray) -> None:
        """Append the body of a request to `body`, within the limits."""
        announced = headers_of(request).get("content-length", "0")
        if int(announced) > self._limits.request_bytes:
            raise Rejected(413, "request too large")
        if self._http.they_are_waiting_for_100_continue:
            self._writer.write(self._http.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
        while True:
            async with asyncio.timeout(self._limits.idle_seconds):
                event = await self._next_event()
            if not isinstance(event, h11.Data):
                return
            if len(body) + len(event.data) > self._limits.request_bytes:
                raise Rejected(413, "request too large")
            self._slots.hold(site, len(event.data))
            body += event.data

    async def _next_event(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._reader.read(PIECE))
        return event

    async def _send(self, status: int, headers: Sequence[tuple[str, str]], content: bytes) -> None:
        """Write a reply; the peer must keep reading."""
        response = h11.Response(status_code=status, headers=[*headers, ("content-length", str(len(content)))])
        pieces = (h11.Data(data=content[start : start + PIECE]) for start in range(0, len(content), PIECE))
        for event in (response, *pieces, h11.EndOfMessage()):
            self._writer.write(self._http.send(event) or b"")
            async with asyncio.timeout(self._limits.idle_seconds):
                await self._writer.drain()

    async def _discard(self) -> None:
        """Read a little more before closing: a connection that is closed with unread bytes loses its reply."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                for _ in range(16):
                    if not await self._reader.read(PIECE):
                        return


def headers_of(request: h11.Request) -> dict[str, str]:
    """Return the headers of a request, with names in lower case."""
    return {key.decode("ascii"): value.decode("latin-1") for key, value in request.headers}


def main() -> None:
    """Serve the proxy. `fedwild coordinate` starts this as `python -m fedwild.sites.proxy`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--superlink", required=True)
    parser.add_argument("--socket", type=int, required=True, help="descriptor of the socket to listen on")
    parser.add_argument("--certificates", type=Path, help="folder made by `fedwild flower keys`; without it, no TLS")
    options = parser.parse_args()
    # Every connection is an open file, and the usual limit of 1024 is meant for ordinary programs.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    folder: Path | None = options.certificates
    tls, authority, sites = None, None, None
    if folder is not None:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(folder / "server.pem", folder / "server.key")
        authority, sites = str(folder / "ca.pem"), RegisteredSites(folder)

    async def serve() -> None:
        proxy = Proxy(options.superlink, authority, sites)
        await proxy.serve(socket.socket(fileno=options.socket), tls)

    asyncio.run(serve())


if __name__ == "__main__":
    main()
