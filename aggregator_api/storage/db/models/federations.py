"""Federations, their devices, and the model versions that came of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column, relationship

from aggregator_api.storage.db.models.base import NAME, SHA256, SIZE, Base
from federation.plan import Plan


class FederationKind(NamedTuple):
    """What a federation's devices upload, and how much of it the server sees; every module asks here."""

    sums: bool
    """Uploads are sums that replace a device's earlier ones, so versions follow changes instead of rounds."""
    masked: bool
    """The server learns only what many devices' uploads add up to."""

    @property
    def keeps_sums(self) -> bool:
        """Whether the server has each device's sums and replaces them; else it has only what a round adds up to."""
        return self.sums and not self.masked

    @classmethod
    def of(cls, method: Mapping[str, Any], secure_mode: str) -> FederationKind:
        """Return the kind of federation that a plan's method and `secure.mode` make."""
        from federation.methods import is_continuous  # loads torch, which commands about rows do without

        return cls(is_continuous(method), secure_mode != "off")


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
    # signed by the key that vouches for devices (secure.voucher); '': nothing was imported
    revoked_identities: Mapped[str] = mapped_column(Text, default="", server_default="")

    @property
    def parsed_plan(self) -> Plan:
        """The plan, validated once for what this row holds."""
        text, plan = cast("tuple[object, Plan | None]", self.__dict__.get("_parsed", (None, None)))
        if plan is None or text is not self.plan:
            plan = Plan.model_validate(self.plan)
            self.__dict__["_parsed"] = (self.plan, plan)
        return plan

    @property
    def kind(self) -> FederationKind:
        """Whether devices upload sums, and whether the server sees them."""
        return FederationKind.of(self.plan["method"], self.plan.get("secure", {}).get("mode", "off"))


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
    # in a row, to which it was invited and did not answer; see devices.presence
    missed_rounds: Mapped[int] = mapped_column(default=0, server_default="0")
    left_out_until: Mapped[float | None]  # no round draws it before; null: it may be drawn
    # its last word about a model, see AdoptionRow; null: it has not judged any
    adoption: Mapped[str | None] = mapped_column(String(16))
    adoption_reason: Mapped[str] = mapped_column(Text, default="", server_default="")
    # why it refuses the plan, see devices.suspension; '': it doesn't
    plan_refusal: Mapped[str] = mapped_column(Text, default="", server_default="")
    # sha256 of the model that it can't use, and why, see rounds.model_refusals; '': it can use all
    refused_model: Mapped[str] = mapped_column(SHA256, default="", server_default="")
    model_refusal: Mapped[str] = mapped_column(Text, default="", server_default="")
    # signed by the key that vouches for devices, see devices.vouching; '': nobody vouches for it
    voucher: Mapped[str] = mapped_column(Text, default="", server_default="")
    voucher_expires_at: Mapped[int | None] = mapped_column(BigInteger)

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
    # sums of what its devices reported of their models' gains (federation.rounds.gains); null: an earlier version's
    gains: Mapped[dict[str, list[int]] | None] = mapped_column(JSON)
    withdrawn: Mapped[str] = mapped_column(Text, default="", server_default="")  # why; '': it was not


class ModelAliasRow(Base):
    """A movable name of a model version: latest, stable, previous."""

    __tablename__ = "model_aliases"

    federation_id: Mapped[int] = mapped_column(ForeignKey("federations.id"), primary_key=True)
    alias: Mapped[str] = mapped_column(String(16), primary_key=True)
    version_id: Mapped[int] = mapped_column(ForeignKey("model_versions.id"))
    note: Mapped[str] = mapped_column(Text, default="", server_default="")  # why it was moved there
    # the newest version when an operator moved it: the server itself moves it only beyond
    held_at: Mapped[int] = mapped_column(default=0, server_default="0")
