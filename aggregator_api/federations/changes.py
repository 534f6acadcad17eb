"""An operator's changes to a running federation: the settings of its rounds, and its models' names."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, TypeVar

from pydantic import Field
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from aggregator_api.core.errors import ConflictError, NotFoundError, UnprocessableError
from aggregator_api.federations.initial_state import check_rollout, check_sums
from aggregator_api.federations.service import FederationChanges, get_federation
from aggregator_api.rollouts import promotion, transitions
from aggregator_api.rollouts.service import Override
from aggregator_api.rounds.coordinator import Coordinator
from aggregator_api.storage.db import repositories
from aggregator_api.storage.db.database import Database
from aggregator_api.storage.db.models import FederationRow, ModelAliasRow
from federation.errors import SettingsError
from federation.method import Method
from federation.plan import (
    PromotionSettings,
    PublicationSettings,
    RolloutSettings,
    RoundSettings,
    live_incompatibility,
)
from federation.privacy.differential_privacy import check_private
from federation.rounds.server_round import Resumed

ALIASES = 32
"""Names of models that one federation may have."""
MOVED_BY_ROUNDS = ("latest", "stable", "previous")
MOVED_BY_ROLLOUTS = ("released", "canary")
Settings = TypeVar("Settings", RoundSettings, PublicationSettings, RolloutSettings, PromotionSettings)


class AliasTarget(Override):
    """Where an alias should point."""

    version: Annotated[int, Field(ge=0, le=2**31 - 1)]


class SettingsService:
    """Changes the settings of a federation's rounds and rollouts."""

    def __init__(self, database: Database, coordinator: Coordinator, clock: Callable[[], float]) -> None:
        self._database = database
        self._coordinator = coordinator
        self._clock = clock

    def change(self, name: str, wanted: FederationChanges) -> None:
        """Change the given settings.

        Those of rounds hold for the open round too, except whom it has invited; those of rollouts from the next one on.

        Raises:
            ConflictError: if the federation has ended, more rounds have begun than there should be, or a rollout is
                under way that could not continue.
            UnprocessableError: if the settings contradict each other.
        """
        with self._coordinator.lock:
            with self._database.write() as session:
                row = get_federation(session, name)
                plan = row.parsed_plan
                rounds, rollout = (
                    _merge_settings(plan.rounds, wanted.rounds),
                    _merge_settings(plan.rollout, wanted.rollout),
                )
                if "rounds" in wanted.model_fields_set:
                    contract = self._coordinator.contract(row)
                    _check(row, contract.method, rounds, begun=0 if contract.sum_method else _begun(session, row))
                if "rollout" in wanted.model_fields_set:
                    _check_rollout(session, row, self._coordinator.contract(row).method, rollout)
                others = {
                    "publication": _merge_settings(plan.publication, wanted.publication),
                    "promotion": _merge_settings(plan.promotion, wanted.promotion),
                }
                changed = plan.model_copy(update={"rounds": rounds, "rollout": rollout, **others})
                if obstacle := live_incompatibility(changed):
                    raise UnprocessableError(obstacle)
                check_sums(changed, self._coordinator.contract(row).method)
                row.plan = changed.model_dump(mode="json")
                row.revision += 1
                if "deadline_s" in wanted.rounds.model_fields_set:
                    _move_deadline(session, row, rounds.deadline_s)
                repositories.journal(session, row, "federation.changed", detail=_in_words(wanted))
                session.flush()
                transitions.start_next(session, row, self._clock())
                # the same event as after a pause: the open round is looked at with the new settings
                result = self._coordinator.transition(session, row, Resumed()) if row.status == "running" else None
            if result is not None:
                self._coordinator.execute(name, result.actions)
            self._coordinator.advance(name)


class AliasService:
    """Moves and removes the names of a federation's model versions."""

    def __init__(self, database: Database, coordinator: Coordinator) -> None:
        self._database = database
        self._coordinator = coordinator

    def move(self, name: str, alias: str, version: int, force: str = "") -> None:
        """Let an alias name another version; the next round starts from `latest`.

        A new name is made freely; one that is there moves if the measure allows it, or for the reason `force`.

        Raises:
            NotFoundError: if there is no such version.
            ConflictError: if the measure does not allow it, `latest` is moved while a round is open, rounds or rollouts
                move the alias, or there are too many.
        """
        with self._coordinator.lock:
            with self._database.write() as session:
                federation = get_federation(session, name)
                row = repositories.version_of(session, federation, version)
                _refuse_alias_of_rollouts(federation, alias)
                if _is_new(session, federation, alias) and _count(session, federation) >= ALIASES:
                    raise ConflictError(f"federation {name!r} has {ALIASES} aliases, the maximum; remove one first")
                if alias == "latest":
                    _refuse_open_round(session, federation)
                promotion.move_by_operator(session, federation, alias, row, force)
            if alias == "latest":
                self._coordinator.announce(name)

    def remove(self, name: str, alias: str) -> None:
        """Forget an alias; its version stays.

        Raises:
            NotFoundError: if there is no such alias.
            ConflictError: if it is one that rounds or rollouts move.
        """
        if alias in MOVED_BY_ROUNDS:
            raise ConflictError(f"the server moves the alias {alias!r}; it cannot be removed")
        with self._database.write() as session:
            federation = get_federation(session, name)
            _refuse_alias_of_rollouts(federation, alias)
            row = session.get(ModelAliasRow, (federation.id, alias))
            if row is None:
                raise NotFoundError(f"federation {name!r} has no alias {alias!r}")
            session.delete(row)
            repositories.journal(session, federation, "model.alias", detail=f"{alias} removed")


def moved_by_server(federation: FederationRow) -> tuple[str, ...]:
    """Return the aliases that the server moves, which can't be removed."""
    return (*MOVED_BY_ROUNDS, *(MOVED_BY_ROLLOUTS if transitions.settings_of(federation).used else ()))


def _merge_settings(present: Settings, wanted: Settings) -> Settings:
    return present.model_copy(update={field: getattr(wanted, field) for field in wanted.model_fields_set})


def _in_words(wanted: FederationChanges) -> str:
    """List the changed settings; settings of rounds have bare names."""
    changed = [f"{field} = {getattr(wanted.rounds, field)}" for field in sorted(wanted.rounds.model_fields_set)]
    for name in ("publication", "rollout", "promotion"):
        settings = getattr(wanted, name)
        changed += [f"{name}.{field} = {getattr(settings, field)}" for field in sorted(settings.model_fields_set)]
    return ", ".join(changed)


def _check_rollout(session: Session, row: FederationRow, method: Method, rollout: RolloutSettings) -> None:
    check_rollout(method, rollout)
    if not rollout.used and (open_one := transitions.under_way(session, row)) is not None:
        raise ConflictError(f"rollout {open_one.number} is {open_one.phase}; wait until it has ended, or halt it")


def _begun(session: Session, row: FederationRow) -> int:
    """Count the rounds that were published, and the open one."""
    return repositories.published_rounds(session, row) + (repositories.open_round(session, row) is not None)


def _check(row: FederationRow, method: Method, rounds: RoundSettings, *, begun: int) -> None:
    if row.status in ("finished", "stopped"):
        raise ConflictError(f"federation {row.name!r} is {row.status}; its rounds can no longer be changed")
    if rounds.rounds < begun:
        raise ConflictError(f"rounds.rounds: {begun} rounds were published or are open, so {rounds.rounds} is too few")
    try:
        check_private(method, rounds)
    except SettingsError as error:
        raise UnprocessableError(str(error)) from error
    if rounds.clients_per_round is None:
        return
    invited = math.ceil(rounds.clients_per_round * rounds.over_selection)
    if rounds.minimum_clients > invited:
        raise UnprocessableError(
            f"rounds.minimum_clients: {invited} invited devices can never send {rounds.minimum_clients} updates"
        )


def _move_deadline(session: Session, federation: FederationRow, deadline_s: float | None) -> None:
    row = repositories.open_round(session, federation)
    if row is not None:
        row.deadline_at = None if deadline_s is None else row.opened_at + deadline_s


def _refuse_open_round(session: Session, federation: FederationRow) -> None:
    if repositories.open_round(session, federation) is not None:
        raise ConflictError(
            "a round is open, and its result will be `latest`; wait until it ends, or stop the federation"
        )


def _refuse_alias_of_rollouts(federation: FederationRow, alias: str) -> None:
    if alias in MOVED_BY_ROLLOUTS and transitions.settings_of(federation).used:
        raise ConflictError(f"rollouts move the alias {alias!r}; start one, or halt one")


def _is_new(session: Session, federation: FederationRow, alias: str) -> bool:
    return session.get(ModelAliasRow, (federation.id, alias)) is None


def _count(session: Session, federation: FederationRow) -> int:
    found = session.scalar(select(func.count()).where(ModelAliasRow.federation_id == federation.id))
    return found or 0
