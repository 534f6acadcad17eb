"""Passes devices' posted messages to the thread that handles all messages, and returns its answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from functools import partial

from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool

from aggregator_api.auth.sessions import OpenStreams, StreamAccess
from aggregator_api.core.errors import NotFoundError, OverloadedError, RequestError, UnavailableError
from aggregator_api.operations.leadership import Leadership
from aggregator_api.rounds.announcements import Announcer, Publisher
from aggregator_api.storage.db import repositories
from aggregator_api.storage.db.database import Database
from aggregator_api.storage.outages import TEMPORARY, failures, outage_of
from aggregator_api.transport.device_http.streams import DeviceStreams
from aggregator_api.transport.mqtt.inbox import Inbox
from federation.protocol import topics
from federation.protocol.messages import DeviceStatus, write
from federation.protocol.signing import Kind

ANSWER_S = 20.0
"""For a message to be handled; the device sends it again after that."""
OFFLINE = write(DeviceStatus(state="offline"))


class DevicePublisher:
    """Says things to devices wherever they listen: at the broker, and over HTTP.

    What is said to a device while its own message is handled is the answer to that message alone.
    """

    def __init__(self, broker: Publisher, streams: DeviceStreams) -> None:
        self._broker, self._streams = broker, streams
        self._answers: dict[str, list[bytes]] = {}

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Send a message with QoS 1."""
        if topic in self._answers:
            self._answers[topic].append(payload)
            return
        self._streams.publish(topic, payload, retain=retain)
        self._broker.publish(topic, payload, retain=retain)

    @contextlib.contextmanager
    def answering(self, topic: str) -> Iterator[list[bytes]]:
        """Keep what is published on a topic; only the thread that handles messages publishes there."""
        kept: list[bytes] = []
        self._answers[topic] = kept
        try:
            yield kept
        finally:
            del self._answers[topic]


class DeviceMessages:
    """Hands what devices post to `handle`, on the inbox's thread, and gives them their streams."""

    def __init__(
        self,
        database: Database,
        inbox: Inbox,
        publisher: DevicePublisher,
        streams: DeviceStreams,
        open_streams: OpenStreams,
        announcer: Announcer,
        leadership: Leadership,
        handle: Callable[[str, bytes], None],
    ) -> None:
        self._database, self._inbox, self._publisher, self._streams = database, inbox, publisher, streams
        self._open_streams = open_streams
        self._announcer, self._leadership, self._handle = announcer, leadership, handle

    async def receive(self, topic: str, payload: bytes) -> bytes | None:
        """Have a message handled as one from the broker, and return the signed answer to it, if there is one.

        Raises:
            NotFoundError: if there is no such federation.
            UnavailableError: if another process leads the federation, or the message could not be handled in time.
            OverloadedError: if too many messages wait.
        """
        self._require_lead(topics.federation_of(topic))
        self._streams.spoke(*topics.parse(topic)[:2], at_broker=False)
        answer = Future[bytes | None]()
        if not self._inbox.offer(lambda: self._answer(topic, payload, answer)):
            raise OverloadedError("too many messages of devices wait; try again in a moment")
        try:
            async with asyncio.timeout(ANSWER_S):
                return await asyncio.wrap_future(answer)
        except TimeoutError as error:
            raise UnavailableError(
                f"the message could not be handled within {ANSWER_S:.0f} s; send it again"
            ) from error

    def follow(self, federation: str, device: str, caller: str, last_id: str) -> AsyncIterator[bytes]:
        """Return a device's stream.

        Raises:
            NotFoundError: if there is no such federation.
            UnavailableError: if another process leads the federation.
            OverloadedError: if too many streams are open.
            TooManyError: if the key has opened too many of them.
        """
        self._require_lead(federation)
        self._streams.require_room(federation, device)
        self._open_streams.require_room(caller)

        async def retained() -> list[tuple[Kind, bytes]] | None:
            return await run_in_threadpool(self._retained, federation, device)

        return self._followed(self._streams.stream(federation, device, caller, last_id, retained), caller)

    async def _followed(self, stream: AsyncGenerator[bytes, None], caller: str) -> AsyncIterator[bytes]:
        refuse = partial(self._streams.close_of, {caller})
        with StreamAccess(self._open_streams, caller).opened(refuse) as opened:
            async with contextlib.aclosing(stream) as pieces:
                async for piece in pieces:
                    if opened.is_over:
                        refuse()
                    yield piece

    def tick(self) -> None:
        """Say that devices without a stream are offline."""
        for federation, device in self._streams.gone():
            self._handle(topics.status(federation, device), OFFLINE)
            self._streams.forget(federation, device)

    def _require_lead(self, federation: str) -> None:
        if not self._leadership.leads(federation):
            raise UnavailableError("another process leads this federation; the proxy, or the next try, finds it")
        if not self._streams.announces(federation):
            if self._leadership.led_federations is None:
                raise NotFoundError(f"there is no federation {federation!r} on this server")
            raise UnavailableError("this process has just taken the federation over; try again in a moment")

    def _answer(self, topic: str, payload: bytes, answer: Future[bytes | None]) -> None:
        """Handle a message on the inbox's thread; in an outage of the database it is tried again."""
        parsed = topics.parse(topic)
        try:
            with self._publisher.answering(topics.ack(parsed.federation, parsed.device)) as message:
                self._require_lead(parsed.federation)
                self._handle(topic, payload)
        except Exception as error:
            if outage_of(error) in TEMPORARY:
                raise
            known = isinstance(error, RequestError)
            _settle(answer, None, error if known else _failed())
            if not known:
                raise
        else:
            _settle(answer, message[-1] if message else None)

    def _retained(self, federation: str, device: str) -> list[tuple[Kind, bytes]] | None:
        try:
            with self._database.read() as session:
                row = repositories.find_federation(session, federation)
                return self._announcer.retained_for(session, row, device) if row else []
        except SQLAlchemyError as error:
            failures.report("messages to a device not readable", error)
            return None


def _failed() -> UnavailableError:
    return UnavailableError("the message could not be handled; the server's log says why")


def _settle(answer: Future[bytes | None], message: bytes | None, error: Exception | None = None) -> None:
    if not answer.set_running_or_notify_cancel():
        return  # who asked did not wait for it
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(message)
