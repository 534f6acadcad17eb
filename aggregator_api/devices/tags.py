"""Groups of devices: names that an operator gives, from which cohorts can be drawn. A device has no say in them."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy.orm import Session

from aggregator_api.storage.db import repositories
from aggregator_api.storage.db.models import DeviceRow, DeviceTagRow, FederationRow


def change(session: Session, federation: FederationRow, row: DeviceRow, tags: Iterable[str]) -> None:
    """Put a device into these groups and no others, and tell it as an event."""
    put(session, row, tags)
    repositories.journal(session, federation, "device.tags", device=row.name, detail=" ".join(row.tags) or "none")


def put(session: Session, row: DeviceRow, tags: Iterable[str]) -> None:
    """Put a device into these groups and no others."""
    present = {tag.tag: tag for tag in row.tag_rows}
    row.tag_rows = [present.get(tag) or DeviceTagRow(tag=tag) for tag in sorted(set(tags))]
    session.flush()
