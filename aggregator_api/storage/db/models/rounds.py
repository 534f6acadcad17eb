"""Rounds: who took part, what was sent, and what clients reported."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, ForeignKey, Index, String, Text, UniqueConstraint
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
