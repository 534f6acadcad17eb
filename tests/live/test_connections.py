"""Slow and too many connections to a real server: it stays within reach, and they end."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from tests.live.real_parts import wait_for_port
from tests.live.test_proxies import nginx_conf, running
from tests.ports import free_port

pytestmark = [pytest.mark.ci, pytest.mark.service]

HEADER_S, BODY_S, IDLE_S, WRITE_S = 1.0, 1.0, 3, 1.0
HALF = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"
WHOLE = HALF + b"\r\n"


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A server with short times, which may open 1,024 files as it may where nobody has changed that."""
    folder, found = tmp_path_factory.mktemp("server"), free_port()
    toml = folder / "server.toml"
    toml.write_text(f"data_dir = '{folder / 'data'}'\nport = {found}\nbroker_port = {free_port()}\n" + limits())
    limited = ["prlimit", "--nofile=1024:1024", sys.executable, "-m", "aggregator_api", "serve", "--config", str(toml)]
    log = folder / "server.log"
    with log.open("wb") as stream, subprocess.Popen(limited, stdout=stream, stderr=stream) as process:
        wait_for_port(found, process, log, within_s=120)
        yield found
        process.terminate()
        process.wait(30)
        assert "Traceback" not in log.read_text(), log.read_text()


def limits() -> str:
    times = {"header": HEADER_S, "body": BODY_S, "idle": IDLE_S, "write": WRITE_S}
    bounds = "".join(f"{name}_timeout_s = {seconds}\n" for name, seconds in times.items())
    return bounds + "address_requests_per_s = 1e6\n"  # hostile and honest clients have one address here


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=20)


def answered(port: int) -> bytes:
    """Return the first line that an honest client gets."""
    with connect(port) as client:
        client.sendall(WHOLE)
        return client.recv(4096).partition(b"\r\n")[0]


def rest(client: socket.socket) -> bytes:
    """Read until the server ends the connection."""
    got = b""
    try:
        while more := client.recv(65536):
            got += more
    except ConnectionResetError:
        pass
    return got


@pytest.mark.parametrize(
    "half",
    [HALF, b"POST /v1/enrol HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{", b""],
    ids=["headers", "body", "nothing"],
)
def test_connections_with_half_a_request_keep_nobody_out(port: int, half: bytes) -> None:
    with ExitStack() as open_ones:
        for _ in range(1100):
            client = open_ones.enter_context(connect(port))
            with suppress(BrokenPipeError, ConnectionResetError):  # it may have made room already
                client.sendall(half)
        assert answered(port) == b"HTTP/1.1 200 OK"


@pytest.mark.parametrize("drip", [False, True])
def test_headers_that_do_not_end_are_cut_off(port: int, drip: bool) -> None:
    with connect(port) as client:
        client.sendall(HALF)
        began = time.monotonic()
        while drip and time.monotonic() < began + HEADER_S - 0.3:
            client.sendall(b"X: y\r\n")
            time.sleep(0.1)
        assert rest(client).startswith(b"HTTP/1.1 408 ")


def test_a_body_is_not_read_on_after_an_answer(port: int) -> None:
    with connect(port) as client:
        client.sendall(b"POST /v1/keys HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{")
        assert rest(client).startswith(b"HTTP/1.1 401 ")


def test_an_idle_connection_ends_and_one_in_use_does_not(port: int) -> None:
    with connect(port) as client:
        for _ in range(4):  # longer than the headers of one request may take
            client.sendall(WHOLE)
            got = b""
            while not got.endswith(b"}"):
                more = client.recv(4096)
                assert more, "the server ended a connection in use"
                got += more
            assert got.startswith(b"HTTP/1.1 200 OK")
            time.sleep(0.4)
        assert b"HTTP/1.1 200" not in rest(client)


LARGE, TIMES = b"GET /docs/swagger-ui-bundle.js HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 20


def connect_with_little_room(port: int) -> socket.socket:
    """Connect as a client for which the system keeps little of what it does not read."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)  # before it connects, or the window is larger
    client.settimeout(20)
    client.connect(("127.0.0.1", port))
    return client


def test_a_client_that_reads_nothing_of_an_answer_is_cut_off_and_a_slow_reader_is_not(port: int) -> None:
    with connect_with_little_room(port) as client:
        client.sendall(LARGE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        whole, began = 0, time.monotonic()
        while more := client.recv(65_536):
            whole += len(more)
            if time.monotonic() < began + 1.3 * WRITE_S:
                time.sleep(0.1)  # at each look it has read something
    assert whole > 1_000_000
    with connect_with_little_room(port) as client:
        client.sendall(LARGE * TIMES)
        time.sleep(WRITE_S + 0.5)
        assert len(rest(client)) < TIMES * whole / 2
    assert answered(port) == b"HTTP/1.1 200 OK"


@pytest.fixture(scope="module")
def proxy_port(port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """nginx before that server, which takes more connections than the server has."""
    folder, shown = tmp_path_factory.mktemp("nginx"), free_port()
    pass_on = f"proxy_http_version 1.1; proxy_pass http://127.0.0.1:{port};"
    command = nginx_conf(folder, f"server {{ listen 127.0.0.1:{shown}; location / {{ {pass_on} }} }}")
    conf = folder / "nginx.conf"
    conf.write_text(conf.read_text().replace("events {}", "events { worker_connections 4096; }"))
    with running(command, shown, folder / "nginx.log"):
        yield shown


@pytest.mark.parametrize("way", ["port", "proxy_port"])
def test_half_requests_and_slow_downloads_at_once_keep_nobody_out(way: str, request: pytest.FixtureRequest) -> None:
    port: int = request.getfixturevalue(way)
    with ExitStack() as open_ones:
        downloads = [open_ones.enter_context(connect_with_little_room(port)) for _ in range(100)]
        for client in downloads:
            client.sendall(LARGE)
        for _ in range(1500):
            half = open_ones.enter_context(connect(port))
            with suppress(BrokenPipeError, ConnectionResetError):
                half.sendall(HALF)
        began = time.monotonic()
        assert [answered(port) for _ in range(20)] == [b"HTTP/1.1 200 OK"] * 20
        assert time.monotonic() - began < 5
