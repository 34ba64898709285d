"""The gate: what sites see of the coordinator.

A SuperLink serves sites, `flwr run` and the registration of keys at one port and asks nobody for a password, so whoever
reaches it could run code at all sites. The coordinator's own SuperLink therefore listens on the loopback interface
alone, and this process, on the address that sites know, forwards what sites need and nothing else.
"""

from __future__ import annotations

import argparse
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

FLEET = "/v1/fleet/"
"""Under this path is what Flower's SuperNodes ask for."""
MOST_BYTES = 16_000_000
"""Flower cuts arrays into chunks of five megabytes; no request comes near this."""
MOST_HELD = 512_000_000
"""Of all requests together: nobody knows yet whether they come from sites."""
HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "host", "content-length"}


def gate(superlink: str, authority: str | None) -> Starlette:
    """An app that forwards requests of sites to the SuperLink at `superlink`, and refuses all others."""
    verify: ssl.SSLContext | bool = ssl.create_default_context(cafile=authority) if authority else False
    client = httpx.AsyncClient(base_url=superlink, verify=verify, timeout=httpx.Timeout(300.0, connect=10.0))

    held = 0

    async def forward(request: Request) -> Response:
        nonlocal held
        body = bytearray()
        try:
            return await forwarded(request, body)
        finally:
            held -= len(body)

    async def forwarded(request: Request, body: bytearray) -> Response:
        nonlocal held
        if not request.url.path.startswith(FLEET) or ".." in request.url.path:
            return PlainTextResponse("only sites are served here", status_code=403)
        async for chunk in request.stream():
            body += chunk
            held += len(chunk)
            if len(body) > MOST_BYTES:
                return PlainTextResponse("a request this large is not served", status_code=413)
            if held > MOST_HELD:
                return PlainTextResponse("too much is asked at once", status_code=503)
        headers = [(key, value) for key, value in request.headers.items() if key not in HOP_BY_HOP]
        try:
            reply = await client.request(
                request.method, request.url.path, params=request.query_params, headers=headers, content=bytes(body)
            )
        except httpx.HTTPError:
            return PlainTextResponse("the SuperLink does not answer", status_code=503)
        kept = {key: value for key, value in reply.headers.items() if key not in {*HOP_BY_HOP, "content-encoding"}}
        return Response(reply.content, reply.status_code, kept)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await client.aclose()

    methods = ["GET", "POST", "PUT", "PATCH", "DELETE"]
    return Starlette(routes=[Route("/{path:path}", forward, methods=methods)], lifespan=lifespan)


def main() -> None:
    """`python -m fedwild.flower.gate`: started by `fedwild coordinate`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--superlink", required=True)
    parser.add_argument("--door", type=int, required=True, help="descriptor of the socket to listen on")
    for name in ("--certificate", "--key", "--authority"):
        parser.add_argument(name)
    options = parser.parse_args()
    config = uvicorn.Config(
        gate(options.superlink, options.authority),
        ssl_certfile=options.certificate,
        ssl_keyfile=options.key,
        access_log=False,
        log_level="warning",
    )
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=options.door)])


if __name__ == "__main__":
    main()
