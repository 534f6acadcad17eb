"""The format of signed messages; each side uses its own keys.

A signed message is a line and the body, which is what `federation.protocol.messages` writes:

    gaitway-signed/1 {base64 of 64 bytes}\\n{body}

The signature is ed25519 (RFC 8032) over five lines, of which the last is the body as it was sent:

    gaitway-signed/1\\n{kind}\\n{federation}\\n{device}\\n{body}

`device` is empty in what is said to all. Names hold no line break, so that nothing can be read in two ways. The
receiver verifies the bytes that came before it parses them: no canonical form of JSON is needed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable
from typing import NamedTuple

from federation.errors import WireError
from gaitway.python310 import StrEnum

MARK = b"gaitway-signed/1"
"""Keeps a signature from meaning anything elsewhere; also the first word of a signed message."""
SIGNATURE_BYTES = 64
_HEADER_BYTES = len(MARK) + 1 + 88
FINGERPRINT_DIGITS = 32


class Kind(StrEnum):
    """What a message is; a signature of one kind is none of another."""

    ANNOUNCEMENT = "announcement"
    INVITATION = "invitation"
    OFFER = "offer"
    ACKNOWLEDGEMENT = "acknowledgement"
    NOTICE = "notice"
    UPDATE = "update"  # a manifest
    ENROL = "enrol"  # over REST; the body is the token
    CLAIM = "claim"  # over REST; the body is the time
    TOKEN = "token"  # over REST; the body is the time in milliseconds
    REFUSAL = "refusal"  # of a plan, in a device's status
    MODEL_REFUSAL = "model-refusal"  # in a device's status too
    VOUCHER = "voucher"  # by the key that vouches for devices, not by the server's
    REVOKED = "revoked"  # by that key as well
    SUM_KEYS = "sum-keys"  # of a secure sum (`federation.secure_sums`), and so on
    SUM_SHARES = "sum-shares"
    SUM_VECTOR = "sum-vector"
    SUM_LIST = "sum-list"  # the body is the server's list of those included
    SUM_OPENED = "sum-opened"


class Envelope(NamedTuple):
    """A message as it came: its bytes, and the signature that came with them."""

    body: bytes
    signature: bytes | None


def to_sign(kind: Kind, federation: str, device: str, body: bytes) -> bytes:
    """Return the bytes that a signature is over; `device` is empty in what is said to all."""
    return b"\n".join((MARK, kind.encode(), federation.encode(), device.encode(), body))


def wrap(kind: Kind, federation: str, device: str, body: bytes, sign: Callable[[bytes], bytes]) -> bytes:
    """Return a body with its signature before it; `sign` returns 64 bytes."""
    signature = base64.b64encode(sign(to_sign(kind, federation, device, body)))
    return MARK + b" " + signature + b"\n" + body


def unwrap(payload: bytes) -> Envelope:
    """Take a message apart without believing it; one without the line of a signature is all body.

    Raises:
        WireError: if it begins as a signed message and is none.
    """
    if not payload.startswith(MARK):
        return Envelope(payload, None)
    head, separator, body = payload[: _HEADER_BYTES + 1].partition(b"\n")
    word, _, text = head.partition(b" ")
    try:
        signature = base64.b64decode(text, validate=True)
    except binascii.Error:
        signature = b""
    if word != MARK or not separator or body or len(signature) != SIGNATURE_BYTES:
        raise WireError(f"a signed message begins with '{MARK.decode()} ', 88 characters of base64 and a line break")
    return Envelope(payload[_HEADER_BYTES + 1 :], signature)


def fingerprint(public_key: bytes) -> str:
    """Name a raw public key: the first 128 bits of its SHA-256, in hexadecimal."""
    return hashlib.sha256(public_key).hexdigest()[:FINGERPRINT_DIGITS]


def pinned_key(token: str) -> str:
    """Return the fingerprint of the server's key that an enrolment token names; empty if it names none."""
    prefix, _, named = token.rpartition("_")
    is_one = prefix.startswith("gwe_") and len(named) == FINGERPRINT_DIGITS and not set(named) - set("0123456789abcdef")
    return named if is_one else ""
