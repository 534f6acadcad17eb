"""Made-up rows for every table of a database."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, Boolean, Column, Float, Integer, LargeBinary, MetaData, Table, select

from aggregator_api.storage.db.database import Database
from aggregator_api.storage.db.models import Base

HAVE_THEIR_ROW = frozenset({"server_epoch", "ledger"})
"""Tables of one row, which the migrations write."""


def tables_of(database: Database) -> list[Table]:
    """The tables as they are now, those that others refer to first."""
    found = MetaData()
    with database.engine.connect() as connection:
        found.reflect(connection)
    return [table for table in found.sorted_tables if table.name != "alembic_version"]


def fill(database: Database) -> dict[str, list[dict[str, Any]]]:
    """Write two rows into every table of the present version; what may be null is null in the second."""
    with database.write() as session:
        for table in tables_of(database):
            if table.name in HAVE_THEIR_ROW:
                continue
            for k in (1, 2):
                session.execute(table.insert().values({column.name: value(column, k) for column in table.columns}))
    return contents(database)


def contents(database: Database) -> dict[str, list[dict[str, Any]]]:
    """Read every table, ordered by its key."""
    with database.read() as session:
        return {
            table.name: [dict(row._mapping) for row in session.execute(select(table).order_by(*table.primary_key))]
            for table in tables_of(database)
        }


def mapped_classes() -> list[type[Base]]:
    """The program's classes of rows, without those of a test's package, which stay registered when their table goes."""
    classes: list[type[Base]] = [mapper.class_ for mapper in Base.registry.mappers]
    return [row for row in classes if row.__tablename__ in Base.metadata.tables]


def value(column: Column[Any], k: int) -> Any:
    """Return something that fits a column, different for each row k."""
    if column.foreign_keys or (column.primary_key and isinstance(column.type, Integer)):
        return k
    if column.nullable and k == 2:
        return None
    match column.type:
        case Boolean():
            return k == 1
        case LargeBinary():
            return bytes([k])
        case JSON():
            return {"k": k}
        case Integer():
            return 10 * k
        case Float():
            return k + 0.5
        case LargeBinary():
            return f"{k}{column.name}".encode()
    return f"{k}{column.name}"[: getattr(column.type, "length", None)]
