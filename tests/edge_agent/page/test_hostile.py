"""Guesses and half-open connections: they keep nobody out but who makes them."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_agent import http_server
from edge_agent.page import access
from edge_agent.page.access import FREE_ATTEMPTS, MAX_LOCAL_WAIT_S, MAX_SOURCES, MAX_WAIT_S, Sessions
from tests.edge_agent.page.page_devices import PageDevice

RIGHT = "correct horse"


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(access, "is_password", lambda password, hashed: password == hashed)
    return Clock()


@pytest.fixture
def sessions(clock: Clock) -> Sessions:
    return Sessions(RIGHT, "c", clock, clock.sleep)


def test_who_guesses_waits_ever_longer(sessions: Sessions, clock: Clock) -> None:
    for _ in range(FREE_ATTEMPTS):
        assert sessions.log_in("guess", "192.168.1.9") is None
    waits = []
    for _ in range(8):
        begun = clock.now
        while True:
            try:
                sessions.log_in("guess", "192.168.1.9")
            except PermissionError:
                clock.now += 0.5
            else:
                break
        waits.append(clock.now - begun)
    assert waits == [1, 2, 4, 8, 16, 32, MAX_WAIT_S, MAX_WAIT_S]
    with pytest.raises(PermissionError, match="wrong passwords from this address"):
        sessions.log_in(RIGHT, "192.168.1.9")  # nothing is looked at meanwhile
    clock.now += MAX_WAIT_S
    assert sessions.log_in(RIGHT, "192.168.1.9")
    assert sessions.log_in("slip", "192.168.1.9") is None  # the right one has cleared the count


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])
def test_who_guesses_at_the_device_itself_is_slowed_and_never_refused(
    sessions: Sessions, clock: Clock, address: str
) -> None:
    waits = []
    for _ in range(FREE_ATTEMPTS + 5):
        begun = clock.now
        assert sessions.log_in("guess", address) is None
        waits.append(clock.now - begun)
    assert waits == [0.0] * FREE_ATTEMPTS + [1, 2, MAX_LOCAL_WAIT_S, MAX_LOCAL_WAIT_S, MAX_LOCAL_WAIT_S]
    begun = clock.now
    assert sessions.log_in(RIGHT, address)
    assert clock.now - begun == MAX_LOCAL_WAIT_S
    assert sessions.log_in("slip", address) is None
    assert clock.now - begun == MAX_LOCAL_WAIT_S  # the right one has cleared the count


def test_many_guesses_at_once_gain_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each counts before it is looked at."""
    looked_at, counted = threading.Event(), threading.Semaphore(0)

    def clock() -> float:
        counted.release()
        return 1000.0

    sessions = Sessions(RIGHT, "c", clock)
    monkeypatch.setattr(access, "is_password", lambda password, hashed: not looked_at.wait(60))
    guesses = [threading.Thread(target=sessions.log_in, args=("guess", "192.168.1.9")) for _ in range(FREE_ATTEMPTS)]
    for guess in guesses:
        guess.start()
    for _ in guesses:
        assert counted.acquire(timeout=60)
    with pytest.raises(PermissionError, match="wait 1 s"):
        sessions.log_in("guess", "192.168.1.9")
    looked_at.set()
    for guess in guesses:
        guess.join()


@pytest.mark.parametrize("owner", ["127.0.0.1", "::1", "::ffff:127.0.0.1", "192.168.1.2", "2001:db8:1::5"])
def test_the_owner_gets_in_while_others_guess(sessions: Sessions, owner: str) -> None:
    for guesser in ("192.168.1.9", "2001:db8:2::1", "127.0.0.1"):
        for n in range(100):
            try:
                sessions.log_in(f"guess {n}", guesser)
            except PermissionError:
                assert not guesser.startswith("127.")
    assert sessions.log_in(RIGHT, owner)


def test_one_network_of_ipv6_is_one_source_and_sources_are_bounded(sessions: Sessions) -> None:
    for n in range(FREE_ATTEMPTS):
        sessions.log_in("guess", f"2001:db8::{n:x}")
    with pytest.raises(PermissionError):
        sessions.log_in("guess", "2001:db8::ffff%eth0")
    for n in range(MAX_SOURCES):
        sessions.log_in("guess", f"10.0.{n // 250}.{n % 250}")
    assert sessions.log_in("guess", "2001:db8::ffff") is None  # so many others have been wrong since that it is new


@pytest.fixture
def device(tmp_path: Path) -> Iterator[PageDevice]:
    found = PageDevice(tmp_path)
    yield found
    found.close()


def test_two_hundred_half_open_connections_do_not_close_the_page(device: PageDevice) -> None:
    half_open = []
    for n in range(200):
        one = socket.create_connection(("127.0.0.1", device.server.port), timeout=10)
        if n % 2:
            one.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
        half_open.append(one)
    begun = time.monotonic()
    assert device.send("GET", "/api/now")[0] == 200
    assert time.monotonic() - begun < http_server.MAX_IDLE_S
    for one in half_open:
        one.close()


def test_headers_that_drip_end_after_a_while(device: PageDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MAX_IDLE_S", 0.3)
    with socket.create_connection(("127.0.0.1", device.server.port), timeout=10) as dripping:
        dripping.sendall(b"GET / HTTP/1.1\r\n")
        assert dripping.recv(1) == b""  # the server has closed it, although it was never silent for its time-out


def test_an_address_with_most_connections_gives_its_own_places(device: PageDevice) -> None:
    port = device.server.port
    owner = socket.create_connection(("127.0.0.1", port), timeout=10)
    thief = [
        socket.create_connection(("127.0.0.1", port), timeout=10, source_address=("127.0.0.2", 0))
        for _ in range(http_server.PER_ADDRESS + 2)
    ]
    assert [one.recv(1) for one in thief[:2]] == [b"", b""]  # the oldest of its own
    owner.sendall(b"GET /views/icon.svg HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert owner.recv(12) == b"HTTP/1.1 200"
    for one in (owner, *thief):
        one.close()


def test_a_right_password_over_http_from_this_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for cost, low in (("N", 2), ("R", 1), ("P", 1)):
        monkeypatch.setattr(access, cost, low)
    cheap = access.password_hash(RIGHT)
    device = PageDevice(tmp_path, cheap)
    try:
        guesses = [device.send("POST", "/api/login", {"password": f"guess {n}"})[0] for n in range(10)]
        assert guesses == [401] * 10
        assert device.send("POST", "/api/login", {"password": RIGHT})[0] == 200
    finally:
        device.close()
