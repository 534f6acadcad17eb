"""Deletes federations, devices and model versions' data: rows first, then the broker; blobs are garbage-collected.

The audit's entries stay. What a device sent is in models that were made with it, and cannot be taken out of them; what
the server keeps of it under its name goes, where the method can do without (`Method.forget_clients`). A continuous
federation publishes a version without it (docs/privacy.md).
"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import select
from sqlalchemy.orm import Session

from aggregator_api.core.errors import BrokerError, ConflictError, UnavailableError
from aggregator_api.devices.service import BrokerAccounts, find, username
from aggregator_api.federations import service
from aggregator_api.maintenance import retention
from aggregator_api.maintenance.retention import Counts, DeletedFederation
from aggregator_api.rounds.aggregation import read_state
from aggregator_api.rounds.announcements import Publisher
from aggregator_api.rounds.coordinator import Coordinator
from aggregator_api.storage.blobs import BlobStore
from aggregator_api.storage.db import repositories
from aggregator_api.storage.db.database import Database
from aggregator_api.storage.db.models import FederationRow, ModelVersionRow
from federation import wire
from federation.methods import method_from_json
from federation.rounds.server_round import DeviceLost, RoundPhase, Stopped


class DeletionService:
    """Deletes what an operator wants gone from a running server."""

    def __init__(
        self,
        database: Database,
        blobs: BlobStore,
        coordinator: Coordinator,
        publisher: Publisher,
        accounts: BrokerAccounts,
        forget_device: Callable[[str, str], None],
    ) -> None:
        """Store the parts; `forget_device` ends a device's stream and drops its partial uploads."""
        self._database = database
        self._blobs = blobs
        self._coordinator = coordinator
        self._publisher = publisher
        self._accounts = accounts
        self._forget_device = forget_device

    def delete_federation(self, name: str, *, force: bool, dry_run: bool) -> DeletedFederation:
        """Delete a federation with its devices, rounds, models and events, and what the broker retains of it.

        Raises:
            NotFoundError: if there is none of that name.
            ConflictError: if it has not ended, unless `force` stops it first.
            UnavailableError: if the broker does not delete the devices' accounts; the rows are gone all the same.
        """
        with self._coordinator.lock:
            with self._database.write() as session:
                row = service.get_federation(session, name)
                if not dry_run and row.status in ("running", "paused") and force:
                    row.status = "stopped"
                    self._coordinator.transition(session, row, Stopped("deleted by the operator"))
                deleted = retention.remove_federation(session, row, dry_run=dry_run)
            if dry_run:
                return deleted
            for topic in retention.retained_topics(name, deleted.devices):
                self._publisher.publish(topic, b"", retain=True)
        for device in deleted.devices:
            self._forget_device(name, device)
        self._revoke_accounts(name, deleted.devices)
        return deleted

    def delete_device(self, name: str, device: str, *, dry_run: bool) -> Counts:
        """Delete a device with its reports, uploads and scores; it is revoked first.

        Raises:
            NotFoundError: if there is no such device.
            ConflictError: if the open round has accepted an update of it, or is aggregated with what it sent.
            UnavailableError: if the broker does not delete its account; its rows are gone all the same.
        """
        with self._coordinator.lock:
            if not dry_run:
                with self._database.read() as session:
                    retention.require_no_update_in_use(session, *find(session, name, device))
                self._coordinator.apply_event(name, DeviceLost(device))
            with self._database.write() as session:
                federation, row = find(session, name, device)
                if not dry_run:
                    forget_kept_uploads(session, self._blobs, federation, device)
                deleted = retention.remove_device(session, federation, row, dry_run=dry_run)
            if dry_run:
                return deleted
            for topic in retention.retained_topics(name, [device])[1:]:
                self._publisher.publish(topic, b"", retain=True)
            self._coordinator.devices_changed(name)  # the next version is made without it
        self._forget_device(name, device)
        self._revoke_accounts(name, [device])
        return deleted

    def delete_version(self, name: str, version: int) -> None:
        """Let the bytes of a version go with the next garbage; its row stays, as rounds refer to it.

        Raises:
            NotFoundError: if there is no such version.
            ConflictError: if something needs it.
        """
        with self._coordinator.lock, self._database.write() as session:
            federation = service.get_federation(session, name)
            retention.retire(session, federation, retention.deletable(session, federation, [version]))

    def _revoke_accounts(self, name: str, devices: list[str]) -> None:
        try:
            for device in devices:
                self._accounts.revoke(username(name, device))
        except BrokerError as error:
            raise UnavailableError(
                f"everything is deleted here, but the broker did not delete the accounts: {error}; delete those of "
                f"{name}~… there (`mosquitto_ctrl dynsec deleteClient`)"
            ) from error


def forget_kept_uploads(session: Session, blobs: BlobStore, federation: FederationRow, device: str) -> None:
    """Write the states without a device, inside the caller's transaction; the old blobs go as garbage.

    Raises:
        ConflictError: if a round is being aggregated from one of them.
    """
    method = method_from_json(federation.plan["method"])
    if not method.keeps_uploads:
        return
    row = repositories.open_round(session, federation)
    if row is not None and row.phase == RoundPhase.AGGREGATING:
        raise ConflictError(
            f"round {row.number} is being aggregated with what {device!r} has sent before; try again once it has ended"
        )
    kept = (ModelVersionRow.federation_id == federation.id, ModelVersionRow.deleted_at.is_(None))
    for version in session.scalars(select(ModelVersionRow).where(*kept)):
        before = read_state(blobs, version.state_sha256)
        after = method.forget_clients(before, {device})
        if after is not before:
            version.state_sha256 = blobs.put(wire.encode(after)).sha256
