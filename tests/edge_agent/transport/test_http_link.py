"""The device's link over HTTP against a server that says what the test wants: busy, hostile, or gone."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from edge_agent.config.settings import ServerSection
from edge_agent.machine.events import Acknowledged, Announced, Connected, Disconnected, MessageRejected
from edge_agent.transport.fallback_link import FallbackLink
from edge_agent.transport.http_link import HttpLink
from edge_agent.transport.link import Link, LinkEvent, LinkOptions, MessageDelivered
from edge_agent.transport.trust import Trust
from federation.protocol.messages import Acknowledgement, DeviceStatus, Notice, read, write
from federation.protocol.over_http import END, ServerEvent, write_event
from federation.protocol.signing import Kind, wrap
from tests.edge_agent.factories import DEVICE, announcement

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
SAID = write(announcement(serial=7, expires=1 << 40))
PATH = f"/v1/federations/demo/devices/{DEVICE}"


class Server:
    """Answers posts as it is told to, and streams what is put into `down`."""

    def __init__(self) -> None:
        self.down: queue.Queue[bytes | None] = queue.Queue()
        self.posts: list[tuple[str, bytes]] = []
        self.streams: list[dict[str, str]] = []
        self.answers: list[tuple[int, bytes]] = []  # to the next posts; 204 to others
        self.keys = {"good"}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.streams.append({name.lower(): value for name, value in self.headers.items()})
                if self.headers.get("Authorization") not in [f"Bearer {key}" for key in outer.keys]:
                    outer.answer(self, 401, b'{"detail": "this key is unknown"}')
                    return
                assert self.path == f"{PATH}/messages"
                self.send_response(200)
                self.end_headers()
                while (piece := outer.down.get()) is not None:
                    self.wfile.write(piece)
                self.close_connection = True

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.posts.append((self.path.removeprefix(PATH), body))
                outer.answer(self, *(outer.answers.pop(0) if outer.answers else (204, b"")))

            def do_PUT(self) -> None:
                self.do_POST()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    @staticmethod
    def answer(handler: BaseHTTPRequestHandler, code: int, body: bytes) -> None:
        handler.send_response(code)
        handler.send_header("Content-Length", str(len(body)))
        handler.send_header("Retry-After", "0")
        handler.end_headers()
        handler.wfile.write(body)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def say(self, kind: str, data: bytes, event_id: str = "") -> None:
        self.down.put(write_event(ServerEvent(event_id, kind, data)))

    def close(self) -> None:
        self.down.put(None)
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Keys:
    """The keys that a device finds in its files, one after the other."""

    claim_problem = ""

    def __init__(self, *keys: str) -> None:
        self.keys = list(keys)

    def api_key(self) -> str | None:
        return self.keys[0]

    def taken(self) -> None:
        """Nothing follows from it."""

    def key_refused(self, key: str | None) -> bool:
        self.keys = self.keys[1:] or self.keys
        return self.keys[0] != key


class Device:
    """A link, and what it posted."""

    def __init__(self, server: Server, *keys: str, start: bool = True) -> None:
        self.posted = queue.SimpleQueue[LinkEvent]()
        trust = Trust("demo", DEVICE, KEY.public_key().public_bytes_raw())
        section = ServerSection(url=server.url, timeout_s=60.0)
        given = Keys(*(keys or ("good",)))
        self.link = HttpLink(section, LinkOptions("demo", DEVICE, 2, self.posted.put, given, trust.open))
        if start:
            self.link.start()

    def next(self, *kinds: type[Any]) -> Any:
        while not isinstance(event := self.posted.get(timeout=60), kinds):
            pass
        return event


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    yield found
    found.close()


def until(happened: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_the_server_has_not_signed_is_not_believed(server: Server) -> None:
    device = Device(server)
    device.next(Connected)
    signed = wrap(Kind.ANNOUNCEMENT, "demo", "", SAID, KEY.sign)
    forged = wrap(Kind.ANNOUNCEMENT, "demo", "", SAID, Ed25519PrivateKey.generate().sign)
    for name, payload in ((Kind.ANNOUNCEMENT, SAID), (Kind.ANNOUNCEMENT, forged), (Kind.INVITATION, signed)):
        server.say(name, payload)
        assert isinstance(device.next(Announced, MessageRejected), MessageRejected)
    server.say("nonsense", b"{}")
    server.say(Kind.ANNOUNCEMENT, signed)
    assert device.next(Announced, MessageRejected).announcement.serial == 7
    device.link.stop(say_offline=False)


def test_messages_are_posted_in_their_order_and_again_where_the_server_is_busy(server: Server) -> None:
    answer = Acknowledgement(update_id="u", nonce="12345678", status="accepted")
    signed = wrap(Kind.ACKNOWLEDGEMENT, "demo", DEVICE, write(answer), KEY.sign)
    device = Device(server, start=False)
    assert device.link.publish_update("u", b"early", "begin") is None  # there is no connection yet
    device.link.start()
    device.next(Connected)
    server.answers = [(204, b""), (503, b"{}"), (429, b"{}"), (204, b""), (200, signed)]
    mids = [device.link.publish_update("u", b"x%d" % n, "chunk", n) for n in range(2)]
    mids.append(device.link.publish_update("u", b"", "end"))
    assert [device.next(MessageDelivered).mid for _ in range(3)] == mids
    assert device.next(Acknowledged).ack == answer
    assert [path for path, _ in server.posts] == ["/update/u/chunk/0", *["/update/u/chunk/1"] * 3, "/update/u/end"]
    device.link.publish_status(DeviceStatus(state="ready"))
    device.link.stop()
    states = [read(DeviceStatus, body).state for path, body in server.posts if path == "/status"]
    assert states[-1] == "offline"


def test_a_full_queue_takes_no_more(server: Server) -> None:
    device = Device(server)
    device.next(Connected)
    server.answers = [(503, b"{}")] * 1000
    taken = [device.link.publish_update("u", b"x", "chunk", n) for n in range(50)]
    assert None in taken
    assert sum(mid is not None for mid in taken) <= 10
    device.link.stop(say_offline=False)


def test_a_refused_key_is_renewed_and_the_reason_is_said(server: Server) -> None:
    device = Device(server, "stale", "good")
    assert "the server rejects this device: 401: this key is unknown" in device.next(Disconnected).reason
    device.next(Connected)
    server.answers = [(403, b'{"detail": "another device\'s"}')]
    device.link.publish_status(DeviceStatus(state="ready"))
    assert "rejects this device's message: 403: another device's" in device.next(Disconnected).reason
    device.link.stop(say_offline=False)


def test_a_stream_that_ends_by_itself_goes_on_unnoticed_and_a_lost_one_is_a_lost_connection(server: Server) -> None:
    device = Device(server)
    device.next(Connected)
    server.say(Kind.ANNOUNCEMENT, wrap(Kind.ANNOUNCEMENT, "demo", "", SAID, KEY.sign), "boot-7")
    device.next(Announced)
    server.say(END, b"lifetime")
    server.down.put(None)
    until(lambda: len(server.streams) == 2)
    assert server.streams[1]["last-event-id"] == "boot-7"
    server.say(Kind.ANNOUNCEMENT, wrap(Kind.ANNOUNCEMENT, "demo", "", SAID, KEY.sign), "boot-8")
    assert isinstance(device.next(Connected, Disconnected, Announced), Announced)
    server.down.put(None)
    assert "the server has closed the stream" in device.next(Disconnected).reason
    device.next(Connected)
    device.link.stop(say_offline=False)


def test_a_notice_to_this_session_stops_the_device(server: Server) -> None:
    device = Device(server)
    device.next(Connected)
    device.link.publish_status(DeviceStatus(state="ready"))
    until(lambda: server.posts)
    session = read(DeviceStatus, server.posts[0][1]).session
    for whose, told in (("another", False), (session, True)):
        notice = write(Notice(session=whose, reason="a copy"))
        server.say(Kind.NOTICE, wrap(Kind.NOTICE, "demo", DEVICE, notice, KEY.sign))
        server.say(Kind.ANNOUNCEMENT, wrap(Kind.ANNOUNCEMENT, "demo", "", SAID, KEY.sign))
        device.next(Disconnected if told else Announced)
    assert "stopped by the server: a copy" in device.next(Disconnected).reason
    device.link.stop(say_offline=False)


class Closed(Link):
    """A link that reaches nobody."""

    peer = "nobody"

    def _serve(self) -> None:
        raise ConnectionRefusedError("port closed")

    def _why_not(self, error: OSError) -> str:
        return str(error)

    def publish_update(self, update_id: str, payload: bytes, *step: str | int) -> int | None:
        return None

    def _send_status(self, status: DeviceStatus) -> None: ...

    def _disconnect(self) -> None: ...

    def _leave(self, *, say_offline: bool, timeout_s: float) -> None: ...

    def _has_others(self) -> bool:
        return False

    _address = "nowhere"


def test_auto_takes_http_once_the_broker_was_not_reached_three_times(server: Server) -> None:
    posted, trust = queue.SimpleQueue[LinkEvent](), Trust("demo", DEVICE, KEY.public_key().public_bytes_raw())

    def closed(post: Callable[[LinkEvent], None]) -> Link:
        return Closed(LinkOptions("demo", DEVICE, 2, post, Keys("good"), trust.open))

    def http(post: Callable[[LinkEvent], None]) -> Link:
        section, keys = ServerSection(url=server.url), Keys("good")
        return HttpLink(section, LinkOptions("demo", DEVICE, 2, post, keys, trust.open))

    link = FallbackLink(closed, http, posted.put)
    link.start()
    said = [posted.get(timeout=60) for _ in range(4)]
    assert said == [Disconnected("port closed")] * 3 + [Connected()]
    link.publish_status(DeviceStatus(state="ready"))
    until(lambda: server.posts)
    link.stop()


class Reachable(Closed):
    """A link that is let in once `opened` is set, and serves until it is told to hang up."""

    def __init__(self, opened: threading.Event, options: LinkOptions) -> None:
        super().__init__(options)
        self.opened, self.left = opened, threading.Event()
        self.said: list[DeviceStatus] = []

    def _serve(self) -> None:
        if not self.opened.is_set():
            raise ConnectionRefusedError("port closed")
        self._was_taken()
        self.left.wait(60)

    def _send_status(self, status: DeviceStatus) -> None:
        self.said.append(status)

    def _disconnect(self) -> None:
        self.left.set()

    def _leave(self, *, say_offline: bool, timeout_s: float) -> None:
        self.left.set()


class Choice:
    """A device on `auto` whose broker is away at first, and what it posts."""

    def __init__(self, server: Server, *, idle_s: float = 0.0) -> None:
        self.posted = queue.SimpleQueue[LinkEvent]()
        self.opened = threading.Event()
        self.brokers: list[Reachable] = []
        trust = Trust("demo", DEVICE, KEY.public_key().public_bytes_raw())

        def mqtt(post: Callable[[LinkEvent], None]) -> Link:
            options = LinkOptions("demo", DEVICE, 2, post, Keys("good"), trust.open)
            self.brokers.append(Reachable(self.opened, options))
            return self.brokers[-1]

        def http(post: Callable[[LinkEvent], None]) -> Link:
            section, keys = ServerSection(url=server.url), Keys("good")
            return HttpLink(section, LinkOptions("demo", DEVICE, 2, post, keys, trust.open))

        self.link = FallbackLink(mqtt, http, self.posted.put, return_s=0.2, idle_s=idle_s)
        if idle_s:  # before anything could be tried
            self.link.publish_update("u", b"x", "begin")
        self.link.start()
        assert [self.next() for _ in range(4)] == [Disconnected("port closed")] * 3 + [Connected()]

    def next(self) -> LinkEvent:
        return self.posted.get(timeout=60)


@pytest.mark.ci
def test_auto_returns_to_the_broker_once_it_is_in_reach_again(server: Server) -> None:
    device = Choice(server)
    until(lambda: len(device.brokers) >= 3)  # it was tried again, which nobody is told
    device.link.publish_status(DeviceStatus(state="ready"))
    until(lambda: server.posts)
    device.opened.set()
    assert [device.next(), device.next()] == [Disconnected("the broker is in reach again"), Connected()]
    device.link.publish_status(DeviceStatus(state="ready"))
    assert [one.state for one in device.brokers[-1].said] == ["ready"]
    assert len(server.posts) == 1
    assert device.posted.empty()  # the end of the stream is no news
    device.link.stop()
    assert device.brokers[-1].left.is_set()


@pytest.mark.ci
def test_auto_does_not_return_while_an_upload_is_under_way(server: Server) -> None:
    device = Choice(server, idle_s=3600)
    device.opened.set()
    assert device.link.publish_update("u", b"x", "begin") is not None
    until(lambda: server.posts)
    time.sleep(1.5)  # in which it would have been tried some ten times
    assert len(device.brokers) == 1  # not one try, though the broker would be there
    device.link.stop()


@pytest.mark.ci
def test_auto_leaves_a_broker_that_is_lost_for_good_once_more(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_agent.transport.fallback_link.MAX_RECONNECT_ATTEMPTS", 2)
    device = Choice(server)
    device.opened.set()
    assert [device.next(), device.next()] == [Disconnected("the broker is in reach again"), Connected()]
    server.down.put(None)  # the stream's handler of before ends
    device.opened.clear()
    device.brokers[-1].left.set()
    assert [device.next(), device.next()] == [Disconnected("port closed")] * 2
    assert device.next() == Connected()
    device.link.publish_status(DeviceStatus(state="ready"))
    until(lambda: server.posts)
    device.link.stop()
