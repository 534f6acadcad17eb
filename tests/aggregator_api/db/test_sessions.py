"""No session of the database outlives the work of the thread that opened it: not for an answer that is sent slowly."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import pkgutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from sqlalchemy import QueuePool, event, text, update

from aggregator_api.auth.api_keys import OPERATOR_FILE
from aggregator_api.core.settings import Settings, sqlite_url
from aggregator_api.federations.service import NewFederation
from aggregator_api.http.api import routes
from aggregator_api.http.app import create_app
from aggregator_api.runtime import Runtime
from aggregator_api.storage.db.database import Database
from aggregator_api.storage.db.models import ModelVersionRow
from tests.aggregator_api.generated_devices import FEDERATION, Wires, tiny_plan
from tests.aggregator_api.sockets import get, open_slowly, served

HERE = f"/v1/federations/{FEDERATION}"
LARGE = 12 << 20
"""Bytes of a model that do not fit into the buffers of two sockets."""
DOWNLOADS, REQUESTS, STREAMS = 15, 100, 10


class Sessions:
    """What a database's pool has lent, and to which threads."""

    def __init__(self, runtime: Runtime) -> None:
        pool = runtime.database.engine.pool
        assert isinstance(pool, QueuePool)
        self._pool = pool
        self.borrowers: set[str] = set()
        event.listen(pool, "checkout", lambda *_: self.borrowers.add(threading.current_thread().name))

    @property
    def lent(self) -> int:
        return self._pool.checkedout()

    async def settle(self) -> int:
        """Wait until nothing is lent, but for what the server's own threads borrow for moments."""
        for _ in range(200):
            if not self.lent:
                break
            await asyncio.sleep(0.02)
        return self.lent


@pytest.fixture
def app(tmp_path: Path) -> FastAPI:
    return create_app(Settings(data_dir=tmp_path / "data"), Wires)


@pytest.fixture
def port(app: FastAPI) -> Iterator[int]:
    """A server whose federation has a large model."""
    with served(app) as found:
        runtime: Runtime = app.state.runtime
        runtime.federations.create(NewFederation(name=FEDERATION, plan=tiny_plan()))
        yield found


def large_model(app: FastAPI, size: int = LARGE) -> str:
    """Let the federation's model be of that size; return its path."""
    runtime: Runtime = app.state.runtime
    blob = runtime.blobs.put(bytes(size))
    with runtime.database.write() as session:
        session.execute(update(ModelVersionRow).values(broadcast_sha256=blob.sha256, broadcast_size=blob.size))
    return f"/v1/blobs/{blob.sha256}"


def test_a_hundred_requests_are_answered_beside_slow_downloads_and_streams(app: FastAPI, port: int) -> None:
    model = large_model(app)
    sessions = Sessions(app.state.runtime)

    async def ask() -> Counter[int]:
        key = f"Authorization: Bearer {(app.state.runtime.settings.data_dir / OPERATOR_FILE).read_text().strip()}"
        slow = [await open_slowly(port, model, key) for _ in range(DOWNLOADS)]
        slow += [await open_slowly(port, f"{HERE}/events", key) for _ in range(STREAMS)]
        assert all(head.startswith(b"HTTP/1.1 200") for _, head in slow)
        assert await sessions.settle() == 0  # with every answer half sent
        paths = [HERE, f"{HERE}/rounds", f"{HERE}/models/0", "/v1/federations", "/readyz"]
        asked = asyncio.gather(*(get(port, paths[n % len(paths)], key) for n in range(REQUESTS)))
        found = await asyncio.wait_for(asked, 60)
        assert await sessions.settle() == 0
        for connection, _ in slow:
            connection.close()
        return Counter(status for status, _ in found)

    assert asyncio.run(ask()) == {200: REQUESTS}
    assert "uvicorn" not in sessions.borrowers  # the event loop's thread never waits for a database


def callables(dependant: Dependant) -> Iterator[Callable[..., Any]]:
    for each in dependant.dependencies:
        if each.call is not None:
            yield each.call
        yield from callables(each)


def test_no_route_depends_on_what_is_opened_before_it_and_closed_after_its_answer() -> None:
    modules = [
        importlib.import_module(f"{routes.__name__}.{one.name}") for one in pkgutil.iter_modules(routes.__path__)
    ]
    found = [route for module in modules if hasattr(module, "router") for route in module.router.routes]
    assert len(found) > 30
    for route in found:
        assert isinstance(route, APIRoute)
        for call in callables(route.dependant):
            # a plain function would wait for another thread, and what yields is closed when the answer has been sent
            assert inspect.iscoroutinefunction(call), f"{route.path}: {call.__qualname__}"


VISIT = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("SELECT 1 FROM alembic_version").fetchall()
connection.close()
"""


def test_another_program_that_visits_the_database_leaves_the_write_ahead_log(tmp_path: Path) -> None:
    """POSIX drops a process's locks on a file when it closes any descriptor of it, and SQLite works with them."""
    path = tmp_path / "one.sqlite3"
    database = Database(sqlite_url(path))
    database.migrate()
    with database.read() as first, database.read() as second:  # two connections; none may close what the other locks
        first.execute(text("SELECT 1"))
        second.execute(text("SELECT 1"))
    subprocess.run([sys.executable, "-c", VISIT, str(path)], check=True)
    assert path.with_name(f"{path.name}-wal").exists()
    with database.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = version_num"))
    database.close()
