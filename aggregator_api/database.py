"""The database: SQLite in WAL mode by default, migrated by Alembic; sessions either read or write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session

MIGRATIONS = Path(__file__).parent / "migrations"


class Database:
    """An engine and its sessions; nothing is opened before the first use."""

    def __init__(self, url: str) -> None:
        parsed = make_url(url)
        self.url = url
        self.engine = create_engine(parsed)
        if parsed.get_backend_name() == "sqlite":
            if parsed.database:
                Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
            event.listen(self.engine, "connect", _prepare_sqlite)
            event.listen(self.engine, "begin", _begin_sqlite)
        self._writer = self.engine.execution_options(writes=True)

    @contextmanager
    def read(self) -> Iterator[Session]:
        """Open a session on one consistent snapshot; nothing is committed."""
        with Session(self.engine) as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """Open a transaction that is durable once the block is left, and rolled back if it raises."""
        with Session(self._writer) as session, session.begin():
            yield session

    def migrate(self, revision: str = "head") -> None:
        """Bring the schema to this program's version, or to an earlier one."""
        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS))
        with self.engine.connect() as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, revision)

    def close(self) -> None:
        """Close every pooled connection."""
        self.engine.dispose()


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
