"""The append-only audit log: who did what, from where and when.

Triggers of the database refuse to change or delete an entry, and each entry's digest covers the one before it, so that
what somebody with the database's password cuts out or rewrites shows in `verify`. A chain cannot tell that its newest
entries are missing: note the head that `verify` prints, elsewhere, and give it to a later `verify`.
"""

from __future__ import annotations

import csv
import hashlib
import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple, TextIO

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from aggregator_api.storage.db.models import AuditRow
from aggregator_api.storage.outages import user

GENESIS = "0" * 64
"""The digest before the first entry."""
DETAIL_CHARS = 500
FIELDS = ("at", "actor", "address", "action", "federation", "device", "detail", "count")
_LENGTHS = {"actor": 96, "address": 64, "action": 64, "federation": 64, "device": 64, "detail": DETAIL_CHARS}
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def record(
    session: Session,
    action: str,
    *,
    actor: str,
    address: str = "",
    federation: str = "",
    device: str = "",
    detail: str = "",
    count: int = 1,
) -> None:
    """Add an entry inside the caller's writing transaction: it is there if, and only if, what it tells has happened.

    `action` is a noun and a verb (`devices.revoke`). `actor` is a key's id, `command line (user)`, `device` or
    `server`. `count` says how many equal things within a minute the entry stands for.
    """
    fields = {"actor": actor, "address": address, "action": action, "federation": federation, "device": device}
    row = {name: _plain(value, _LENGTHS[name]) for name, value in {**fields, "detail": detail}.items()}
    before = session.scalar(select(AuditRow.digest).order_by(AuditRow.id.desc()).limit(1)) or GENESIS
    entry = AuditRow(**row, at=time.time(), count=count)
    entry.digest = _digest(before, entry)
    session.add(entry)
    session.flush()


def operating_user() -> str:
    """Return the actor of what is done on the server's machine: `command line (root)`."""
    return f"command line ({user()})"


# ---- what a request means to do, written with the first transaction that it commits


@dataclass
class Intent:
    """What a request is about to do; `is_written` once a transaction of it has been committed with the entry."""

    actor: str
    address: str
    action: str
    federation: str = ""
    device: str = ""
    detail: str = ""
    is_written: bool = False


_INTENT: ContextVar[Intent | None] = ContextVar("audit_intent", default=None)


@contextmanager
def intended(intent: Intent) -> Iterator[None]:
    """Let the first transaction that is committed within the block, in whatever thread, hold the entry."""
    token = _INTENT.set(intent)
    try:
        yield
    finally:
        _INTENT.reset(token)


def mention(words: str) -> None:
    """Add what only the work itself knows, such as a new key's id, to the entry of the present request."""
    intent = _INTENT.get()
    if intent is not None:
        intent.detail = f"{words}; {intent.detail}" if intent.detail else words


def write_intended(session: Session) -> Intent | None:
    """Add the present request's entry, unless an earlier transaction of it has; returns what is then to be marked."""
    intent = _INTENT.get()
    if intent is None or intent.is_written:
        return None
    write(session, intent)
    return intent


def write(session: Session, intent: Intent, *, count: int = 1) -> None:
    """Add the entry of an intent."""
    record(
        session,
        intent.action,
        actor=intent.actor,
        address=intent.address,
        federation=intent.federation,
        device=intent.device,
        detail=intent.detail,
        count=count,
    )


# ---- reading


class Filters(NamedTuple):
    """Which entries are wanted: from a time on (Unix seconds), and equal to what is given."""

    since: float | None = None
    actor: str | None = None
    action: str | None = None
    federation: str | None = None
    device: str | None = None


def select_entries(filters: Filters) -> Select[AuditRow]:
    """Select the wanted entries; `action` may be a noun alone (`keys`), which stands for all its verbs."""
    query = select(AuditRow)
    if filters.since is not None:
        query = query.where(AuditRow.at >= filters.since)
    for name in ("actor", "federation", "device"):
        if (wanted := getattr(filters, name)) is not None:
            query = query.where(getattr(AuditRow, name) == wanted)
    if filters.action is not None:
        exact = AuditRow.action == filters.action
        query = query.where(exact | AuditRow.action.startswith(f"{filters.action}.", autoescape=True))
    return query


def export(rows: Iterable[AuditRow], out: TextIO, form: str) -> int:
    """Write entries as `jsonl` or `csv`; returns how many. Their digests go along, so that a copy can be compared."""
    names = ("id", *FIELDS, "digest")
    table = csv.writer(out, lineterminator="\n") if form == "csv" else None
    if table is not None:
        table.writerow(names)
    written = 0
    for row in rows:
        written += 1
        values = {name: getattr(row, name) for name in names}
        if table is None:
            out.write(json.dumps(values, ensure_ascii=False) + "\n")
        else:
            table.writerow([_cell(value) for value in values.values()])
    return written


def _cell(value: Any) -> Any:
    """Let no text that a stranger sent be a formula in whoever's spreadsheet."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


class ChainCheck(NamedTuple):
    """What `verify` found: how many entries hold, the last one's id and digest, and what is wrong, if anything is."""

    entries: int
    last_id: int
    digest: str
    error: str = ""


def verify(session: Session, expected: str | None = None) -> ChainCheck:
    """Compute the chain anew; `expected` is a digest that an earlier `verify` gave, which must still be in it."""
    digest, last_id, entries, seen = GENESIS, 0, 0, expected in (None, GENESIS)
    for row in session.scalars(select(AuditRow).order_by(AuditRow.id).execution_options(yield_per=1000)):
        after = _digest(digest, row)
        if after != row.digest:
            wrong = f"entry {row.id} does not follow from the one before it: it was changed, or entries before it cut"
            return ChainCheck(entries, last_id, digest, wrong)
        digest, last_id, entries = after, row.id, entries + 1
        seen = seen or digest == expected
    wrong = "" if seen else f"no entry has the digest {str(expected)[:64]}: the newest were cut, or all replaced"
    return ChainCheck(entries, last_id, digest, wrong)


def _digest(before: str, row: AuditRow) -> str:
    text = json.dumps([getattr(row, name) for name in FIELDS], ensure_ascii=False)
    return hashlib.sha256(f"{before}\n{text}".encode()).hexdigest()


def _plain(text: str, length: int) -> str:
    """Keep what every database gives back as it was: neither control characters nor halves of characters."""
    printable = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text[:length])
    return printable.encode(errors="replace").decode()
