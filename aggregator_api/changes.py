"""What an operator may change in a living federation: how its rounds are staffed and closed, and its models' names."""

from __future__ import annotations

import math

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from aggregator_api import records
from aggregator_api.errors import ConflictError, NotFoundError, UnprocessableError
from aggregator_api.runtime import Runtime
from aggregator_api.service import named
from aggregator_api.tables import FederationRow, ModelAliasRow, ModelVersionRow
from aggregator_api.views import FederationChanges
from federation.plan import Plan, RoundSettings
from federation.server_round import Resumed

ALIASES = 32
"""Names of models that one federation may have."""
MOVED_BY_ROUNDS = ("stable", "previous")


def change(runtime: Runtime, name: str, wanted: FederationChanges) -> None:
    """Change the given round settings; they hold for the open round too, except whom it has invited.

    Raises:
        ConflictError: if the federation has ended, or more rounds have begun than there should be.
        UnprocessableError: if the settings contradict each other.
    """
    coordinator = runtime.coordinator
    with coordinator.lock:
        with runtime.database.write() as session:
            row = named(session, name)
            if row.status in ("finished", "stopped"):
                raise ConflictError(f"federation {name!r} is {row.status}; nothing of it can be changed any more")
            plan = Plan.model_validate(row.plan)
            given = wanted.rounds.model_fields_set
            rounds = plan.rounds.model_copy(update={field: getattr(wanted.rounds, field) for field in given})
            _check(rounds, begun=records.last_number(session, row))
            row.plan = plan.model_copy(update={"rounds": rounds}).model_dump(mode="json")
            row.revision += 1
            if "deadline_s" in given:
                _move_deadline(session, row, rounds.deadline_s)
            detail = ", ".join(f"{field} = {getattr(rounds, field)}" for field in sorted(given))
            records.journal(session, row, "federation.changed", detail=detail)
            session.flush()
            # the same event as after a pause: the open round is looked at with the new settings
            result = coordinator.transition(session, row, Resumed()) if row.status == "running" else None
        if result is not None:
            coordinator.act(name, result.actions)
        coordinator.go_on(name)


def move_alias(runtime: Runtime, name: str, alias: str, version: int) -> None:
    """Let an alias name another version; moving `stable` makes that version the one that the next round starts from.

    Raises:
        NotFoundError: if there is no such version.
        ConflictError: if `stable` is moved while a round is open, or there are too many aliases.
    """
    coordinator = runtime.coordinator
    with coordinator.lock:
        with runtime.database.write() as session:
            federation = named(session, name)
            row = _version(session, federation, version)
            if alias == "stable":
                _move_stable(session, federation)
            elif _is_new(session, federation, alias) and _count(session, federation) >= ALIASES:
                raise ConflictError(f"federation {name!r} has {ALIASES} aliases, which is the most; remove one first")
            session.merge(ModelAliasRow(federation_id=federation.id, alias=alias, version_id=row.id))
            records.journal(session, federation, "model.alias", detail=f"{alias} = version {version}")
        if alias == "stable":
            coordinator.announce(name)


def remove_alias(runtime: Runtime, name: str, alias: str) -> None:
    """Forget an alias; its version stays.

    Raises:
        NotFoundError: if there is no such alias.
        ConflictError: if it is one that rounds move.
    """
    if alias in MOVED_BY_ROUNDS:
        raise ConflictError(f"every round moves the alias {alias!r}; it cannot be removed")
    with runtime.database.write() as session:
        federation = named(session, name)
        row = session.get(ModelAliasRow, (federation.id, alias))
        if row is None:
            raise NotFoundError(f"federation {name!r} has no alias {alias!r}")
        session.delete(row)
        records.journal(session, federation, "model.alias", detail=f"{alias} removed")


def _check(rounds: RoundSettings, *, begun: int) -> None:
    if rounds.rounds < begun:
        raise ConflictError(f"rounds.rounds: {begun} rounds have begun, so {rounds.rounds} are too few")
    if rounds.clients_per_round is None:
        return
    invited = math.ceil(rounds.clients_per_round * rounds.over_selection)
    if rounds.minimum_clients > invited:
        raise UnprocessableError(
            f"rounds.minimum_clients: {rounds.minimum_clients} updates can never come of {invited} invited devices"
        )


def _move_deadline(session: Session, federation: FederationRow, deadline_s: float | None) -> None:
    row = records.open_round(session, federation)
    if row is not None:
        row.deadline_at = None if deadline_s is None else row.opened_at + deadline_s


def _version(session: Session, federation: FederationRow, version: int) -> ModelVersionRow:
    row = session.scalar(
        select(ModelVersionRow).where(
            ModelVersionRow.federation_id == federation.id, ModelVersionRow.version == version
        )
    )
    if row is None:
        raise NotFoundError(f"federation {federation.name!r} has no model version {version}")
    return row


def _move_stable(session: Session, federation: FederationRow) -> None:
    if records.open_round(session, federation) is not None:
        raise ConflictError(
            "a round is open, and its result will be `stable`; wait until it has ended, or stop the federation"
        )
    present = records.current_version(session, federation)
    session.merge(ModelAliasRow(federation_id=federation.id, alias="previous", version_id=present.id))


def _is_new(session: Session, federation: FederationRow, alias: str) -> bool:
    return session.get(ModelAliasRow, (federation.id, alias)) is None


def _count(session: Session, federation: FederationRow) -> int:
    found = session.scalar(select(func.count()).where(ModelAliasRow.federation_id == federation.id))
    return found or 0
