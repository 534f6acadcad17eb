"""What the server notes of its own work: epoch, leases, events, answers to repeated requests, the audit log."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, String, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from aggregator_api.storage.db.models.base import NAME, NAMES_A_DEVICE, SHA256, SIZE, Base


class EpochRow(Base):
    """The server's epoch, in the only row (see `db.epochs`)."""

    __tablename__ = "server_epoch"

    id: Mapped[int] = mapped_column(primary_key=True)
    epoch: Mapped[int] = mapped_column(SIZE)
    restored_at: Mapped[float | None]  # when a restore began it; null in the first one


class LeaseRow(Base):
    """Which server process drives a federation, and until when by the database's clock (see `leases`)."""

    __tablename__ = "leases"

    federation_id: Mapped[int] = mapped_column(ForeignKey("federations.id"), primary_key=True)
    holder: Mapped[str] = mapped_column(String(128))
    expires_at: Mapped[float]
    notifications: Mapped[int] = mapped_column(BigInteger)  # of what other processes did: the holder must act on it


BEGINS_A_PHASE = text("kind IN ('round.announced', 'round.collecting', 'round.aggregating')")
"""Of an event; the index of these events is used where a query says it in the same words."""


class EventRow(Base):
    """What happened, for the operator and for SSE; the id is SSE's event id.

    Announcements carry the id of their federation's newest event as their serial, below which devices take none:
    whoever deletes old events leaves the newest of each federation.
    """

    __tablename__ = "events"
    __table_args__ = (
        Index("ix_events_federation_id_id", "federation_id", "id"),
        Index(
            "ix_events_federation_id_round_number",
            *("federation_id", "round_number"),
            sqlite_where=BEGINS_A_PHASE,
            postgresql_where=BEGINS_A_PHASE,
        ),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    federation_id: Mapped[int] = mapped_column(ForeignKey("federations.id"))
    kind: Mapped[str] = mapped_column(String(32))
    round_number: Mapped[int]
    device: Mapped[str] = mapped_column(NAME, info={NAMES_A_DEVICE: True})
    detail: Mapped[str] = mapped_column(Text)
    created_at: Mapped[float]


class IdempotentRequestRow(Base):
    """The answer to a POST with an Idempotency-Key, for when it is sent again."""

    __tablename__ = "idempotent_requests"

    caller: Mapped[str] = mapped_column(String(32), primary_key=True)
    key: Mapped[str] = mapped_column(String(128), primary_key=True)
    request_sha256: Mapped[str] = mapped_column(SHA256)
    status: Mapped[int | None]  # null: it is being worked on
    headers: Mapped[dict[str, str]] = mapped_column(JSON)
    body: Mapped[str | None] = mapped_column(Text)  # null: it held a secret, which is shown once
    created_at: Mapped[float] = mapped_column(index=True)


class AuditRow(Base):
    """Who did what (see `aggregator_api.storage.db.audit`); triggers refuse to change or delete an entry."""

    __tablename__ = "audit_entries"
    __table_args__ = ({"sqlite_autoincrement": True},)

    id: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[float] = mapped_column(index=True)
    actor: Mapped[str] = mapped_column(String(96))
    address: Mapped[str] = mapped_column(String(64))
    action: Mapped[str] = mapped_column(String(64), index=True)
    federation: Mapped[str] = mapped_column(NAME)  # names, not keys: an entry outlives what it is about
    device: Mapped[str] = mapped_column(NAME)
    detail: Mapped[str] = mapped_column(Text)
    count: Mapped[int]
    digest: Mapped[str] = mapped_column(SHA256)  # over this entry and the digest of the one before
