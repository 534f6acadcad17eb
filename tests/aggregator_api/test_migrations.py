"""The migrations and the tables say the same."""

from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import inspect, text
from sqlalchemy.exc import IntegrityError

from aggregator_api.database import Database
from aggregator_api.tables import Base


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(f"sqlite:///{tmp_path / 'new' / 'test.sqlite3'}")


def test_migrations_make_the_tables_of_the_models(database: Database) -> None:
    database.migrate()
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []
        assert set(Base.metadata.tables) < set(inspect(connection).get_table_names())
    database.close()


def test_migrating_twice_changes_nothing(database: Database) -> None:
    database.migrate()
    with database.write() as session:
        columns = "name, instance, plan, upload_schema, status, created_at"
        session.execute(text(f"INSERT INTO federations ({columns}) VALUES ('a','0','{{}}','{{}}','x',0)"))
    database.migrate()
    with database.read() as session:
        assert session.execute(text("SELECT count(*) FROM federations")).scalar() == 1
    database.close()


OLD_ROWS = (
    "INSERT INTO federations VALUES (1, 'a', '{}', '{}', 'running', 0), (2, 'b', '{}', '{}', 'running', 0)",
    "INSERT INTO devices VALUES (1, 1, 'd', 'idle', 9, '', 0, 0), (2, 1, 'e', 'idle', 9, '', 0, 0)",
    "INSERT INTO model_versions VALUES (1, 1, 0, 0, 'state', 'broadcast', 77, 0)",
    "INSERT INTO rounds VALUES (1, 1, 1, 'collecting', 0, 0, '', 1, NULL, 0, NULL)",
    "INSERT INTO participations VALUES (1, 1, 1, 'waiting', NULL), (1, 2, 0, 'received', 1)",
)


def test_rows_of_the_first_version_get_an_instance_and_what_their_devices_got(database: Database) -> None:
    database.migrate("0001")
    with database.write() as session:
        for row in OLD_ROWS:
            session.execute(text(row))
    database.migrate()
    with database.read() as session:
        instances = session.scalars(text("SELECT instance FROM federations")).all()
        got = session.execute(text("SELECT broadcast_sha256, broadcast_size FROM participations ORDER BY device_id"))
        assert got.all() == [("broadcast", 77), (None, None)]  # the second came late and was not invited
    assert [len(instance) for instance in instances] == [32, 32]
    assert len(set(instances)) == 2
    database.close()


def test_the_database_is_durable_and_checks_its_references(database: Database) -> None:
    database.migrate()
    with database.read() as session:
        assert session.execute(text("PRAGMA journal_mode")).scalar() == "wal"
        assert session.execute(text("PRAGMA synchronous")).scalar() == 2
    with pytest.raises(IntegrityError), database.write() as session:
        session.execute(text("INSERT INTO model_aliases (federation_id, alias, version_id) VALUES (7, 'stable', 7)"))
    database.close()
