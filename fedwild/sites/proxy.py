"""The proxy in front of the SuperLink: the only part of the coordinator that sites can reach.

A SuperLink serves sites, `flwr run` and the registration of keys on one port without a password, so anyone who reaches
it can run code at all sites. The coordinator's own SuperLink therefore listens on the loopback interface only. This
process listens on the address that sites know, and forwards what sites need and nothing else.
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
"""The paths that Flower's SuperNodes use begin with this."""
MAX_BYTES = 16_000_000
"""Limit for one request. Flower cuts arrays into chunks of 5 MB, so no valid request comes near it."""
MAX_TOTAL_BYTES = 512_000_000
"""Limit for all requests in memory, which may come from anyone."""
HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "host", "content-length"}


def proxy_app(superlink: str, authority: str | None) -> Starlette:
    """Return an app that forwards sites' requests to the SuperLink at `superlink` and rejects all others."""
    verify: ssl.SSLContext | bool = ssl.create_default_context(cafile=authority) if authority else False
    client = httpx.AsyncClient(base_url=superlink, verify=verify, timeout=httpx.Timeout(300.0, connect=10.0))
    total_bytes = 0

    async def forward(request: Request) -> Response:
        nonlocal total_bytes
        body = bytearray()
        try:
            return await answer(request, body)
        finally:
            total_bytes -= len(body)

    async def answer(request: Request, body: bytearray) -> Response:
        nonlocal total_bytes
        if not request.url.path.startswith(FLEET) or ".." in request.url.path:
            return PlainTextResponse("only sites are served here", status_code=403)
        async for chunk in request.stream():
            body += chunk
            total_bytes += len(chunk)
            if len(body) > MAX_BYTES:
                return PlainTextResponse("request too large", status_code=413)
            if total_bytes > MAX_TOTAL_BYTES:
                return PlainTextResponse("too many requests at once", status_code=503)
        headers = [(key, value) for key, value in request.headers.items() if key not in HOP_BY_HOP]
        try:
            reply = await client.request(
                request.method, request.url.path, params=request.query_params, headers=headers, content=bytes(body)
            )
        except httpx.HTTPError:
            return PlainTextResponse("the SuperLink does not answer", status_code=503)
        reply_headers = {
            key: value for key, value in reply.headers.items() if key not in {*HOP_BY_HOP, "content-encoding"}
        }
        return Response(reply.content, reply.status_code, reply_headers)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await client.aclose()

    methods = ["GET", "POST", "PUT", "PATCH", "DELETE"]
    return Starlette(routes=[Route("/{path:path}", forward, methods=methods)], lifespan=lifespan)


def main() -> None:
    """Serve the proxy. `fedwild coordinate` starts this as `python -m fedwild.sites.proxy`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--superlink", required=True)
    parser.add_argument("--socket", type=int, required=True, help="descriptor of the socket to listen on")
    for name in ("--certificate", "--key", "--authority"):
        parser.add_argument(name)
    options = parser.parse_args()
    config = uvicorn.Config(
        proxy_app(options.superlink, options.authority),
        ssl_certfile=options.certificate,
        ssl_keyfile=options.key,
        access_log=False,
        log_level="warning",
    )
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=options.socket)])


if __name__ == "__main__":
    main()
