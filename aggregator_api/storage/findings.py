"""Checks for damaged rows, and for sums that don't match their devices.

The sums of a continuous federation's newest version must be those of its rows.
In the clear they are added up again from devices' blobs and compared bit for bit. Of a secure sum single devices' sums
are nowhere: it is held against what so many devices can add up to, and against whose sums the version has.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
import torch
from pydantic import ValidationError
from sqlalchemy import JSON, Boolean, Column, ColumnElement, LargeBinary, Table, func, literal_column, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from aggregator_api.storage.blobs import BlobStore
from aggregator_api.storage.db import repositories
from aggregator_api.storage.db.models import ContributionRow, FederationRow, MaskedContributionRow
from aggregator_api.storage.db.models.base import Base
from federation import wire
from federation.aggregation.present_sums import combined, settings_of
from federation.method import SumMethod
from federation.methods import METHODS, method_from_json
from federation.plan import Plan, SecureSettings
from federation.records import Tree, Update
from federation.records.tree import flatten
from federation.secure_sums.plausibility import OpenedSum, implausibility
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


def check_sums(session: Session, blobs: BlobStore) -> Iterator[FsckResult]:
    """Add up again what every continuous federation's devices have sent, and compare."""
    for number, name in session.execute(select(FederationRow.id, FederationRow.name).order_by(FederationRow.id)).all():
        yield from guarded(f"federation {name}: its plan", _check_one(session, blobs, number), session)


def _check_one(session: Session, blobs: BlobStore, number: int) -> Iterator[FsckResult]:
    federation = session.get_one(FederationRow, number)
    description = federation.plan["method"]
    method = method_from_json(description) if description["name"] in METHODS else None
    if not isinstance(method, SumMethod):
        return
    secure = federation.parsed_plan.secure
    try:
        if federation.kind.masked:
            yield _plausible(session, blobs, federation, method, secure)
        else:
            yield _compared(session, blobs, federation, method)
    except Exception as error:  # what was damaged may break the sum anywhere
        words = " ".join(str(error).split())[:300] or type(error).__name__
        message = f"federation {federation.name}: its sums cannot be added up: {words}"
        yield FsckResult(Severity.PROBLEM, message, FROM_BACKUP)


def rebuilt(session: Session, blobs: BlobStore, federation: FederationRow, method: SumMethod) -> Tree:
    """Return the newest version's state as its method makes it of all contributions at once.

    Raises:
        BlobError: if a blob is missing or damaged.
    """
    plan = federation.parsed_plan
    query = select(ContributionRow).where(
        ContributionRow.federation_id == federation.id, ContributionRow.published_sha256.is_not(None)
    )
    rows = {row.device.name if row.device else f"/{row.id}": row for row in session.scalars(query)}
    newest = _newest(session, blobs, federation)

    def read(client: str) -> Update:
        return Update(client, rows[client].examples, 0, _tree(blobs, str(rows[client].published_sha256)))

    return combined(method, settings_of(newest, plan.rounds), plan.training.seed, newest, list(rows), read).state


def _compared(session: Session, blobs: BlobStore, federation: FederationRow, method: SumMethod) -> FsckResult:
    if _has_nameless(session, federation) and method.aggregation != "mean":
        message = f"federation {federation.name}: a device was deleted, and its sums go with the next version"
        return FsckResult(Severity.OK, f"{message}; a robust rule goes by names, so that one is compared again")
    kept, again = flatten(_newest(session, blobs, federation)), flatten(rebuilt(session, blobs, federation, method))
    number, clients = repositories.newest_version(session, federation).version, int(again["sums/clients"])
    words = f"federation {federation.name}: the sums of version {number}"
    differing = [name for name, value in again.items() if not torch.equal(value, kept[name])]
    # the head that nobody's sums give is zero, and the first version's is drawn
    if not clients:
        differing = [name for name in differing if name.startswith("sums/")]
    if differing:
        message = f"{words} are not those of its {clients} devices: {', '.join(differing)} differ"
        return FsckResult(Severity.PROBLEM, message, FROM_BACKUP)
    return FsckResult(Severity.OK, f"{words} are those of its {clients} devices, bit for bit")


def _plausible(
    session: Session, blobs: BlobStore, federation: FederationRow, method: SumMethod, secure: SecureSettings
) -> FsckResult:
    newest, sums = repositories.newest_version(session, federation), _newest(session, blobs, federation)["sums"]
    words, clients = f"federation {federation.name}: the sums of version {newest.version}", int(sums["clients"])
    if not clients:
        return FsckResult(Severity.OK, f"{words} are of no device yet")
    row = MaskedContributionRow
    count = select(func.count()).where(row.federation_id == federation.id, row.version == newest.version)
    noted = session.scalars(count).one()  # a device that was deleted since has no row
    layout = layout_from_json(federation.sum_layout or ())
    numbers = np.concatenate([np.asarray(sums[part.name], np.int64).reshape(-1) for part in layout.segments])
    reason = implausibility(method, secure, OpenedSum(layout, numbers, clients))
    if noted > clients:
        reason = f"{noted} devices are noted to be in them"
    if reason:
        return FsckResult(Severity.PROBLEM, f"{words} are not of {clients} devices: {reason}", FROM_BACKUP)
    return FsckResult(Severity.OK, f"{words} can be those of {clients} devices")


def _has_nameless(session: Session, federation: FederationRow) -> bool:
    row = ContributionRow
    gone = (row.federation_id == federation.id, row.device_id.is_(None), row.published_sha256.is_not(None))
    return session.scalar(select(row.id).where(*gone).limit(1)) is not None


def _newest(session: Session, blobs: BlobStore, federation: FederationRow) -> Tree:
    return _tree(blobs, repositories.newest_version(session, federation).state_sha256)


def _tree(blobs: BlobStore, sha256: str) -> Tree:
    data = blobs.read(sha256)
    return wire.decode(data, limit_bytes=len(data))
