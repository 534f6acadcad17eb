"""Who vouches for this device and for the members of its secure sums, as far as the device has heard."""

from __future__ import annotations

import base64
import time

from edge_agent.storage.state_store import StateStore
from federation.errors import WireError
from federation.plan import SecureSettings
from federation.secure_sums.vouching import VoucherCheck, read_revoked

OWN_VOUCHER, REVOKED = "voucher", "revoked_identities"
"""Names in the store; both outlive federations that are re-created."""


def keep_voucher(store: StateStore, voucher: str) -> None:
    """Keep this device's own voucher, as the server hands it out; whether it holds is judged where it is shown."""
    if voucher and voucher != store.get(OWN_VOUCHER):
        store.put(**{OWN_VOUCHER: voucher})


def keep_revoked(store: StateStore, settings: SecureSettings, listed: str) -> None:
    """Keep a newer list of revoked identities; an older one, or one that isn't signed, changes nothing."""
    if not listed or settings.voucher is None or listed == store.get(REVOKED):
        return
    key, federation = base64.b64decode(settings.voucher), store.get("federation")
    try:
        serial = read_revoked(key, federation, listed.encode()).serial
    except WireError:
        return
    if serial > _serial(key, federation, store.get(REVOKED)):
        store.put(**{REVOKED: listed})


def _serial(key: bytes, federation: str, listed: str) -> int:
    try:
        return read_revoked(key, federation, listed.encode()).serial if listed else -1
    except WireError:  # of another key, before the person has accepted this one
        return -1


def own_voucher(store: StateStore) -> bytes:
    """Return what this device shows with its keys; empty where nobody vouches for it."""
    return store.get(OWN_VOUCHER).encode()


def voucher_check(store: StateStore, settings: SecureSettings) -> VoucherCheck | None:
    """Return by what the members of a sum are judged; None where the plan names no key that vouches for them."""
    if settings.voucher is None:
        return None
    key, listed = base64.b64decode(settings.voucher), store.get(REVOKED)
    try:
        found = read_revoked(key, store.get("federation"), listed.encode()).identities if listed else ()
    except WireError:
        found = ()
    return VoucherCheck(key, frozenset(map(base64.b64decode, found)), time.time())
