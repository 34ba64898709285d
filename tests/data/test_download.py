from __future__ import annotations

import gzip
import hashlib
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from fedwild.core.errors import UserError
from fedwild.data import DataSettings, load
from fedwild.data.sources import catalogue, prepare
from fedwild.data.sources.catalogue import DataEntry, Download
from fedwild.data.sources.download import download

CONTENT = np.random.default_rng(0).bytes(700_000)


class Server(ThreadingHTTPServer):
    """Serves `files`; closes the connection early `cuts` times, responds with 503 `busy` times first."""

    files: dict[str, bytes]
    cuts = 0
    busy = 0
    ranges = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {"/data.bin": CONTENT}
        self.asked: list[tuple[str, str | None]] = []

    def url(self, path: str = "/data.bin") -> str:
        return f"http://127.0.0.1:{self.server_address[1]}{path}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Print no traceback for connections that the test closes early."""


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, format: str, *args: object) -> None:
        """Keep the test's output clean."""

    def do_GET(self) -> None:
        server, wanted = self.server, self.headers.get("Range")
        server.asked.append((self.path, wanted))
        if self.path not in server.files:
            self.send_error(404)
            return
        if server.busy:
            server.busy -= 1
            self.send_error(503)
            return
        content, start = server.files[self.path], 0
        if wanted and server.ranges:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            if start >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206)
        else:
            self.send_response(200)
        rest = content[start:]
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        if server.cuts:
            server.cuts -= 1
            self.wfile.write(rest[: len(rest) // 2])
            self.wfile.flush()
            self.connection.close()
            return
        self.wfile.write(rest)


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def test_a_download_reports_its_progress(server: Server, tmp_path: Path) -> None:
    reported: list[tuple[str, int, int | None]] = []
    target = download(
        server.url(), tmp_path / "in" / "data.bin", md5(CONTENT), lambda *progress: reported.append(progress), pause=0
    )
    assert target.read_bytes() == CONTENT
    assert reported[-1] == ("data.bin", len(CONTENT), len(CONTENT))
    assert [done for _, done, _ in reported] == sorted(done for _, done, _ in reported)
    assert [path.name for path in target.parent.iterdir()] == ["data.bin"]


def test_a_lost_connection_is_resumed(server: Server, tmp_path: Path) -> None:
    server.cuts = 2
    target = download(server.url(), tmp_path / "data.bin", md5(CONTENT), pause=0)
    assert target.read_bytes() == CONTENT
    starts = [int(wanted.removeprefix("bytes=").rstrip("-")) for _, wanted in server.asked if wanted]
    assert len(starts) == 2
    assert 0 < starts[0] < starts[1]


def test_a_partial_download_is_kept_for_the_next_attempt(server: Server, tmp_path: Path) -> None:
    server.cuts = 4
    with pytest.raises(UserError, match=r"cannot be downloaded: .*; the next attempt continues from .*data\.bin\.part"):
        download(server.url(), tmp_path / "data.bin", pause=0)
    have = (tmp_path / "data.bin.part").stat().st_size
    assert have > len(CONTENT) // 2
    download(server.url(), tmp_path / "data.bin", md5(CONTENT), pause=0)
    assert server.asked[-1][1] == f"bytes={have}-"
    assert (tmp_path / "data.bin").read_bytes() == CONTENT


def test_a_complete_part_is_not_downloaded_again(server: Server, tmp_path: Path) -> None:
    (tmp_path / "data.bin.part").write_bytes(CONTENT)
    assert download(server.url(), tmp_path / "data.bin", md5(CONTENT), pause=0).read_bytes() == CONTENT


def test_a_part_of_another_file_is_discarded(server: Server, tmp_path: Path) -> None:
    (tmp_path / "data.bin.part").write_bytes(CONTENT + b"more")
    assert download(server.url(), tmp_path / "data.bin", md5(CONTENT), pause=0).read_bytes() == CONTENT


def test_a_server_without_ranges_starts_over(server: Server, tmp_path: Path) -> None:
    server.ranges = False
    (tmp_path / "data.bin.part").write_bytes(b"old rubbish")
    assert download(server.url(), tmp_path / "data.bin", md5(CONTENT), pause=0).read_bytes() == CONTENT


def test_a_busy_server_is_tried_again(server: Server, tmp_path: Path) -> None:
    server.busy = 2
    assert download(server.url(), tmp_path / "data.bin", pause=0).read_bytes() == CONTENT


def test_a_download_with_a_wrong_checksum_is_deleted(server: Server, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not match its published checksum"):
        download(server.url(), tmp_path / "data.bin", "0" * 32, pause=0)
    assert list(tmp_path.glob("data.bin*")) == []


def test_a_missing_file_is_reported_without_another_attempt(server: Server, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be downloaded: HTTP 404"):
        download(server.url("/nothing"), tmp_path / "x", pause=0)
    assert len(server.asked) == 1


def test_an_unreachable_server_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be downloaded"):
        download("http://127.0.0.1:9/x", tmp_path / "x", timeout=2, pause=0)


def idx(array: np.ndarray) -> bytes:
    head = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return gzip.compress(head + array.astype(np.uint8).tobytes())


def entry_on(server: Server) -> DataEntry:
    """Return an entry for MNIST with ten samples, whose official files are on the test server."""
    x, y = np.arange(10 * 784).reshape(10, 28, 28) % 256, np.arange(10)
    files = {"xa.gz": idx(x), "ya.gz": idx(y), "xb.gz": idx(x[:5]), "yb.gz": idx(y[:5])}
    server.files.update({f"/{name}": content for name, content in files.items()})
    downloads = tuple(Download(server.url(f"/{name}"), md5(content)) for name, content in files.items())
    return DataEntry("mnist", "ten digits", (1, 28, 28), 10, 10, 5, "none", tuple("0123456789"), downloads)


def test_load_prepares_a_missing_data_set(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(catalogue.DATASETS, "mnist", entry_on(server))
    reported: list[str] = []
    dataset = load(DataSettings(name="mnist"), progress=lambda name, done, total: reported.append(name))
    assert dataset.y_train.tolist() == list(range(10))
    assert set(reported) == {"xa.gz", "ya.gz", "xb.gz", "yb.gz"}
    requests = len(server.asked)
    assert load(DataSettings(name="mnist")).input_shape == (1, 28, 28)
    assert len(server.asked) == requests
    cache = tmp_path / "cache" / "fedwild"
    assert [path.name for path in cache.rglob("*")] == ["mnist.npz"]


def test_a_data_folder_that_is_not_writable_is_reported_before_any_download(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(catalogue.DATASETS, "mnist", entry_on(server))
    monkeypatch.setenv("FEDWILD_DATA", str(tmp_path / "file"))
    (tmp_path / "file").write_text("a file where a folder should be")
    with pytest.raises(UserError, match="file is not writable"):
        prepare("mnist")
    assert server.asked == []


def test_preparing_continues_with_the_files_on_disk(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = entry_on(server)
    monkeypatch.setitem(catalogue.DATASETS, "mnist", entry)
    last = server.files.pop("/yb.gz")
    with pytest.raises(UserError, match=r"cannot be prepared: .*404.* Try again, or provide .*mnist\.npz"):
        prepare("mnist")
    server.files["/yb.gz"] = last
    server.asked.clear()
    prepare("mnist")
    assert [path for path, _ in server.asked] == ["/yb.gz"]
