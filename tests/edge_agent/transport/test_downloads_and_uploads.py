"""Bytes in both directions: chunks with a bounded number in flight, and blobs that are not believed unverified."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from edge_agent.errors import DownloadError
from edge_agent.machine.events import ChunksSent
from edge_agent.transport.chunk_sender import ChunkSender
from edge_agent.transport.downloads import BlobDownloader
from federation.protocol.chunks import ChunkAssembly
from federation.protocol.messages import BlobPointer, UpdateManifest

CHUNK = 1024


class Wire:
    """A broker that takes messages, or not, and reassembles the chunks."""

    def __init__(self, size: int) -> None:
        self.assembly, self.data = ChunkAssembly(size, CHUNK), bytearray(size)
        self.unacknowledged: list[int] = []
        self.steps: list[tuple[str | int, ...]] = []
        self.full, self._mid = False, 0

    def publish_update(self, update_id: str, payload: bytes, *step: str | int) -> int | None:
        if self.full:
            return None
        if step[0] == "chunk":
            n = int(step[1])
            place = self.assembly.offset(n, len(payload))
            self.data[place : place + len(payload)] = payload
            self.assembly.add(n)
        self._mid += 1
        self.unacknowledged.append(self._mid)
        self.steps.append(step)
        return self._mid


def sender(folder: Path, data: bytes, first: int = 0, in_flight: int = 3) -> ChunkSender:
    path = folder / "update"
    path.write_bytes(data)
    manifest = UpdateManifest(
        update_id="u1",
        federation="demo",
        instance="0" * 32,
        client="d1",
        round=1,
        method="fedavg",
        base_version="a" * 64,
        examples=1,
        steps=1,
        size=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        chunk_bytes=CHUNK,
        nonce="0" * 8,
        created=0.0,
    )
    return ChunkSender(manifest, path, first, in_flight)


def drain(chunks: ChunkSender, wire: Wire) -> object:
    """Acknowledge one message at a time; returns the last event."""
    event = None
    chunks.pump(wire)
    while wire.unacknowledged:
        assert len(wire.unacknowledged) <= 3
        event = chunks.delivered(wire.unacknowledged.pop(0))
        chunks.pump(wire)
    return event


@pytest.mark.parametrize("size", [0, 1, CHUNK, 10 * CHUNK, 10 * CHUNK + 1])
def test_all_bytes_arrive_with_at_most_so_many_in_flight_and_the_end_last(tmp_path: Path, size: int) -> None:
    data = hashlib.shake_256(b"x").digest(size)
    wire = Wire(size)
    assert drain(sender(tmp_path, data), wire) == ChunksSent("u1")
    assert bytes(wire.data) == data
    assert wire.assembly.complete
    assert [step for step in wire.steps if step[0] == "end"] == [wire.steps[-1]]


def test_an_upload_goes_on_from_the_chunk_that_the_server_wants(tmp_path: Path) -> None:
    wire = Wire(5 * CHUNK)
    drain(sender(tmp_path, bytes(5 * CHUNK), first=3), wire)
    assert wire.steps == [("chunk", 3), ("chunk", 4), ("end",)]


def test_a_full_queue_loses_no_chunk(tmp_path: Path) -> None:
    wire, chunks = Wire(5 * CHUNK), sender(tmp_path, bytes(5 * CHUNK))
    wire.full = True
    chunks.pump(wire)
    assert wire.steps == []
    wire.full = False
    drain(chunks, wire)
    assert wire.assembly.complete


class Server(BaseHTTPRequestHandler):
    data, honours_range, seen, moved_to = b"", True, [], ""

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        Server.seen.append(wanted)
        if Server.moved_to:
            self.send_response(302)
            self.send_header("Location", Server.moved_to)
            self.end_headers()
            return
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and Server.honours_range else 0
        self.send_response(206 if start else 200)
        self.end_headers()
        self.wfile.write(Server.data[start:])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    Server.data, Server.honours_range, Server.seen = hashlib.shake_256(b"blob").digest(200_000), True, []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def point(data: bytes, url: str = "/v1/blobs/x") -> BlobPointer:
    return BlobPointer(sha256=hashlib.sha256(data).hexdigest(), size=len(data), url=url)


def test_a_blob_is_downloaded_once(tmp_path: Path, address: str) -> None:
    blobs = BlobDownloader(tmp_path, address, 5.0)
    assert blobs.fetch(point(Server.data)).read_bytes() == Server.data
    blobs.fetch(point(Server.data))
    assert Server.seen == [None]


@pytest.mark.parametrize("honours_range", [True, False])
def test_a_download_that_broke_off_goes_on(tmp_path: Path, address: str, honours_range: bool) -> None:
    Server.honours_range = honours_range
    pointer = point(Server.data)
    (tmp_path / f"{pointer.sha256}.part").write_bytes(Server.data[:150_000])
    assert BlobDownloader(tmp_path, address, 5.0).fetch(pointer).read_bytes() == Server.data
    assert Server.seen == ["bytes=150000-"]


def test_bytes_that_are_not_the_announced_ones_are_not_kept(tmp_path: Path, address: str) -> None:
    blobs = BlobDownloader(tmp_path, address, 5.0)
    announced = point(Server.data)
    right, Server.data = Server.data, bytes(len(Server.data))
    with pytest.raises(DownloadError, match="has sha256"):
        blobs.fetch(announced)
    Server.data = right + b"more"
    with pytest.raises(DownloadError, match="more than the 200,000 bytes"):
        blobs.fetch(announced)
    Server.data = right[:-1]
    with pytest.raises(DownloadError, match=r"ended after 199,999 of 200,000"):
        blobs.fetch(announced)
    assert not blobs.path(announced.sha256).exists()
    Server.data = right
    assert blobs.fetch(announced).read_bytes() == right


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/hostname",
        "https://127.0.0.1:9/x",
        "http://127.0.0.1:10/x",
        "http://evil.example:9/x",
        "http://127.0.0.1:9@evil.example/x",
        "http://user:word@127.0.0.1:9/x",
        "http://127.0.0.1:9\\@evil.example/x",
        "http:\\\\evil.example/x",
        "http://127.0.0.1:99999/x",
        "ftp://127.0.0.1:9/x",
    ],
)
def test_models_are_fetched_from_the_servers_own_origin_alone(tmp_path: Path, url: str) -> None:
    blobs = BlobDownloader(tmp_path, "http://127.0.0.1:9", 1.0)
    with pytest.raises(DownloadError, match=r"was announced, but models are only downloaded from http://127.0.0.1:9/"):
        blobs.fetch(point(b"x", url))


@pytest.mark.parametrize("place", ["http://127.0.0.1:9/x", "/v1/blobs/elsewhere"])
def test_no_redirection_is_followed(tmp_path: Path, address: str, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Server, "moved_to", place)
    with pytest.raises(DownloadError, match=r"cannot download http://.*: the server answered 302 Found"):
        BlobDownloader(tmp_path, address, 5.0).fetch(point(b"x"))
    assert Server.seen == [None]


def test_a_network_path_stays_below_the_server_and_no_server_is_an_error(tmp_path: Path) -> None:
    blobs = BlobDownloader(tmp_path, "http://127.0.0.1:9", 1.0)
    with pytest.raises(DownloadError, match=r"cannot download http://127.0.0.1:9/evil.example/x"):
        blobs.fetch(point(b"x", "//evil.example/x"))
    with pytest.raises(DownloadError, match="cannot download"):
        blobs.fetch(point(b"x"))
