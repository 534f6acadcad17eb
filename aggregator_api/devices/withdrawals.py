"""Taking a device's sums out of a continuous federation by an operator, in the open or from sums that are masked."""

from __future__ import annotations

from sqlalchemy.orm import Session

from aggregator_api.db.models import DeviceRow, FederationRow
from aggregator_api.devices import contributions, masked_contributions
from aggregator_api.errors import ConflictError
from federation.methods import in_batches
from federation.plan import Plan


def withdraw(session: Session, federation: FederationRow, device: DeviceRow, *, at_once: bool = False) -> None:
    """Take a device's sums out at its operator's wish, from the next version on; twice changes nothing.

    Of masked sums the server has no single ones: those of all others are collected anew, once the others are here, or
    `at_once` without those who are away.

    Raises:
        ConflictError: if the device has none here.
    """
    if not in_batches(Plan.model_validate(federation.plan)):
        contributions.withdraw(session, federation, device)
    elif not masked_contributions.ask_without(session, federation, device, at_once=at_once):
        raise ConflictError(f"no batch of {federation.name!r} has sums of {device.name!r}: there are none to take out")


def has_sums(session: Session, device: DeviceRow) -> bool:
    """Whether an operator can have a device's sums taken out, masked ones by collecting those of all others anew."""
    row = masked_contributions.find(session, device)
    is_in_batch = row is not None and bool(row.batch) and row.leaving_at is None
    return is_in_batch or contributions.has_sums(session, device)


def leave(session: Session, federation: FederationRow, device: DeviceRow) -> None:
    """Take out the sums of a device that is about to be deleted."""
    contributions.leave(session, device)
    masked_contributions.leave(session, federation, device)
