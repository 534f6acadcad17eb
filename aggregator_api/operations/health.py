"""Whether the server can do its work: asked of its database, models, disks, broker and messages, one by one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Protocol

from sqlalchemy.exc import SQLAlchemyError

from aggregator_api.core.errors import AggregatorError
from aggregator_api.core.settings import Settings
from aggregator_api.operations.expiry import file_expiry
from aggregator_api.storage.blobs import BlobStore
from aggregator_api.storage.db.database import Database
from aggregator_api.storage.db.failure_log import failures

NO_BROKER = "the broker is not connected"
"""The problem of that name, by which others find what to say of it."""
MIN_FREE_BYTES = 64 << 10
"""Bytes without which a database can hardly write, whatever `min_free_bytes` says."""


class BrokerHealth(Protocol):
    """The connection to the broker, as it is looked at from outside."""

    @property
    def is_up(self) -> bool:
        """Whether the broker is connected now."""

    def certificate_expiry(self) -> float | None:
        """Return when the certificate that the broker showed last expires; None if it has shown none."""


class MessageQueue(Protocol):
    """Messages of devices on their way to be handled."""

    @property
    def alive(self) -> bool:
        """Whether messages are being handled."""

    @property
    def waiting(self) -> int:
        """How many messages wait to be handled."""


class Readiness:
    """Says what does not work: to anybody who asks, so without addresses, paths and the database's own words."""

    def __init__(
        self, settings: Settings, database: Database, blobs: BlobStore, broker: BrokerHealth, messages: MessageQueue
    ) -> None:
        self._settings = settings
        self._database = database
        self._blobs = blobs
        self._broker = broker
        self._messages = messages

    def problems(self) -> list[str]:
        """Ask each part; an empty list means that the server can work."""
        checks = (self._database_problem, self._blob_problem, self._disk_problem)
        wrong = [problem for check in checks if (problem := check())]
        if not self._broker.is_up:
            wrong.append(NO_BROKER)
        if not self._messages.alive:
            wrong.append("messages are not being handled")
        return wrong

    def certificates(self) -> dict[str, float]:
        """Return when the certificates of the broker, its authority and HTTPS expire, in Unix seconds, if known."""
        authority, own = self._settings.mqtt_ca_file, self._settings.tls_cert_file
        known = {
            "the broker's authority": file_expiry(authority) if authority else None,
            "the broker": self._broker.certificate_expiry(),
            "this server (HTTPS)": file_expiry(own) if own else None,
        }
        return {name: expiry for name, expiry in known.items() if expiry is not None}

    def _database_problem(self) -> str:
        try:
            self._database.probe()
        except SQLAlchemyError as error:
            outage = failures.report("database probe failed", error)
            return outage.value if outage else "the database does not answer"
        return "the database's disk is full" if self._database.is_full else ""

    def _blob_problem(self) -> str:
        try:
            self._blobs.check()
        except (OSError, AggregatorError) as error:
            failures.report("blob store probe failed", error)
            return "the blob store does not answer"
        return ""

    def _disk_problem(self) -> str:
        settings = self._settings
        places = {settings.data_dir.resolve(), *settings.own_folders}
        if self._blobs.is_local:
            places.add(Path(self._blobs.root))
        free = min(shutil.disk_usage(place).free for place in places)
        needed = max(settings.min_free_bytes, MIN_FREE_BYTES)
        return "" if free >= needed else f"the disk is full: {free:,} bytes are left, {needed:,} are needed"
