"""What goes into the two state machines of a secure sum, and what comes out of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from secrets import token_bytes
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from federation.protocol.signing import Kind
from federation.secure_sums.neighbours import MIN_MEMBERS
from federation.secure_sums.shamir import Entropy
from federation.secure_sums.vouching import VoucherCheck
from gaitway.python310 import StrEnum


class ServerMessage(StrEnum):
    """What the server says to a device."""

    REQUEST = "request"
    MEMBERS = "members"
    SHARES = "shares"
    INCLUDED = "included"
    CONFIRMED = "confirmed"


@dataclass(frozen=True)
class SumDevice:
    """Who takes part, and what it insists on."""

    name: str
    identity: bytes  # ed25519, public
    sign: Callable[[bytes], bytes]
    colluding: int = 0  # per mille: no request may assume fewer
    min_members: int = MIN_MEMBERS
    groups: int = 1
    known_identities: Mapping[str, bytes] = field(default_factory=dict)
    """Of devices that it has seen before: none may have another key now."""
    voucher: bytes = b""
    """Which it shows with its keys."""
    vouchers: VoucherCheck | None = None
    """By which it judges those of all members; none: the server alone says who is a member."""
    entropy: Entropy = token_bytes


@dataclass(frozen=True)
class FromServer:
    """A message of the server; `shared` is the part of it that all members are told alike, where it comes apart."""

    kind: ServerMessage
    body: bytes
    shared: bytes = b""


@dataclass(frozen=True)
class VectorReady:
    """The device's own numbers, (length,) int64, each of at most `bound`; `layout` says what they mean."""

    vector: NDArray[np.int64]
    bound: int
    layout: bytes


class ToServer(NamedTuple):
    """A signed message, and the bytes of the masked vector that go with it."""

    kind: Kind
    payload: bytes
    vector: bytes = b""


class FromDevice(NamedTuple):
    """A message of a device, whose name the transport vouches for no more than its signature does."""

    device: str
    kind: Kind
    payload: bytes
    vector: bytes = b""


class StageClosed(NamedTuple):
    """Nobody is waited for any longer."""


class ToDevice(NamedTuple):
    """What the server says to a device; `shared` is the same for all, and comes apart where it is long."""

    device: str
    kind: ServerMessage
    body: bytes
    shared: bytes = b""
