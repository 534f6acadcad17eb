"""The messages of a secure sum, with their limits, and the events of its two state machines.

Messages are JSON with bytes as base64, validated before anything believes them. Devices sign what they say in the form
of `federation.protocol.signing`. The server's own messages are signed by whoever carries them, like all of its
messages.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from secrets import token_bytes
from typing import Annotated, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from federation.errors import WireError
from federation.plan import Name
from federation.protocol.messages import MAX_VOUCHER, Epoch, Instance
from federation.protocol.signing import Kind
from federation.secure_sums.masks import KEY_BYTES, TAG_BYTES
from federation.secure_sums.shamir import SHARE_BYTES, Entropy
from federation.secure_sums.vouching import VoucherCheck
from gaitway.errors import first_problem
from gaitway.python310 import StrEnum
from gaitway.strict_numbers import StrictNumbers

MIN_MEMBERS = 3
"""Of two, each would know the other's numbers from the sum."""
MAX_MEMBERS = 1 << 14
MAX_GROUPS = 64
MAX_LENGTH = 1 << 27
"""Numbers of one vector: 1 GiB of 64 bits."""
MAX_SIGNED_BYTES = 1024
"""Of one member's signed keys."""
MAX_MESSAGE_BYTES = MAX_MEMBERS * 2048
"""Of the largest message, the list of members; those of more than 256 KiB travel as blobs."""
DIGEST_BYTES, SHARE_DIGEST_BYTES, SIGNATURE_BYTES = 32, 16, 64
PER_MILLE = 1000


class SecureMessage(StrictNumbers, BaseModel):
    """Frozen, refuses unknown keys, and writes bytes as base64."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_bytes="base64", val_json_bytes="base64")


Digest = Annotated[
    bytes, Field(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES, description="SHA-256 of that message")
]
Key = Annotated[bytes, Field(min_length=KEY_BYTES, max_length=KEY_BYTES)]
Share = Annotated[bytes, Field(min_length=SHARE_BYTES, max_length=SHARE_BYTES, description="of a secret")]
ShareDigest = Annotated[
    bytes, Field(min_length=SHARE_DIGEST_BYTES, max_length=SHARE_DIGEST_BYTES, description="of a share, shortened")
]
Sealed = Annotated[
    bytes,
    Field(
        min_length=2 * SHARE_BYTES + TAG_BYTES,
        max_length=2 * SHARE_BYTES + TAG_BYTES,
        description="two shares, encrypted for their receiver",
    ),
]
Signature = Annotated[bytes, Field(min_length=SIGNATURE_BYTES, max_length=SIGNATURE_BYTES, description="ed25519")]
Index = Annotated[int, Field(ge=0, lt=MAX_MEMBERS, description="of a member, as the list counts them")]
Members = Annotated[tuple[Index, ...], Field(max_length=MAX_MEMBERS, description="rising")]
PerMille = Annotated[int, Field(ge=0, le=PER_MILLE // 3)]


class SumRequest(SecureMessage):
    """The server asks a cohort to add something up."""

    federation: Name
    instance: Instance
    epoch: Epoch = 1
    round: int = Field(ge=0, lt=1 << 31, description="of the federation")
    attempt: Digest = Field(description="random, so that no two sums are the same")
    length: int = Field(ge=1, le=MAX_LENGTH, description="numbers of a vector")
    bits: Literal[32, 64] = Field(description="sums are mod 2^bits")
    layout: Digest = Field(description="of what the numbers mean: names, shapes and scales, as the plan has them")
    min_members: int = Field(ge=MIN_MEMBERS, le=MAX_MEMBERS, description="without so many nothing is added up")
    colluding: PerMille = Field(description="of the members may work for the server")
    lost: PerMille = Field(description="of the members may be lost")
    groups: int = Field(
        default=1,
        ge=1,
        le=MAX_GROUPS,
        exclude_if=lambda groups: groups == 1,
        description="of members; each adds its numbers in its group's part of the vector",
    )


class PublicKeys(SecureMessage):
    """A device's keys for this sum; it signs them with its identity."""

    request: Digest
    device: Name
    mask_key: Key = Field(description="X25519: with each neighbour's it gives the key of their mask")
    channel_key: Key = Field(description="X25519: shares are encrypted under what it gives with the receiver's")
    seed_commitment: Digest = Field(description="of the seed of the device's own mask")
    voucher: bytes = Field(
        default=b"",
        max_length=MAX_VOUCHER,
        exclude_if=operator.not_,
        description="of a plan with `secure.voucher`: who vouches for the device (`vouching`)",
    )


class ListedMember(SecureMessage):
    """A device as it is in the list."""

    device: Name
    identity: Key = Field(description="ed25519")
    keys: bytes = Field(max_length=MAX_SIGNED_BYTES, description="`PublicKeys`, signed")


class MemberList(SecureMessage):
    """Everybody who takes part, by rising name; every device checks it and later signs its digest."""

    request: Digest
    members: tuple[ListedMember, ...] = Field(
        min_length=MIN_MEMBERS, max_length=MAX_MEMBERS, description="by rising name"
    )


class EncryptedShares(SecureMessage):
    """A device's shares, one sealed text for each neighbour in rising order; signed.

    The digests let the server tell a share that is not the one that was dealt.
    """

    members: Digest = Field(description="of the list")
    sealed: tuple[Sealed, ...] = Field(max_length=MAX_MEMBERS, description="one for each neighbour")
    mask_key_digests: tuple[ShareDigest, ...] = Field(max_length=MAX_MEMBERS, description="of the mask key's shares")
    seed_digests: tuple[ShareDigest, ...] = Field(max_length=MAX_MEMBERS, description="of the seed's shares")


class SealedShare(SecureMessage):
    """What one neighbour dealt."""

    sender: Index
    sealed: Sealed


class DeliveredShares(SecureMessage):
    """The server hands a device the shares that its neighbours dealt to it, and says who dealt any."""

    members: Digest
    dealers: Members = Field(description="rising")
    shares: tuple[SealedShare, ...] = Field(max_length=MAX_MEMBERS, description="that were dealt to the receiver")


class MaskedVector(SecureMessage):
    """The head of a device's masked vector, whose bytes come with it; signed."""

    members: Digest
    dealers: Digest = Field(description="of those whom the device was told to have dealt shares: it masked with them")
    sha256: Digest = Field(description="of the vector's bytes")


class IncludedList(SecureMessage):
    """Who dealt shares, and whose vectors are in the sum: the one list that all sign before anything is opened."""

    members: Digest
    dealers: Members
    included: Members = Field(description="rising; all of them are dealers")


class Confirmation(SecureMessage):
    """A device's signature of the list of those included, with the words of `IncludedList` as they came."""

    included: Digest = Field(description="of the message")
    signature: Signature


class MemberSignature(SecureMessage):
    """One member's signature of the list."""

    member: Index
    signature: Signature


class SignedHead(SecureMessage):
    """What a member has signed of its vector."""

    member: Index
    head: bytes = Field(max_length=MAX_SIGNED_BYTES, description="`MaskedVector`, signed")


class SignatureList(SecureMessage):
    """The signatures of enough members under one list: the same for all, so that it is written once for many."""

    included: Digest
    signatures: tuple[MemberSignature, ...] = Field(max_length=MAX_MEMBERS, description="of the list")


class ConfirmedList(SecureMessage):
    """The signatures of enough members under one list, and the heads of the receiver's neighbours in it.

    Where the signatures of many come apart, as a `SignatureList`, there are none in it.

    A device opens the seed of a neighbour that has masked with the dealers of the list alone: one that was told of
    fewer lacks masks, and its numbers would be seen.
    """

    included: Digest
    signatures: tuple[MemberSignature, ...] = Field(max_length=MAX_MEMBERS, description="of the list")
    heads: tuple[SignedHead, ...] = Field(max_length=MAX_MEMBERS, description="of the receiver's neighbours")


class OwnedShare(SecureMessage):
    """A share, and whose secret it is of."""

    owner: Index
    share: Share


class RevealedShares(SecureMessage):
    """What a device opens: of those included the seed's share, of those lost the mask key's; never both; signed."""

    included: Digest
    seeds: tuple[OwnedShare, ...] = Field(max_length=MAX_MEMBERS, description="of members whose vectors are in the sum")
    mask_keys: tuple[OwnedShare, ...] = Field(max_length=MAX_MEMBERS, description="of members who were lost")


AnyMessage = TypeVar("AnyMessage", bound=BaseModel)


def written(message: BaseModel) -> bytes:
    """Write a message."""
    return message.model_dump_json().encode()


def read(kind: type[AnyMessage], body: bytes, limit: int = MAX_MESSAGE_BYTES) -> AnyMessage:
    """Read a message.

    Raises:
        WireError: if it is larger than the limit, or not such a message, with the first reason.
    """
    if len(body) > limit:
        raise WireError(f"got a {kind.__name__} of {len(body):,} bytes; expected at most {limit:,}")
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise WireError(f"{kind.__name__}: {first_problem(error)}") from error


def dealers_digest(dealers: tuple[int, ...]) -> bytes:
    """Return the digest of those who dealt shares."""
    return digest(b"dealers", *(index.to_bytes(4, "big") for index in dealers))


def digest(*parts: bytes) -> bytes:
    """Return the SHA-256 of one message, or of parts of fixed lengths."""
    return hashlib.sha256(b"".join(parts)).digest()


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
