"""The slow parts of a round, outside the coordinator's lock: clients' own broadcasts, and the aggregate.

They read rows, compute, and hand the result to the coordinator, which checks that it is still wanted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from threading import Event
from typing import Protocol

from sqlalchemy import select
from sqlalchemy.orm import Session

from aggregator_api.core.errors import ServerStoppingError
from aggregator_api.devices import contributions
from aggregator_api.operations.counts import AGGREGATION_SECONDS
from aggregator_api.rounds import secure_rounds
from aggregator_api.rounds.aggregation import Aggregate, StoredUpdate
from aggregator_api.rounds.aggregation_executor import AggregationExecutor
from aggregator_api.rounds.updates.contract import Contract
from aggregator_api.rounds.updates.screening import claim_of, norm_history
from aggregator_api.storage.db import repositories
from aggregator_api.storage.db.database import Database
from aggregator_api.storage.db.models import Blob, FederationRow, RoundRow, UpdateRow
from aggregator_api.storage.outages import TEMPORARY, Outage, failures, outage_of
from federation.aggregation.screening import Screening, screen, shortfall
from federation.errors import ImpossibleSumError
from federation.protocol.messages import UpdateManifest
from federation.rounds.server_round import RoundPhase
from gaitway.logs import about

log = logging.getLogger(__name__)

RETRY_S = 1.0


class Owner(Protocol):
    """The owner of a job, which takes its result."""

    def contract(self, federation: FederationRow) -> Contract:
        """Return what a federation accepts."""

    def open_round(self, name: str, number: int, broadcasts: Mapping[str, Blob]) -> None:
        """Open the round whose broadcasts are written."""

    def publish(self, name: str, number: int, result: Aggregate, screening: Screening, seconds: float) -> None:
        """Make an aggregate of the updates that were found fit the federation's model."""

    def fail_round(self, name: str, number: int, reason: str, screening: Screening | None = None) -> None:
        """End a round whose work has failed, or of whose updates too few were found fit."""

    def reject_sum(self, name: str, number: int, reason: str) -> None:
        """End a round whose secure sum its devices cannot have added up to."""


class BackgroundJobs:
    """Runs in the one thread of a pool; each job may be submitted again after a crash.

    Once the server stops, jobs are left out or given up: rows still say what is to be done, and the next start does it.
    """

    def __init__(
        self,
        database: Database,
        executor: AggregationExecutor,
        pool: Executor,
        closing: Event,
        collect_garbage: Callable[[], None],
    ) -> None:
        self._database = database
        self._executor = executor
        self._pool = pool
        self._closing = closing
        self._collect_garbage = collect_garbage

    def personalize(self, owner: Owner, name: str, number: int) -> None:
        """Write what each client of the round's cohort gets, then have its owner open it."""
        self._submit(self._guard, owner, name, number, "the broadcasts cannot be written", self._personalize)

    def aggregate(self, owner: Owner, name: str, number: int) -> None:
        """Combine the updates of the round, then have its owner publish the result."""
        self._submit(self._guard, owner, name, number, "aggregation failed", self._aggregate)

    def publish(self, owner: Owner, name: str, number: int) -> None:
        """Make the version of a publication, then have its owner publish the result."""
        self._submit(self._guard, owner, name, number, "publication failed", self._publish)

    def collect_garbage(self) -> None:
        """Remove blobs that nothing refers to any more."""
        self._submit(self._collect_garbage)

    def _submit(self, work: Callable[..., None], *args: object) -> None:
        try:
            self._pool.submit(work, *args)
        except RuntimeError:  # what a pool raises that was shut down
            if not self._closing.is_set():
                raise

    def _guard(self, owner: Owner, name: str, number: int, what: str, work: Callable[[Owner, str, int], None]) -> None:
        try:
            self._retry_through_outages(TEMPORARY, what, partial(work, owner, name, number))
        except ServerStoppingError:
            log.info("given up until the next start", extra=about(federation=name, round=number))
        except Exception as error:
            # whatever a method or a disk does wrong must end this round, not the server
            log.exception(what, extra=about(federation=name, round=number))
            reason = f"{what}: {error}"
            self._retry_through_outages(
                (*TEMPORARY, Outage.FULL), what, partial(owner.fail_round, name, number, reason)
            )

    def _retry_through_outages(self, outages: Collection[Outage], what: str, work: Callable[[], None]) -> None:
        """Do it again until the database is back; a server that ends meanwhile does it at its next start."""
        while True:
            try:
                return work()
            except Exception as error:
                if outage_of(error) not in outages:
                    raise
                failures.report(what, error)
            if self._closing.wait(RETRY_S):
                return None

    def _personalize(self, owner: Owner, name: str, number: int) -> None:
        with self._database.read() as session:
            federation, row = _still(session, name, number, RoundPhase.ANNOUNCED)
            if row is None:
                return
            contract, state = owner.contract(federation), row.base_version.state_sha256
            cohort = [part.device.name for part in row.participations]
        owner.open_round(name, number, self._executor.broadcasts(contract, state, cohort))

    def _aggregate(self, owner: Owner, name: str, number: int) -> None:
        started = time.perf_counter()
        with self._database.read() as session:
            federation, row = _still(session, name, number, RoundPhase.AGGREGATING)
            if row is None:
                return
            contract, state = owner.contract(federation), row.base_version.state_sha256
            stored = {update.device.name: update for update in _of(session, row)}
            history = norm_history(session, federation.id, number)
            is_newest = row.base_version.version == repositories.published_rounds(session, federation)
            summed = secure_rounds.summed(session, row)
        if contract.kind.masked:
            if summed is not None:  # else it is not opened yet: whoever opens it comes back
                try:
                    result = self._executor.add_up(contract, state, summed)
                except ImpossibleSumError as error:
                    owner.reject_sum(name, number, str(error))
                    return
                owner.publish(name, number, result, Screening(), _observed_since(started))
            return
        claims = {device: claim_of(update) for device, update in stored.items()}
        screening = screen(contract.plan.rounds, claims, history)
        if reason := shortfall(contract.plan.rounds, claims, screening):
            owner.fail_round(name, number, reason, screening)
            return
        result = self._executor.aggregate(contract, state, _used(stored, screening, number), is_newest=is_newest)
        owner.publish(name, number, result, screening, _observed_since(started))

    def _publish(self, owner: Owner, name: str, number: int) -> None:
        started = time.perf_counter()
        with self._database.read() as session:
            federation, row = _still(session, name, number, RoundPhase.AGGREGATING)
            if row is None:
                return
            contract, state = owner.contract(federation), row.base_version.state_sha256
            contributed = contributions.contributed(session, row)
        result = self._executor.publish(contract, state, contributed)
        owner.publish(name, number, result, Screening(result.capped, result.excluded), _observed_since(started))


def _observed_since(started: float) -> float:
    """Return the seconds since then, and count them."""
    seconds = time.perf_counter() - started
    AGGREGATION_SECONDS.observe(seconds)
    return seconds


def _still(session: Session, name: str, number: int, phase: RoundPhase) -> tuple[FederationRow, RoundRow | None]:
    """Return the round, or None if the operator has stopped it meanwhile."""
    federation = session.scalars(select(FederationRow).where(FederationRow.name == name)).one()
    row = repositories.open_round(session, federation)
    return federation, row if row is not None and (row.number, row.phase) == (number, phase) else None


def _of(session: Session, row: RoundRow) -> Sequence[UpdateRow]:
    return session.scalars(select(UpdateRow).where(UpdateRow.round_id == row.id)).all()


def _used(stored: Mapping[str, UpdateRow], screening: Screening, number: int) -> list[StoredUpdate]:
    return [
        StoredUpdate(
            UpdateManifest.model_validate(update.manifest), number - update.base_round, screening.capped.get(device)
        )
        for device, update in stored.items()
        if device not in screening.excluded
    ]
