"""API keys: `gw_<id>_<secret>`, with a scope, for one federation or the whole server.

A secret is 256 random bits, so its plain sha256 is as hard to guess as the secret; only the hash is stored.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field
from sqlalchemy import ColumnElement, Select, and_, bindparam, exists, or_, select, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from aggregator_api.auth.signing import write_secret
from aggregator_api.storage.db import audit
from aggregator_api.storage.db.database import Database
from aggregator_api.storage.db.models import CredentialRow, DeviceRow, FederationRow
from federation.plan import Name, Strict

Scope = Literal["operator", "read", "device"]
"""operator: everything; read: every GET; device: the models that are sent to devices."""

OPERATOR_FILE = "operator.key"
USED_EVERY_S = 600.0
"""Resolution of `used_at`, so that most requests don't write."""

PREFIX_DIGITS = 12
AT_ONCE = 5_000
"""Values in one query, which databases limit."""
_KEY = re.compile(r"gw_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
_NO_SHA256 = "0" * 64


YEAR_S = 366 * 24 * 3600


class NewKey(Strict):
    """A key to make."""

    name: Name = Field(description="whose key it is, for the operator")
    scopes: list[Scope] = Field(
        min_length=1, max_length=3, description="operator: all; read: every GET; device: models"
    )
    federation: Name | None = Field(default=None, description="null: the whole server")
    lifetime_s: Annotated[int, Field(ge=60, le=10 * YEAR_S)] | None = Field(
        default=None, description="null: until revoked"
    )


@dataclass(frozen=True)
class Caller:
    """The sender of a request, and its scopes: in one federation, or (None) everywhere."""

    id: str
    scopes: frozenset[str]
    federation: str | None = None
    device: str | None = None


def make(
    session: Session,
    name: str,
    scopes: Iterable[Scope],
    *,
    federation: FederationRow | None = None,
    device: DeviceRow | None = None,
    expires_at: float | None = None,
    prefix: str | None = None,
) -> tuple[CredentialRow, str]:
    """Write a new key's row, and return it with the key, which isn't stored; `prefix` is random by default.

    Raises:
        IntegrityError: if there is a key of that prefix.
    """
    secret = secrets.token_urlsafe(32)
    row = CredentialRow(
        prefix=prefix or secrets.token_hex(PREFIX_DIGITS // 2),
        name=name,
        scopes=sorted(scopes),
        federation_id=federation.id if federation else None,
        device_id=device.id if device else None,
        secret_sha256=_sha256(secret),
        created_at=time.time(),
        expires_at=expires_at,
    )
    session.add(row)
    session.flush()
    return row, f"gw_{row.prefix}_{secret}"


def is_well_formed(key: str) -> bool:
    """Whether a text has the form of a key, without a database query."""
    return _KEY.fullmatch(key) is not None


def find(session: Session, key: str, now: float) -> Caller | None:
    """Return the key's caller; None if the key is unknown, expired or revoked."""
    parts = _KEY.fullmatch(key)
    if parts is None:
        return None
    found = session.connection().execute(_FIND, {"wanted": parts[1]}).one_or_none()
    expected = found.secret_sha256 if found else _NO_SHA256
    if not hmac.compare_digest(_sha256(parts[2]), expected) or found is None:
        return None
    return _caller(found, now)


def find_id(session: Session, id: str, now: float) -> Caller | None:
    """Return the current access of the key of that id, whose secret was checked before; None if it has none."""
    found = session.connection().execute(_FIND, {"wanted": id}).one_or_none()
    return None if found is None else _caller(found, now)


def _caller(found: Any, now: float) -> Caller | None:
    over = found.revoked_at is not None or found.held_at is not None
    over = over or (found.expires_at is not None and found.expires_at <= now)
    return None if over else Caller(found.prefix, frozenset(found.scopes), found.federation, found.device)


_FIND = (
    select(
        CredentialRow.prefix,
        CredentialRow.scopes,
        CredentialRow.secret_sha256,
        CredentialRow.expires_at,
        CredentialRow.revoked_at,
        CredentialRow.held_at,
        FederationRow.name.label("federation"),
        DeviceRow.name.label("device"),
    )
    .outerjoin(FederationRow, CredentialRow.federation_id == FederationRow.id)
    .outerjoin(DeviceRow, CredentialRow.device_id == DeviceRow.id)
    .where(CredentialRow.prefix == bindparam("wanted"))
)


def prefix_in(text: str) -> str | None:
    """Return the public part of a key in a text; None if it contains no key."""
    found = _KEY.search(text)
    return found[1] if found else None


def note_use(session: Session, caller: Caller, now: float) -> None:
    """Record that a key was used."""
    session.execute(update(CredentialRow).where(CredentialRow.prefix == caller.id).values(used_at=now))


def find_key(session: Session, prefix: str) -> CredentialRow | None:
    """Find a key by its public part."""
    return session.scalar(select(CredentialRow).where(CredentialRow.prefix == prefix))


def every(session: Session) -> Sequence[tuple[CredentialRow, str | None]]:
    """Return every key with its federation's name, in order of creation."""
    query = select(CredentialRow, FederationRow.name).outerjoin(
        FederationRow, CredentialRow.federation_id == FederationRow.id
    )
    return [(row, name) for row, name in session.execute(query.order_by(CredentialRow.id))]


def revoke(row: CredentialRow) -> None:
    """Revoke a key; revoking it twice changes nothing."""
    row.revoked_at = row.revoked_at or time.time()


def confirm(row: CredentialRow) -> None:
    """Restore a key's access after a restore without a ledger; a key that isn't on hold stays as it is."""
    row.held_at = None


def valid(now: float) -> ColumnElement[bool]:
    """Whether a key is valid."""
    unexpired = or_(CredentialRow.expires_at.is_(None), CredentialRow.expires_at > now)
    return and_(CredentialRow.revoked_at.is_(None), CredentialRow.held_at.is_(None), unexpired)


def valid_ids(session: Session, ids: Iterable[str], now: float) -> set[str]:
    """Return those of these keys that are valid."""
    return among(session, select(CredentialRow.prefix).where(valid(now)), CredentialRow.prefix, ids)


def among(session: Session, query: Select[str], column: InstrumentedAttribute[str], values: Iterable[str]) -> set[str]:
    """Return a query's results where a column has one of many values."""
    wanted = sorted(values)
    parts = (wanted[first : first + AT_ONCE] for first in range(0, len(wanted), AT_ONCE))
    return {found for part in parts for found in session.scalars(query.where(column.in_(part)))}


def revoke_of_device(session: Session, device: DeviceRow) -> None:
    """Revoke every key of a device."""
    query = update(CredentialRow).where(CredentialRow.device_id == device.id, CredentialRow.revoked_at.is_(None))
    session.execute(query.values(revoked_at=time.time()))


def ensure_operator(database: Database, folder: Path) -> Path | None:
    """Make a new server's first key, and return the file that holds it; None if there was a key before.

    Processes that share a database write one after the other, so only one of them makes it.
    """
    with database.write() as session:
        if session.scalar(select(exists().where(CredentialRow.id.is_not(None)))):
            return None
        row, key = make(session, "operator", ["operator"])
        path = folder / OPERATOR_FILE
        detail = f"key {row.prefix} of operator: operator; the server's first, in {path}"
        audit.record(session, "keys.create", actor="server", detail=detail)
        path.unlink(missing_ok=True)  # from a deleted database, or from a start that ended before the commit
        write_secret(path, f"{key}\n".encode())
    return path


def opens_server(row: CredentialRow, now: float) -> bool:
    """Whether a key is valid for operating the whole server at that time."""
    holds = row.revoked_at is None and row.held_at is None and (row.expires_at is None or row.expires_at > now)
    return holds and row.federation_id is None and "operator" in row.scopes


def has_operator(session: Session, now: float, *, without: CredentialRow | None = None) -> bool:
    """Whether any key (other than one) is still valid for operating the whole server at that time."""
    query = select(CredentialRow.scopes).where(CredentialRow.federation_id.is_(None), valid(now))
    if without is not None:
        query = query.where(CredentialRow.id != without.id)
    return any("operator" in scopes for scopes in session.scalars(query))


def newest_operator(session: Session, now: float) -> CredentialRow | None:
    """Find the newest key for operating the whole server."""
    query = select(CredentialRow).where(CredentialRow.federation_id.is_(None), valid(now))
    rows = session.scalars(query.order_by(CredentialRow.id.desc()))
    return next((row for row in rows if "operator" in row.scopes), None)


def _sha256(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
