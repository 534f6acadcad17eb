"""The server's messages over HTTP: one stream of server-sent events per device, like at a broker.

Announcements, invitations and offers are retained: a stream begins with the present ones, and of several that a slow
reader has not taken, it gets the newest alone. So what waits for a device is bounded, whatever is said meanwhile.
Event ids are `{start of the server}-{number}`. A device that comes back soon with its last id gets what was said since.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import secrets
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from aggregator_api.core.errors import OverloadedError
from federation.protocol import topics
from federation.protocol.over_http import END, HEARTBEAT_S, ServerEvent, write_event
from federation.protocol.signing import Kind
from gaitway.threads import supervised_task

MAX_QUEUED_ANSWERS = 16
"""Messages for a device that are not retained; of more, the oldest go, and the device asks again."""
LIFETIME_S = 300.0
"""A stream ends after so long and the device opens another: so a proxy, or a network that has forgotten the connection,
hides nobody's absence for longer."""
RECONNECT_GRACE_S = 5.0
"""Without a stream for so long a device is offline, as by its last will at a broker."""
SHUTDOWN_POLL_S = 0.25

Key = tuple[str, str]
"""Federation and device."""

Retained = Callable[[], Awaitable[list[tuple[Kind, bytes]] | None]]

_EVENT_ID = re.compile(r"([0-9a-f]{8})-(\d{1,15})")
_TOPIC = re.compile(rf"{topics.ROOT}/([^/]+)/(?:announce|devices/([^/]+)/(invitation|offer|ack|notice))")
_RETAINED = {"invitation": Kind.INVITATION, "offer": Kind.OFFER}
_ANSWERS = {"ack": Kind.ACKNOWLEDGEMENT, "notice": Kind.NOTICE}


class _QueuedMessage(NamedTuple):
    number: int
    kind: Kind
    payload: bytes


@dataclass
class _Mailbox:
    """What was said to one device, and the stream that takes it."""

    caller: str = ""
    mark: object = None  # of the present stream; None: there is none
    end: str = ""  # why the present stream is to end
    left_at: float = 0.0
    is_at_broker: bool = False  # it spoke there last, whose last will tells when it is gone
    retained: dict[Kind, _QueuedMessage] = field(default_factory=dict)
    answers: deque[_QueuedMessage] = field(default_factory=lambda: deque(maxlen=MAX_QUEUED_ANSWERS))
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class DeviceStreams:
    """The streams of one server process. Messages come on any thread; streams live on the event loop."""

    def __init__(
        self,
        closing: threading.Event,
        *,
        most: int,
        lifetime_s: float = LIFETIME_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin without any; `most` may be open at once, and `closing` is set when the server ends."""
        self._closing, self._most, self._lifetime_s, self._clock = closing, most, lifetime_s, clock
        self._boot, self._numbers = secrets.token_hex(4), itertools.count(1)
        self._lock = threading.Lock()
        self._mailboxes: dict[Key, _Mailbox] = {}
        self._announced: dict[str, _QueuedMessage] = {}
        self._open = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watcher: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return self._open

    # ---- what is said

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Take a message for the streams that it is for; an empty one removes what was retained."""
        found = _TOPIC.fullmatch(topic)
        if found is None:
            return
        federation, device, word = found.groups()
        queued = _QueuedMessage(next(self._numbers), Kind.ANNOUNCEMENT, payload)
        with self._lock:
            if device is None:
                if payload:
                    self._announced[federation] = queued
                else:
                    self._announced.pop(federation, None)
                waiting = [box for key, box in self._mailboxes.items() if key[0] == federation]
            else:
                waiting = [box for box in [self._mailboxes.get((federation, device))] if box]
                for box in waiting:
                    _enqueue(box, word, queued)
        self._wake(waiting)

    def announces(self, federation: str) -> bool:
        """Whether a federation's announcement is here."""
        return federation in self._announced

    # ---- streams

    def require_room(self, federation: str, device: str) -> None:
        """Check that another stream may be opened.

        Raises:
            OverloadedError: if too many are open.
        """
        with self._lock:
            box = self._mailboxes.get((federation, device))
        if self._open >= self._most and (box is None or box.mark is None):
            raise OverloadedError(f"{self._open} devices hold a stream already; try again later, or use MQTT")

    async def stream(
        self, federation: str, device: str, caller: str, last_id: str, retained: Retained
    ) -> AsyncGenerator[bytes, None]:
        """Yield what is said to a device after the event `last_id`; any other stream of the device ends.

        `retained` is asked for what else is retained for it; None if that cannot be told now.
        """
        self._watch()
        self._open += 1
        mark, until = object(), self._clock() + self._lifetime_s
        box, after, is_new = self._join((federation, device), caller, mark, last_id)
        try:
            yield b": here\n\n"
            if is_new:
                found = await retained()
                if found is None:
                    yield write_event(ServerEvent("", END, b"busy"))
                    return
                self._fill(box, found)
            async for piece in self._follow(federation, box, mark, after, until):
                yield piece
        finally:
            self._open -= 1
            with self._lock:
                if box.mark is mark:
                    box.mark, box.left_at = None, self._clock()
                    if box.is_at_broker and self._mailboxes.get((federation, device)) is box:
                        del self._mailboxes[federation, device]

    def _join(self, key: Key, caller: str, mark: object, last_id: str) -> tuple[_Mailbox, int, bool]:
        known = _EVENT_ID.fullmatch(last_id)
        after = int(known[2]) if known and known[1] == self._boot else 0
        with self._lock:
            before = self._mailboxes.get(key)
            box = before if before is not None and after and not before.end else _Mailbox()
            self._mailboxes[key] = box
            box.caller, box.mark, box.is_at_broker = caller, mark, False
            if before is not None:
                before.end = "replaced" if before is not box else ""
                before.changed.set()
        return box, after, box is not before

    def _fill(self, box: _Mailbox, retained: Iterable[tuple[Kind, bytes]]) -> None:
        with self._lock:
            for kind, payload in retained:
                if kind not in box.retained:  # else something newer was said since the stream began
                    box.retained[kind] = _QueuedMessage(next(self._numbers), kind, payload)

    async def _follow(
        self, federation: str, box: _Mailbox, mark: object, after: int, until: float
    ) -> AsyncIterator[bytes]:
        while not self._closing.is_set():
            box.changed.clear()
            messages, end = self._after(federation, box, mark, after)
            if messages:
                after = max(message.number for message in messages)
                yield self._written(messages, after)
            if end or self._clock() >= until:
                yield write_event(ServerEvent("", END, (end or "lifetime").encode()))
                return
            try:
                async with asyncio.timeout(min(HEARTBEAT_S, max(0.0, until - self._clock()))):
                    await box.changed.wait()
            except TimeoutError:
                yield b": still here\n\n"

    def _written(self, messages: list[_QueuedMessage], number: int) -> bytes:
        """Encode what goes together; the last one alone has an id, so that what breaks off is sent again whole."""
        ids = [""] * (len(messages) - 1) + [f"{self._boot}-{number}"]
        return b"".join(
            write_event(ServerEvent(event_id, message.kind, message.payload))
            for event_id, message in zip(ids, messages, strict=True)
        )

    def _after(self, federation: str, box: _Mailbox, mark: object, after: int) -> tuple[list[_QueuedMessage], str]:
        """Return what a stream has not sent yet, and why it is to end; empty if it is not."""
        with self._lock:
            if box.mark is not mark:
                return [], "replaced"
            if box.end:
                return [], box.end
            announced = self._announced.get(federation)
            waits = [*box.retained.values(), *box.answers, *([announced] if announced else [])]
            found = sorted((message for message in waits if message.number > after), key=lambda message: message.number)
            # the announcement tells a device what the others mean, and comes last, as at a broker
            return sorted(found, key=lambda message: message.kind is Kind.ANNOUNCEMENT), ""

    # ---- who is gone, and who has to go

    @property
    def is_used(self) -> bool:
        """Whether any device has a stream, or had one a moment ago."""
        return bool(self._mailboxes)

    def gone(self) -> list[Key]:
        """Return the devices that have had no stream for a while; `forget` them once that is noted."""
        now = self._clock()
        with self._lock:
            return [
                key
                for key, box in self._mailboxes.items()
                if box.mark is None and now - box.left_at >= RECONNECT_GRACE_S
            ]

    def forget(self, federation: str, device: str) -> None:
        """Forget a device that has no stream: it is known to be gone."""
        with self._lock:
            box = self._mailboxes.get((federation, device))
            if box is not None and box.mark is None:
                del self._mailboxes[federation, device]

    def spoke(self, federation: str, device: str, *, at_broker: bool) -> None:
        """Note where a device spoke; its first word at a broker may overtake the end of its stream."""
        with self._lock:
            box = self._mailboxes.get((federation, device))
            if box is None:
                return
            box.is_at_broker = at_broker
            if at_broker and box.mark is None:
                del self._mailboxes[federation, device]

    def holds(self, federation: str, device: str) -> bool:
        """Whether a device has a stream, and has not spoken at a broker since."""
        with self._lock:
            box = self._mailboxes.get((federation, device))
            return box is not None and box.mark is not None and not box.is_at_broker

    def close_of(self, callers: set[str]) -> None:
        """End the streams that were opened with these keys, which open nothing any more."""
        self._close("refused", lambda _key, box: box.caller in callers)

    def disconnect(self, federation: str, device: str) -> None:
        """End a device's stream."""
        self._close("refused", lambda key, _box: key == (federation, device))

    def listen(self, federations: frozenset[str]) -> None:
        """Serve the devices of these federations alone: another process speaks for the others from now on."""
        self._close("moved", lambda key, _box: key[0] not in federations)
        with self._lock:
            for name in self._announced.keys() - federations:
                del self._announced[name]
            for key in [key for key in self._mailboxes if key[0] not in federations]:
                del self._mailboxes[key]  # nobody is offline by this: it is not ours to say

    def _close(self, why: str, applies: Callable[[Key, _Mailbox], bool]) -> None:
        with self._lock:
            ended = [box for key, box in self._mailboxes.items() if applies(key, box)]
            for box in ended:
                box.end = why
        self._wake(ended)

    # ---- the event loop

    def _wake(self, boxes: list[_Mailbox]) -> None:
        if self._loop is None or not boxes:
            return
        with contextlib.suppress(RuntimeError):  # the loop has ended: so have the streams
            self._loop.call_soon_threadsafe(_notify_all, boxes)

    def _watch(self) -> None:
        if self._watcher is None or self._watcher.done():
            self._loop = asyncio.get_running_loop()
            self._watcher = supervised_task("streams", self._until_closing)

    async def _until_closing(self) -> None:
        """Wake every stream once the server ends, so that none holds it up."""
        while not self._closing.is_set() and self._mailboxes:
            await asyncio.sleep(SHUTDOWN_POLL_S)
        with self._lock:
            boxes = list(self._mailboxes.values())
        _notify_all(boxes)


def _notify_all(boxes: list[_Mailbox]) -> None:
    for box in boxes:
        box.changed.set()


def _enqueue(box: _Mailbox, word: str, message: _QueuedMessage) -> None:
    if word in _RETAINED:
        kind = _RETAINED[word]
        if message.payload:
            box.retained[kind] = message._replace(kind=kind)
        else:
            box.retained.pop(kind, None)
    elif message.payload:
        box.answers.append(message._replace(kind=_ANSWERS[word]))
