"""Tables of the staged release of model versions, and devices' results."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, ForeignKey, Index, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column, relationship

from aggregator_api.storage.db.models.base import NAME, Base
from aggregator_api.storage.db.models.federations import DeviceRow, ModelVersionRow


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
    trivial: Mapped[float | None]  # that of the task's trivial answer; null: the holdout cannot tell
    reason: Mapped[str] = mapped_column(Text)
    recorded_at: Mapped[float]


class ScoreRow(Base):
    """The sums of one figure over the devices that reported it of one round; see `rollouts.scores`."""

    __tablename__ = "scores"

    federation_id: Mapped[int] = mapped_column(ForeignKey("federations.id"), primary_key=True)
    round_number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    name: Mapped[str] = mapped_column(NAME, primary_key=True)
    devices: Mapped[int]
    total: Mapped[float]
    squares: Mapped[float]
    # of the devices whose holdout can tell whether a model works
    measured: Mapped[int]
    measured_total: Mapped[float]
    trivial: Mapped[float]  # sum of the trivial answer's scores there
    working: Mapped[int]  # of them found that the model works
