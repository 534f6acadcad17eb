"""Streams end with the key or the session that opened them, and a key has only so many; by real sockets."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import httpx
import pytest
from sqlalchemy import event, update
from sqlalchemy.exc import OperationalError

from aggregator_api.auth import api_keys, sessions
from aggregator_api.auth.sessions import OpenStreams
from aggregator_api.storage.db.database import Database
from aggregator_api.storage.db.models import CredentialRow, WebSessionRow
from tests.aggregator_api.bench import wait_for
from tests.aggregator_api.device_http.enrolled_devices import PATIENCE_S, Server
from tests.aggregator_api.generated_devices import FEDERATION

LIMIT = 5
SECONDS = 8.0
"""Within which a stream ends: more than a few looks take on a busy machine, and less than a comment takes to come."""
REST, PAGES = f"/v1/federations/{FEDERATION}/events", ("/events", f"/federations/{FEDERATION}/events")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sessions, "CHECK_S", 0.1)
        found = Server(tmp_path_factory.mktemp("streams"), key_streams=LIMIT)
        yield found
        found.stop()


class Key:
    """A key, and what is done to it in the database, as another process does it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        with server.runtime.database.write() as session:
            self.row, self.secret = api_keys.make(session, "reader", ["read"])
            self.id = self.row.prefix
            caller = api_keys.find(session, self.secret, time.time())
            assert caller is not None
            begun = sessions.begin(session, caller, time.time())
            assert begun is not None
            self.session = begun.token

    @property
    def bearer(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.secret}"}

    @property
    def cookie(self) -> dict[str, str]:
        return {"Cookie": f"gaitway={self.session}"}

    def revoke(self) -> None:
        self._change(revoked_at=time.time())

    def expire(self) -> None:
        self._change(expires_at=time.time() - 1)

    def hold(self) -> None:
        self._change(held_at=time.time())

    def log_out(self) -> None:
        with self.server.runtime.database.write() as session:
            sessions.end(session, self.session)

    def let_session_expire(self) -> None:
        with self.server.runtime.database.write() as session:
            session.execute(update(WebSessionRow).values(expires_at=time.time() - 1))

    def _change(self, **values: float) -> None:
        with self.server.runtime.database.write() as session:
            session.execute(update(CredentialRow).where(CredentialRow.prefix == self.id).values(**values))


ENDS = [
    *[(path, "bearer", end) for path in (REST, *PAGES) for end in (Key.revoke, Key.expire, Key.hold)],
    *[(path, "cookie", end) for path in PAGES for end in (Key.revoke, Key.log_out, Key.let_session_expire)],
]


@pytest.mark.parametrize(("path", "shown", "end"), ENDS)
def test_a_stream_ends_within_seconds_with_what_opened_it(
    server: Server, path: str, shown: str, end: Callable[[Key], None]
) -> None:
    key, other = Key(server), Key(server)
    headers, theirs = getattr(key, shown), getattr(other, shown)
    with (
        httpx.stream("GET", server.url + path, headers=headers, timeout=SECONDS) as stream,
        httpx.stream("GET", server.url + path, headers=theirs, timeout=PATIENCE_S) as unaffected,
    ):
        assert stream.status_code == unaffected.status_code == 200
        pieces = stream.iter_raw()
        if path != REST:
            next(pieces)
        wait_for(lambda: len(server.runtime.open_streams) == 2)
        end(key)
        for _ in pieces:
            pass  # an exception says that nothing came for so long, and that it had not ended
        if end is not Key.let_session_expire:  # which ends all of them
            assert len(server.runtime.open_streams) == 1
    wait_for(lambda: len(server.runtime.open_streams) == 0)


def test_a_devices_stream_ends_with_its_key(server: Server) -> None:
    device = server.enrolled("phone")
    with device.stream(quiet_s=SECONDS) as heard:
        next(heard)
        with server.runtime.database.write() as session:
            session.execute(update(CredentialRow).where(CredentialRow.name == "phone").values(revoked_at=1.0))
        assert [event.data for event in heard][-1] == b"refused"


@pytest.mark.parametrize("path", [REST, *PAGES])
def test_a_key_has_only_so_many_streams(server: Server, path: str) -> None:
    key, other = Key(server), Key(server)
    opened = [httpx.Client(timeout=PATIENCE_S) for _ in range(LIMIT)]
    asked = httpx.Request("GET", server.url + path, headers=key.bearer)
    streams = [client.send(asked, stream=True) for client in opened]
    assert {stream.status_code for stream in streams} == {200}
    wait_for(lambda: len(server.runtime.open_streams) == LIMIT)
    refused = httpx.get(server.url + path, headers=key.bearer, timeout=PATIENCE_S)
    assert refused.status_code == 429
    assert f"the key {key.id} already has {LIMIT} open streams, the limit per key" in refused.text
    assert int(refused.headers["retry-after"]) >= 1
    with httpx.stream("GET", server.url + path, headers=other.bearer, timeout=PATIENCE_S) as theirs:
        assert theirs.status_code == 200
    streams[0].close()
    opened[0].close()
    wait_for(lambda: len(server.runtime.open_streams) == LIMIT - 1)
    with httpx.stream("GET", server.url + path, headers=key.bearer, timeout=PATIENCE_S) as again:
        assert again.status_code == 200
    for client in opened[1:]:
        client.close()
    wait_for(lambda: len(server.runtime.open_streams) == 0)


def test_one_look_at_thousands_of_streams_is_two_queries_and_an_outage_ends_none(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = OpenStreams(server.runtime.database, server.runtime.closing, max_per_key=64)
    statements: list[str] = []
    good, bad = Key(server), Key(server)
    bad.revoke()
    monkeypatch.setattr(sessions, "CHECK_S", 60.0)

    def count(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        statements.append(statement)

    def away(_database: Database) -> object:
        raise OperationalError("SELECT 1", {}, OSError("no answer"))

    async def follow() -> list[bool]:
        with ExitStack() as stack:
            names = [f"{number:012x}" for number in range(3000)] + [good.id, bad.id]
            opened = [stack.enter_context(streams.opened(name, "", lambda: None)) for name in names]
            session = hashlib.sha256(good.session.encode()).hexdigest()
            opened.append(stack.enter_context(streams.opened(good.id, session, lambda: None)))
            with monkeypatch.context() as patch:
                patch.setattr(Database, "read", away)
                await streams.look()
            assert not any(stream.is_over for stream in opened)
            event.listen(server.runtime.database.engine, "after_cursor_execute", count)
            await streams.look()
            event.remove(server.runtime.database.engine, "after_cursor_execute", count)
            return [stream.is_over for stream in opened[-3:]]

    assert asyncio.run(follow()) == [False, True, False]
    assert len([each for each in statements if "credentials" in each or "web_sessions" in each]) == 2
    assert len(streams) == 0
