"""The migrations and the tables say the same, on both databases, and rows of every past version come through."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, select, text
from sqlalchemy.exc import DatabaseError, IntegrityError

from aggregator_api.db.database import MIGRATIONS, WRITER_LOCK, Database
from aggregator_api.db.models import Base
from aggregator_api.settings import sqlite_url
from tests.samples.rows import RENAMED, contents, fill, mapped_classes, without_dropped

ON_BOTH = ("sqlite", pytest.param("postgresql", marks=pytest.mark.ci))


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


def revisions() -> list[str]:
    """Every revision, the first one first."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    return [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()][::-1]


@pytest.mark.parametrize("database", ON_BOTH, indirect=True)
@pytest.mark.parametrize(
    "revision",
    [  # between the oldest and the newest left to CI
        pytest.param(one, marks=pytest.mark.ci if 0 < at < len(revisions()) - 2 else ())
        for at, one in enumerate(revisions())
    ],
)
def test_rows_of_every_version_come_through(database: Database, revision: str) -> None:
    database.migrate(revision)
    before = fill(database)
    assert len(before) >= 9
    database.migrate()
    after = contents(database)
    for table, rows in before.items():
        kept = [
            {column: row[RENAMED.get((table, column), column)] for column in old}
            for old, row in zip(without_dropped(table, rows), after[table], strict=True)
        ]
        assert kept == without_dropped(table, rows), table
    with database.read() as session:  # the program can read them
        for row in mapped_classes():
            session.scalars(select(row)).unique().all()


@pytest.mark.parametrize("database", ON_BOTH, indirect=True)
def test_the_newest_migration_is_taken_back_with_rows_and_made_again(database: Database) -> None:
    before, newest = revisions()[-2:]
    database.migrate(before)
    rows = fill(database)
    assert len(rows) >= 9
    database.migrate(newest)
    added = contents(database)
    downgrade(database, before)
    back = contents(database)
    assert back.keys() == rows.keys()
    for table in rows:
        assert without_dropped(table, back[table]) == without_dropped(table, rows[table]), table
    database.migrate(newest)
    assert contents(database) == added


def downgrade(database: Database, revision: str) -> None:
    """Go back to an earlier version, as an operator does with alembic's own command."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with database.engine.connect() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, revision)


@pytest.mark.parametrize("database", ON_BOTH, indirect=True)
def test_scores_of_0_2_0_count_after_the_upgrade(database: Database) -> None:
    database.migrate("0001")
    names = ["macro_f1_most_frequent", "macro_f1_after"]
    with database.write() as session:
        columns = "name, instance, plan, upload_schema, status, created_at"
        session.execute(text(f"INSERT INTO federations ({columns}) VALUES ('a','0','{{}}','{{}}','x',0)"))
        session.execute(
            text(
                "INSERT INTO devices (federation_id, name, state, examples, detail, enrolled_at, seen_at, enrolment) "
                "VALUES (1, 'a', 'idle', 0, '', 0, 0, 'open')"
            )
        )
        for name in names:
            columns = "federation_id, device_id, round_number, name, value, recorded_at"
            session.execute(text(f"INSERT INTO metrics ({columns}) VALUES (1, 1, 1, '{name}', 0.5, 0)"))
    database.migrate()
    with database.read() as session:
        found = set(session.execute(text("SELECT name FROM metrics")).scalars())
    assert found == {"macro_f1_trivial", "macro_f1_after"}


@pytest.mark.parametrize("database", ON_BOTH, indirect=True)
@pytest.mark.parametrize(("old", "new"), [("held", "deferred"), ("left_out", "excluded"), ("accepted", "accepted")])
def test_an_update_of_an_earlier_version_has_todays_status(database: Database, old: str, new: str) -> None:
    database.migrate("0009")
    rows = fill(database)
    with database.write() as session:
        session.execute(text("UPDATE updates SET status = :old WHERE id = 1"), {"old": old})
        session.execute(text("UPDATE events SET kind = :old WHERE id = 1"), {"old": f"update.{old}"})
        session.execute(text("UPDATE events SET kind = 'model.held' WHERE id = 2"))
    database.migrate()
    with database.read() as session:
        assert session.execute(text("SELECT status FROM updates ORDER BY id")).scalars().first() == new
        kinds = session.execute(text("SELECT kind FROM events ORDER BY id")).scalars().all()
        assert kinds == [f"update.{new}", "model.held"]
        kept = session.execute(text("SELECT excluded FROM rounds ORDER BY id")).scalars().all()
    assert kept == [row["left_out"] for row in rows["rounds"]]


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
