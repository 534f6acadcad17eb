"""The tables, as typed SQLAlchemy models; weights are never in a column, only the sha256 of their blobs.

Times are Unix seconds. Ids grow with time, so that they serve as cursors of listings.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

from sqlalchemy import (
    JSON,
    BigInteger,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Text,
    UniqueConstraint,
    false,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

NAME = String(64)
SHA256 = String(64)
NAMES_A_DEVICE = "names a device"
"""In the `info` of a column that holds devices' names, so that its rows are deleted with the device."""
SIZE = BigInteger().with_variant(Integer(), "sqlite")  # an INTEGER of SQLite holds 64 bits


class Blob(NamedTuple):
    """A blob as rows name it: its sha256, and its size in bytes."""

    sha256: str
    size: int


class Base(DeclarativeBase):
    """Names every constraint, so that a later migration can change it on any database.

    A whole number has 64 bits on any database: cursors and numbers of rounds come from outside as large as that.
    """

    type_annotation_map: ClassVar[dict[Any, Any]] = {int: SIZE}
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class EpochRow(Base):
    """The server's epoch, in the only row (see `db.epochs`)."""

    __tablename__ = "server_epoch"

    id: Mapped[int] = mapped_column(primary_key=True)
    epoch: Mapped[int] = mapped_column(SIZE)
    restored_at: Mapped[float | None]  # when a restore began it; null in the first one


class FederationRow(Base):
    """A federation: its plan, what its updates must look like, and whether it runs."""

    __tablename__ = "federations"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(NAME, unique=True)
    # a random uuid: a new federation of an old name has another
    instance: Mapped[str] = mapped_column(String(32), server_default="")
    plan: Mapped[dict[str, Any]] = mapped_column(JSON)
    # counts the changes of the plan's round settings, so that server processes notice each other's
    revision: Mapped[int] = mapped_column(default=0, server_default="0")
    upload_schema: Mapped[dict[str, Any]] = mapped_column(JSON)
    # what the numbers of a secure sum mean (`federation.secure_sums.summation.SumLayout`); null: updates come as such
    sum_layout: Mapped[list[Any] | None] = mapped_column(JSON)
    status: Mapped[str] = mapped_column(String(16))  # running, paused, finished, stopped
    created_at: Mapped[float]
    # the ONNX file of the network below the head, for ends without torch; null: none may join
    feature_model_sha256: Mapped[str | None] = mapped_column(SHA256)
    feature_model_size: Mapped[int | None] = mapped_column(SIZE)
    # the client's half of a round as ONNX graphs, for ends without torch: none, making, ready or failed, and why
    program_state: Mapped[str] = mapped_column(String(16), default="none", server_default="none")
    program_note: Mapped[str] = mapped_column(Text, default="", server_default="")
    program_sha256: Mapped[str | None] = mapped_column(SHA256)
    program_size: Mapped[int | None] = mapped_column(SIZE)
    stable_note: Mapped[str] = mapped_column(Text, default="", server_default="")  # why `stable` stays where it is
    regression: Mapped[str] = mapped_column(Text, default="", server_default="")  # what has become worse; '': nothing
    # masked sums are collected anew, since a lost device's are to go: with all who are in them or, from this time on,
    # without those who are away; null: they are not
    anew_due_at: Mapped[float | None]


class DeviceRow(Base):
    """A device in a federation, and its last word."""

    __tablename__ = "devices"
    __table_args__ = (
        UniqueConstraint("federation_id", "name"),
        Index("ix_devices_federation_id_state", "federation_id", "state"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    federation_id: Mapped[int] = mapped_column(ForeignKey("federations.id"))
    name: Mapped[str] = mapped_column(NAME)
    state: Mapped[str] = mapped_column(String(16))
    examples: Mapped[int]
    detail: Mapped[str] = mapped_column(Text)
    enrolled_at: Mapped[float]
    seen_at: Mapped[float]
    # open: it only published a status; pending, approved, revoked: it showed a token and a key
    enrolment: Mapped[str] = mapped_column(String(16), default="open", server_default="open")
    public_key: Mapped[str | None] = mapped_column(String(44))  # base64 of the raw ed25519 key
    claimed_at: Mapped[int | None] = mapped_column(BigInteger)  # `issued_at` of its last claim, against replays
    cloned_at: Mapped[float | None] = mapped_column()  # when two programs under its name were last found
    # in a row; see devices.suspension
    refused_updates: Mapped[int] = mapped_column(default=0, server_default="0")
    suspended_at: Mapped[float | None] = mapped_column()  # null: it may be invited
    suspension_reason: Mapped[str] = mapped_column(Text, default="", server_default="")
    # its last word about a model, see AdoptionRow; null: it has not judged any
    adoption: Mapped[str | None] = mapped_column(String(16))
    adoption_reason: Mapped[str] = mapped_column(Text, default="", server_default="")

    tag_rows: Mapped[list[DeviceTagRow]] = relationship(order_by="DeviceTagRow.tag", cascade="all, delete-orphan")

    @property
    def tags(self) -> list[str]:
        """The groups that an operator has put it into."""
        return [row.tag for row in self.tag_rows]


class DeviceTagRow(Base):
    """A group that an operator has put a device into; a device has no say in it."""

    __tablename__ = "device_tags"

    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id"), primary_key=True)
    tag: Mapped[str] = mapped_column(NAME, primary_key=True, index=True)


class ModelVersionRow(Base):
    """An immutable global model: version 0 is the initial one."""

    __tablename__ = "model_versions"
    __table_args__ = (UniqueConstraint("federation_id", "version"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    federation_id: Mapped[int] = mapped_column(ForeignKey("federations.id"))
    version: Mapped[int]
    round_number: Mapped[int]
    state_sha256: Mapped[str] = mapped_column(SHA256)
    broadcast_sha256: Mapped[str] = mapped_column(SHA256, index=True)
    broadcast_size: Mapped[int] = mapped_column(SIZE)
    created_at: Mapped[float]
    deleted_at: Mapped[float | None]  # its bytes are gone or will be; the row stays, as rounds refer to it


class ModelAliasRow(Base):
    """A movable name of a model version: latest, stable, previous."""

    __tablename__ = "model_aliases"

    federation_id: Mapped[int] = mapped_column(ForeignKey("federations.id"), primary_key=True)
    alias: Mapped[str] = mapped_column(String(16), primary_key=True)
    version_id: Mapped[int] = mapped_column(ForeignKey("model_versions.id"))
    note: Mapped[str] = mapped_column(Text, default="", server_default="")  # why it was moved there
    # the newest version when an operator moved it: the server itself moves it only beyond
    held_at: Mapped[int] = mapped_column(default=0, server_default="0")


class RoundRow(Base):
    """One round, as `federation.rounds.server_round.Round`; its counters save a look at all participations."""

    __tablename__ = "rounds"
    __table_args__ = (UniqueConstraint("federation_id", "number"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    federation_id: Mapped[int] = mapped_column(ForeignKey("federations.id"))
    number: Mapped[int]
    phase: Mapped[str] = mapped_column(String(16))
    paused: Mapped[bool]
    deadline_passed: Mapped[bool]
    reason: Mapped[str] = mapped_column(Text)
    pending: Mapped[int]  # participations that wait
    received: Mapped[int]  # participations that have come
    noise_multiplier: Mapped[float | None]  # of what was published, where changes were clipped
    epsilon: Mapped[float | None]  # of the client that took part most, with this round; null if there is no bound
    capped: Mapped[int] = mapped_column(default=0, server_default="0")  # updates that count with fewer examples
    excluded: Mapped[int] = mapped_column(default=0, server_default="0")  # updates that were not used in the end
    # by group of tensors the median of the used updates' norms, and how many there were; null: not judged yet
    norms: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    base_version_id: Mapped[int] = mapped_column(ForeignKey("model_versions.id"))
    deadline_at: Mapped[float | None]
    opened_at: Mapped[float]
    closed_at: Mapped[float | None]

    base_version: Mapped[ModelVersionRow] = relationship()
    participations: Mapped[list[ParticipationRow]] = relationship(back_populates="round")


class ParticipationRow(Base):
    """A device's part in a round: invited, what it got to start from, and what became of it."""

    __tablename__ = "participations"

    round_id: Mapped[int] = mapped_column(ForeignKey("rounds.id"), primary_key=True)
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id"), primary_key=True)
    invited: Mapped[bool]
    outcome: Mapped[str] = mapped_column(String(16))  # waiting, received, lost
    rounds_late: Mapped[int | None]
    # of the blob that the device gets; null until it is written, and for a late comer, who was not invited
    broadcast_sha256: Mapped[str | None] = mapped_column(SHA256, index=True)
    broadcast_size: Mapped[int | None] = mapped_column(SIZE)

    round: Mapped[RoundRow] = relationship(back_populates="participations")
    device: Mapped[DeviceRow] = relationship(lazy="joined")


class UpdateRow(Base):
    """An update that a round has accepted, is deferred to the next round, or will not be used for a reason."""

    __tablename__ = "updates"
    __table_args__ = (
        UniqueConstraint("device_id", "update_id"),
        UniqueConstraint("round_id", "device_id"),  # one accepted update per client and round
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    federation_id: Mapped[int] = mapped_column(ForeignKey("federations.id"), index=True)
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id"))
    round_id: Mapped[int | None] = mapped_column(ForeignKey("rounds.id"))
    update_id: Mapped[str] = mapped_column(NAME)
    base_round: Mapped[int]
    status: Mapped[str] = mapped_column(String(16))  # accepted, deferred, excluded, refused, quarantined
    reason: Mapped[str] = mapped_column(Text)
    sha256: Mapped[str] = mapped_column(SHA256)
    size: Mapped[int] = mapped_column(SIZE)
    manifest: Mapped[dict[str, Any]] = mapped_column(JSON)
    # L2 norm of each group of tensors (see federation.wire.update_norms); null if it was not measured
    norms: Mapped[dict[str, float] | None] = mapped_column(JSON)
    counted_examples: Mapped[int | None]  # that it counts with in its round, where it claims more
    received_at: Mapped[float]

    device: Mapped[DeviceRow] = relationship(lazy="joined")


class SecureSumRow(Base):
    """The secure sum of a round, as `federation.secure_sums.server.ServerState` without what is a device's own.

    `total` is random as long as shares are not opened, and goes with the devices' rows once the round has ended.
    """

    __tablename__ = "secure_sums"

    round_id: Mapped[int] = mapped_column(ForeignKey("rounds.id"), primary_key=True)
    stage: Mapped[str] = mapped_column(String(16))  # keys, shares, vectors, lists, opening, done, failed
    request: Mapped[bytes] = mapped_column(LargeBinary)
    members: Mapped[bytes] = mapped_column(LargeBinary)
    dealers: Mapped[list[int]] = mapped_column(JSON)
    included: Mapped[bytes] = mapped_column(LargeBinary)
    total: Mapped[bytes] = mapped_column(LargeBinary)
    reason: Mapped[str] = mapped_column(Text)  # why there is no sum
    listed_devices: Mapped[int]  # how many were members, and how many vectors are in the sum
    summed_devices: Mapped[int]
    deadline_at: Mapped[float | None]  # of the stage; null: the round's own deadline ends it
    # of a continuous federation's newest batch: what it has added to the sums, with which fsck compares; null: other's
    added: Mapped[bytes | None] = mapped_column(LargeBinary)
    # the blob of what all members are told alike in this stage, where it is long
    shared_sha256: Mapped[str | None] = mapped_column(SHA256)
    shared_size: Mapped[int | None] = mapped_column(SIZE)
    is_anew: Mapped[bool] = mapped_column(default=False, server_default=false())  # it takes the place of all before it


class SecureSumDeviceRow(Base):
    """What a device has said in the secure sum of an open round, as it has signed it; empty: not yet."""

    __tablename__ = "secure_sum_devices"

    round_id: Mapped[int] = mapped_column(ForeignKey("rounds.id"), primary_key=True)
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id"), primary_key=True)
    identity: Mapped[bytes] = mapped_column(LargeBinary)  # its ed25519 key when the round was drawn
    keys: Mapped[bytes] = mapped_column(LargeBinary)
    shares: Mapped[bytes] = mapped_column(LargeBinary)
    vector: Mapped[bytes] = mapped_column(LargeBinary)  # its head: the numbers are in the total alone
    signature: Mapped[bytes] = mapped_column(LargeBinary)
    opened: Mapped[bytes] = mapped_column(LargeBinary)
    uploaded: Mapped[dict[str, str]] = mapped_column(JSON)  # by part the sha256 of the bytes that came

    device: Mapped[DeviceRow] = relationship(lazy="joined")


class ContributionRow(Base):
    """What a device has in the sums of a continuous federation: what it sent last, and what the newest version has.

    A change waits while the two differ. `device_id` is null once the device was deleted: the row goes as soon as a
    version was published without it.
    """

    __tablename__ = "contributions"
    __table_args__ = (
        UniqueConstraint("device_id"),
        Index("ix_contributions_federation_id_changed_at", "federation_id", "changed_at"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    federation_id: Mapped[int] = mapped_column(ForeignKey("federations.id"))
    device_id: Mapped[int | None] = mapped_column(ForeignKey("devices.id"))
    sequence: Mapped[int]  # of the last update that was accepted; a lower one is refused
    update_id: Mapped[str] = mapped_column(NAME)
    update_sha256: Mapped[str] = mapped_column(SHA256)  # of the bytes that were sent, which may have been compressed
    # what the device sent last, uncompressed; null: it has withdrawn
    sha256: Mapped[str | None] = mapped_column(SHA256, index=True)
    size: Mapped[int | None]
    examples: Mapped[int]
    class_counts: Mapped[list[int] | None] = mapped_column(JSON)
    received_at: Mapped[float]
    changed_at: Mapped[float | None]  # since when a change waits; null: the newest version has it as it is
    # the publication that takes the change now, and what it takes; null: none, or (of the second) nothing any more
    round_id: Mapped[int | None] = mapped_column(ForeignKey("rounds.id"))
    taken_sha256: Mapped[str | None] = mapped_column(SHA256)
    taken_update_id: Mapped[str | None] = mapped_column(NAME)  # that brought the change; null: an operator's
    # what the newest version has of it, and the version since which; null: nothing
    published_sha256: Mapped[str | None] = mapped_column(SHA256)
    published_version: Mapped[int | None]

    device: Mapped[DeviceRow | None] = relationship(lazy="joined")


class MaskedContributionRow(Base):
    """What a device has in the sums of a continuous federation whose batches are added by secure sums.

    The server knows which batch the device was in last, and not with what: an empty sum says as much as a full one.
    """

    __tablename__ = "masked_contributions"
    __table_args__ = (Index("ix_masked_contributions_federation_id_changed_at", "federation_id", "changed_at"),)

    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id"), primary_key=True)
    federation_id: Mapped[int] = mapped_column(ForeignKey("federations.id"))
    batch: Mapped[str] = mapped_column(SHA256)  # `attempt` of the last published one that has it; empty: none has
    version: Mapped[int | None]  # that the batch made
    changed_at: Mapped[float | None]  # since when the device says that it has other sums; null: it does not
    leaving_at: Mapped[float | None]  # since when the sums are to be collected anew without it; null: they are not

    device: Mapped[DeviceRow] = relationship(lazy="joined")


class RolloutRow(Base):
    """The staged release of a model version, as `federation.rounds.rollout.Rollout`."""

    __tablename__ = "rollouts"
    __table_args__ = (UniqueConstraint("federation_id", "number"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    federation_id: Mapped[int] = mapped_column(ForeignKey("federations.id"))
    number: Mapped[int]
    version_id: Mapped[int] = mapped_column(ForeignKey("model_versions.id"))
    settings: Mapped[dict[str, Any]] = mapped_column(JSON)  # as they were at its start: waves do not move under it
    serial: Mapped[int] = mapped_column(index=True)  # of the order that it last changed; rises over all rollouts
    phase: Mapped[str] = mapped_column(String(16), index=True)
    wave: Mapped[int]  # 0 is the first
    wave_started_at: Mapped[float]
    members: Mapped[int]  # devices of the wave, and what they have answered; see RolloutDeviceRow
    successes: Mapped[int]
    failures: Mapped[int]
    reason: Mapped[str] = mapped_column(Text)
    last_checked_device_id: Mapped[int]  # id of the last device that was asked whether it belongs to the wave
    # devices with a place below it belong to the wave, in millionths
    reach: Mapped[int] = mapped_column(default=0, server_default="0")
    # the operator's reason to release it whatever was measured; '': its measure counts
    forced: Mapped[str] = mapped_column(Text, default="", server_default="")
    started_at: Mapped[float]
    ended_at: Mapped[float | None]

    version: Mapped[ModelVersionRow] = relationship(lazy="joined")


class RolloutDeviceRow(Base):
    """A device that a rollout gives its model to, and what it has answered."""

    __tablename__ = "rollout_devices"

    rollout_id: Mapped[int] = mapped_column(ForeignKey("rollouts.id"), primary_key=True)
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id"), primary_key=True)
    wave: Mapped[int]  # in which it was told
    answer: Mapped[str] = mapped_column(String(16))  # pending, adopted, kept, refused, failed, rolled_back
    score: Mapped[float | None]
    reason: Mapped[str] = mapped_column(Text)
    notified_at: Mapped[float]
    answered_at: Mapped[float | None]

    device: Mapped[DeviceRow] = relationship(lazy="joined")


class AdoptionRow(Base):
    """What a device has found about a model that it might have used: its own of a round, or the one that came of it."""

    __tablename__ = "adoptions"
    __table_args__ = (
        UniqueConstraint("device_id", "round_number", "source"),
        Index("ix_adoptions_federation_id_round_number", "federation_id", "round_number"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    federation_id: Mapped[int] = mapped_column(ForeignKey("federations.id"))
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id"))
    round_number: Mapped[int]
    source: Mapped[str] = mapped_column(String(16))  # personalized, global
    answer: Mapped[str] = mapped_column(String(16))  # adopted, kept, refused, failed, undecided
    score: Mapped[float | None]  # the primary metric of the plan's task, on the device's holdout
    # that of the task's trivial answer, called as in 0.2.0, which knew no other; null: the holdout cannot tell
    trivial: Mapped[float | None] = mapped_column("most_frequent")
    reason: Mapped[str] = mapped_column(Text)
    recorded_at: Mapped[float]


class MetricRow(Base):
    """One figure that a client reported about one round."""

    __tablename__ = "metrics"
    __table_args__ = (UniqueConstraint("federation_id", "round_number", "device_id", "name"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    federation_id: Mapped[int] = mapped_column(ForeignKey("federations.id"))
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id"))
    round_number: Mapped[int]
    name: Mapped[str] = mapped_column(NAME)
    value: Mapped[float]
    recorded_at: Mapped[float]

    device: Mapped[DeviceRow] = relationship(lazy="joined")


class EventRow(Base):
    """What happened, for the operator and for SSE; the id is SSE's event id.

    Announcements carry the id of their federation's newest event as their serial, below which devices take none:
    whoever deletes old events leaves the newest of each federation.
    """

    __tablename__ = "events"
    __table_args__ = (Index("ix_events_federation_id_id", "federation_id", "id"), {"sqlite_autoincrement": True})

    id: Mapped[int] = mapped_column(primary_key=True)
    federation_id: Mapped[int] = mapped_column(ForeignKey("federations.id"))
    kind: Mapped[str] = mapped_column(String(32))
    round_number: Mapped[int]
    device: Mapped[str] = mapped_column(NAME, info={NAMES_A_DEVICE: True})
    detail: Mapped[str] = mapped_column(Text)
    created_at: Mapped[float]


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
    """The one row: which ledger this database's ends of access are in, and the number of the newest one."""

    __tablename__ = "ledger"

    id: Mapped[int] = mapped_column(primary_key=True)
    ledger: Mapped[str | None] = mapped_column(String(32))  # null: not begun yet
    number: Mapped[int] = mapped_column(SIZE)


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


class LeaseRow(Base):
    """Which server process drives a federation, and until when by the database's clock (see `leases`)."""

    __tablename__ = "leases"

    federation_id: Mapped[int] = mapped_column(ForeignKey("federations.id"), primary_key=True)
    holder: Mapped[str] = mapped_column(String(128))
    expires_at: Mapped[float]
    notifications: Mapped[int] = mapped_column(BigInteger)  # of what other processes did: the holder must act on it


class AuditRow(Base):
    """Who did what (see `aggregator_api.db.audit`); triggers refuse to change or delete an entry."""

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
