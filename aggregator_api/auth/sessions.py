"""Browsers' sessions, and event streams that end with the key that opened them.

A key is shown once, at login, and exchanged for a cookie that no script can read.
A session is 256 random bits, of which only the sha256 is stored. It has its key's current access, and ends when the key
is revoked or expires, after `LIFETIME_S`, or at logout.

Three things keep another site from using it: the cookie is SameSite=Strict; the browser must say that a changing
request comes from a page of this server; and the request carries a token that only such a page has.

A key's open streams are limited, and each ends within seconds of its key or session. Every `CHECK_S`, one query checks
all keys and another all sessions, however many streams there are. So revocations by other processes and by commands on
the server's machine take effect.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlsplit

from sqlalchemy import delete, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import Request

from aggregator_api.auth import api_keys
from aggregator_api.auth.api_keys import Caller
from aggregator_api.core.errors import TooManyError
from aggregator_api.storage.db.database import Database
from aggregator_api.storage.db.models import CredentialRow, WebSessionRow
from aggregator_api.storage.outages import failures
from gaitway.threads import supervised_task

LIFETIME_S = 12 * 3600.0
LINK_S = 600.0
"""Default lifetime of a link for one login."""
MAX_SESSIONS_PER_KEY = 16
"""Sessions of one key at a time; the oldest is dropped."""
SECURE_COOKIE = "__Host-gaitway"
"""Name over HTTPS; a browser accepts such a cookie only from this host, and only if it is Secure."""
SECURE_COOKIE_BELOW = "__Secure-gaitway"
"""Name if the server has only a path of the host: `__Host-` would expose the cookie to the host's other paths."""
PLAIN_COOKIE = "gaitway"
CSRF_HEADER = "x-csrf-token"

_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}")


class NewSession(NamedTuple):
    """A new session: its cookie's value, its expiry, and its key's id."""

    token: str
    expires_at: float
    key: str


def cookie_name(scheme: str, root_path: str = "") -> str:
    """Return the cookie's name; cookies set over HTTPS aren't accepted over HTTP, nor vice versa."""
    if scheme != "https":
        return PLAIN_COOKIE
    return SECURE_COOKIE_BELOW if root_path else SECURE_COOKIE


def cookie_path(root_path: str) -> str:
    """Return the path to which a browser sends the cookie."""
    return f"{root_path}/"


def is_well_formed(token: str) -> bool:
    """Whether a text has the form of a session token, without a database query."""
    return _TOKEN.fullmatch(token) is not None


def begin(session: Session, caller: Caller, now: float) -> NewSession | None:
    """Write a session for a caller's key; None if the key no longer exists."""
    key = api_keys.find_key(session, caller.id)
    if key is None:
        return None
    session.execute(delete(WebSessionRow).where(WebSessionRow.expires_at <= now))
    _make_room(session, key)
    token = secrets.token_urlsafe(32)
    expires_at = min(now + LIFETIME_S, key.expires_at or now + LIFETIME_S)
    row = WebSessionRow(token_sha256=_sha256(token), credential_id=key.id, created_at=now, expires_at=expires_at)
    session.add(row)
    return NewSession(token, expires_at, caller.id)


def make_link(session: Session, key: CredentialRow, now: float, lifetime_s: float = LINK_S) -> str:
    """Write a one-time, short-lived login for one browser that doesn't show the key; return its link's token.

    It is stored as a session that no cookie can open, because its token is hashed differently.
    """
    token = secrets.token_urlsafe(32)
    expires_at = min(now + lifetime_s, key.expires_at or now + lifetime_s)
    row = WebSessionRow(token_sha256=_link_sha256(token), credential_id=key.id, created_at=now, expires_at=expires_at)
    session.add(row)
    return token


def follow_link(session: Session, token: str, now: float) -> NewSession | None:
    """Use up a link and begin a session; None if it is unknown, used or expired, or its key is no longer valid."""
    is_link = WebSessionRow.token_sha256 == _link_sha256(token)
    query = select(CredentialRow.prefix).join(WebSessionRow, WebSessionRow.credential_id == CredentialRow.id)
    prefix = session.scalar(query.where(is_link, WebSessionRow.expires_at > now))
    session.execute(delete(WebSessionRow).where(is_link))
    caller = None if prefix is None else api_keys.find_id(session, prefix, now)
    return None if caller is None else begin(session, caller, now)


def find(session: Session, token: str, now: float) -> Caller | None:
    """Return a session's caller; None if it is unknown or has ended, or its key is revoked or expired."""
    query = select(CredentialRow.prefix).join(WebSessionRow, WebSessionRow.credential_id == CredentialRow.id)
    query = query.where(WebSessionRow.token_sha256 == _sha256(token), WebSessionRow.expires_at > now)
    prefix = session.scalar(query)
    return None if prefix is None else api_keys.find_id(session, prefix, now)


def valid_hashes(session: Session, hashes: Iterable[str], now: float) -> set[str]:
    """Return those of these sessions (sha256 of their cookies) that haven't ended, without checking their keys."""
    query = select(WebSessionRow.token_sha256).where(WebSessionRow.expires_at > now)
    return api_keys.among(session, query, WebSessionRow.token_sha256, hashes)


def end(session: Session, token: str) -> None:
    """End a session."""
    session.execute(delete(WebSessionRow).where(WebSessionRow.token_sha256 == _sha256(token)))


def csrf_token(token: str) -> str:
    """Return the token in the forms of a session's pages, which doesn't reveal the session."""
    return hmac.new(token.encode(), b"gaitway csrf", hashlib.sha256).hexdigest()


def is_csrf_token(given: str, token: str) -> bool:
    """Whether a form's token belongs to that session."""
    return hmac.compare_digest(given.encode(), csrf_token(token).encode())


def from_this_site(headers: Headers) -> bool:
    """Whether the browser says that the request comes from a page of this server.

    Browsers send `Sec-Fetch-Site` with every request to HTTPS and localhost, and `Origin` with every POST. A client
    that sends neither isn't a browser and should use a key.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    return urlsplit(headers.get("origin", "")).netloc.lower() == headers.get("host", "-").lower()


def _make_room(session: Session, key: CredentialRow) -> None:
    query = select(WebSessionRow.token_sha256).where(WebSessionRow.credential_id == key.id)
    oldest = session.scalars(query.order_by(WebSessionRow.created_at.desc()).offset(MAX_SESSIONS_PER_KEY - 1)).all()
    session.execute(delete(WebSessionRow).where(WebSessionRow.token_sha256.in_(oldest)))


def _link_sha256(token: str) -> str:
    return hashlib.sha256(b"gaitway login link " + token.encode()).hexdigest()


def _sha256(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


CHECK_S = 2.0
RETRY_S = 30.0
"""Retry time for a key with too many streams; those of pages end by themselves within minutes."""


@dataclass(eq=False)
class OpenStream:
    """A stream, with the key and session (its sha256; empty: none) that opened it, and whether they are still valid."""

    key: str
    session: str
    wake: Callable[[], None]
    is_over: bool = False


class OpenStreams:
    """The streams of one process; everything except the checking runs on the event loop."""

    def __init__(self, database: Database, closing: threading.Event, *, max_per_key: int) -> None:
        self._database, self._closing, self._most = database, closing, max_per_key
        self._streams: set[OpenStream] = set()
        self._of_key: Counter[str] = Counter()
        self._watcher: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._streams)

    def require_room(self, key: str) -> None:
        """Check that a key may open another stream; safe on any thread.

        Raises:
            TooManyError: if it has reached its limit.
        """
        if self._of_key[key] >= self._most:
            raise TooManyError(
                f"the key {key} already has {self._most} open streams, the limit per key (key_streams); close some, "
                f"or use another key",
                wait_s=RETRY_S,
            )

    @contextmanager
    def opened(self, key: str, session: str, wake: Callable[[], None]) -> Iterator[OpenStream]:
        """Count a stream until the block ends; `wake` makes it check whether it `is_over`.

        Of simultaneous requests, those beyond the limit are over when they begin.
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
        """End the streams whose key or session is no longer valid; during a database outage, end none."""
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
            return good, valid_hashes(session, sessions, now) if sessions else set()


class StreamAccess:
    """A request's access to a stream."""

    def __init__(self, streams: OpenStreams, key: str, session: str = "") -> None:
        """Store the caller and a browser's session, from its cookie's token."""
        self._streams, self.key = streams, key
        self.session = hashlib.sha256(session.encode()).hexdigest() if session else ""

    @classmethod
    def of(cls, request: Request) -> StreamAccess:
        """Return a request's access to a stream.

        Raises:
            TooManyError: if its key has reached its limit of streams.
        """
        streams: OpenStreams = request.app.state.runtime.open_streams
        caller: Caller = request.state.caller
        streams.require_room(caller.id)
        return cls(streams, caller.id, getattr(request.state, "session", ""))

    def opened(self, wake: Callable[[], None]) -> AbstractContextManager[OpenStream]:
        """Count the stream until the block ends."""
        return self._streams.opened(self.key, self.session, wake)
