"""How a device's messages of a secure sum travel: as updates do, in chunks behind a manifest (`UpdateManifest.sum`).

What the server says comes in invitations (`Invitation.sum`), whose size bounds a live sum's members.
"""

from __future__ import annotations

import struct

from federation.errors import WireError
from federation.protocol.messages import MAX_SUM_BODY, SumPart
from federation.protocol.signing import Kind
from federation.secure_sums.messages import MAX_SIGNED_BYTES, SumRequest, ToServer

MAX_LIVE_MEMBERS = 10_000
"""Of one sum. What all are told alike is then some 6 MB, a blob; the indices of all still fit into one message."""
PARTS: dict[SumPart, Kind] = {
    "keys": Kind.SUM_KEYS,
    "shares": Kind.SUM_SHARES,
    "vector": Kind.SUM_VECTOR,
    "list": Kind.SUM_LIST,
    "opened": Kind.SUM_OPENED,
}
_HEAD_LENGTH = struct.Struct(">H")


def packed(message: ToServer) -> bytes:
    """Return the bytes of a device's message as they are uploaded: of a vector its head, before it the head's length.

    Only a vector has numbers behind its message.
    """
    if message.kind is not Kind.SUM_VECTOR:
        return message.payload
    return _HEAD_LENGTH.pack(len(message.payload)) + message.payload + message.vector


def unpacked(part: SumPart, data: bytes) -> ToServer:
    """Take uploaded bytes apart; nothing in them is believed yet.

    Raises:
        WireError: if a vector's head does not fit.
    """
    if part != "vector":
        return ToServer(PARTS[part], data)
    length = _HEAD_LENGTH.unpack(data[: _HEAD_LENGTH.size])[0] if len(data) >= _HEAD_LENGTH.size else 0
    body = data[_HEAD_LENGTH.size :]
    if not 0 < length <= min(MAX_SIGNED_BYTES, len(body)):
        raise WireError(f"a vector's head of {length:,} bytes came in {len(data):,}; expected 1 to {MAX_SIGNED_BYTES}")
    return ToServer(PARTS[part], body[:length], body[length:])


def limit_of(part: SumPart, request: SumRequest) -> int:
    """Return how many bytes that message has at most."""
    if part == "vector":
        return _HEAD_LENGTH.size + MAX_SIGNED_BYTES + request.length * request.bits // 8
    return MAX_SIGNED_BYTES if part in ("keys", "list") else MAX_SUM_BODY
