"""Deleting federations, devices and the bytes of model versions: rows first, then the broker; blobs go as garbage.

The audit's entries stay. What a device sent is in models that were made with it, and for some methods under its name in
their state; that cannot be taken out of them.
"""

from __future__ import annotations

from aggregator_api.devices import accounts, approval
from aggregator_api.errors import BrokerError, UnavailableError
from aggregator_api.federations import service
from aggregator_api.retention import rows
from aggregator_api.retention.rows import Counts, DeletedFederation
from aggregator_api.runtime import Runtime
from federation.rounds.server_round import DeviceLost, Stopped


def delete_federation(runtime: Runtime, name: str, *, force: bool, dry_run: bool) -> DeletedFederation:
    """Delete a federation with its devices, rounds, models and events, and what the broker retains of it.

    Raises:
        NotFoundError: if there is none of that name.
        ConflictError: if it has not ended, unless `force` stops it first.
        UnavailableError: if the broker does not delete the devices' accounts; the rows are gone all the same.
    """
    with runtime.coordinator.lock:
        with runtime.database.write() as session:
            row = service.named(session, name)
            if not dry_run and row.status in ("running", "paused") and force:
                row.status = "stopped"
                runtime.coordinator.transition(session, row, Stopped("deleted by the operator"))
            deleted = rows.remove_federation(session, row, dry_run=dry_run)
        if dry_run:
            return deleted
        for topic in rows.retained_topics(name, deleted.devices):
            runtime.transport.publish(topic, b"", retain=True)
    for device in deleted.devices:
        runtime.forget_uploads(name, device)
    _revoke_accounts(runtime, name, deleted.devices)
    return deleted


def delete_device(runtime: Runtime, name: str, device: str, *, dry_run: bool) -> Counts:
    """Delete a device with everything that it said, sent and measured; it is revoked first.

    Raises:
        NotFoundError: if there is no such device.
        ConflictError: if the open round has accepted an update of it.
        UnavailableError: if the broker does not delete its account; its rows are gone all the same.
    """
    with runtime.coordinator.lock:
        if not dry_run:
            with runtime.database.read() as session:
                rows.require_no_update_in_use(session, *approval.find(session, name, device))
            runtime.coordinator.apply_event(name, DeviceLost(device))
        with runtime.database.write() as session:
            deleted = rows.remove_device(session, *approval.find(session, name, device), dry_run=dry_run)
        if dry_run:
            return deleted
        for topic in rows.retained_topics(name, [device])[1:]:
            runtime.transport.publish(topic, b"", retain=True)
    runtime.forget_uploads(name, device)
    _revoke_accounts(runtime, name, [device])
    return deleted


def delete_version(runtime: Runtime, name: str, version: int) -> None:
    """Let the bytes of a version go with the next garbage; its row stays, as rounds refer to it.

    Raises:
        NotFoundError: if there is no such version.
        ConflictError: if something needs it.
    """
    with runtime.coordinator.lock, runtime.database.write() as session:
        federation = service.named(session, name)
        rows.retire(session, federation, rows.deletable(session, federation, [version]))


def _revoke_accounts(runtime: Runtime, name: str, devices: list[str]) -> None:
    try:
        for device in devices:
            runtime.accounts.revoke(accounts.username(name, device))
    except BrokerError as error:
        raise UnavailableError(
            f"everything is deleted here, but the broker did not delete the accounts: {error}; delete those of "
            f"{name}~… there (`mosquitto_ctrl dynsec deleteClient`)"
        ) from error
