"""Equal reads that wait at the same time are answered by one piece of work (request coalescing), never by an old one.

A request joins only work that has not begun when it comes, so its answer holds everything that was committed before it:
whoever has changed something reads the change. However many ask, at most one answer to a question is being made and
one more waits to be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from starlette.types import ASGIApp, Message, Receive, Scope, Send

Answer = TypeVar("Answer")

REST = 4.0
"""Rest between two pieces of work of one key, in times that the one before has taken; others may join meanwhile."""
LONGEST_REST_S = 0.1


class Coalescing(Generic[Answer]):
    """Work under way, by its key; used on one event loop."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, tuple[asyncio.Future[Answer], Callable[[], Awaitable[Answer]]]] = {}
        self._workers: dict[Hashable, asyncio.Task[None]] = {}

    async def get(self, key: Hashable, work: Callable[[], Awaitable[Answer]]) -> Answer:
        """Return what `work`, or another caller's of the same key, makes from now on; its error is raised here too."""
        found = self._waiting.get(key)
        if found is None:
            loop = asyncio.get_running_loop()
            found = self._waiting[key] = loop.create_future(), work
            if key not in self._workers:
                self._workers[key] = loop.create_task(self._work(key))
        return await asyncio.shield(found[0])  # who gives up does not take the answer from the others

    async def _work(self, key: Hashable) -> None:
        loop = asyncio.get_running_loop()
        try:
            while (found := self._waiting.pop(key, None)) is not None:
                answer, work = found
                began = loop.time()
                try:
                    answer.set_result(await work())
                except Exception as error:
                    answer.set_exception(error)
                    answer.exception()  # nobody may be left to hear it
                # without a rest, work on a few questions that many ask would keep every other thread from Python's lock
                await asyncio.sleep(min(LONGEST_REST_S, REST * (loop.time() - began)))
        finally:
            del self._workers[key]


class CoalescedReads:
    """Answers equal GETs of callers with equal rights by one call of a route; streams and downloads pass by."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._answers = Coalescing[tuple[list[Message], Scope]]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or send what was made for it and others."""
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
    if scope["method"] != "GET" or path.endswith("/events"):
        return None
    if not path.startswith("/v1/federations") and path != "/readyz":
        return None
    caller = scope.get("state", {}).get("caller")
    rights = (caller.scopes, caller.federation, caller.device) if caller else None
    return (
        path,
        scope.get("query_string", b""),
        rights,
    )  # what is shown depends on what a caller may see, not on who asks


async def _no_body() -> Message:
    """Be the `receive` of a GET: the one who asked first may be gone before the others have their answer."""
    return {"type": "http.request", "body": b"", "more_body": False}
