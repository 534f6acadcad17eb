"""Who may come in, asked before a request's body is read.

A good key has its own limit and no other: what comes from the same address, through the same proxy, does not count
against it. Requests without a key are limited by the client's address, and wrong keys by a limit of their own there.
"""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aggregator_api.api.middleware.problems import send_problem
from aggregator_api.api.middleware.rate_limit import TokenBuckets
from aggregator_api.auth import api_keys, insecure_local, scopes
from aggregator_api.auth.api_keys import LOCAL, Caller
from aggregator_api.auth.callers import CallerCache
from aggregator_api.auth.client_address import network, peer_of
from aggregator_api.db.audit import Intent
from aggregator_api.errors import ForbiddenError, RequestError, TooManyError, UnauthorizedError
from aggregator_api.runtime import Runtime
from aggregator_api.settings import Settings

_READS = frozenset({"GET", "HEAD", "OPTIONS"})


class AuthMiddleware:
    """Puts the `Caller` into the request's state, or answers with a problem."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._insecure_local = settings.insecure_local
        self._by_key = _buckets(settings.key_requests_per_s)
        self._by_address = _buckets(settings.address_requests_per_s)
        self._failures = _buckets(settings.failed_keys_per_s)
        self._callers = CallerCache()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request in, or answer it here."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            caller = await self._admit(scope)
        except RequestError as error:
            if isinstance(error, UnauthorizedError | ForbiddenError):
                await run_in_threadpool(_note_refusal, scope, str(error))
            await send_problem(scope, send, error)
            return
        scope["state"]["caller"] = caller
        await self._app(scope, receive, send if scope["method"] in _READS else self._forgetting(send))

    async def _admit(self, scope: Scope) -> Caller | None:
        headers = Headers(scope=scope)
        if self._insecure_local and (reason := insecure_local.refusal(peer_of(scope), headers, scope["http_version"])):
            raise ForbiddenError(reason)
        needed = scopes.need(scope["method"], scope["path"])
        authorization = headers.get("authorization")
        if needed is None or authorization is None:
            return self._without_key(scope, needed)
        return scopes.check(await self._with_key(scope, authorization), needed)

    def _without_key(self, scope: Scope, needed: scopes.Need | None) -> Caller | None:
        """Let everybody send what anybody may, and who sits at this machine the rest, where that is asked for."""
        address = network(scope["state"]["client_address"])
        if self._insecure_local:
            return None if needed is None else LOCAL
        if wait := self._by_address.take(address):
            raise TooManyError(f"too many requests from {address}; the next is taken in {wait:.1f} s", wait_s=wait)
        return None if needed is None else scopes.check(None, needed)

    async def _with_key(self, scope: Scope, authorization: str) -> Caller:
        scheme, _, key = authorization.partition(" ")
        if scheme.lower() != "bearer":
            raise self._failed(scope, "expected `Authorization: Bearer gw_…`")
        runtime: Runtime = scope["app"].state.runtime
        caller = await self._callers.find(runtime.database, key.strip())
        if caller is None:
            raise self._failed(scope, "this key is unknown, expired or revoked; ask the operator for another")
        if wait := self._by_key.take(caller.id):
            raise TooManyError(f"too many requests with the key {caller.id}; the next in {wait:.1f} s", wait_s=wait)
        return caller

    def _failed(self, scope: Scope, reason: str) -> RequestError:
        """Return the answer to a wrong key."""
        address = network(scope["state"]["client_address"])
        if wait := self._failures.take(address):
            runtime: Runtime = scope["app"].state.runtime
            runtime.refusals.count(_refused(scope, "access.limit", "too many wrong keys"))
            return TooManyError(f"too many wrong keys from {address}; the next is read in {wait:.1f} s", wait_s=wait)
        return UnauthorizedError(reason)

    def _forgetting(self, send: Send) -> Send:
        """Look keys up again once a request has changed something: before its answer says that they are revoked."""

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._callers.forget()
            await send(message)

        return sending


def _note_refusal(scope: Scope, reason: str) -> None:
    """Write a missing, wrong or insufficient key into the audit, with the part of it that is no secret."""
    runtime: Runtime = scope["app"].state.runtime
    runtime.refusals.note(_refused(scope, "access.refuse", reason))


def _refused(scope: Scope, action: str, reason: str) -> Intent:
    named = api_keys.prefix_in(Headers(scope=scope).get("authorization", ""))
    detail = f"{scope['method']} {scope['path'][:100]}: {reason}"
    return Intent(named or "unknown", scope["state"]["client_address"], action, detail=detail)


def _buckets(rate_per_s: float) -> TokenBuckets:
    return TokenBuckets(rate_per_s, max(1.0, 2 * rate_per_s))
