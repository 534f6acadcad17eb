"""Authentication, before a request's body is read.

A good key has its own limit and no other: what comes from the same address, through the same proxy, does not count
against it. Requests without a key are limited by the client's address, and wrong keys by a limit of their own there.

The operator's pages are opened by a session's cookie, which REST never takes: no other site can make a browser use it.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from threading import Lock

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aggregator_api.auth import api_keys, scopes, sessions
from aggregator_api.auth.api_keys import Caller
from aggregator_api.auth.callers import CallerCache, network
from aggregator_api.auth.scopes import READS, declared_routes
from aggregator_api.core.errors import ForbiddenError, RequestError, TooManyError, UnauthorizedError
from aggregator_api.core.settings import Settings
from aggregator_api.http.api.middleware.problems import send_problem
from aggregator_api.operations.counts import RefusalLog
from aggregator_api.storage.db.audit import Intent

MAX_CALLERS = 10_000
"""Buckets in memory; the least recently used one is dropped, and a returning caller then starts with a full one."""


class AuthMiddleware:
    """Puts the `Caller` into the request's state, or answers with a problem."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._by_key = _buckets(settings.key_requests_per_s)
        self._by_address = _buckets(settings.address_requests_per_s)
        self._failures = _buckets(settings.failed_keys_per_s)
        self._callers = CallerCache()
        self._sessions = CallerCache(find=sessions.find, is_well_formed=sessions.is_well_formed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request in, or answer it here."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            caller = await self._admit(scope)
        except RequestError as error:
            if isinstance(error, UnauthorizedError):
                _count_refusal(scope, str(error))  # anybody may cause it, as often as they like: nobody waits for it
            elif isinstance(error, ForbiddenError):
                await run_in_threadpool(_note_refusal, scope, str(error))
            await send_problem(scope, send, error)
            return
        scope["state"]["caller"] = caller
        scope["state"]["wrong_key"] = partial(self._failed, scope)  # for the login, which reads a key itself
        changes_nothing = scope["method"] in READS or scopes.is_device_message(scope["state"])
        await self._app(scope, receive, send if changes_nothing else self._forgetting(send))

    async def _admit(self, scope: Scope) -> Caller | None:
        headers = Headers(scope=scope)
        needed = scope["state"]["needed"] = declared_routes(scope["app"]).need(scope)
        authorization = headers.get("authorization")
        if needed is not None and authorization is not None:
            return scopes.check(await self._with_key(scope, authorization), needed)
        if not scope["path"].startswith(scopes.PROGRAMS):
            caller = await self._with_session(scope, headers)
            if caller is not None:
                return caller if needed is None else scopes.check(caller, needed)
        return self._without_key(scope, needed)

    async def _with_session(self, scope: Scope, headers: Headers) -> Caller | None:
        """Return whose browser it is; None if it was not logged in, or is no more."""
        name = sessions.cookie_name(scope["scheme"], scope.get("root_path", ""))
        token = cookie_parser(headers.get("cookie", "")).get(name, "")
        caller = await self._sessions.find(scope["app"].state.database, token)
        if caller is None:
            return None
        if wait := self._by_key.take(caller.id):
            raise TooManyError(f"too many requests with the key {caller.id}; the next in {wait:.1f} s", wait_s=wait)
        scope["state"]["session"] = token
        return caller

    def _without_key(self, scope: Scope, needed: scopes.Need | None) -> Caller | None:
        """Allow only open routes without a key."""
        address = network(scope["state"]["client_address"])
        if wait := self._by_address.take(address):
            raise TooManyError(f"too many requests from {address}; the next is accepted in {wait:.1f} s", wait_s=wait)
        return None if needed is None else scopes.check(None, needed)

    async def _with_key(self, scope: Scope, authorization: str) -> Caller:
        scheme, _, key = authorization.partition(" ")
        if scheme.lower() != "bearer":
            raise self._failed(scope, "expected `Authorization: Bearer gw_…`")
        caller = await self._callers.find(scope["app"].state.database, key.strip())
        if caller is None:
            raise self._failed(scope, "this key is unknown, expired or revoked; ask the operator for another")
        if wait := self._by_key.take(caller.id):
            raise TooManyError(f"too many requests with the key {caller.id}; the next in {wait:.1f} s", wait_s=wait)
        return caller

    def _failed(self, scope: Scope, reason: str) -> RequestError:
        """Return the answer to a wrong key."""
        address = network(scope["state"]["client_address"])
        if wait := self._failures.take(address):
            refusals: RefusalLog = scope["app"].state.refusals
            refusals.count(_refused(scope, "access.limit", "too many wrong keys"))
            return TooManyError(f"too many wrong keys from {address}; retry in {wait:.1f} s", wait_s=wait)
        return UnauthorizedError(reason)

    def _forgetting(self, send: Send) -> Send:
        """Look keys up again once a request has changed something: before its answer says that they are revoked."""

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._callers.forget()
                self._sessions.forget()
            await send(message)

        return sending


def _count_refusal(scope: Scope, reason: str) -> None:
    """Count a missing or wrong key for the audit, with the part of it that is no secret."""
    refusals: RefusalLog = scope["app"].state.refusals
    refusals.count(_refused(scope, "access.refuse", reason))


def _note_refusal(scope: Scope, reason: str) -> None:
    """Write an insufficient key into the audit."""
    refusals: RefusalLog = scope["app"].state.refusals
    refusals.note(_refused(scope, "access.refuse", reason))


def _refused(scope: Scope, action: str, reason: str) -> Intent:
    named = api_keys.prefix_in(Headers(scope=scope).get("authorization", ""))
    detail = f"{scope['method']} {scope['path'][:100]}: {reason}"
    return Intent(named or "unknown", scope["state"]["client_address"], action, detail=detail)


def _buckets(rate_per_s: float) -> TokenBuckets:
    return TokenBuckets(rate_per_s, max(1.0, 2 * rate_per_s))


class TokenBuckets:
    """How many requests one caller may send, in bounded memory.

    One bucket per caller: `rate_per_s` tokens flow in, up to `burst`, and each request takes some out.
    """

    def __init__(self, rate_per_s: float, burst: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate_per_s
        self._burst = burst
        self._clock = clock
        self._lock = Lock()
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # caller -> tokens, when

    def take(self, caller: str, tokens: float = 1.0) -> float:
        """Take tokens and return 0, or leave them and return the seconds until there are enough."""
        with self._lock:
            now = self._clock()
            held, since = self._buckets.pop(caller, (self._burst, now))
            held = min(self._burst, held + (now - since) * self._rate)
            missing = min(tokens, self._burst) - held
            self._buckets[caller] = (held if missing > 0 else held - tokens, now)
            while len(self._buckets) > MAX_CALLERS:
                self._buckets.popitem(last=False)
        return max(0.0, missing / self._rate)

    def __len__(self) -> int:
        return len(self._buckets)
