"""Limits concurrent requests, and answers equal simultaneous reads once.

Only so many requests wait for their turn, and only so long; one too many gets 503 and when to come back.
Requests that read, requests that write and what devices say have places of their own: where writers wait for a locked
database, readers are still answered. A place is given back when the answer begins, so that slow readers of long
answers hold none.

Equal reads that wait at the same time are answered by one piece of work (request coalescing), never by an old one.
A request joins only work that has not begun when it comes, so its answer holds everything that was committed before it:
whoever has changed something reads the change. However many ask, at most one answer to a question is being made and
one more waits to be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aggregator_api.auth.scopes import is_device_message
from aggregator_api.core.errors import OverloadedError
from aggregator_api.http.api.middleware.problems import send_problem

MAX_CONCURRENT = 8
MAX_CONCURRENT_DEVICES = 64
"""Messages of devices: they take no thread, but wait for the one that handles them all, one after the other."""
MAX_QUEUED = 500
WAIT_S = 10.0
_READS = frozenset({"GET", "HEAD", "OPTIONS"})
_FREE = frozenset({"/healthz"})


class ConcurrencyLimit:
    """Lets `at_once` requests of each kind through; of those that wait, at most `waiting` and for `wait_s` at most."""

    def __init__(
        self, app: ASGIApp, *, at_once: int = MAX_CONCURRENT, waiting: int = MAX_QUEUED, wait_s: float = WAIT_S
    ) -> None:
        self._app = app
        self._reads, self._writes = (_Slots(at_once, waiting, wait_s) for _ in range(2))
        self._messages = _Slots(MAX_CONCURRENT_DEVICES, waiting, wait_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on when there is a place for it."""
        if scope["type"] != "http" or scope["path"] in _FREE:
            await self._app(scope, receive, send)
            return
        places = self._places_for(scope)
        try:
            await places.take()
        except OverloadedError as error:
            await send_problem(scope, send, error)
            return
        held = True

        async def give_back_then_send(message: Message) -> None:
            nonlocal held
            if held:
                held = False
                places.release()
            await send(message)

        try:
            await self._app(scope, receive, give_back_then_send)
        finally:
            if held:
                places.release()

    def _places_for(self, scope: Scope) -> _Slots:
        if is_device_message(scope.get("state", {})):
            return self._messages
        return self._reads if scope["method"] in _READS else self._writes


class _Slots:
    def __init__(self, at_once: int, waiting: int, wait_s: float) -> None:
        self._free = asyncio.Semaphore(at_once)
        self._most, self._wait_s = waiting, wait_s
        self._waiting = 0

    async def take(self) -> None:
        """Take a place, or wait for one.

        Raises:
            OverloadedError: if too many wait, or if it takes too long.
        """
        if self._waiting >= self._most:
            raise OverloadedError(f"{self._waiting} requests are already waiting; try again in a moment")
        self._waiting += 1
        try:
            async with asyncio.timeout(self._wait_s):
                await self._free.acquire()
        except TimeoutError as error:
            raise OverloadedError(f"the server is busy: it didn't start within {self._wait_s:.0f} s") from error
        finally:
            self._waiting -= 1

    def release(self) -> None:
        self._free.release()


Answer = TypeVar("Answer")

PAUSE_FACTOR = 4.0
"""Rest between two pieces of work of one key, in times that the one before has taken; others may join meanwhile."""
MAX_PAUSE_S = 0.05


@dataclass
class _PendingRead(Generic[Answer]):
    """Work that has not begun, and how many wait for it."""

    answer: asyncio.Future[Answer]
    work: Callable[[], Awaitable[Answer]]
    callers: int = 0


class Coalescing(Generic[Answer]):
    """Work under way, by its key; used on one event loop."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, _PendingRead[Answer]] = {}
        self._workers: dict[Hashable, asyncio.Task[None]] = {}

    async def get(self, key: Hashable, work: Callable[[], Awaitable[Answer]]) -> Answer:
        """Return what `work`, or another caller's of the same key, makes from now on; its error is raised here too."""
        piece = self._waiting.get(key)
        if piece is None:
            loop = asyncio.get_running_loop()
            piece = self._waiting[key] = _PendingRead(loop.create_future(), work)
            if key not in self._workers:
                self._workers[key] = loop.create_task(self._work(key))
        piece.callers += 1
        return await asyncio.shield(piece.answer)  # who gives up does not take the answer from the others

    async def _work(self, key: Hashable) -> None:
        loop = asyncio.get_running_loop()
        try:
            while (piece := self._waiting.pop(key, None)) is not None:
                began = loop.time()
                try:
                    piece.answer.set_result(await piece.work())
                except Exception as error:
                    piece.answer.set_exception(error)
                    piece.answer.exception()  # nobody may be left to hear it
                if piece.callers > 1:  # who asks alone waits for nobody
                    # without a rest, work on a few questions that many ask would keep Python's lock from the others
                    await asyncio.sleep(min(MAX_PAUSE_S, PAUSE_FACTOR * (loop.time() - began)))
        finally:
            del self._workers[key]


class CoalescedReads:
    """Answers equal GETs of callers with equal rights by one call of a route; streams and downloads pass by."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._answers = Coalescing[tuple[list[Message], Scope]]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on the request, or send the shared response."""
        key = _key(scope) if scope["type"] == "http" else None
        if key is None:
            await self._app(scope, receive, send)
            return
        messages, worked_on = await self._answers.get(key, lambda: self._collect(scope))
        if "route" in worked_on:
            scope["route"] = worked_on["route"]  # by which answers are counted
        for message in messages:
            await send(dict(message))

    async def _collect(self, scope: Scope) -> tuple[list[Message], Scope]:
        messages: list[Message] = []

        async def keep(message: Message) -> None:
            messages.append(message)

        await self._app(scope, _no_body, keep)
        return messages, scope


def _key(scope: Scope) -> Hashable | None:
    path: str = scope["path"]
    if scope["method"] != "GET" or path.endswith("/events") or is_device_message(scope.get("state", {})):
        return None
    if not path.startswith(("/v1/federations", "/live/")) and path != "/readyz":
        return None  # what is below /live/ are parts of pages that hold nothing of the session that asks
    caller = scope.get("state", {}).get("caller")
    rights = (caller.scopes, caller.federation, caller.device) if caller else None
    return (
        scope.get("root_path", ""),  # links are below it
        path,
        scope.get("query_string", b""),
        rights,
    )  # what is shown depends on what a caller may see, not on who asks


async def _no_body() -> Message:
    """Be the `receive` of a GET: the one who asked first may be gone before the others have their answer."""
    return {"type": "http.request", "body": b"", "more_body": False}
