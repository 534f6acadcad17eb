"""Live events for any number of streams: a federation's journal is read once for all followers.

A stream that is behind reads pages in short sessions until it has what the feed still holds; from then on it is handed
what the feed has read. No stream holds a session or a thread while it waits, however slowly its client reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, TypeVar

from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool

from aggregator_api.auth.sessions import OpenStream, StreamAccess
from aggregator_api.http.api.middleware.concurrency import Coalescing
from aggregator_api.http.queries import listings
from aggregator_api.http.queries.listings import PageParams
from aggregator_api.storage.db import repositories
from aggregator_api.storage.db.database import Database
from aggregator_api.storage.outages import failures
from gaitway.threads import supervised_task

Found = TypeVar("Found")

POLL_S = 0.25
HEARTBEAT_S = 15.0
"""A stream without events gets a comment so often, so that a dead client is noticed."""
BATCH = 200
RECENT = 2_000
"""Events of a federation that are kept in memory for its streams: some 300 kB."""


CHANGES_S = 1.0
"""A page hears of changes this often at the most, however many there are."""
CHANGES_LIFE_S = 300.0
"""Time after which a page's stream ends: the browser reconnects, and its session is checked again."""
ALL = ""
"""Stands for all federations where one is named: no federation has this name."""


class ServerSentEvent(NamedTuple):
    """An event as it is sent (HTML standard, 9.2)."""

    id: int
    text: bytes
    subject: str
    """What it is about: the first word of its kind, such as `round`."""


class EventFeed:
    """The live events of every federation; all but the reading happens on the event loop."""

    def __init__(self, database: Database, closing: threading.Event) -> None:
        self._database = database
        self._closing = closing
        self._journals: dict[str, _Journal] = {}
        self._pages = Coalescing[list[ServerSentEvent] | None]()

    async def stream(self, name: str, last: int, access: StreamAccess) -> AsyncIterator[bytes]:
        """Yield the events after `last` until the server closes or the access ends."""
        with self._followed(name, access) as (journal, opened):
            while not self._closing.is_set() and not opened.is_over:
                if not journal.reaches(last):
                    floor, started = journal.floor, journal.started
                    found = await self._page(name, last)
                    if found:
                        last = found[-1].id
                        yield b"".join(event.text for event in found)
                    elif found is not None and started:
                        last = max(last, floor)  # what lay between was deleted
                    else:
                        await journal.grows(POLL_S)
                elif text := journal.after(last):
                    last = journal.newest
                    yield text
                elif not await journal.grows(HEARTBEAT_S):
                    yield b": still here\n\n"

    async def changes(self, name: str, access: StreamAccess) -> AsyncIterator[bytes]:
        """Yield what a federation's events were about (`ALL`: any federation's), those of a second in one message."""
        began = time.monotonic()
        last: int | None = None
        with self._followed(name, access) as (journal, opened):
            yield b"retry: 3000\n\n"
            while not self._closing.is_set() and not opened.is_over and time.monotonic() - began < CHANGES_LIFE_S:
                if last is None:
                    last = journal.newest if journal.started else None
                    await journal.grows(POLL_S)
                elif subjects := journal.subjects_after(last):
                    last = journal.newest
                    yield f"event: changed\ndata: {' '.join(sorted(subjects))}\n\n".encode()
                    await asyncio.sleep(CHANGES_S)
                elif not await journal.grows(HEARTBEAT_S):
                    yield b": still here\n\n"

    @contextlib.contextmanager
    def _followed(self, name: str, access: StreamAccess) -> Iterator[tuple[_Journal, OpenStream]]:
        """Hold a federation's journal and a stream's access for as long as the stream lasts."""
        journal = self._join(name)
        try:
            with access.opened(self.wake) as opened:
                yield journal, opened
        finally:
            self._leave(name, journal)

    def wake(self) -> None:
        """Let every stream look whether it is over."""
        for journal in self._journals.values():
            journal.wake()

    def _join(self, name: str) -> _Journal:
        journal = self._journals.get(name)
        if journal is None:
            journal = self._journals[name] = _Journal()
            journal.reader = supervised_task("events", partial(self._read, name, journal))
        journal.streams += 1
        return journal

    def _leave(self, name: str, journal: _Journal) -> None:
        journal.streams -= 1
        if not journal.streams and journal.reader is not None:
            journal.reader.cancel()
            self._journals.pop(name, None)

    async def _read(self, name: str, journal: _Journal) -> None:
        """Read new events a few times per second while there are followers."""
        while not self._closing.is_set():
            if not journal.started:
                newest = await self._try(self._newest, name)
                if newest is not None:
                    journal.start(newest)
            found = await self._page(name, journal.newest) if journal.started else None
            journal.add(found or [])
            if found is None or len(found) < BATCH:
                await asyncio.sleep(POLL_S)
        journal.wake()

    async def _page(self, name: str, last: int) -> list[ServerSentEvent] | None:
        # streams that begin at the same event, as all do after a restart, read its page together
        return await self._pages.get((name, last), partial(self._try, self._after, name, last))

    async def _try(self, read: Callable[..., Found], *given: Any) -> Found | None:
        """Read in a thread; None if the database does not answer: streams wait until it does."""
        try:
            return await run_in_threadpool(read, *given)
        except SQLAlchemyError as error:
            failures.report("events not readable", error)
            return None

    def _after(self, name: str, last: int) -> list[ServerSentEvent]:
        with self._database.read() as session:
            row = None if name == ALL else repositories.find_federation(session, name)
            known = name == ALL or row is not None
            events = listings.events(session, row, PageParams(last, BATCH)).items if known else []
        return [
            ServerSentEvent(
                event.id,
                f"id: {event.id}\nevent: {event.kind}\ndata: {event.model_dump_json()}\n\n".encode(),
                event.kind.partition(".")[0],
            )
            for event in events
        ]

    def _newest(self, name: str) -> int:
        with self._database.read() as session:
            if name == ALL:
                return repositories.newest_event(session)
            row = repositories.find_federation(session, name)
            return repositories.last_event(session, row) if row else 0


class _Journal:
    """What the feed has read of one federation: everything after `floor` up to `newest`."""

    def __init__(self) -> None:
        self.streams = 0
        self.reader: asyncio.Task[None] | None = None
        self.started = False
        self.floor = self.newest = 0
        self._recent: deque[ServerSentEvent] = deque()
        self._batch_after, self._batch = 0, b""
        self._grown = asyncio.Event()

    def start(self, newest: int) -> None:
        """Start buffering events after `newest`."""
        self.floor = self.newest = newest
        self.started = True
        self.wake()

    def add(self, found: list[ServerSentEvent]) -> None:
        """Add the events, and wake every stream."""
        if found:
            self._recent.extend(found)
            self._batch_after, self._batch = self.newest, b"".join(event.text for event in found)
            self.newest = found[-1].id
            while len(self._recent) > RECENT:
                self.floor = self._recent.popleft().id
            self.wake()

    def wake(self) -> None:
        """Let every waiting stream look again."""
        self._grown.set()
        self._grown = asyncio.Event()

    def reaches(self, last: int) -> bool:
        """Whether nothing is missing here for a stream whose latest event is `last`."""
        return self.started and last >= self.floor

    def after(self, last: int) -> bytes:
        """Return what follows the event `last`; most streams stand at the same one and share its bytes."""
        if last >= self.newest:
            return b""
        if last == self._batch_after:
            return self._batch
        return b"".join(event.text for event in self._recent if event.id > last)

    def subjects_after(self, last: int) -> set[str]:
        """Return what the events after `last` were about, as far as they are remembered."""
        found = set()
        for event in reversed(self._recent):
            if event.id <= last:
                break
            found.add(event.subject)
        return found

    async def grows(self, within_s: float) -> bool:
        """Wait for new events; return False on a timeout."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._grown.wait()
                return True
        return False
