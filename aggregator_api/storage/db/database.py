"""The database: SQLite in WAL mode by default, or PostgreSQL; migrated by Alembic; sessions either read or write.

Both keep the same promise: writers come one after the other, so what a writing session reads stays true until it
commits, and ids become visible in their order, on which cursors and event streams rely. SQLite has one writer anyway;
on PostgreSQL a writer takes an advisory lock first, whichever server process it is in.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.util import CommandError
from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from aggregator_api.core.errors import ConfigError
from aggregator_api.core.settings import Settings, parsed_url
from aggregator_api.storage import outages
from aggregator_api.storage.db import audit, ledger
from aggregator_api.storage.db.ledger import Ledger
from aggregator_api.storage.outages import require_folder
from gaitway.files import private_file
from gaitway.own_packages import install_command

MIGRATIONS = Path(__file__).parent / "migrations"

FIRST_REVISION = "0020"
"""Of 0.4.0; databases with an earlier number can't be upgraded."""
MADE_BEFORE_0_4_0 = (
    "was made by a version before 0.4.0, which can't be upgraded; export what you need with that version, then start "
    "with an empty data directory (--data-dir NEW) or an empty PostgreSQL database"
)

WRITER_LOCK = 0x6761_6974_7761_79
"""Number of the advisory lock: the letters of the program's name."""

_POSTGRESQL = {
    "application_name": "gaitway",
    "connect_timeout": 10,
    # a host that vanished gives its locks back within half a minute
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "options": "-c idle_in_transaction_session_timeout=60s",
}


POOL: dict[str, Any] = {"pool_size": 16, "max_overflow": 32, "pool_timeout": 5, "pool_use_lifo": True}
"""Connections: twice as many as threads work for requests, for some of their sessions have another inside."""

SQLITE_CACHE_KIB = 512
"""Pages of the database that a connection keeps: SQLite's 2 MiB in each of the pool grow for hours to tens of MB."""

FULL_S = 30.0
PROBE_S = 0.5
"""How long a probe waits for the writers' lock; a healthy server's writers hold it for milliseconds."""


class Database:
    """An engine and its sessions; nothing is opened before the first use.

    `wait_s`: how long a writer waits for the others, programs besides this one included. `ledger`: where the ends of
    accesses go; without one they wait in their table for the next program that has it.

    Raises:
        ConfigError: for a URL that names no SQLite file and no PostgreSQL database, or a folder that cannot be made.
    """

    def __init__(self, url: str | URL, *, wait_s: float = 10.0, ledger: Ledger | None = None) -> None:
        parsed = parsed_url(url)
        self.url = url
        self._ledger = ledger
        self._full_until = 0.0
        self.shared = parsed.get_backend_name() == "postgresql"
        """Whether several server processes may use it at the same time."""
        if self.shared:
            self.engine: Engine = _postgresql(parsed, wait_s)
            self._reader: Engine = self.engine.execution_options(
                isolation_level="REPEATABLE READ", postgresql_readonly=True
            )
        else:
            self.engine = _sqlite(parsed, wait_s)
            self._reader = self.engine
        self._writer = self.engine.execution_options(writes=True)

    @contextmanager
    def read(self) -> Iterator[Session]:
        """Open a session on one consistent snapshot; nothing is committed."""
        with Session(self._reader) as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """Open a transaction that is durable once the block is left, and rolled back if it raises.

        What the present request does is written into the audit with its first transaction, and what access it ends
        into the ledger.

        Raises:
            LedgerWriteError: if the ledger cannot be written; the transaction is rolled back.
        """
        try:
            with Session(self._writer) as session:
                with session.begin():
                    yield session
                    intent = audit.write_intended(session)
                    if self._ledger is not None and session.in_transaction():  # else its user has rolled it back
                        session.flush()
                        ledger.flush(session, self._ledger)
                if intent is not None:
                    intent.is_written = True
        except DBAPIError as error:
            if outages.is_full(error):
                self._full_until = time.monotonic() + FULL_S
            raise
        self._full_until = 0.0

    @property
    def is_full(self) -> bool:
        """Whether a write has found no room of late, and none has found some since."""
        return time.monotonic() < self._full_until

    def probe(self) -> None:
        """Do what a writer does first, and undo it.

        Raises:
            SQLAlchemyError: if the database does not answer, or if another program has locked it.
        """
        with self.engine.connect() as connection:
            if self.shared:
                connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{1000 * PROBE_S:.0f}ms'")
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({WRITER_LOCK})")
                return
            (usual_ms,) = connection.exec_driver_sql("PRAGMA busy_timeout").one()
            connection.rollback()
            raw = connection.connection.cursor()
            raw.execute(f"PRAGMA busy_timeout={1000 * PROBE_S:.0f}")
            try:
                with connection.execution_options(writes=True).begin():
                    connection.exec_driver_sql("SELECT 1 FROM alembic_version").all()
            finally:
                raw.execute(f"PRAGMA busy_timeout={usual_ms}")
                raw.close()

    def migrate(self) -> None:
        """Bring the schema to this program's version; a second process waits for the first.

        Raises:
            ConfigError: if the database cannot be reached, is no database, or is of an older or a newer program.
        """
        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS))
        try:
            with self._writer.connect() as connection:
                if is_too_old(MigrationContext.configure(connection).get_current_revision()):
                    raise ConfigError(f"the database {self.name} {MADE_BEFORE_0_4_0}")
                connection.rollback()  # Alembic commits only a transaction of its own
                config.attributes["connection"] = connection
                command.upgrade(config, "head")
        except DBAPIError as error:
            raise ConfigError(f"the database {self.name} cannot be used: {_in_words(error)}") from error
        except CommandError as error:
            raise ConfigError(
                f"the database {self.name} is of a newer version of this program ({error}); install that version, "
                "or restore the backup that was made before the upgrade"
            ) from error

    @property
    def name(self) -> str:
        """The database's URL without its password."""
        return self.engine.url.render_as_string()

    def close(self) -> None:
        """Close every pooled connection."""
        self.engine.dispose()


def is_too_old(revision: str | None) -> bool:
    """Whether a version before 0.4.0 made a database of this revision; None: it has no tables yet."""
    return revision is not None and revision < FIRST_REVISION


def opened(settings: Settings) -> Database:
    """Open the database that a server uses already, at this program's schema, for a command on the server's machine.

    Raises:
        ConfigError: as `Database.migrate`; also if there is none: a wrong folder must not get a new one.
    """
    path = settings.database_file
    if path is not None and not path.is_file():
        raise ConfigError(f"there is no database {path}; is this the server's data_dir? `serve` and `migrate` make one")
    database = Database(settings.database, ledger=Ledger(settings.ledger))
    database.migrate()
    return database


_ADVICE = (
    ("password authentication failed", "check the user and the password (PGPASSFILE, PGPASSWORD or database_url)"),
    ("no password supplied", "give one in the file that PGPASSFILE names, in PGPASSWORD or in database_url"),
    ("does not exist", "create it (docs/operations.md, 'PostgreSQL'), or correct database_url"),
    ("resolve host", "check the host in database_url"),
    ("onnection refused", "is PostgreSQL running, and are host and port in database_url right?"),
    ("imeout", "check host and port in database_url, and the firewall between"),
    ("not a database", "the file is something else or is damaged: restore it from a backup"),
    ("readonly database", "its file and folder must belong to the user that the server runs as"),
    ("unable to open", "its folder must belong to the user that the server runs as"),
    ("disk", "make room on the disk"),
)
"""What an operator can do about a database's own words, of which the first part is looked for."""


def _in_words(error: DBAPIError) -> str:
    text = " ".join(str(error.orig).split())
    return next((f"{text}; {advice}" for words, advice in _ADVICE if words in text), text)


def _sqlite(url: URL, wait_s: float) -> Engine:
    if url.database:
        require_folder(Path(url.database).parent, "the folder of the database")
    in_memory = not url.database or url.database == ":memory:"
    engine = create_engine(url) if in_memory else create_engine(url, **POOL)

    def prepare(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # the driver's own BEGIN comes too late; see _begin_sqlite
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout={1000 * wait_s:.0f}")
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=FULL")  # an acknowledged update survives a power cut
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.execute(f"PRAGMA cache_size=-{SQLITE_CACHE_KIB}")
        cursor.close()

    event.listen(engine, "do_connect", _begin_privately)
    event.listen(engine, "connect", prepare)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _begin_privately(_dialect: Any, _record: Any, places: list[Any], _options: Any) -> None:
    if places and places[0] != ":memory:":
        with suppress(OSError):  # SQLite says what is wrong
            private_file(Path(places[0]))


def _postgresql(url: URL, wait_s: float) -> Engine:
    given = {**_POSTGRESQL, "options": f"-c lock_timeout={1000 * wait_s:.0f} {_POSTGRESQL['options']}"}
    try:
        # a connection that PostgreSQL has closed meanwhile is replaced before it costs anybody a request
        engine = create_engine(url, pool_pre_ping=True, connect_args=given, **POOL)
    except ModuleNotFoundError as error:
        raise ConfigError(f"database_url {url.render_as_string()}: {error}; {install_command('postgres')}") from error
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


def _begin_sqlite(connection: Connection) -> None:
    # a reader that turns into a writer fails at once if another wrote meanwhile: writers queue at the start
    writes = connection.get_execution_options().get("writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
