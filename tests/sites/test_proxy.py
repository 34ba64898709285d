"""The proxy forwards what registered sites need, and nothing else. Strangers cannot use up connections or memory."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import socket
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs fedwild[flower]")

import httpx
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedwild.sites.identify import PUBLIC_KEY, SIGNATURE, TIMESTAMP, NotRegistered, RegisteredSites
from fedwild.sites.keys import make_keys
from fedwild.sites.proxy import Proxy
from fedwild.sites.slots import Limits

Serve = Callable[..., str]
PULL = "/v1/fleet/pull-messages"


class Echo(BaseHTTPRequestHandler):
    """Stands for a SuperLink: returns the request."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        content = self.path.encode() + b"|" + body
        self.send_response(207)
        self.send_header("x-signature", str(self.headers.get("x-signature")))
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def superlink() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def serve(superlink: str) -> Iterator[Serve]:
    """Start a proxy on a free port of the loopback interface, and return its address."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    running = []

    def start(limits: Limits = Limits(), sites: RegisteredSites | None = None, to: str = superlink) -> str:
        listening = socket.create_server(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"

        async def run() -> None:
            with listening:
                await Proxy(to, None, sites, limits).serve(listening, None)

        running.append(asyncio.run_coroutine_threadsafe(run(), loop))
        return address

    yield start

    async def stop() -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    asyncio.run_coroutine_threadsafe(stop(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """The coordinator's folder, with the key of one site."""
    make_keys(tmp_path / "keys", [], ["a"])
    return tmp_path / "keys"


def signed(keys: Path, site: str = "a", seconds_ago: float = 0.0) -> dict[str, str]:
    """Return the headers that a SuperNode sends."""
    private = serialization.load_ssh_private_key((keys / "sites" / f"{site}.key").read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    now = (datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=seconds_ago)).isoformat()
    form = (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    signature = private.sign(now.encode(), ec.ECDSA(hashes.SHA256()))
    return {
        PUBLIC_KEY: b64encode(private.public_key().public_bytes(*form)).decode(),
        TIMESTAMP: now,
        SIGNATURE: b64encode(signature).decode(),
    }


def connect(address: str, text: bytes = b"") -> socket.socket:
    host, port = address.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), 5.0)
    connection.sendall(text)
    return connection


def head(length: int, headers: dict[str, str] | None = None) -> bytes:
    lines = [f"POST {PULL} HTTP/1.1", "host: x", f"content-length: {length}"]
    lines += [f"{key}: {value}" for key, value in (headers or {}).items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def test_requests_of_sites_are_forwarded_with_their_headers(serve: Serve) -> None:
    with httpx.Client(base_url=serve()) as client:
        for _ in range(2):
            reply = client.post("/v1/fleet/pull?x=1", content=b"\x00body", headers={"x-signature": "abc"})
            assert (reply.status_code, reply.content) == (207, b"/v1/fleet/pull?x=1|\x00body")
            assert reply.headers["x-signature"] == "abc"


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/docs", "/v1/control/runs", "/v1/runtime/x", "/v1/fleet", "/v1/fleet/../control/runs", "//v1/fleet/"),
        *("/v1/fleet/%2e%2e/control/runs", "/v1/fleet/..%2fcontrol", "*"),
    ],
)
def test_other_requests_are_rejected(path: str, serve: Serve) -> None:
    for method in ("GET", "POST", "PUT", "DELETE"):
        with connect(serve(), f"{method} {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode()) as connection:
            assert connection.recv(100).startswith(b"HTTP/1.1 403")


@pytest.mark.parametrize(
    "path", ["/v1/fleet/%00", "/v1/fleet/a%00b", "/v1/fleet/a/b", "/v1/fleet/", "/v1/fleet/a%0d%0a"]
)
def test_invalid_paths_are_rejected(path: str, serve: Serve) -> None:
    with connect(serve(), f"POST {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode()) as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize(
    "text", [b"\x16\x03\x01nonsense\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"x" * 40_000, b"\r\n" * 9]
)
def test_what_is_not_http_ends_the_connection(text: bytes, serve: Serve) -> None:
    address = serve(Limits(head_seconds=0.3))
    with connect(address, text) as connection, contextlib.suppress(ConnectionError):
        while connection.recv(1000):
            pass
    assert httpx.post(address + PULL, content=b"x").status_code == 207


def test_too_large_request_is_rejected_before_it_is_sent(serve: Serve) -> None:
    address = serve(Limits(request_bytes=1000))
    with connect(address, head(1001)) as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 413")
    pieces = (bytes(400) for _ in range(3))
    assert httpx.post(address + PULL, content=pieces).status_code == 413
    assert httpx.post(address + PULL, content=bytes(1000)).status_code == 207


def test_unreachable_superlink_is_reported(serve: Serve) -> None:
    assert httpx.post(serve(to="http://127.0.0.1:1") + PULL).status_code == 503


def test_total_size_of_all_requests_is_limited_and_released(serve: Serve) -> None:
    address = serve(Limits(total_bytes=1000))
    assert httpx.post(address + PULL, content=bytes(1001)).status_code == 503
    with connect(address, head(900) + bytes(800)):
        time.sleep(0.2)
        assert httpx.post(address + PULL, content=bytes(400)).status_code == 503
    time.sleep(0.2)
    for _ in range(3):
        assert httpx.post(address + PULL, content=bytes(999)).status_code == 207


# --- strangers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("begun", [b"", b"POST /v1/fl", head(15_000_000), head(15_000_000) + bytes(60_000)])
def test_idle_connections_of_strangers_do_not_stop_a_registered_site(begun: bytes, serve: Serve, keys: Path) -> None:
    address = serve(sites=RegisteredSites(keys))
    with contextlib.ExitStack() as open_connections:
        for _ in range(40):
            with contextlib.suppress(ConnectionError):
                open_connections.enter_context(connect(address, begun))
        with httpx.Client(base_url=address, timeout=5.0) as client:
            for _ in range(3):
                assert client.post(PULL, content=bytes(100_000), headers=signed(keys)).status_code == 207


def test_strangers_cannot_fill_the_memory(serve: Serve, keys: Path) -> None:
    address = serve(Limits(total_bytes=1_000_000), RegisteredSites(keys))
    with contextlib.ExitStack() as open_connections:
        for _ in range(20):
            with contextlib.suppress(ConnectionError):
                open_connections.enter_context(connect(address, head(100_001) + bytes(100_000)))
        assert httpx.post(address + PULL, content=bytes(900_000), headers=signed(keys)).status_code == 207


def test_one_site_cannot_use_the_memory_of_the_others(serve: Serve, keys: Path) -> None:
    make_keys(keys, [], ["b"])
    address = serve(Limits(site_bytes=1000, connections_per_site=2), RegisteredSites(keys))
    with contextlib.ExitStack() as open_connections:
        for _ in range(2):
            open_connections.enter_context(connect(address, head(600, signed(keys)) + bytes(450)))
        time.sleep(0.2)
        assert httpx.post(address + PULL, content=b"x", headers=signed(keys)).status_code == 503
        assert httpx.post(address + PULL, content=bytes(1000), headers=signed(keys, "b")).status_code == 207
    time.sleep(0.2)
    assert httpx.post(address + PULL, content=bytes(1000), headers=signed(keys)).status_code == 207


def test_the_oldest_connection_of_a_stranger_makes_room(serve: Serve, keys: Path) -> None:
    address = serve(Limits(strangers=3), RegisteredSites(keys))
    connections = [connect(address) for _ in range(5)]
    with contextlib.ExitStack() as closing:
        for connection in connections:
            closing.enter_context(connection)
            connection.settimeout(0.3)
        time.sleep(0.2)
        for connection in connections[:2]:
            with contextlib.suppress(ConnectionError):
                assert connection.recv(10) == b""
        for connection in connections[2:]:
            with pytest.raises(TimeoutError):
                connection.recv(10)


def test_slow_requests_are_ended(serve: Serve, keys: Path) -> None:
    address = serve(Limits(head_seconds=0.2, idle_seconds=0.4), RegisteredSites(keys))
    for begun in (b"", b"POST /", head(1000, signed(keys)), head(1000, signed(keys)) + bytes(10)):
        with connect(address, begun) as connection, contextlib.suppress(ConnectionError):
            assert connection.recv(100) == b""


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (dict.clear, "not signed"),
        (lambda headers: headers.pop(SIGNATURE), "not signed"),
        (lambda headers: headers.update({TIMESTAMP: "yesterday"}), "not signed"),
        (lambda headers: headers.update({TIMESTAMP: "2026-01-01T00:00:00"}), "not signed"),
        (lambda headers: headers.update({PUBLIC_KEY: "???"}), "not signed"),
        (lambda headers: headers.update({PUBLIC_KEY: b64encode(b"other").decode()}), "not registered"),
        (lambda headers: headers.update({SIGNATURE: b64encode(b"other").decode()}), "signature is invalid"),
    ],
)
def test_only_registered_sites_are_served(
    change: Callable[[dict[str, str]], object], reason: str, serve: Serve, keys: Path
) -> None:
    headers = signed(keys)
    change(headers)
    reply = httpx.post(serve(sites=RegisteredSites(keys)) + PULL, content=b"x", headers=headers)
    assert reply.status_code == 400
    assert reply.json()["code"] == 22
    assert reason in reply.json()["detail"]


@pytest.mark.parametrize("seconds_ago", [400.0, -60.0])
def test_old_and_future_signatures_are_rejected(seconds_ago: float, keys: Path) -> None:
    with pytest.raises(NotRegistered, match="its clock differs from the coordinator's by"):
        RegisteredSites(keys).site_of(signed(keys, seconds_ago=seconds_ago))


def test_keys_that_are_added_or_deleted_count_at_once(keys: Path) -> None:
    sites = RegisteredSites(keys)
    assert sites.site_of(signed(keys)) == "a"
    make_keys(keys, [], ["b"])
    assert sites.site_of(signed(keys, "b")) == "b"
    (keys / "sites" / "a.pub").unlink()
    with pytest.raises(NotRegistered, match="its key is not registered"):
        sites.site_of(signed(keys))
