"""Whose streams are open: a key has only so many, and each ends within seconds with the key or the session behind it.

One reader looks at all of them every `CHECK_S`: a query for the keys and one for the sessions, however many streams
there are. So it sees what another process, or a command on the server's machine, has revoked.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from aggregator_api.auth import api_keys, web_sessions
from aggregator_api.auth.api_keys import Caller
from aggregator_api.core.errors import TooManyError
from aggregator_api.storage.db.database import Database
from aggregator_api.storage.outages import failures
from gaitway.threads import supervised_task

CHECK_S = 2.0
RETRY_S = 30.0
"""When a key that has too many streams may try again: those of pages end by themselves within minutes."""


@dataclass(eq=False)
class OpenStream:
    """One stream: the key and the session (its sha256; empty: none) that opened it, and whether they open it still."""

    key: str
    session: str
    wake: Callable[[], None]
    is_over: bool = False


class OpenStreams:
    """The streams of one process; all but the looking happens on the event loop."""

    def __init__(self, database: Database, closing: threading.Event, *, max_per_key: int) -> None:
        self._database, self._closing, self._most = database, closing, max_per_key
        self._streams: set[OpenStream] = set()
        self._of_key: Counter[str] = Counter()
        self._watcher: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._streams)

    def require_room(self, key: str) -> None:
        """Check that a key may have another stream; safe on any thread.

        Raises:
            TooManyError: if it has as many as it may have.
        """
        if self._of_key[key] >= self._most:
            raise TooManyError(
                f"the key {key} has {self._most} streams open already, as many as a key may have (key_streams); close "
                "some, or use another key",
                wait_s=RETRY_S,
            )

    @contextmanager
    def opened(self, key: str, session: str, wake: Callable[[], None]) -> Iterator[OpenStream]:
        """Count a stream for as long as the block lasts; `wake` lets it look whether it `is_over`.

        Of those that were asked for at once, the ones beyond the limit are over when they begin.
        """
        stream = OpenStream(key, session, wake, is_over=self._of_key[key] >= self._most)
        self._streams.add(stream)
        self._of_key[key] += 1
        self._watch()
        try:
            yield stream
        finally:
            self._streams.discard(stream)
            self._of_key[key] -= 1
            if not self._of_key[key]:
                del self._of_key[key]

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        if self._watcher is None or self._watcher.done() or self._watcher.get_loop() is not loop:
            self._watcher = supervised_task("open streams", self._look_again_and_again)

    async def _look_again_and_again(self) -> None:
        while self._streams and not self._closing.is_set():
            await asyncio.sleep(CHECK_S)
            await self.look()

    async def look(self) -> None:
        """End the streams whose key or session opens nothing any more; in an outage of the database, none."""
        streams = list(self._streams)
        keys, sessions = {stream.key for stream in streams}, {stream.session for stream in streams} - {""}
        try:
            good_keys, good_sessions = await run_in_threadpool(self._valid, keys, sessions)
        except SQLAlchemyError as error:
            failures.report("open streams not checked", error)
            return
        for stream in streams:
            if stream.key not in good_keys or (stream.session and stream.session not in good_sessions):
                stream.is_over = True
                stream.wake()

    def _valid(self, keys: set[str], sessions: set[str]) -> tuple[set[str], set[str]]:
        now = time.time()
        with self._database.read() as session:
            good = api_keys.valid_ids(session, keys, now)
            return good, web_sessions.valid_hashes(session, sessions, now) if sessions else set()


class StreamAccess:
    """With what a request opens a stream."""

    def __init__(self, streams: OpenStreams, key: str, session: str = "") -> None:
        """Take the caller's session: its cookie's token, where it is a browser's."""
        self._streams, self.key = streams, key
        self.session = hashlib.sha256(session.encode()).hexdigest() if session else ""

    @classmethod
    def of(cls, request: Request) -> StreamAccess:
        """Return with what a request may open a stream.

        Raises:
            TooManyError: if its key has as many streams as it may have.
        """
        streams: OpenStreams = request.app.state.runtime.open_streams
        caller: Caller = request.state.caller
        streams.require_room(caller.id)
        return cls(streams, caller.id, getattr(request.state, "session", ""))

    def opened(self, wake: Callable[[], None]) -> AbstractContextManager[OpenStream]:
        """Count the stream for as long as the block lasts."""
        return self._streams.opened(self.key, self.session, wake)
