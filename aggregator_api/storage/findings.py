"""Findings of a check of what the server keeps; rows whose values can't be read are among them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any, NamedTuple

from pydantic import ValidationError
from sqlalchemy import JSON, Boolean, Column, ColumnElement, LargeBinary, Table, literal_column, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from aggregator_api.storage.db.models.base import Base
from federation.plan import Plan
from federation.secure_sums.summation import layout_from_json
from gaitway.errors import first_problem


class Severity(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    REPAIRED = "repaired"
    PROBLEM = "problem"


class FsckResult(NamedTuple):
    """What was found, and what to do about it ('' where nothing is to be done)."""

    level: Severity
    message: str
    advice: str = ""


FROM_BACKUP = "bring the server back from a backup (`restore`)"


def guarded(what: str, findings: Iterator[FsckResult], session: Session | None = None) -> Iterator[FsckResult]:
    """Yield findings; damage that ends the check of one thing is itself a finding, and the next thing is checked."""
    try:
        yield from findings
    except Exception as error:  # damage may be of any kind: whatever reads it raises what it likes
        if session is not None:
            session.rollback()
        words = " ".join(str(error).split())[:300]
        yield FsckResult(Severity.PROBLEM, f"{what} cannot be read: {words or type(error).__name__}", FROM_BACKUP)


ROWS_AT_ONCE = 1000
MAX_NAMED = 5
"""Damaged rows of a table that are named."""
_PARSED: dict[tuple[str, str], Callable[[Any], Any]] = {
    ("federations", "plan"): Plan.model_validate,
    ("federations", "sum_layout"): lambda value: layout_from_json(value or ()),
}


def damaged_rows(session: Session) -> Iterator[FsckResult]:
    """Read every row of every table, and name those that cannot be what the server has written."""
    damaged = 0
    for table in Base.metadata.sorted_tables:
        for finding in guarded(f"the table {table.name}", _table(session, table), session):
            damaged += 1
            yield finding
    if not damaged:
        yield FsckResult(Severity.OK, "every row holds what its columns are for")


def _table(session: Session, table: Table) -> Iterator[FsckResult]:
    found = []
    for row in _rows(session, table):
        if fault := row if isinstance(row, str) else _fault(table, row):
            found.append(fault)
    for fault in found[:MAX_NAMED]:
        yield FsckResult(Severity.PROBLEM, f"{table.name}: {fault}", FROM_BACKUP)
    if len(found) > MAX_NAMED:
        more = len(found) - MAX_NAMED
        yield FsckResult(Severity.PROBLEM, f"{table.name}: {more} further rows are damaged", FROM_BACKUP)


def _rows(session: Session, table: Table) -> Iterator[Any]:
    """Yield each row as it is stored; of one that the database cannot give, what is wrong."""
    raw: list[ColumnElement[Any]] = [literal_column(f'"{column.name}"') for column in table.columns]
    try:
        yield from session.execute(select(*raw).select_from(table).execution_options(yield_per=ROWS_AT_ONCE))
        return
    except SQLAlchemyError:
        session.rollback()
    # one by one, though those before the damage come a second time
    keys = list(table.primary_key.columns)
    for key in session.execute(select(*keys)).all():
        is_row = [column == value for column, value in zip(keys, key, strict=True)]
        try:
            yield session.execute(select(*raw).select_from(table).where(*is_row)).one()
        except SQLAlchemyError as error:
            session.rollback()
            yield f"the row {_shown(key)} cannot be read: {str(error).splitlines()[0][:200]}"


def _fault(table: Table, row: Any) -> str:
    """Say what is wrong with a row; empty where nothing is."""
    for column, value in zip(table.columns, row, strict=True):
        if reason := _reason(table, column, value):
            key = [value for other, value in zip(table.columns, row, strict=True) if other.primary_key]
            return f"the row {_shown(key)}: {column.name} {reason}"
    return ""


def _reason(table: Table, column: Column[Any], value: Any) -> str:
    if value is None:
        return "" if column.nullable else "is missing"
    if isinstance(column.type, JSON):
        return _of_json(_PARSED.get((table.name, column.name)), value)
    kinds = _kinds(column)
    if isinstance(value, kinds) and not (isinstance(value, bool) and bool not in kinds):
        return ""
    return f"is {str(value)[:40]!r}, expected {column.type.python_type.__name__}"


def _of_json(parse: Callable[[Any], Any] | None, value: Any) -> str:
    try:
        found = json.loads(value) if isinstance(value, str | bytes) else value
        if parse is not None:
            parse(found)
    except ValidationError as error:
        return f"cannot be read: {first_problem(error)[:200]}"
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        return f"cannot be read: {' '.join(str(error).split())[:200]}"
    return ""


def _kinds(column: Column[Any]) -> tuple[type, ...]:
    if isinstance(column.type, LargeBinary):
        return (bytes, memoryview)
    if isinstance(column.type, Boolean):
        return (bool, int)
    kind = column.type.python_type
    return (int, float) if kind is float else (kind,)


def _shown(key: Any) -> str:
    return ", ".join(str(value)[:64] for value in key)
