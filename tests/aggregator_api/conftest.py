"""A server with a small federation, waiting for devices or collecting their updates; on SQLite and on PostgreSQL."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Dialect, Engine, event

from aggregator_api.core.settings import sqlite_url
from aggregator_api.storage.db import database as database_module
from aggregator_api.storage.db.database import Database
from tests.aggregator_api.bench import Bench, HttpBench
from tests.aggregator_api.generated_devices import tiny_plan
from tests.live.real_parts import Postgres, postgres

ON_BOTH = (
    "test_continuous",
    "test_openapi_generated",
    "test_restart",
    "test_rounds",
    "test_late_and_repeated",
    "test_model_refusals",
    "test_sessions",
)
"""Modules whose tests run on PostgreSQL too in CI."""
ON_BOTH_SLOWLY = (
    "test_enrolment",
    "test_gains",
    "test_hostile_updates",
    "test_ingest",
    "test_invitations",
    "test_notifications",
    "test_api_keys",
    "test_rest",
    "test_changes",
    "test_idempotency",
    "test_retention",
    "test_rollouts",
    "test_rollouts_over_rest",
    "test_service",
    "test_silence",
    "test_stragglers",
)
"""Those that run on PostgreSQL too, but only where slow tests do."""

ON_BOTH_TRANSPORTS = ("test_hostile_updates", "test_ingest", "test_late_and_repeated")
"""Modules whose tests hand messages in as a broker does, and over HTTP too in CI."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    module = metafunc.module.__name__.rpartition(".")[2]
    if module in ON_BOTH + ON_BOTH_SLOWLY:
        marks = [pytest.mark.slow if module in ON_BOTH_SLOWLY else pytest.mark.ci]
        backends = ["sqlite", pytest.param("postgresql", marks=marks)]
        metafunc.parametrize("backend", backends, indirect=True, scope="module")
    if module in ON_BOTH_TRANSPORTS and "waiting" in metafunc.fixturenames:
        metafunc.parametrize("waiting", [Bench, pytest.param(HttpBench, marks=pytest.mark.ci)], indirect=True)


@pytest.fixture(scope="session", autouse=True)
def migrated_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let new SQLite files be copies of one that was migrated: to migrate each costs most of a server's start.

    They are at the newest revision, so Alembic need not read all of them to find that out; unless a test has its own.
    """
    migrate, template = Database.migrate, tmp_path_factory.mktemp("migrated") / "template.sqlite3"
    database, migrations = Database(sqlite_url(template)), database_module.MIGRATIONS
    database.migrate()
    database.close()

    def copied(database: Database) -> None:
        database.engine.update_execution_options()  # what `compiled_once` waits for
        file = Path(database.engine.url.database or "")
        if not database.shared and not file.exists():
            shutil.copyfile(template, file)
            file.chmod(0o600)
            if migrations == database_module.MIGRATIONS:
                return
        migrate(database)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Database, "migrate", copied)
        yield


@pytest.fixture(scope="session", autouse=True)
def compiled_once() -> Iterator[None]:
    """Let all servers of a run share the SQL that SQLAlchemy has compiled: each would compile its statements again."""
    compiled: dict[Any, Any] = {}
    dialects: dict[str, Dialect] = {}  # a part of the key

    def share(engine: Engine, options: dict[str, Any]) -> None:
        if engine.dialect.name == "sqlite":  # the one on PostgreSQL learns of its server's version
            engine.dialect = dialects.setdefault(engine.dialect.name, engine.dialect)
            options["compiled_cache"] = compiled

    event.listen(Engine, "set_engine_execution_options", share)
    yield
    event.remove(Engine, "set_engine_execution_options", share)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Postgres]:
    """A PostgreSQL for the whole run."""
    with postgres() as running:
        yield running


@pytest.fixture(scope="module")
def backend(request: pytest.FixtureRequest) -> Iterator[None]:
    """Choose the database of servers that are started in the module, and of those that live as long as it."""
    with pytest.MonkeyPatch.context() as patch:
        if getattr(request, "param", "sqlite") == "postgresql":
            patch.setenv("GAITWAY_DATABASE_URL", request.getfixturevalue("cluster").new_database())
            patch.setenv("GAITWAY_LEASE_S", "0")  # each server is alone; test_leadership has several
        yield


@pytest.fixture(autouse=True)
def own_database(request: pytest.FixtureRequest, backend: None) -> Iterator[None]:
    """Give the servers that a test starts a database of their own; SQLite's lies in each server's folder."""
    shared = "postgresql" in request.node.callspec.params.values() if hasattr(request.node, "callspec") else False
    if not shared:
        yield
        return
    running: Postgres = request.getfixturevalue("cluster")
    url = running.new_database()
    with pytest.MonkeyPatch.context() as patch:  # not the test's own, which it may undo
        patch.setenv("GAITWAY_DATABASE_URL", url)
        yield
    running.drop(url)


@pytest.fixture
def waiting(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """A server with a federation of two devices, two rounds and no device yet."""
    bench = getattr(request, "param", Bench)(tmp_path / "data", tiny_plan())
    yield bench
    bench.stop()


@pytest.fixture
def collecting(waiting: Bench) -> Bench:
    """The same, with round 1 open for devices a and b."""
    waiting.say("a", "ready")
    waiting.say("b", "ready")
    return waiting


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount on this machine")
    if mounted.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)
