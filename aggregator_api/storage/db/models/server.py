"""Tables of the server itself: audit, events, leases, keys, sessions, tokens and the ends of access."""

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


class CredentialRow(Base):
    """An API key: what it opens, and the sha256 of its secret; the secret itself is nowhere."""

    __tablename__ = "credentials"

    id: Mapped[int] = mapped_column(primary_key=True)
    prefix: Mapped[str] = mapped_column(String(16), unique=True)
    name: Mapped[str] = mapped_column(NAME)
    scopes: Mapped[list[str]] = mapped_column(JSON)  # operator, read, device
    federation_id: Mapped[int | None] = mapped_column(ForeignKey("federations.id"))  # null: the whole server
    device_id: Mapped[int | None] = mapped_column(ForeignKey("devices.id"), index=True)
    secret_sha256: Mapped[str] = mapped_column(SHA256)
    created_at: Mapped[float]
    expires_at: Mapped[float | None]
    used_at: Mapped[float | None]
    revoked_at: Mapped[float | None]
    held_at: Mapped[float | None]  # of a restore without the ledger: it opens nothing until an operator confirms it


class WebSessionRow(Base):
    """A browser that was logged in with an API key; only the sha256 of its cookie is kept."""

    __tablename__ = "web_sessions"

    token_sha256: Mapped[str] = mapped_column(SHA256, primary_key=True)
    credential_id: Mapped[int] = mapped_column(ForeignKey("credentials.id", ondelete="CASCADE"), index=True)
    created_at: Mapped[float]
    expires_at: Mapped[float] = mapped_column(index=True)


class EnrolmentTokenRow(Base):
    """A token that enrols one device, once; only its sha256 is kept."""

    __tablename__ = "enrolment_tokens"

    id: Mapped[int] = mapped_column(primary_key=True)
    federation_id: Mapped[int] = mapped_column(ForeignKey("federations.id"), index=True)
    token_sha256: Mapped[str] = mapped_column(SHA256, unique=True)
    # null: a device of any name that is free
    device: Mapped[str | None] = mapped_column(NAME, info={NAMES_A_DEVICE: True})
    auto_approve: Mapped[bool]
    tags: Mapped[list[str]] = mapped_column(JSON, default=list, server_default="[]")  # that its device gets
    created_at: Mapped[float]
    expires_at: Mapped[float]
    used_at: Mapped[float | None]
    used_by: Mapped[str | None] = mapped_column(NAME, info={NAMES_A_DEVICE: True})
    revoked_at: Mapped[float | None]
    held_at: Mapped[float | None]  # as a key's


class EndedAccessRow(Base):
    """A key, token or device whose access, or a device whose part in the sums, the present transaction ends.

    See `db.ledger`; of accesses triggers write it.
    """

    __tablename__ = "ended_access"

    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(String(16))
    subject: Mapped[str] = mapped_column(NAME)  # a key's prefix, a token's sha256, a device's name
    federation: Mapped[str] = mapped_column(NAME)  # of a device, else empty
    until: Mapped[float | None]  # when it would have ended by itself


class LedgerRow(Base):
    """The one row: which ledger this database's ends of access are in, and how many bytes of it are known."""

    __tablename__ = "ledger"

    id: Mapped[int] = mapped_column(primary_key=True)
    ledger: Mapped[str | None] = mapped_column(String(32))  # null: not begun yet
    size: Mapped[int] = mapped_column(SIZE)
