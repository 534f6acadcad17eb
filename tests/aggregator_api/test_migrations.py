"""The migrations make the models' tables on both databases; a database from before 0.4.0 is refused."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import inspect, select, text
from sqlalchemy.exc import DatabaseError, IntegrityError
from typer.testing import CliRunner

from aggregator_api.cli.app import app as cli
from aggregator_api.core.errors import ConfigError
from aggregator_api.core.settings import DATABASE, sqlite_url
from aggregator_api.storage.db.database import WRITER_LOCK, Database
from aggregator_api.storage.db.models import Base
from tests.samples.rows import fill, mapped_classes


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """An empty database."""
    if request.param == "sqlite":
        url = sqlite_url(tmp_path / "new" / "test.sqlite3")
    else:
        url = request.getfixturevalue("cluster").new_database(empty=True)
    found = Database(url)
    yield found
    found.close()


def test_migrations_make_the_tables_of_the_models(database: Database) -> None:
    database.migrate()
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []
        assert set(Base.metadata.tables) < set(inspect(connection).get_table_names())


def test_migrating_twice_changes_nothing(database: Database) -> None:
    database.migrate()
    with database.write() as session:
        columns = "name, instance, plan, upload_schema, status, created_at"
        session.execute(text(f"INSERT INTO federations ({columns}) VALUES ('a','0','{{}}','{{}}','x',0)"))
    database.migrate()
    with database.read() as session:
        assert session.execute(text("SELECT count(*) FROM federations")).scalar() == 1


def test_made_up_rows_of_every_table_are_read_by_the_program(database: Database) -> None:
    database.migrate()
    assert len(fill(database)) >= 9
    with database.read() as session:
        for row in mapped_classes():
            session.scalars(select(row)).unique().all()


BEFORE_0_4_0 = """
CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY);
INSERT INTO alembic_version VALUES ('0019');
CREATE TABLE federations (id INTEGER NOT NULL PRIMARY KEY, name VARCHAR(64) NOT NULL);
INSERT INTO federations VALUES (1, 'walk');
"""
"""Of a database whose last migration was the last one before 0.4.0: its revision, and something to lose."""


def test_a_database_from_before_0_4_0_is_refused_and_left_as_it_is(database: Database) -> None:
    with database.write() as session:
        for statement in BEFORE_0_4_0.strip().split("\n"):
            session.execute(text(statement))
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"made by a version before 0\.4\.0, .* export .*--data-dir NEW"):
            database.migrate()
    with database.read() as session:
        assert session.execute(text("SELECT version_num FROM alembic_version")).scalar() == "0019"
        assert session.execute(text("SELECT name FROM federations")).scalar() == "walk"


@pytest.mark.parametrize(
    "command",
    [
        ["serve"],
        ["migrate"],
        ["gc"],
        ["fsck"],
        ["new-epoch"],
        ["keys", "list"],
    ],
    ids=" ".join,
)
def test_every_command_says_that_a_database_from_before_0_4_0_cannot_be_upgraded(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with closing(sqlite3.connect(tmp_path / DATABASE)) as connection:
        connection.executescript(BEFORE_0_4_0)
    refused = CliRunner().invoke(cli, [*command, "--data-dir", str(tmp_path)])
    assert refused.exit_code in (1, 2), refused.output
    assert "made by a version before 0.4.0, which can't be upgraded" in " ".join(refused.output.split())


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_the_database_is_durable_and_checks_its_references(database: Database) -> None:
    database.migrate()
    with database.read() as session:
        assert session.execute(text("PRAGMA journal_mode")).scalar() == "wal"
        assert session.execute(text("PRAGMA synchronous")).scalar() == 2
    with pytest.raises(IntegrityError), database.write() as session:
        session.execute(text("INSERT INTO model_aliases (federation_id, alias, version_id) VALUES (7, 'stable', 7)"))


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_on_postgresql_a_reader_cannot_write_and_writers_come_one_after_the_other(database: Database) -> None:
    database.migrate()
    with pytest.raises(DatabaseError, match="read-only"), database.read() as session:
        session.execute(text("DELETE FROM model_aliases"))
    other = Database(database.url)
    with database.write() as session, other.engine.connect() as connection:
        session.execute(text("SELECT 1"))
        free = connection.execute(text(f"SELECT pg_try_advisory_xact_lock({WRITER_LOCK})")).scalar()
        assert free is False
    other.close()


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_null_character_reaches_postgresql_as_a_replacement(database: Database) -> None:
    with database.read() as session:
        assert session.execute(text("SELECT :said"), {"said": "a\0b"}).scalar() == "a\N{REPLACEMENT CHARACTER}b"
