"""CONTRIBUTING, 'Add a REST route': a new table goes with its federation or its device, and no list has to name it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, ForeignKey, Integer, String, Table, func, insert, select

from aggregator_api.core.settings import sqlite_url
from aggregator_api.maintenance.retention import belonging_to, remove_rows
from aggregator_api.storage.db.database import Database
from aggregator_api.storage.db.models import NAMES_A_DEVICE, Base, DeviceRow, FederationRow


def columns() -> dict[str, list[Column[Any]]]:
    """Return what the new tables refer to: directly, through another new one, a device, and a device by its name."""
    return {
        "notes": [Column("federation_id", ForeignKey("federations.id"))],
        "replies": [Column("note_id", ForeignKey("notes.id"))],
        "batteries": [Column("device_id", ForeignKey("devices.id"))],
        "sightings": [
            Column("federation_id", ForeignKey("federations.id")),
            Column("seen", String(64), info={NAMES_A_DEVICE: True}),
        ],
    }


@pytest.fixture
def added() -> Iterator[dict[str, Table]]:
    """Tables as a later version may have them."""
    tables = {
        name: Table(name, Base.metadata, Column("id", Integer, primary_key=True), *own)
        for name, own in columns().items()
    }
    yield tables
    for table in tables.values():
        Base.metadata.remove(table)


@pytest.fixture
def database(tmp_path: Path, added: dict[str, Table]) -> Iterator[Database]:
    """Two federations of one device each, whose devices have one name, with a row in every new table."""
    database = Database(sqlite_url(tmp_path / "server.sqlite3"))
    database.migrate()
    Base.metadata.create_all(database.engine, tables=added.values())
    with database.write() as session:
        for number in (1, 2):
            federation = FederationRow(
                id=number, name=f"f{number}", plan={}, upload_schema={}, status="finished", created_at=0
            )
            session.add(federation)
            session.flush()
            device = DeviceRow(id=number, federation_id=number, name="d", state="idle", examples=0, detail="")
            device.enrolled_at = device.seen_at = 0
            session.add(device)
            session.flush()
            session.execute(insert(added["notes"]).values(id=number, federation_id=number))
            session.execute(insert(added["replies"]).values(note_id=number))
            session.execute(insert(added["batteries"]).values(device_id=number))
            session.execute(insert(added["sightings"]).values(federation_id=number, seen="d"))
    yield database
    database.close()


def left(database: Database, added: dict[str, Table]) -> dict[str, int]:
    """Count the rows of the new tables."""
    with database.read() as session:
        return {name: session.scalars(select(func.count()).select_from(table)).one() for name, table in added.items()}


@pytest.mark.parametrize(
    ("owner", "expected"),
    [
        (FederationRow, {"notes": 1, "replies": 1, "batteries": 1, "sightings": 1}),
        (DeviceRow, {"notes": 2, "replies": 2, "batteries": 1, "sightings": 1}),
    ],
)
def test_rows_of_a_new_table_go_with_what_they_refer_to(
    owner: type[FederationRow | DeviceRow], expected: dict[str, int], database: Database, added: dict[str, Table]
) -> None:
    with database.write() as session:
        counted = remove_rows(session, belonging_to(session.get_one(owner, 1)), dry_run=True)
        assert remove_rows(session, belonging_to(session.get_one(owner, 1)), dry_run=False) == counted
    assert left(database, added) == expected
    with database.read() as session:
        assert session.get(owner, 1) is None
        assert session.get(owner, 2) is not None
