"""Vouchers of devices' keys, signed elsewhere: the server checks, stores and distributes them but can't make them."""

from __future__ import annotations

import base64
import time
from typing import NamedTuple

from pydantic import Field, ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session

from aggregator_api.core.errors import UnprocessableError, UpdateRefusedError
from aggregator_api.storage.db import repositories
from aggregator_api.storage.db.models import DeviceRow, FederationRow
from federation.errors import WireError
from federation.plan import Name, Strict
from federation.protocol.signing import unwrap
from federation.secure_sums.messages import MAX_SIGNED_BYTES, PublicKeys, read
from federation.secure_sums.vouching import VoucherCheck, read_revoked, read_voucher
from gaitway.errors import first_problem


class VoucherFile(Strict):
    """What `vouch sign` writes and `vouch import` reads."""

    federation: Name
    vouchers: dict[Name, str] = Field(description="by device")
    revoked: str = Field(description="the list of revoked identities")

    @classmethod
    def parsed(cls, text: str) -> VoucherFile:
        """Read a file.

        Raises:
            UnprocessableError: if it isn't one.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise UnprocessableError(f"this isn't a file from `vouch sign`: {first_problem(error)}") from error


class ImportedVouchers(NamedTuple):
    """The result of importing a file: devices with stored vouchers, and reasons for the others."""

    devices: tuple[str, ...]
    ignored: dict[str, str]


def import_vouchers(session: Session, federation: FederationRow, file: VoucherFile) -> ImportedVouchers:
    """Keep the vouchers of a file, and its list of revoked identities, for the devices of a federation.

    Raises:
        UnprocessableError: if the file is for another federation, the plan names no key that vouches, or the list isn't
            signed by it or is older than the one that is kept.
    """
    key = _key(federation)
    if file.federation != federation.name:
        raise UnprocessableError(f"the file vouches for devices of {file.federation!r}, not of {federation.name!r}")
    try:
        revoked = read_revoked(key, federation.name, file.revoked.encode())
        if kept := federation.revoked_identities:
            before = read_revoked(key, federation.name, kept.encode())
            if revoked.serial < before.serial:
                raise WireError(f"the list has number {revoked.serial}, older than the stored one, {before.serial}")
    except WireError as error:
        raise UnprocessableError(f"the list of revoked identities was rejected: {error}") from error
    federation.revoked_identities = file.revoked
    rows = {row.name: row for row in session.scalars(select(DeviceRow).where(DeviceRow.federation_id == federation.id))}
    for row in rows.values():
        if row.public_key in revoked.identities:
            forget_voucher(row)
    found = {
        name: _keep(rows.get(name), key, federation.name, text, revoked.identities)
        for name, text in file.vouchers.items()
    }
    kept_names = tuple(name for name, reason in found.items() if not reason)
    detail = f"{len(kept_names)} devices, {len(revoked.identities)} identities revoked"
    repositories.journal(session, federation, "federation.vouched", detail=detail)
    return ImportedVouchers(kept_names, {name: reason for name, reason in found.items() if reason})


def require_voucher(federation: FederationRow, device: str, identity: bytes, payload: bytes) -> None:
    """Check that a device shows its voucher with the keys for a sum: with one that doesn't, all others would give up.

    Raises:
        UpdateRefusedError: if it doesn't, and the plan asks for one.
        WireError: if these aren't keys.
    """
    key = federation.parsed_plan.secure.voucher
    if not key:
        return
    shown = read(PublicKeys, unwrap(payload).body, MAX_SIGNED_BYTES).voucher
    check = VoucherCheck(base64.b64decode(key), frozenset(), time.time())
    if reason := check.reason(federation.name, device, identity, shown):
        raise UpdateRefusedError(reason)


def forget_voucher(row: DeviceRow) -> None:
    """Forget who vouches for a device: it has another key, or its key is revoked."""
    row.voucher, row.voucher_expires_at = "", None


def _keep(row: DeviceRow | None, key: bytes, federation: str, text: str, revoked: tuple[str, ...]) -> str:
    """Keep a device's voucher; return why not, or an empty text."""
    if row is None:
        return "no such device has enrolled"
    try:
        voucher = read_voucher(key, federation, row.name, text.encode())
    except WireError as error:
        return str(error)
    if voucher.identity != row.public_key:
        return "the device has enrolled with another key"
    if voucher.identity in revoked:
        return "its key is revoked"
    if voucher.expires <= time.time():
        return "the voucher has expired"
    row.voucher, row.voucher_expires_at = text, voucher.expires
    return ""


def _key(federation: FederationRow) -> bytes:
    key = federation.parsed_plan.secure.voucher
    if key is None:
        raise UnprocessableError(
            f"the plan of {federation.name!r} names no key that vouches for devices: create the federation with "
            "secure.voucher, as `vouch key` prints it"
        )
    return base64.b64decode(key)
