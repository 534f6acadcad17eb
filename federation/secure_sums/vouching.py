"""Vouchers for the devices of a secure sum: an offline key that the server doesn't have signs each device's key.

A server hands out identities, so it can invent members and subtract them from a sum. Under a plan with `secure.voucher`
each member shows a voucher with its keys: that public key's signature of its name and identity, which ends by itself.
The same key signs which identities it revokes; of two lists the one with the higher serial holds. A device refuses a
list with one member that nobody vouches for.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from typing import NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from pydantic import Field

from federation.errors import WireError
from federation.plan.strict import Strict
from federation.protocol.messages import read, write
from federation.protocol.signing import Kind, to_sign, unwrap, wrap

MAX_REVOKED = 500
"""Identities that are revoked before their vouchers end; more would crowd an announcement."""
Sign = Callable[[bytes], bytes]


class Voucher(Strict):
    """A device of a federation has this key; the name is in what is signed."""

    identity: str = Field(pattern=r"^[A-Za-z0-9+/]{43}=$", description="base64 of the raw ed25519 key")
    expires: int = Field(ge=0, lt=1 << 53, description="Unix time in seconds")


class RevokedIdentities(Strict):
    """Identities whose vouchers hold no longer."""

    serial: int = Field(ge=0, lt=1 << 53, description="rises with each list")
    identities: tuple[str, ...] = Field(max_length=MAX_REVOKED)


class VoucherCheck(NamedTuple):
    """What a device judges the members of a sum by: the voucher's key, whom it revokes, and the time."""

    key: bytes
    revoked: frozenset[bytes]
    now: float

    def reason(self, federation: str, device: str, identity: bytes, voucher: bytes) -> str:
        """Say why nobody vouches for a member; empty if its voucher holds."""
        if not voucher:
            return f"nobody vouches for {device}"
        try:
            found = read_voucher(self.key, federation, device, voucher)
        except WireError as error:
            return f"nobody vouches for {device}: {error}"
        if base64.b64decode(found.identity) != identity:
            return f"nobody vouches for {device}: its voucher is for another key"
        if identity in self.revoked:
            return f"nobody vouches for {device} any more: its key is revoked"
        return "" if self.now < found.expires else f"nobody vouches for {device} any more: its voucher has expired"


def vouch(sign: Sign, federation: str, device: str, identity: bytes, expires: int) -> bytes:
    """Vouch for a device's key."""
    voucher = Voucher(identity=base64.b64encode(identity).decode(), expires=expires)
    return wrap(Kind.VOUCHER, federation, device, write(voucher), sign)


def revoke(sign: Sign, federation: str, identities: Iterable[bytes], serial: int) -> bytes:
    """Revoke identities, all of them: an earlier list of a lower serial holds no longer."""
    listed = tuple(sorted(base64.b64encode(identity).decode() for identity in identities))
    return wrap(Kind.REVOKED, federation, "", write(RevokedIdentities(serial=serial, identities=listed)), sign)


def read_voucher(key: bytes, federation: str, device: str, payload: bytes) -> Voucher:
    """Read a voucher.

    Raises:
        WireError: if the key has not signed it for this device.
    """
    return read(Voucher, _verified(Kind.VOUCHER, key, federation, device, payload))


def read_revoked(key: bytes, federation: str, payload: bytes) -> RevokedIdentities:
    """Read which identities a key revokes.

    Raises:
        WireError: if the key has not signed it.
    """
    return read(RevokedIdentities, _verified(Kind.REVOKED, key, federation, "", payload))


def _verified(kind: Kind, key: bytes, federation: str, device: str, payload: bytes) -> bytes:
    envelope = unwrap(payload)
    try:
        text = to_sign(kind, federation, device, envelope.body)
        Ed25519PublicKey.from_public_bytes(key).verify(envelope.signature or b"", text)
    except (InvalidSignature, ValueError) as error:
        raise WireError(f"the {kind} is not signed by the key that vouches for devices (secure.voucher)") from error
    return envelope.body
