"""Idempotency: a POST with an Idempotency-Key is processed once; a repeated one gets the stored response.

What devices say passes by: an update has an id of its own, and a status may be repeated.

After draft-ietf-httpapi-idempotency-key-header-07, but for one thing: the key with another request is a 409, not a
422, for that request in itself is fine. So it is while the first is still worked on. Keys belong to their caller and
are kept for a day. An answer that holds a secret is not kept.
"""

from __future__ import annotations

import hashlib
import re
import time
from typing import NamedTuple

from sqlalchemy import delete, or_, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aggregator_api.auth.scopes import is_device_message
from aggregator_api.core.errors import ConflictError, RequestError, UnprocessableError
from aggregator_api.http.api.middleware.problems import replay, send_problem
from aggregator_api.storage.db.database import Database
from aggregator_api.storage.db.models import IdempotentRequestRow

RETENTION_S = 24 * 3600.0
STALE_AFTER_S = 300.0
"""Age at which an unfinished request counts as lost with its server."""
MAX_STORED = 10_000
MAX_RESPONSE_BYTES = 1 << 19

_KEY = re.compile(r"[\x21-\x7e]{1,128}")
_KEPT_HEADERS = ("content-type", "location", "www-authenticate")
_NOT_FINAL = (401, 403, 408, 429)


class StoredResponse(NamedTuple):
    """A whole response."""

    status: int
    headers: dict[str, str]
    body: bytes


class IdempotentRequests:
    """The stored answers of one server."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def begin(self, caller: str, key: str, request_sha256: str) -> StoredResponse | None:
        """Claim a key and return None, or return the answer that it has got.

        Raises:
            ConflictError: if the key was used for another request, if the first request is being worked on, or if its
                answer is not kept.
        """
        now = time.time()
        fresh = IdempotentRequestRow(
            caller=caller, key=key, request_sha256=request_sha256, status=None, headers={}, body=None, created_at=now
        )
        try:
            with self._database.write() as session:
                _make_room(session, now)
                row = session.get(IdempotentRequestRow, (caller, key))
                if row is None:
                    session.add(fresh)
                    return None
                return _answer(row, request_sha256)
        except IntegrityError as error:  # on PostgreSQL, another request was faster
            raise _under_way(key) from error

    def finish(self, caller: str, key: str, answer: StoredResponse) -> None:
        """Keep the answer, unless the same request may well get another one later."""
        final = answer.status < 500 and answer.status not in _NOT_FINAL and len(answer.body) <= MAX_RESPONSE_BYTES
        if not final:
            self.forget(caller, key)
            return
        with self._database.write() as session:
            row = session.get(IdempotentRequestRow, (caller, key))
            if row is not None:
                secret = "no-store" in answer.headers.get("cache-control", "")
                row.status, row.body = answer.status, None if secret else answer.body.decode()
                row.headers = {name: answer.headers[name] for name in _KEPT_HEADERS if name in answer.headers}

    def forget(self, caller: str, key: str) -> None:
        """Let the request be tried again."""
        with self._database.write() as session:
            session.execute(
                delete(IdempotentRequestRow).where(
                    IdempotentRequestRow.caller == caller, IdempotentRequestRow.key == key
                )
            )


class Idempotency:
    """Looks every POST with the header up before a route sees it, behind authentication and the body limit."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a repeated request as before, or work on it and keep the answer."""
        key = Headers(scope=scope).get("idempotency-key") if scope["type"] == "http" else None
        caller = scope.get("state", {}).get("caller")
        ours = caller is not None and scope["method"] == "POST" and not is_device_message(scope.get("state", {}))
        if key is None or not ours:
            await self._app(scope, receive, send)
            return
        body = (await receive()).get("body", b"")  # all of it: BodyLimit has put it together
        repeats = IdempotentRequests(scope["app"].state.database)
        try:
            if not _KEY.fullmatch(key):
                raise UnprocessableError("Idempotency-Key: expected 1 to 128 visible ASCII characters")
            answer = await run_in_threadpool(repeats.begin, caller.id, key, _fingerprint(scope, body))
        except RequestError as error:
            await send_problem(scope, send, error)
            return
        if answer is None:
            answer = await self._work(scope, replay(body, receive), repeats, (caller.id, key))
        await _send(send, answer)

    async def _work(
        self, scope: Scope, receive: Receive, repeats: IdempotentRequests, key: tuple[str, str]
    ) -> StoredResponse:
        try:
            answer = await _collect(self._app, scope, receive)
        except BaseException:
            await run_in_threadpool(repeats.forget, *key)
            raise
        await run_in_threadpool(repeats.finish, *key, answer)
        return answer


async def _collect(app: ASGIApp, scope: Scope, receive: Receive) -> StoredResponse:
    status, headers, body = 500, dict[str, str](), bytearray()

    async def keep(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
            headers.update({name.decode("latin-1"): value.decode("latin-1") for name, value in message["headers"]})
        elif message["type"] == "http.response.body":
            body.extend(message.get("body", b""))

    await app(scope, receive, keep)
    return StoredResponse(status, headers, bytes(body))


async def _send(send: Send, answer: StoredResponse) -> None:
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers.items()]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


def _fingerprint(scope: Scope, body: bytes) -> str:
    parts = (scope["path"].encode(), scope.get("query_string", b""), body)
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).hexdigest()


def _make_room(session: Session, now: float) -> None:
    table = IdempotentRequestRow
    # one of a time to come was made before the clock was set back
    long_ago = or_(table.created_at < now - STALE_AFTER_S, table.created_at > now + STALE_AFTER_S)
    lost = table.status.is_(None) & long_ago
    session.execute(delete(table).where(or_(table.created_at < now - RETENTION_S, lost)))
    oldest = session.scalar(select(table.created_at).order_by(table.created_at.desc()).offset(MAX_STORED - 1).limit(1))
    if oldest is not None:
        session.execute(delete(table).where(table.created_at <= oldest, table.status.is_not(None)))


def _answer(row: IdempotentRequestRow, request_sha256: str) -> StoredResponse:
    if row.request_sha256 != request_sha256:
        raise ConflictError(f"the Idempotency-Key {row.key!r} was used for another request; use a new one")
    if row.status is None:
        raise _under_way(row.key)
    if row.body is None:
        raise ConflictError(
            f"the request with the Idempotency-Key {row.key!r} was answered with {row.status} and a secret, which is "
            "shown once; revoke what it made and ask anew with a new key"
        )
    return StoredResponse(row.status, {**row.headers, "idempotency-replayed": "true"}, row.body.encode())


def _under_way(key: str) -> ConflictError:
    return ConflictError(f"the request with the Idempotency-Key {key!r} is in progress; try again in a moment")
