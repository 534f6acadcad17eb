"""What fails is answered wherever it fails, routes or not: outages of the store with 503 or 507, the rest with 500."""

from __future__ import annotations

import logging

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aggregator_api.core.errors import RequestError, ServerFailedError, StorageFullError, UnavailableError
from aggregator_api.http.api.middleware.problems import send_problem
from aggregator_api.storage.outages import Outage, failures, outage_of

log = logging.getLogger(__name__)


class FailedRequests:
    """Answers for what failed; what was not foreseen it raises anew, for whoever serves the application to log.

    An exception handler of the application would answer outside of all middleware: a browser would get JSON, without
    the headers that every answer has.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; an answer that has begun can only be cut off."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def noted(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except Exception as error:
            if outage_of(error) is not None and not begun:
                outage = failures.report(f"{scope['method']} {scope['path']} failed", error)
                await send_problem(scope, send, _answer(outage))
                return
            log.error("request failed path=%s: %r", scope["path"], error)
            if not begun:
                await send_problem(scope, send, ServerFailedError("the server failed; its log says why"))
            raise


def _answer(outage: Outage | None) -> RequestError:
    if outage is Outage.FULL:
        return StorageFullError(f"{outage.value}: nothing was changed; free some space on it, then ask again")
    detail = outage.value if outage else "the store cannot be used"
    return UnavailableError(f"{detail}; the same request may work in a few seconds")
