"""The database of any version's server is brought to today's, with all its rows; its REST interface still holds."""

from __future__ import annotations

import copy
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import insert, select

from aggregator_api.storage.db.database import Database
from aggregator_api.storage.db.models import Base
from tests.live.real_parts import postgres
from tests.samples.rows import HAVE_THEIR_ROW, contents, mapped_classes, tables_of
from tests.samples.server import DATABASE, REST, contract, described, narrowed

Rows = dict[str, list[dict[str, Any]]]


@pytest.fixture
def loaded(sample: Path, empty_database: Database) -> Database:
    """The version's database on SQLite, as it was."""
    connection = sqlite3.connect(str(empty_database.engine.url.database))
    connection.executescript((sample / DATABASE).read_text())
    connection.close()
    return empty_database


def test_every_row_comes_through(loaded: Database) -> None:
    before = contents(loaded)
    loaded.migrate()
    check(before, loaded)


@pytest.mark.ci
def test_every_row_comes_through_on_postgresql(loaded: Database) -> None:
    before = contents(loaded)
    with postgres() as cluster:
        database = Database(cluster.new_database(empty=True))
        database.migrate()
        with database.write() as session:
            for table in tables_of(database):
                if table.name not in HAVE_THEIR_ROW:
                    session.execute(insert(table), before[table.name])
        check({name: rows for name, rows in before.items() if name not in HAVE_THEIR_ROW}, database)
        database.close()


def check(before: Rows, database: Database) -> None:
    """Compare every row with what it was, read it as the program does, and compare the tables with the program's."""
    assert all(before.values()), "a table without a row tells nothing"
    after = contents(database)
    for table, rows in before.items():
        now = [{column: row.get(column) for column in old} for old, row in zip(rows, after[table], strict=True)]
        assert now == rows, table
    with database.read() as session:
        for row in mapped_classes():
            assert session.scalars(select(row)).unique().all() or row.__tablename__ not in before
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []


def test_a_program_written_for_the_rest_interface_still_works(sample: Path) -> None:
    kept = json.loads((sample / REST).read_text())
    assert len(kept["paths"]) > 20
    assert narrowed(kept, contract(described())) == []


def _schemas(document: dict[str, Any]) -> dict[str, Any]:
    schemas: dict[str, Any] = document["components"]["schemas"]
    return schemas


NARROWER: dict[str, Callable[[dict[str, Any]], object]] = {
    "GET /v1/federations is gone": lambda new: new["paths"]["/v1/federations"].pop("get"),
    "plan is gone": lambda new: _schemas(new)["NewFederation"]["properties"].pop("plan"),
    "secret is required now": lambda new: _schemas(new)["NewFederation"]["required"].append("secret"),
    "rounds is gone": lambda new: _schemas(new)["Plan"]["properties"].pop("rounds"),
    "parameter cursor is gone": lambda new: new["paths"]["/v1/federations/{name}/devices"]["get"]["parameters"].clear(),
}


@pytest.mark.parametrize("said", NARROWER)
def test_what_would_break_a_program_is_seen(said: str) -> None:
    old = contract(described())
    new = copy.deepcopy(old)
    NARROWER[said](new)
    assert any(said in each for each in narrowed(old, new)), narrowed(old, new)
