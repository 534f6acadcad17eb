"""An operator's actions on federations: create, start, pause, stop, change."""

from __future__ import annotations

import secrets
import time
from typing import Annotated, Any
from uuid import uuid4

from pydantic import AfterValidator, ConfigDict, Field, model_validator
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from aggregator_api.core.errors import ConflictError, NotFoundError
from aggregator_api.federations import exports
from aggregator_api.federations.checkpoints import CheckpointService
from aggregator_api.federations.initial_state import (
    CheckpointStart,
    InitialState,
    StartingPoint,
    build_initial_state,
    with_model_options,
)
from aggregator_api.federations.programs import ProgramMaker
from aggregator_api.rounds.coordinator import Coordinator
from aggregator_api.rounds.updates.contract import write_schema
from aggregator_api.storage.blobs import BlobStore
from aggregator_api.storage.db import repositories
from aggregator_api.storage.db.database import Database
from aggregator_api.storage.db.models import Blob, FederationKind, FederationRow, RoundRow
from federation.plan import (
    Name,
    Plan,
    PromotionSettings,
    PublicationSettings,
    RolloutSettings,
    RoundSettings,
    Strict,
    live_incompatibility,
    with_packages,
)
from federation.protocol.messages import Sha256
from federation.rounds.server_round import Event, Paused, Resumed, Stopped

_FIXED = (frozenset(Plan.model_fields) | {"name", "plan"}) - {"rounds", "publication", "rollout", "promotion"}


def _live(plan: Plan) -> Plan:
    if obstacle := live_incompatibility(plan):
        raise ValueError(obstacle)
    return with_packages(_without_screening(plan))


def _without_screening(plan: Plan) -> Plan:
    """Switch off the two default rules about single updates unless they are requested.

    They would judge what a server with secure sums does not see.
    """
    if not FederationKind.of(plan.method, plan.secure.mode).masked:
        return plan
    defaults = {"norm_factor": None, "max_weight_ratio": None}
    off = {name: value for name, value in defaults.items() if name not in plan.rounds.model_fields_set}
    return plan.model_copy(update={"rounds": plan.rounds.model_copy(update=off)})


class VersionReference(Strict):
    """A model version of a federation of this server."""

    federation: Name
    version: int | None = Field(default=None, ge=0, le=2**53, description="none: the one that the alias latest names")


class CheckpointReference(Strict):
    """A checkpoint that was uploaded to this server."""

    checkpoint: Sha256 = Field(description="sha256 of its bytes, as POST /v1/checkpoints answers it")


class NewFederation(Strict):
    """A federation to create."""

    name: Name
    plan: Annotated[Plan, AfterValidator(_live)]
    start_from: VersionReference | CheckpointReference | None = Field(
        default=None,
        description="weights to start from, but for the head, such as those that a federation without labels "
        "(task masked_reconstruction) has made; none: they are drawn from the plan's seed",
    )


class FederationChanges(Strict):
    """Changes of a federation's settings of rounds, publication, rollouts and promotion; others stay as they are."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    rounds: RoundSettings = RoundSettings()
    publication: PublicationSettings = PublicationSettings()
    rollout: RolloutSettings = RolloutSettings()
    promotion: PromotionSettings = PromotionSettings()

    @model_validator(mode="before")
    @classmethod
    def _only_settings(cls, given: Any) -> Any:
        fixed = sorted(set(given) & _FIXED) if isinstance(given, dict) else []
        if fixed:
            raise ValueError(f"{', '.join(fixed)} cannot change, because devices rely on it; create another federation")
        if isinstance(given, dict) and not given:
            raise ValueError("nothing is changed; give settings of `rounds`, `publication`, `rollout` or `promotion`")
        return given


class FederationService:
    """Begins federations and steers them as their operators wish."""

    def __init__(
        self,
        database: Database,
        blobs: BlobStore,
        coordinator: Coordinator,
        programs: ProgramMaker,
        checkpoints: CheckpointService,
        *,
        max_model_bytes: int,
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._coordinator = coordinator
        self._programs = programs
        self._checkpoints = checkpoints
        self._max_model_bytes = max_model_bytes

    def create(self, new: NewFederation) -> None:
        """Make the initial model of a federation, store it, and announce that the federation waits for devices.

        Raises:
            UnprocessableError: if the plan contradicts itself, or what it is to start from has another model.
            UnavailableError: if ends without torch may join, and the server cannot make their model now.
            NotFoundError: if there is no such federation, version or checkpoint to start from.
            ConflictError: if there is a federation of that name, or the version was deleted.
        """
        new = new.model_copy(update={"plan": with_model_options(new.plan)})
        with self._database.read() as session:
            if repositories.find_federation(session, new.name) is not None:
                raise _exists(new.name)
            start = None if new.start_from is None else self._starting_point(session, new.start_from)
        initial = build_initial_state(new.plan, max_model_bytes=self._max_model_bytes, start=start)
        feature_model = self._blobs.put(_feature_model(new, initial)) if _has_feature_model(new.plan) else None
        state, broadcast = self._blobs.put(initial.state), self._blobs.put(initial.broadcast)
        try:
            with self._database.write() as session:
                row = _write(session, new, initial, state, broadcast, feature_model)
                row.program_state, row.program_note = self._programs.first_state(new.plan)
        except IntegrityError as error:
            raise _exists(new.name) from error  # another request was faster
        self._coordinator.created(new.name)
        self._programs.begin(new.name)

    def check(self, new: NewFederation) -> int:
        """Make everything of a federation but its rows, and return how many bytes its model has on the wire.

        Raises:
            UnprocessableError: if the plan contradicts itself.
            UnavailableError: if ends without torch may join, and the server has no exporter for their model.
            ConflictError: if there is a federation of that name.
        """
        if _has_feature_model(new.plan):
            exports.require_exporter()
        with self._database.read() as session:
            if repositories.find_federation(session, new.name) is not None:
                raise _exists(new.name)
            start = None if new.start_from is None else self._starting_point(session, new.start_from)
        plan = with_model_options(new.plan)
        return len(build_initial_state(plan, max_model_bytes=self._max_model_bytes, start=start).broadcast)

    def _starting_point(
        self, session: Session, start: VersionReference | CheckpointReference
    ) -> StartingPoint | CheckpointStart:
        if isinstance(start, CheckpointReference):
            found = self._checkpoints.get(start.checkpoint)
            return CheckpointStart(f"checkpoint {start.checkpoint[:12]}", found.tensors)
        return self._version(session, start)

    def _version(self, session: Session, version: VersionReference) -> StartingPoint:
        row = get_federation(session, version.federation)
        found = (
            repositories.current_version(session, row)
            if version.version is None
            else repositories.version_of(session, row, version.version)
        )
        words = f"version {found.version} of {row.name!r}"
        return StartingPoint(words, row.parsed_plan, self._blobs.read(found.state_sha256))

    def pause(self, name: str) -> None:
        """Let no further round begin or close; updates are still taken.

        Raises:
            ConflictError: unless the federation runs.
        """
        self._transition(name, "paused", ("running",), Paused())

    def resume(self, name: str) -> None:
        """Resume a paused federation.

        Raises:
            ConflictError: unless the federation is paused.
        """
        self._transition(name, "running", ("paused",), Resumed())

    def stop(self, name: str) -> None:
        """End a federation for good; the open round fails, the present model stays.

        Raises:
            ConflictError: if the federation has ended.
        """
        self._transition(name, "stopped", ("running", "paused"), Stopped("stopped by the operator"))

    def _transition(self, name: str, status: str, allowed: tuple[str, ...], event: Event) -> None:
        with self._coordinator.lock:
            with self._database.write() as session:
                row = get_federation(session, name)
                if row.status not in allowed:
                    raise ConflictError(
                        f"federation {name!r} is {row.status}; this needs one that is {' or '.join(allowed)}"
                    )
                row.status = status
                repositories.journal(
                    session, row, f"federation.{status}", round_number=repositories.last_number(session, row)
                )
                result = self._coordinator.transition(session, row, event)
            if result is not None:
                self._coordinator.execute(name, result.actions)
            self._coordinator.advance(name)


def unknown(name: str) -> NotFoundError:
    """Return the error for a federation that does not exist."""
    return NotFoundError(f"there is no federation {name[:80]!r}; GET /v1/federations lists them")


def get_federation(session: Session, name: str) -> FederationRow:
    """Return the federation of that name.

    Raises:
        NotFoundError: if there is none.
    """
    found = repositories.find_federation(session, name)
    if found is None:
        raise unknown(name)
    return found


def get_round(session: Session, name: str, number: int) -> RoundRow:
    """Return a federation's round of that number.

    Raises:
        NotFoundError: if there is no such federation, or no such round.
    """
    federation = get_federation(session, name)
    found = repositories.find_round(session, federation, number)
    if found is None:
        last = repositories.last_number(session, federation)
        raise NotFoundError(f"federation {name!r} has no round {number}; the latest is {last}")
    return found


def _has_feature_model(plan: Plan) -> bool:
    """Whether ends without torch may take part, which get the network below the head as ONNX."""
    return FederationKind.of(plan.method, plan.secure.mode).sums


def _feature_model(new: NewFederation, initial: InitialState) -> bytes:
    """Make the ONNX file that ends without torch compute embeddings with."""
    made = exports.checkpoint(new.plan, new.name, 0, initial.broadcast, {}, is_network=True)
    return exports.onnx(made)


def _write(
    session: Session,
    new: NewFederation,
    initial: InitialState,
    state: Blob,
    broadcast: Blob,
    feature_model: Blob | None,
) -> FederationRow:
    row = FederationRow(
        name=new.name,
        # servers that remember an earlier federation of this name by its revision must not take this one for it
        revision=secrets.randbits(30),
        instance=uuid4().hex,
        plan=new.plan.model_dump(mode="json"),
        upload_schema=write_schema(initial.upload_schema),
        sum_layout=initial.sum_layout and [list(segment) for segment in initial.sum_layout.segments],
        status="running",
        created_at=time.time(),
        feature_model_sha256=feature_model and feature_model.sha256,
        feature_model_size=feature_model and feature_model.size,
    )
    session.add(row)
    session.flush()
    repositories.add_version(session, row, 0, state, broadcast)
    origin = f", started from {initial.started_from}" if initial.started_from else ""
    repositories.journal(session, row, "federation.created", detail=f"model {broadcast.sha256[:12]}{origin}")
    return row


def _exists(name: str) -> ConflictError:
    return ConflictError(f"a federation {name!r} already exists; choose another name")
