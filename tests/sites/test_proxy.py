"""The proxy forwards what sites need, and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

pytest.importorskip("flwr", reason="needs fedwild[flower]")

from starlette.testclient import TestClient

from fedwild.sites import proxy
from fedwild.sites.proxy import proxy_app


class Echo(BaseHTTPRequestHandler):
    """Stands for a SuperLink: returns the request."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(207)
        self.send_header("x-signature", str(self.headers.get("x-signature")))
        self.end_headers()
        self.wfile.write(self.path.encode() + b"|" + body)

    do_GET = do_POST

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def client() -> Iterator[TestClient]:
    server = HTTPServer(("127.0.0.1", 0), Echo)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with TestClient(proxy_app(f"http://127.0.0.1:{server.server_port}", None)) as client:
        yield client
    server.shutdown()
    server.server_close()


def test_requests_of_sites_are_forwarded_with_their_headers(client: TestClient) -> None:
    reply = client.post("/v1/fleet/pull?x=1", content=b"\x00body", headers={"x-signature": "abc"})
    assert (reply.status_code, reply.content, reply.headers["x-signature"]) == (
        207,
        b"/v1/fleet/pull?x=1|\x00body",
        "abc",
    )


@pytest.mark.parametrize(
    "path", ["/", "/docs", "/v1/control/runs", "/v1/runtime/x", "/v1/fleet", "/v1/fleet/../control/runs", "//v1/fleet/"]
)
def test_other_requests_are_rejected(path: str, client: TestClient) -> None:
    for method in ("GET", "POST", "PUT", "DELETE"):
        assert client.request(method, f"http://testserver{path}").status_code == 403


@pytest.mark.parametrize("path", ["/v1/fleet/%2e%2e/control/runs", "/v1/fleet/..%2fcontrol"])
def test_encoded_path_traversal_is_rejected(path: str, client: TestClient) -> None:
    assert client.post(f"http://testserver{path}").status_code == 403


def test_too_large_request_is_rejected(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "MAX_BYTES", 1000)
    assert client.post("/v1/fleet/push", content=bytes(1001)).status_code == 413


def test_unreachable_superlink_is_reported() -> None:
    with TestClient(proxy_app("http://127.0.0.1:1", None)) as client:
        assert client.post("/v1/fleet/pull").status_code == 503


def test_total_size_of_all_requests_is_limited_and_released(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy, "MAX_TOTAL_BYTES", 1000)
    assert client.post("/v1/fleet/push", content=bytes(1001)).status_code == 503
    for _ in range(3):
        assert client.post("/v1/fleet/push", content=bytes(999)).status_code == 207
