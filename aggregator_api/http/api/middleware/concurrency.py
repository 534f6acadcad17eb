"""How many requests are worked on at once, how many wait for it and for how long; one too many is told to come again.

Requests that read, requests that write and what devices say have places of their own: where writers wait for a locked
database, readers are still answered. A place is given back when the answer begins, so that slow readers of long
answers hold none.
"""

from __future__ import annotations

import asyncio

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
            raise OverloadedError(f"{self._waiting} requests wait already; try again in a moment")
        self._waiting += 1
        try:
            async with asyncio.timeout(self._wait_s):
                await self._free.acquire()
        except TimeoutError as error:
            raise OverloadedError(f"the server is busy: {self._wait_s:.0f} s were not enough to begin") from error
        finally:
            self._waiting -= 1

    def release(self) -> None:
        self._free.release()
