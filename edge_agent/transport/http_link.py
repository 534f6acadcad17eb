"""The link over HTTP, without a broker: server-sent events down, posts of the same messages up.

docs/protocol.md, 'Over HTTP', has the paths. A message that was posted is delivered once the server has answered; what
it answers to a part of an upload is its acknowledgement. The device is known by the API key that its enrolment gave it.
"""

from __future__ import annotations

import http.client
import queue
import random
import threading
from typing import ClassVar, NamedTuple

from edge_agent.config.settings import ServerSection
from edge_agent.errors import ConfigError
from edge_agent.machine.events import Disconnected
from edge_agent.transport.link import POLL_S, REFUSED_HINT, Link, LinkOptions, MessageDelivered
from edge_agent.transport.server_connection import ServerAnswer, ServerConnection
from federation.errors import WireError
from federation.protocol import topics
from federation.protocol.messages import DeviceStatus, write
from federation.protocol.over_http import (
    BINARY,
    END,
    HEARTBEAT_S,
    LINE_BYTES,
    MEDIA_TYPE,
    EventReader,
    ServerEvent,
    path_of,
    stream_path,
)
from federation.protocol.signing import Kind
from gaitway.threads import ThreadFailure, run_in_thread

STREAM_TIMEOUT_S = 3 * HEARTBEAT_S
"""A stream that says nothing for so long is dead: the server says something every `HEARTBEAT_S`."""
MAX_ATTEMPTS = 3
"""For one message, on a new connection each; then the link begins anew."""
BUSY = (http.client.TOO_MANY_REQUESTS, http.client.SERVICE_UNAVAILABLE, http.client.INSUFFICIENT_STORAGE)
REFUSED = (http.client.UNAUTHORIZED, http.client.FORBIDDEN)
_ENDED = {
    "replaced": "another connection with this device's name replaced it",
    "refused": "the server revoked this device's key",
    "moved": "another server process now serves the federation",
    "busy": "the server is busy",
}


class _Post(NamedTuple):
    """A message on its way up; `mid` is 0 for a status."""

    mid: int
    topic: str
    payload: bytes


class HttpLink(Link):
    """One device's stream, and the thread that posts."""

    peer: ClassVar[str] = "server"
    address_setting: ClassVar[str] = "[server] url"

    def __init__(self, settings: ServerSection, options: LinkOptions) -> None:
        super().__init__(options)
        self.settings = settings
        self._key: str | None = None
        self._last_id = ""
        self._lost = ""  # why the present connection is of no use any more
        self._down = ServerConnection(settings.url, settings.timeout_s, settings.ca_file)
        self._mids = 0
        self._outbound: queue.Queue[_Post] = queue.Queue(options.in_flight + 4)  # begin and end beside the chunks
        self._status: _Post | None = None  # the newest alone
        self._lock = threading.Lock()
        self._sender: _Sender | None = None
        self._connected = threading.Event()

    def publish_update(self, update_id: str, payload: bytes, *step: str | int) -> int | None:
        """Send one part of an upload; returns its message number, or None while it cannot be taken."""
        if not self._connected.is_set():
            return None
        self._mids += 1
        topic = topics.update(self.federation, self.device, update_id, *step)
        try:
            self._outbound.put_nowait(_Post(self._mids, topic, payload))
        except queue.Full:
            return None
        return self._mids

    # ---- the stream

    def _serve(self) -> None:
        self._key, self._lost = self._credentials.api_key(), ""
        try:
            while (ended := self._follow()) == "lifetime" and not self._stopping.is_set():
                pass  # nothing is lost: the server keeps what it says meanwhile
        finally:
            self._end_of_connection()
            self._down.close()
        if ended == "refused":
            self._refusal = _ENDED[ended]
        self.post(Disconnected(self._lost or self._refusal or _ENDED.get(ended, ended)))

    def _end_of_connection(self) -> None:
        with self._lock:
            self._connected.clear()
            self._status = None
        if self._sender is not None:
            self._sender.stop()
            self._sender = None
        while not self._outbound.empty():  # what was on its way is in doubt: the outbox has it
            self._outbound.get_nowait()

    def _follow(self) -> str:
        """Read one stream to its end, and return why it has ended."""
        self._down.close()
        headers = {**self._authorization(), "Accept": MEDIA_TYPE}
        if self._last_id:
            headers["Last-Event-ID"] = self._last_id
        try:
            answer = self._down.begin("GET", stream_path(self.federation, self.device), None, headers)
            if answer.status != http.client.OK:
                return self._not_let_in(ServerAnswer(answer.status, answer.read(1 << 16)))
            if self._taken is None:
                self._begin()
            self._down.set_timeout(STREAM_TIMEOUT_S)
            return self._read(answer)
        except TimeoutError:
            if self._taken is None:
                raise
            return f"the server sent nothing for {STREAM_TIMEOUT_S:.0f} s"
        except (http.client.HTTPException, ValueError) as error:  # ValueError: closed under the reader
            return f"the server's stream broke off: {str(error) or type(error).__name__}"

    def _begin(self) -> None:
        self._sender = _Sender(self)
        self._connected.set()
        self._was_taken()

    def _read(self, answer: http.client.HTTPResponse) -> str:
        reader = EventReader()
        while line := answer.readline(LINE_BYTES + 1):
            if len(line) > LINE_BYTES:
                return "the server sent a line longer than any message"
            try:
                event = reader.take(line)
            except WireError as error:
                return str(error)
            if event is not None and event.name == END:
                return event.data.decode(errors="replace")[:80]
            if event is not None:
                self._take(event)
        return "the server has closed the stream"

    def _take(self, event: ServerEvent) -> None:
        if event.id:
            self._last_id = event.id
        if event.name in list(Kind):
            self._handle_message(Kind(event.name), event.data, f"the stream, as {event.name}")

    def _not_let_in(self, answer: ServerAnswer) -> str:
        if answer.status in REFUSED:
            self._refusal = f"the server rejects this device: {answer.reason}; {REFUSED_HINT}"
        return f"the server didn't open a stream: {answer.reason}"

    def _authorization(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._key}"} if self._key else {}

    # ---- what the base asks for

    def _send_status(self, status: DeviceStatus) -> None:
        with self._lock:
            if self._connected.is_set():
                self._status = _Post(0, topics.status(self.federation, self.device), write(status))

    def _disconnect(self) -> None:
        self._down.interrupt()

    def _leave(self, *, say_offline: bool, timeout_s: float) -> None:
        sender = self._sender
        if sender is not None and self._connected.is_set():
            if say_offline:
                self.publish_status(DeviceStatus(state="offline"))
            sender.finish(timeout_s)
        self._disconnect()

    def _has_others(self) -> bool:
        return self._credentials.key_refused(self._key)

    @property
    def _address(self) -> str:
        return self.settings.url

    # ---- what the sender asks for

    def next_post(self) -> _Post | None:
        """Return what is to be posted next, a status first; None if there is nothing for a while."""
        with self._lock:
            status, self._status = self._status, None
        if status is not None:
            return status
        try:
            return self._outbound.get(timeout=POLL_S / 10)
        except queue.Empty:
            return None

    def posted(self, sent: _Post, answer: ServerAnswer) -> None:
        """Take the answer to a message."""
        if sent.mid:
            self.post(MessageDelivered(sent.mid))
        if answer.body and answer.status == http.client.OK:
            self._handle_message(Kind.ACKNOWLEDGEMENT, answer.body, sent.topic)

    def lost(self, reason: str, *, refused: bool = False) -> None:
        """End the connection: what was to be posted cannot be."""
        self._lost = reason
        if refused:
            self._refusal = reason
        self._disconnect()

    def new_connection(self) -> ServerConnection:
        """Return a connection for posts."""
        return ServerConnection(self.settings.url, self.settings.timeout_s, self.settings.ca_file)

    def headers(self) -> dict[str, str]:
        """Return what every post carries."""
        return {**self._authorization(), "Content-Type": BINARY}


class _Sender:
    """Posts one message after the other, on a connection that is kept open."""

    def __init__(self, link: HttpLink) -> None:
        self._link, self._connection = link, link.new_connection()
        self._stopping, self._finishing = threading.Event(), threading.Event()
        self._thread = run_in_thread("posts", self._run, self._failed)

    def stop(self) -> None:
        """Post nothing more."""
        self._stopping.set()
        if self._thread is not threading.current_thread():
            self._connection.interrupt()
            self._thread.join(POLL_S)

    def finish(self, timeout_s: float) -> None:
        """Post what is waiting, if there is time."""
        self._finishing.set()
        self._thread.join(timeout_s)

    def _failed(self, failure: ThreadFailure) -> None:
        self._link.lost(f"posting failed unexpectedly: {failure.error}")

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                is_last = self._finishing.is_set()  # before the look: what was said by then is still posted
                sent = self._link.next_post()
                if sent is None and is_last:
                    return
                if sent is not None and not self._send(sent):
                    return
        finally:
            self._connection.close()

    def _send(self, sent: _Post) -> bool:
        """Post a message until it is taken; whether to go on with the next."""
        method = "PUT" if "/chunk/" in sent.topic else "POST"
        failed = 0
        while not self._stopping.is_set():
            try:
                answer = self._connection.request(method, path_of(sent.topic), sent.payload, self._link.headers())
            except (OSError, ConfigError, http.client.HTTPException) as error:
                failed += 1
                if failed >= MAX_ATTEMPTS:
                    self._link.lost(f"the server cannot be reached any more: {str(error) or type(error).__name__}")
                    return False
                self._stopping.wait(random.uniform(0, failed * POLL_S) if failed > 1 else 0)
                continue
            if answer.status in BUSY:
                self._stopping.wait(answer.retry_after_s * random.uniform(1.0, 1.5))
                continue
            if answer.status >= http.client.MULTIPLE_CHOICES:
                refused = answer.status in REFUSED
                self._link.lost(f"the server rejects this device's message: {answer.reason}", refused=refused)
                return False
            self._link.posted(sent, answer)
            return True
        return False
