"""Drives `federation.server_round` for every federation: rows first, then the effect.

Every transition is committed before anything is announced, aggregated or acknowledged, and every effect can be made
again from the rows. So a server that was killed goes on with `recover`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor

from sqlalchemy import select
from sqlalchemy.orm import Session

from aggregator_api import records
from aggregator_api.aggregation import Aggregate, StoredUpdate, aggregate
from aggregator_api.announcing import announcement
from aggregator_api.blobs import BlobStore
from aggregator_api.contract import Contract, read_contract
from aggregator_api.database import Database
from aggregator_api.tables import FederationRow, ModelVersionRow, RoundRow, UpdateRow
from aggregator_api.transport import Publisher
from federation.protocol import topics
from federation.protocol.messages import UpdateManifest, write
from federation.server_round import (
    Action,
    Aggregated,
    AggregationFailed,
    DeadlinePassed,
    Event,
    Opened,
    RoundPhase,
    Step,
    sample_cohort,
    step,
)

log = logging.getLogger("aggregator_api")


class Coordinator:
    """The rounds of every federation of one server process."""

    def __init__(
        self,
        database: Database,
        blobs: BlobStore,
        publisher: Publisher,
        executor: Executor,
        *,
        chunk_bytes: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._publisher = publisher
        self._executor = executor
        self._chunk_bytes = chunk_bytes
        self._clock = clock
        self._contracts: dict[str, Contract] = {}
        self.lock = threading.RLock()
        """Held over every transition and its effects, so that they happen in one order."""

    def contract(self, federation: FederationRow) -> Contract:
        """Return what a federation accepts; it never changes."""
        if federation.name not in self._contracts:
            self._contracts[federation.name] = read_contract(federation)
        return self._contracts[federation.name]

    def recover(self) -> None:
        """Continue every federation where its rows say that it stands."""
        for name in self._names():
            with self.lock:
                phase = self._phase(name)
                if phase == RoundPhase.ANNOUNCED:
                    self.feed(name, Opened())
                elif phase == RoundPhase.AGGREGATING:
                    self.act(name, (Action.AGGREGATE,))
                else:
                    self.go_on(name)

    def announce_all(self) -> None:
        """Publish every announcement again, after the broker may have lost them."""
        for name in self._names():
            self.announce(name)

    def announce(self, name: str) -> None:
        """Publish a federation's retained announcement."""
        with self.lock, self._database.read() as session:
            message = announcement(session, _row(session, name), chunk_bytes=self._chunk_bytes)
            self._publisher.publish(topics.announce(name), write(message), retain=True)

    def feed(self, name: str, event: Event) -> None:
        """Apply an event to the open round, if there is one, and act on it."""
        with self.lock:
            with self._database.write() as session:
                federation = _row(session, name)
                result = self.transition(session, federation, event)
            if result is not None:
                self.act(name, result.actions)

    def transition(self, session: Session, federation: FederationRow, event: Event) -> Step | None:
        """Apply an event inside the caller's transaction; the caller acts after the commit, still under the lock."""
        row = records.open_round(session, federation)
        if row is None:
            return None
        result = step(self.contract(federation).plan.rounds, records.read_round(row), event)
        records.write_round(session, federation, row, result.round)
        return result

    def act(self, name: str, actions: Iterable[Action]) -> None:
        """Do what a committed transition asks for."""
        for action in actions:
            match action:
                case Action.ANNOUNCE:
                    self.announce(name)
                case Action.AGGREGATE:
                    self.announce(name)
                    self._executor.submit(self._aggregate, name)
                case Action.PUBLISH | Action.FAIL:
                    self.go_on(name)

    def go_on(self, name: str) -> None:
        """Open the next round if enough devices are online, finish after the last, and say where we are."""
        if not self._try_open(name):
            self.announce(name)

    def devices_changed(self, name: str) -> None:
        """Open the next round if it waited for devices; an open one waits for its deadline, not for a last will."""
        self._try_open(name)

    def _try_open(self, name: str) -> bool:
        with self.lock:
            with self._database.write() as session:
                opened = self._open_or_finish(session, _row(session, name))
            if opened:
                self.feed(name, Opened())
            return opened

    def tick(self) -> None:
        """Tell the rounds whose deadline has passed."""
        late = (
            select(FederationRow.name)
            .join(RoundRow, RoundRow.federation_id == FederationRow.id)
            .where(
                RoundRow.phase == RoundPhase.COLLECTING,
                RoundRow.deadline_passed.is_(False),
                RoundRow.deadline_at <= self._clock(),
            )
        )
        with self._database.read() as session:
            names = list(session.scalars(late))
        for name in names:
            self.feed(name, DeadlinePassed())

    def _names(self) -> list[str]:
        with self._database.read() as session:
            return list(session.scalars(select(FederationRow.name).order_by(FederationRow.id)))

    def _phase(self, name: str) -> str | None:
        with self._database.read() as session:
            row = records.open_round(session, _row(session, name))
            return row.phase if row else None

    def _open_or_finish(self, session: Session, federation: FederationRow) -> bool:
        if federation.status != "running" or records.open_round(session, federation) is not None:
            return False
        plan = self.contract(federation).plan
        number = records.last_number(session, federation) + 1
        if number > plan.rounds.rounds:
            federation.status = "finished"
            records.journal(session, federation, "federation.finished", round_number=number - 1)
            return False
        online = records.online_devices(session, federation)
        if len(online) < max(plan.rounds.minimum_clients, plan.rounds.clients_per_round or 1):
            return False
        cohort = sample_cohort(plan.rounds, online, seed=plan.task.seed, round_number=number)
        deadline = self._clock() + plan.rounds.deadline_s if plan.rounds.deadline_s else None
        records.add_round(session, federation, number, [online[name] for name in cohort], deadline)
        return True

    def _aggregate(self, name: str) -> None:
        """Aggregate the open round; runs in the aggregation thread, and again after a restart."""
        started = time.perf_counter()
        try:
            with self._database.read() as session:
                federation = _row(session, name)
                row = records.open_round(session, federation)
                if row is None or row.phase != RoundPhase.AGGREGATING:
                    return  # the operator stopped it meanwhile
                number, state, updates = row.number, row.base_version.state_sha256, _updates(session, row)
                contract = self.contract(federation)
            result = aggregate(contract, self._blobs, state, updates)
            self._publish(name, number, result, time.perf_counter() - started)
        except Exception as error:
            # whatever a method or a disk does wrong must end this round, not the server
            log.exception("aggregation failed federation=%s", name)
            self._give_up(name, f"aggregation failed: {error}")

    def _publish(self, name: str, number: int, result: Aggregate, seconds: float) -> None:
        with self.lock:
            with self._database.write() as session:
                federation = _row(session, name)
                row = records.open_round(session, federation)
                if row is None or (row.number, row.phase) != (number, RoundPhase.AGGREGATING):
                    return  # stopped while it was aggregated: the result is not used
                self._add_version(session, federation, number, result)
                step_ = self.transition(session, federation, Aggregated())
                detail = f"{seconds:.2f} s, model {result.broadcast.sha256[:12]}"
                records.journal(session, federation, "model.published", round_number=number, detail=detail)
            if step_ is not None:
                self.act(name, step_.actions)

    def _add_version(self, session: Session, federation: FederationRow, number: int, result: Aggregate) -> None:
        previous = records.current_version(session, federation)
        version = ModelVersionRow(
            federation_id=federation.id,
            version=previous.version + 1,
            round_number=number,
            state_sha256=result.state.sha256,
            broadcast_sha256=result.broadcast.sha256,
            broadcast_size=result.broadcast.size,
            created_at=self._clock(),
        )
        session.add(version)
        session.flush()
        records.point_alias(session, federation, "previous", previous.id)
        records.point_alias(session, federation, "stable", version.id)

    def _give_up(self, name: str, reason: str) -> None:
        with self.lock:
            if self._phase(name) == RoundPhase.AGGREGATING:
                self.feed(name, AggregationFailed(reason))


def _row(session: Session, name: str) -> FederationRow:
    return session.scalars(select(FederationRow).where(FederationRow.name == name)).one()


def _updates(session: Session, row: RoundRow) -> list[StoredUpdate]:
    stored = session.scalars(select(UpdateRow).where(UpdateRow.round_id == row.id))
    return [
        StoredUpdate(UpdateManifest.model_validate(update.manifest), row.number - update.base_round)
        for update in stored
    ]
