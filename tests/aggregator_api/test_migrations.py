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
        session.execute(
            text("INSERT INTO federations (name, plan, upload_schema, status, created_at) VALUES ('a','{}','{}','x',0)")
        )
    database.migrate()
    with database.read() as session:
        assert session.execute(text("SELECT count(*) FROM federations")).scalar() == 1
    database.close()


def test_the_database_is_durable_and_checks_its_references(database: Database) -> None:
    database.migrate()
    with database.read() as session:
        assert session.execute(text("PRAGMA journal_mode")).scalar() == "wal"
        assert session.execute(text("PRAGMA synchronous")).scalar() == 2
    with pytest.raises(IntegrityError), database.write() as session:
        session.execute(text("INSERT INTO model_aliases (federation_id, alias, version_id) VALUES (7, 'stable', 7)"))
    database.close()
