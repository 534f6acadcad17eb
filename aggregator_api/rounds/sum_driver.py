"""Drives the secure sums of open rounds: messages and deadlines in, stages and sums out; rows first, then the effect.

A round whose updates are added by a secure sum collects its devices' keys as it collects updates elsewhere. When it
closes, the stages that remain are carried out while it is `aggregating`; then the sum alone is made the next model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from sqlalchemy import select
from sqlalchemy.orm import Session

from aggregator_api.core.errors import UpdateRefusedError
from aggregator_api.devices import contributions
from aggregator_api.rounds import secure_rounds
from aggregator_api.rounds.updates.context import DeviceInfo, FederationInfo
from aggregator_api.rounds.updates.contract import Contract
from aggregator_api.storage.db import epochs, repositories
from aggregator_api.storage.db.database import Database
from aggregator_api.storage.db.models import Blob, FederationRow, RoundRow, SecureSumRow
from federation.aggregation.screening import Screening
from federation.errors import WireError
from federation.protocol.messages import UpdateManifest
from federation.rounds.server_round import RoundPhase
from federation.secure_sums import server
from federation.secure_sums.messages import StageClosed, SumRequest, read
from federation.secure_sums.retries import SumFinding
from federation.secure_sums.server import ServerStage, ServerState


class SumOwner(Protocol):
    """Who drives the rounds, and does what follows from a stage that has ended; its lock is held."""

    def contract(self, federation: FederationRow) -> Contract:
        """Return what a federation accepts."""

    def announce(self, name: str) -> None:
        """Say where a federation stands, and to each device what is asked of it."""

    def add_up(self, name: str) -> None:
        """Make the next model of the round's sum, which is opened."""

    def fail_round(self, name: str, number: int, reason: str, screening: Screening | None = None) -> None:
        """End the round, whose sum has failed; of devices that are at fault `screening` says why."""


class SumDriver:
    """The secure sums of every federation of one server process."""

    def __init__(
        self, database: Database, owner: SumOwner, clock: Callable[[], float], store: Callable[[bytes], Blob]
    ) -> None:
        """Put the parts together; `store` makes a blob durable, and names it."""
        self._database = database
        self._owner = owner
        self._clock = clock
        self._store = store

    def take(
        self, session: Session, federation: FederationInfo, device: DeviceInfo, manifest: UpdateManifest, data: bytes
    ) -> bool:
        """Take a device's message inside the caller's transaction; whether a stage has ended by it.

        Keys end none: the round closes by its own rules. The caller calls `act` after the commit.

        Raises:
            UpdateRefusedError: if it is wrong, late, or another one than the device has sent before.
        """
        row = secure_rounds.require_expected(session, federation.id, device.id, manifest)
        try:
            is_complete = secure_rounds.take(session, row, device, manifest, data)
        except WireError as error:
            raise UpdateRefusedError(str(error), quarantine=True) from error
        if manifest.sum == "keys" or not is_complete or (state := secure_rounds.load(session, row)) is None:
            return False
        self._close(session, session.get_one(FederationRow, federation.id), row, state)
        return True

    def is_of_the_past(self, name: str) -> bool:
        """Whether the open round's sum was begun before the server was restored: its devices answer it no more."""
        with self._database.read() as session:
            federation = repositories.find_federation(session, name)
            row = repositories.open_round(session, federation) if federation is not None else None
            found = session.get(SecureSumRow, row.id) if row is not None else None
            if found is None:
                return False
            return read(SumRequest, found.request).epoch != epochs.current(session).epoch

    def go_on(self, name: str) -> None:
        """Begin with the stages after the keys, once the round has closed; or go on with them after a restart.

        Devices get the whole time of the stage again: the server may have been away for long.
        """
        with self._database.write() as session:
            federation, row = _open(session, name)
            state = secure_rounds.load(session, row) if row is not None else None
            if row is None or state is None:
                return
            if state.stage is ServerStage.KEYS:
                self._close(session, federation, row, state)
            elif (found := session.get_one(SecureSumRow, row.id)).deadline_at is not None:
                found.deadline_at = self._deadline(federation)
        self.act(name)

    def tick(self, leads: Callable[[str], bool]) -> None:
        """End the stages that have had their time: who has not answered is lost."""
        with self._database.read() as session:
            late = [name for name in secure_rounds.overdue(session, self._clock()) if leads(name)]
        for name in late:
            with self._database.write() as session:
                federation, row = _open(session, name)
                state = secure_rounds.load(session, row) if row is not None else None
                if row is not None and state is not None:
                    self._close(session, federation, row, state)
            self.act(name)

    def act(self, name: str) -> None:
        """Do what follows from where the sum of the open round stands."""
        with self._database.read() as session:
            _, row = _open(session, name)
            found = session.get(SecureSumRow, row.id) if row is not None else None
            if row is None or found is None:
                return
            number, stage, reason = row.number, found.stage, found.reason
            culprits = secure_rounds.finding_of(found).culprits
        if stage == ServerStage.FAILED:
            screening = Screening(excluded=culprits) if culprits else None
            self._owner.fail_round(name, number, f"the secure sum failed: {reason}", screening)
        elif stage == ServerStage.DONE:
            self._owner.add_up(name)
        else:
            self._owner.announce(name)

    def reject(self, name: str, number: int, reason: str) -> None:
        """Give up the sum of the open round, which is opened and cannot be: nothing is made of it."""
        with self._database.write() as session:
            _, row = _open(session, name)
            state = secure_rounds.load(session, row) if row is not None and row.number == number else None
            if row is None or state is None or state.stage is not ServerStage.DONE:
                return
            names = server.included_devices(state)
            if self._owner.contract(session.get_one(FederationRow, row.federation_id)).kind.sums:
                added = contributions.sequences(session, row, names)
                contributions.note_seen(session, row.federation_id, added)
            finding = SumFinding(suspects=names, is_opened=True)
            failed = {"stage": ServerStage.FAILED, "reason": reason, "finding": finding, "total": b""}
            secure_rounds.save(session, row, state, state.model_copy(update=failed), None)
        self.act(name)

    def _close(self, session: Session, federation: FederationRow, row: RoundRow, state: ServerState) -> None:
        """End a stage, and write what the next one begins with."""
        result = server.step(state, StageClosed())
        new, shared = result.state, next((message.shared for message in result.messages if message.shared), b"")
        if state.stage is ServerStage.VECTORS and new.stage is not ServerStage.FAILED:
            new = self._hidden(session, federation, row, new)
        blob = self._store(shared) if shared else None
        secure_rounds.save(session, row, state, new, self._deadline(federation), blob)
        if new.stage in (ServerStage.FAILED, state.stage):
            return
        listed = len(new.keys) if state.members else len(state.identities)
        detail = f"{new.stage}: {_answered(state)} of {listed} devices answered"
        repositories.journal(session, federation, "round.secure_sum", round_number=row.number, detail=detail)

    def _hidden(self, session: Session, federation: FederationRow, row: RoundRow, state: ServerState) -> ServerState:
        """Fail a sum before it opens if too few devices changed since the last one to hide each of them."""
        contract = self._owner.contract(federation)
        if not contract.kind.sums:
            return state
        names, least = server.included_devices(state), contract.plan.secure.min_devices
        added = contributions.sequences(session, row, names)
        changed, other = contributions.count_changes(session, federation.id, added), "the last one"
        if state.needs_all and (moved := contributions.count_moved(session, federation.id, added)):
            changed, other = min(changed, moved), "one that was seen"
        if changed >= least:
            return state
        reason = (
            f"it differs from {other} by {changed} device{'' if changed == 1 else 's'}, and {least} "
            "(secure.min_devices) hide each other"
        )
        # a group's members can't be added to others instead: their sum was seen
        finding = SumFinding(silent=names) if state.needs_all else SumFinding()
        failed = {"stage": ServerStage.FAILED, "reason": reason, "finding": finding, "total": b""}
        return state.model_copy(update=failed)

    def _deadline(self, federation: FederationRow) -> float:
        return self._clock() + self._owner.contract(federation).plan.secure.stage_s


def _answered(state: ServerState) -> int:
    """Count who has answered in the stage that ends."""
    received = {
        ServerStage.KEYS: state.keys,
        ServerStage.SHARES: state.shares,
        ServerStage.VECTORS: state.vectors,
        ServerStage.LISTS: state.signatures,
        ServerStage.OPENING: state.opened,
    }
    return len(received[state.stage])


def _open(session: Session, name: str) -> tuple[FederationRow, RoundRow | None]:
    """Return the round of a federation whose sum is under way, if there is one."""
    federation = session.scalars(select(FederationRow).where(FederationRow.name == name)).one()
    row = repositories.open_round(session, federation)
    return federation, row if row is not None and row.phase == RoundPhase.AGGREGATING else None
