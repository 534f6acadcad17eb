"""The database: SQLite in WAL mode by default, or PostgreSQL; migrated by Alembic; sessions either read or write.

Both keep the same promise: writers come one after the other, so what a writing session reads stays true until it
commits, and ids become visible in their order, on which cursors and event streams rely. SQLite has one writer anyway;
on PostgreSQL a writer takes an advisory lock first, whichever server process it is in.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session

from aggregator_api.errors import ConfigError

MIGRATIONS = Path(__file__).parent / "migrations"

WRITER_LOCK = 0x6761_6974_7761_79
"""Number of the advisory lock: the letters of the program's name."""

_POSTGRESQL = {
    "application_name": "gaitway",
    "connect_timeout": 10,
    # a host that vanished gives its locks back within half a minute
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "options": "-c lock_timeout=10s -c idle_in_transaction_session_timeout=60s",
}


class Database:
    """An engine and its sessions; nothing is opened before the first use."""

    def __init__(self, url: str) -> None:
        parsed = make_url(url)
        self.url = url
        self.shared = parsed.get_backend_name() == "postgresql"
        """Whether several server processes may use it at the same time."""
        if self.shared:
            self.engine: Engine = _postgresql(parsed)
            self._reader: Engine = self.engine.execution_options(
                isolation_level="REPEATABLE READ", postgresql_readonly=True
            )
        else:
            self.engine = _sqlite(parsed)
            self._reader = self.engine
        self._writer = self.engine.execution_options(writes=True)

    @contextmanager
    def read(self) -> Iterator[Session]:
        """Open a session on one consistent snapshot; nothing is committed."""
        with Session(self._reader) as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """Open a transaction that is durable once the block is left, and rolled back if it raises."""
        with Session(self._writer) as session, session.begin():
            yield session

    def migrate(self, revision: str = "head") -> None:
        """Bring the schema to this program's version, or to an earlier one; a second process waits for the first."""
        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS))
        with self._writer.connect() as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, revision)

    def close(self) -> None:
        """Close every pooled connection."""
        self.engine.dispose()


def _sqlite(url: URL) -> Engine:
    if url.database:
        Path(url.database).parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(url)
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _postgresql(url: URL) -> Engine:
    try:
        # a connection that PostgreSQL has closed meanwhile is replaced before it costs anybody a request
        engine = create_engine(url, pool_pre_ping=True, pool_size=5, max_overflow=20, connect_args=dict(_POSTGRESQL))
    except ModuleNotFoundError as error:
        raise ConfigError(f"database_url {url.render_as_string()}: {error}; pip install 'gaitway[postgres]'") from error
    event.listen(engine, "connect", _prepare_postgresql)
    event.listen(engine, "begin", _begin_postgresql)
    return engine


def _prepare_postgresql(connection: Any, _record: Any) -> None:
    connection.adapters.register_dumper(str, _text_dumper())


@cache
def _text_dumper() -> Any:
    """Make what writes text for PostgreSQL, which cannot hold U+0000: a device or a request may send one."""
    from psycopg.types.string import StrDumper  # only a server on PostgreSQL has it

    class TextDumper(StrDumper):
        def dump(self, obj: str) -> Any:
            return super().dump(obj.replace("\0", "\N{REPLACEMENT CHARACTER}"))

    return TextDumper


def _begin_postgresql(connection: Connection) -> None:
    if connection.get_execution_options().get("writes"):
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({WRITER_LOCK})")


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # the driver's own BEGIN comes too late; see _begin_sqlite
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")  # an acknowledged update survives a power cut
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.execute("PRAGMA busy_timeout=10000")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    # a reader that turns into a writer fails at once if another wrote meanwhile: writers queue at the start
    writes = connection.get_execution_options().get("writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
