"""The gate lets through what sites need, and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

pytest.importorskip("flwr", reason="needs fedwild[flower]")

from starlette.testclient import TestClient

from fedwild.sites import gate as module
from fedwild.sites.gate import gate


class Echo(BaseHTTPRequestHandler):
    """Stands for a SuperLink: says what it was asked."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(207)
        self.send_header("x-signature", str(self.headers.get("x-signature")))
        self.end_headers()
        self.wfile.write(self.path.encode() + b"|" + body)

    do_GET = do_POST

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def client() -> Iterator[TestClient]:
    server = HTTPServer(("127.0.0.1", 0), Echo)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with TestClient(gate(f"http://127.0.0.1:{server.server_port}", None)) as client:
        yield client
    server.shutdown()
    server.server_close()


def test_requests_of_sites_go_through_with_their_headers(client: TestClient) -> None:
    reply = client.post("/v1/fleet/pull?x=1", content=b"\x00body", headers={"x-signature": "abc"})
    assert (reply.status_code, reply.content, reply.headers["x-signature"]) == (
        207,
        b"/v1/fleet/pull?x=1|\x00body",
        "abc",
    )


@pytest.mark.parametrize(
    "path", ["/", "/docs", "/v1/control/runs", "/v1/runtime/x", "/v1/fleet", "/v1/fleet/../control/runs", "//v1/fleet/"]
)
def test_all_others_are_refused(path: str, client: TestClient) -> None:
    for method in ("GET", "POST", "PUT", "DELETE"):
        assert client.request(method, f"http://testserver{path}").status_code == 403


@pytest.mark.parametrize("path", ["/v1/fleet/%2e%2e/control/runs", "/v1/fleet/..%2fcontrol"])
def test_a_detour_in_disguise_is_refused(path: str, client: TestClient) -> None:
    assert client.post(f"http://testserver{path}").status_code == 403


def test_a_request_that_is_too_large_is_refused(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 1000)
    assert client.post("/v1/fleet/push", content=bytes(1001)).status_code == 413


def test_a_superlink_that_is_away_is_said_to_be() -> None:
    with TestClient(gate("http://127.0.0.1:1", None)) as client:
        assert client.post("/v1/fleet/pull").status_code == 503


def test_too_much_of_all_requests_together_is_refused_and_let_go_again(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_HELD", 1000)
    assert client.post("/v1/fleet/push", content=bytes(1001)).status_code == 503
    for _ in range(3):
        assert client.post("/v1/fleet/push", content=bytes(999)).status_code == 207
