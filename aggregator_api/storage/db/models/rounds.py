"""Rounds with their updates and metrics, and what devices have in sums."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, ForeignKey, Index, LargeBinary, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column, relationship

from aggregator_api.storage.db.models.base import NAME, SHA256, SIZE, Base
from aggregator_api.storage.db.models.federations import DeviceRow, ModelVersionRow


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
    __table_args__ = (Index("ix_participations_round_id_broadcast_size", "round_id", "broadcast_size"),)

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
        Index("ix_updates_round_id_size", "round_id", "size"),  # what a round cost is read from the index alone
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
    # L2 norm of each group of tensors (see federation.aggregation.screening); null if it was not measured
    norms: Mapped[dict[str, float] | None] = mapped_column(JSON)
    counted_examples: Mapped[int | None]  # that it counts with in its round, where it claims more
    received_at: Mapped[float]

    device: Mapped[DeviceRow] = relationship(lazy="joined")


class MetricRow(Base):
    """One figure that a client reported about one round."""

    __tablename__ = "metrics"
    __table_args__ = (
        UniqueConstraint("federation_id", "round_number", "device_id", "name"),
        Index("ix_metrics_federation_id_round_number_name_value", "federation_id", "round_number", "name", "value"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    federation_id: Mapped[int] = mapped_column(ForeignKey("federations.id"))
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id"))
    round_number: Mapped[int]
    name: Mapped[str] = mapped_column(NAME)
    value: Mapped[float]
    recorded_at: Mapped[float]

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
    # the blob of what all members are told alike in this stage, where it is long
    shared_sha256: Mapped[str | None] = mapped_column(SHA256)
    shared_size: Mapped[int | None] = mapped_column(SIZE)
    # why it failed, by device (`federation.secure_sums.retries.SumFinding`), until the round has ended; empty: not
    finding: Mapped[str] = mapped_column(Text, default="", server_default="")
    # what the round is of and, once it has ended, the rounds after it (`retries.Retry`, by ids); empty: of everybody
    retry: Mapped[str] = mapped_column(Text, default="", server_default="")


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
    # of whole sums: the number that came with its keys, which rises when they change; 0: none
    sequence: Mapped[int] = mapped_column(default=0, server_default="0")

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
    """Which version has a device's masked sums in a continuous federation, and by which number; not what they are."""

    __tablename__ = "masked_contributions"
    __table_args__ = (Index("ix_masked_contributions_federation_id_version", "federation_id", "version"),)

    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id"), primary_key=True)
    federation_id: Mapped[int] = mapped_column(ForeignKey("federations.id"))
    version: Mapped[int | None]  # the newest, if its sum has the device; else null
    # the number of the sums that this version has, and of those that it would add now, by its status; 0: others
    sequence: Mapped[int] = mapped_column(default=0, server_default="0")
    reported: Mapped[int] = mapped_column(default=0, server_default="0")
    # the number of the sums that it added to an impossible sum that was seen; 0: none, or a version has it since
    seen: Mapped[int] = mapped_column(default=0, server_default="0")

    device: Mapped[DeviceRow] = relationship(lazy="joined")
