"""CONTRIBUTING, 'Add a REST route': a route with a table and its revision, in a package of its own."""

from __future__ import annotations

import shutil
import sqlite3
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import text

from aggregator_api.auth.scopes import declared_routes
from aggregator_api.core.settings import Settings
from aggregator_api.http import app as application
from aggregator_api.maintenance.backup import back_up
from aggregator_api.maintenance.restore import restore
from aggregator_api.storage.db import database
from aggregator_api.storage.db.models import Base
from tests.aggregator_api.generated_devices import FEDERATION, Wires, tiny_plan
from tests.aggregator_api.http_client import OperatorClient, TestClient, problem

HERE = f"/v1/federations/{FEDERATION}"
MODULE = "gaitway_notes"
ROUTE = '''
"""Notes that operators leave at a federation."""

from fastapi import APIRouter
from pydantic import BaseModel, Field
from sqlalchemy import ForeignKey, Text, select
from sqlalchemy.orm import Mapped, mapped_column

from aggregator_api.http.dependencies import DatabaseDep, FederationName
from aggregator_api.http.api.middleware.problems import responses
from aggregator_api.auth.scopes import requires
from aggregator_api.storage.db.models import Base
from aggregator_api.federations import service

router = APIRouter(prefix="/v1/federations/{name}/notes", tags=["notes"], responses=responses(404, 422))


class NoteRow(Base):
    __tablename__ = "notes_of_operators"

    id: Mapped[int] = mapped_column(primary_key=True)
    federation_id: Mapped[int] = mapped_column(ForeignKey("federations.id"))
    text: Mapped[str] = mapped_column(Text)


class Note(BaseModel):
    text: str = Field(max_length=200)


@router.get("", summary="List the notes")
@requires("operator", "read")
def listing(database: DatabaseDep, name: FederationName) -> list[Note]:
    """List them, the first one first."""
    with database.read() as session:
        federation = service.get_federation(session, name)
        found = session.scalars(select(NoteRow).where(NoteRow.federation_id == federation.id).order_by(NoteRow.id))
        return [Note(text=row.text) for row in found]


@router.post("", status_code=201, summary="Leave a note", responses=responses(413))
@requires("operator")
def leave(database: DatabaseDep, name: FederationName, note: Note) -> Note:
    """Keep a note."""
    with database.write() as session:
        session.add(NoteRow(federation_id=service.get_federation(session, name).id, text=note.text))
    return note


@router.get("/forgotten", summary="Say nothing of whose keys open it")
def forgotten(name: FederationName) -> list[Note]:
    """Be closed to everybody."""
    return []
'''
REVISION = '''
"""Notes of operators."""

import sqlalchemy as sa
from alembic import op

revision = "notes"
down_revision = "NEWEST"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "notes_of_operators",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("federation_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["federation_id"], ["federations.id"], name=op.f("fk_notes_of_operators_federation_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_notes_of_operators")),
    )
'''


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OperatorClient]:
    """A server with the route, the table and the revision, and a federation."""
    package = tmp_path / "package"
    migrations = package / "migrations"
    shutil.copytree(database.MIGRATIONS, migrations, ignore=shutil.ignore_patterns("__pycache__"))
    newest = max(path.stem for path in (migrations / "versions").glob("0*.py")).partition("_")[0]
    (migrations / "versions" / "notes.py").write_text(REVISION.replace("NEWEST", newest))
    (package / f"{MODULE}.py").write_text(ROUTE)
    monkeypatch.syspath_prepend(str(package))
    monkeypatch.setattr(database, "MIGRATIONS", migrations)
    notes = import_module(MODULE)
    monkeypatch.setattr(application, "ROUTES", [*application.ROUTES, *application.shared_routes([notes.router])])
    try:
        with OperatorClient(application.create_app(Settings(data_dir=tmp_path / "data"), Wires)) as client:
            body = {"name": FEDERATION, "plan": tiny_plan().model_dump(mode="json")}
            assert client.post("/v1/federations", json=body).status_code == 201
            yield client
    finally:
        Base.metadata.remove(Base.metadata.tables["notes_of_operators"])
        sys.modules.pop(MODULE)


def test_a_new_route_with_a_table_is_guarded_kept_described_and_deleted(served: OperatorClient, tmp_path: Path) -> None:
    answer = served.post(f"{HERE}/notes", json={"text": "the left shelf"})
    assert (answer.status_code, answer.json()) == (201, {"text": "the left shelf"})
    made = served.post("/v1/keys", json={"name": "reader", "scopes": ["read"], "federation": FEDERATION}).json()
    reader = TestClient(served.served, key=made["key"])
    assert reader.get(f"{HERE}/notes").json() == [{"text": "the left shelf"}]
    problem(reader.post(f"{HERE}/notes", json={"text": "mine"}), 403)
    problem(reader.get("/v1/federations/other/notes"), 403)
    problem(TestClient(served.served).get(f"{HERE}/notes"), 401)
    problem(served.get("/v1/federations/unknown/notes"), 404)
    problem(served.get(f"{HERE}/notes/forgotten"), 403)  # the operator's key does not open it either
    problem(served.get(f"{HERE}/notes", params={"nothing": 1}), 422)
    described = served.get("/openapi.json").json()["paths"]["/v1/federations/{name}/notes"]
    assert {method: operation["x-scopes"] for method, operation in described.items()} == {
        "get": ["operator", "read"],
        "post": ["operator"],
    }
    assert declared_routes(served.served).access("POST", "/v1/federations/{name}/notes") is not None
    actions = [one["action"] for one in served.get("/v1/audit", params={"limit": 500}).json()["items"]]
    assert actions[-2:] == ["keys.create", "access.refuse"]
    assert actions.count("notes.create") == 1
    back_up(served.runtime.settings, tmp_path / "copy")
    restore(Settings(data_dir=tmp_path / "again"), tmp_path / "copy")
    with sqlite3.connect(tmp_path / "again" / "gaitway.sqlite3") as restored:
        assert restored.execute("SELECT text FROM notes_of_operators").fetchall() == [("the left shelf",)]
    deleted = served.delete(HERE, params={"force": True})
    assert deleted.status_code == 200, deleted.text
    with served.runtime.database.read() as session:
        assert session.execute(text("SELECT count(*) FROM notes_of_operators")).scalar() == 0
    with served.runtime.database.engine.connect() as connection:  # the revision makes what the class says
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []
