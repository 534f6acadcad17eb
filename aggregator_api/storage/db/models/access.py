"""Who may do what: keys, sessions, enrolment tokens, and the accesses that have ended."""

from __future__ import annotations

from sqlalchemy import JSON, ForeignKey, String
from sqlalchemy.orm import Mapped, mapped_column

from aggregator_api.storage.db.models.base import NAME, NAMES_A_DEVICE, SHA256, SIZE, Base


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
