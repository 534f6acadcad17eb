"""What fails because the store is away, locked or full is answered with 503 or 507 wherever it fails, routes or not."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aggregator_api.api.middleware.problems import send_problem
from aggregator_api.db.outages import Outage, outage_of
from aggregator_api.errors import RequestError, StorageFullError, UnavailableError
from aggregator_api.observability.failure_log import failures


class StorageErrors:
    """Turns an outage of the store into a problem; an answer that has begun can only be cut off."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; answer for it if the store fails it."""
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
            if begun or outage_of(error) is None:
                raise
            outage = failures.report(f"{scope['method']} {scope['path']} failed", error)
            await send_problem(scope, send, _answer(outage))


def _answer(outage: Outage | None) -> RequestError:
    if outage is Outage.FULL:
        return StorageFullError(f"{outage.value}: nothing was changed; free some space on it, then ask again")
    said = outage.value if outage else "the store cannot be used"
    return UnavailableError(f"{said}; the same request may work in a few seconds")
