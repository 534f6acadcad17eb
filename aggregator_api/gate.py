"""Who may come in, asked before a request's body is read: limits per address, the key, limits per key."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from aggregator_api import access, keys
from aggregator_api.errors import RequestError, TooManyError, UnauthorizedError
from aggregator_api.keys import LOCAL, Caller
from aggregator_api.limits import TokenBuckets, network
from aggregator_api.ports import is_loopback
from aggregator_api.problems import send_problem
from aggregator_api.runtime import Runtime
from aggregator_api.settings import Settings

log = logging.getLogger("aggregator_api")

WRONG_KEY_COSTS = 20.0
"""Requests of its address that a wrong key counts for."""

_PROXIED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")


class Gate:
    """Puts the `Caller` into the request's state, or answers with a problem."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._trusts_this_machine = settings.trusts_this_machine
        self._by_address = _buckets(settings.address_requests_per_s)
        self._by_key = _buckets(settings.key_requests_per_s)
        self._noted: dict[str, float] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request in, or answer it here."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            caller = await self._admit(scope)
        except RequestError as error:
            await send_problem(scope, send, error)
            return
        scope.setdefault("state", {})["caller"] = caller
        await self._app(scope, receive, send)

    async def _admit(self, scope: Scope) -> Caller | None:
        headers = Headers(scope=scope)
        host = scope["client"][0] if scope.get("client") else "unknown"
        local, address = is_local(headers, host), network(host)
        if not local and (wait := self._by_address.take(address)):
            raise TooManyError(f"too many requests from {address}; the next is taken in {wait:.1f} s", wait_s=wait)
        needed = access.need(scope["method"], scope["path"])
        if needed is None:
            return None
        try:
            caller = await self._caller(scope, headers.get("authorization"))
        except UnauthorizedError:
            if not local:
                self._by_address.charge(address, WRONG_KEY_COSTS)
            raise
        if caller is None and local and self._trusts_this_machine:
            return LOCAL
        found = access.check(caller, needed)
        if wait := self._by_key.take(found.id):
            raise TooManyError(f"too many requests with the key {found.id}; the next in {wait:.1f} s", wait_s=wait)
        return found

    async def _caller(self, scope: Scope, authorization: str | None) -> Caller | None:
        if authorization is None:
            return None
        scheme, _, key = authorization.partition(" ")
        if scheme.lower() != "bearer":
            raise UnauthorizedError("expected `Authorization: Bearer gw_…`")
        runtime: Runtime = scope["app"].state.runtime
        caller = await run_in_threadpool(self._find, runtime, key.strip())
        if caller is None:
            raise UnauthorizedError("this key is unknown, expired or revoked; ask the operator for another")
        return caller

    def _find(self, runtime: Runtime, key: str) -> Caller | None:
        now, moment = time.time(), time.monotonic()
        with runtime.database.read() as session:
            caller = keys.find(session, key, now)
        if caller is not None and moment - self._noted.get(caller.id, -math.inf) >= keys.USED_EVERY_S:
            self._note(runtime, caller, now, moment)
        return caller

    def _note(self, runtime: Runtime, caller: Caller, now: float, moment: float) -> None:
        self._noted = {id_: when for id_, when in self._noted.items() if moment - when < keys.USED_EVERY_S}
        self._noted[caller.id] = moment
        try:
            with runtime.database.write() as session:
                keys.note_use(session, caller, now)
        except SQLAlchemyError as error:
            log.warning("the use of key %s could not be written down: %s", caller.id, error)


def is_local(headers: Mapping[str, str], host: str) -> bool:
    """Whether a program on this machine sends the request of its own accord.

    Not what a proxy passes on, and not what a web page makes a browser send: it names its own host or origin.
    """
    if not is_loopback(host) or any(name in headers for name in _PROXIED):
        return False
    origin = headers.get("origin")
    return _names_loopback(headers.get("host", "")) and (origin is None or _names_loopback(urlsplit(origin).netloc))


def _names_loopback(netloc: str) -> bool:
    try:
        host = urlsplit(f"//{netloc}").hostname
    except ValueError:
        return False
    return host is not None and is_loopback(host)


def _buckets(rate_per_s: float) -> TokenBuckets:
    return TokenBuckets(rate_per_s, max(1.0, 2 * rate_per_s))
