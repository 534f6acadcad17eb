"""What ends on a day that is known before: certificates, API keys, enrolment tokens, signatures; and the last backup.

Times are Unix seconds, so that an alert is `… - time() < 14 * 86400`. What does not exist has no sample.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path

from cryptography import x509
from prometheus_client.core import GaugeMetricFamily, Metric
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from aggregator_api.auth import api_keys
from aggregator_api.storage.db.models import CredentialRow, EnrolmentTokenRow, FederationRow

log = logging.getLogger(__name__)

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
