"""The server's health, and the expiry of its certificates and keys.

What ends on a day that is known before: certificates, API keys, enrolment tokens, signatures; and the last backup.
Times are Unix seconds, so that an alert is `… - time() < 14 * 86400`. What does not exist has no sample.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from cryptography import x509
from prometheus_client.core import GaugeMetricFamily, Metric
from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from aggregator_api.auth import api_keys
from aggregator_api.core.errors import AggregatorError
from aggregator_api.core.settings import Settings
from aggregator_api.storage.blobs import BlobStore
from aggregator_api.storage.db.database import Database
from aggregator_api.storage.db.models import CredentialRow, EnrolmentTokenRow, FederationRow
from aggregator_api.storage.outages import failures

log = logging.getLogger(__name__)

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
    """The public readiness check, which shows no addresses, paths or database messages."""

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


SCOPES = ("operator", "read", "device")

LAST_BACKUP = "last-backup"
"""An empty file in data_dir, whose time is that of the last backup; `metrics` shows it."""


def certificates(authority: Path | None, broker: float | None, https: Path | None) -> Iterator[Metric]:
    """Yield when the broker's authority, the certificate that the `broker` shows, and the one of `https` expire.

    `authority` is as in `mqtt_ca_file`, `https` as in `tls_cert_file`; a proxy's is not seen by this process.
    """
    family = GaugeMetricFamily(
        "gaitway_certificate_expiry_timestamp_seconds", "when a certificate expires", labels=["certificate"]
    )
    for name, expiry in (
        ("broker_authority", file_expiry(authority) if authority else None),
        ("broker", broker),
        ("https", file_expiry(https) if https else None),
    ):
        if expiry is not None:
            family.add_metric([name], expiry)
    yield family


def file_expiry(path: Path) -> float | None:
    """Return when the first of a PEM file's certificates to expire does; None if none can be read."""
    try:
        found = x509.load_pem_x509_certificates(path.read_bytes())
    except (OSError, ValueError) as error:
        log.warning("certificate not readable file=%s: %s", path, error)
        return None
    return min(certificate.not_valid_after_utc.timestamp() for certificate in found)


def signatures(until: float) -> Iterator[Metric]:
    """Yield until when the signatures hold that devices were given last."""
    yield GaugeMetricFamily(
        "gaitway_signature_expiry_timestamp_seconds",
        "until when the signatures of what is announced hold",
        until,
    )


def last_backup(data_dir: Path) -> Iterator[Metric]:
    """Yield when `backup` was last finished here; nothing where it never was, or the database has its own."""
    try:
        done = (data_dir / LAST_BACKUP).stat().st_mtime
    except OSError:
        return
    yield GaugeMetricFamily("gaitway_last_backup_timestamp_seconds", "when the last backup was finished", done)


def keys(session: Session) -> Iterator[Metric]:
    """Yield the API keys that open something by scope, and when the first of them expires."""
    expiry = GaugeMetricFamily(
        "gaitway_key_expiry_timestamp_seconds", "when the first API key of a scope expires", labels=["scope"]
    )
    count = GaugeMetricFamily("gaitway_keys", "API keys that are valid", labels=["scope"])
    # JSON cannot be grouped by in every database; a key is two values here
    found = session.execute(select(CredentialRow.scopes, CredentialRow.expires_at).where(api_keys.valid(time.time())))
    totals: dict[str, int] = dict.fromkeys(SCOPES, 0)
    first: dict[str, float] = {}
    for scopes, expires in found:
        for scope in scopes:
            totals[scope] = totals.get(scope, 0) + 1
            if expires is not None:
                first[scope] = min(expires, first.get(scope, expires))
    for scope, total in sorted(totals.items()):
        count.add_metric([scope], total)
    for scope, when in sorted(first.items()):
        expiry.add_metric([scope], when)
    yield count
    yield expiry


def tokens(session: Session) -> Iterator[Metric]:
    """Yield the enrolment tokens that can still be used, by federation, and when the first of them expires."""
    expiry = GaugeMetricFamily(
        "gaitway_enrolment_token_expiry_timestamp_seconds",
        "when the first unused enrolment token expires",
        labels=["federation"],
    )
    count = GaugeMetricFamily("gaitway_enrolment_tokens", "enrolment tokens that can be used", labels=["federation"])
    query = (
        select(FederationRow.name, func.count(), func.min(EnrolmentTokenRow.expires_at))
        .join(EnrolmentTokenRow, EnrolmentTokenRow.federation_id == FederationRow.id)
        .where(
            EnrolmentTokenRow.used_at.is_(None),
            EnrolmentTokenRow.revoked_at.is_(None),
            EnrolmentTokenRow.held_at.is_(None),
            EnrolmentTokenRow.expires_at > time.time(),
        )
    )
    for name, total, when in session.execute(query.group_by(FederationRow.name)):
        count.add_metric([name], total)
        expiry.add_metric([name], when)
    yield count
    yield expiry
