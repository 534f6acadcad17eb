"""A device's half of a secure sum as a state machine without I/O: an event goes in, the state and messages come out.

keys → shares → vector → list → opened, or aborted with a reason, after which the device says nothing more. Whoever
drives it writes the state before it sends a message: a device that was killed goes on from what was written, and says
the same again. The state holds secrets until the shares are opened; it is a file that only its owner may read.

Whatever the server says, a device opens shares once, for one list, which enough members have signed, and of each
neighbour either the seed's share or the mask key's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from federation.errors import WireError
from federation.protocol.signing import Kind, to_sign, wrap
from federation.secure_sums import masks, shamir
from federation.secure_sums.membership import Membership, membership, seed_commitment, share_digest, signed, verified
from federation.secure_sums.messages import (
    Confirmation,
    ConfirmedList,
    DeliveredShares,
    EncryptedShares,
    FromServer,
    IncludedList,
    MaskedVector,
    OwnedShare,
    PublicKeys,
    RevealedShares,
    SecureMessage,
    ServerMessage,
    SignatureList,
    SignedHead,
    SumDevice,
    SumRequest,
    ToServer,
    VectorReady,
    dealers_digest,
    digest,
    read,
    written,
)
from gaitway.python310 import StrEnum


class ClientStage(StrEnum):
    """What a device has done last."""

    KEYS = "keys"
    SHARES = "shares"
    READY = "ready"  # it has its neighbours' shares, and waits for its own vector
    VECTOR = "vector"
    LIST = "list"
    OPENED = "opened"
    ABORTED = "aborted"


class ClientState(SecureMessage):
    """Everything that a device must not lose in a sum; b"" where it has not come to that."""

    stage: ClientStage
    device: str
    request: bytes
    mask_private: bytes = b""
    channel_private: bytes = b""
    seed: bytes = b""
    keys_sent: bytes = b""
    members: bytes = b""
    shares_sent: bytes = b""
    delivered: bytes = b""
    held: dict[int, bytes] = Field(default_factory=dict)  # by dealer: its mask key's share, then its seed's
    vector_sha256: bytes = b""
    vector_sent: bytes = b""
    included: bytes = b""
    list_sent: bytes = b""
    opened_sent: bytes = b""
    reason: str = ""


class ClientStep(NamedTuple):
    """The result of an event; `reason` says why nothing came of it, or why the device gives up."""

    state: ClientState
    message: ToServer | None = None
    reason: str = ""


class AbortError(WireError):
    """What came can only be of a server that lies, or of a round that has gone wrong: the device gives up."""


def begin(device: SumDevice, request: bytes) -> ClientStep:
    """Answer a request with fresh keys.

    Raises:
        WireError: if it is not a request, or asks for less than the device insists on.
    """
    sum_request = read(SumRequest, request)
    if sum_request.min_members < device.min_members or sum_request.colluding < device.colluding:
        raise WireError(
            f"the sum would be of {sum_request.min_members} devices or more, of which {sum_request.colluding} per mille"
            f" may work for the server; this device insists on {device.min_members} and {device.colluding}"
        )
    if sum_request.groups != device.groups or sum_request.length % sum_request.groups:
        raise WireError(
            f"the sum would be of {sum_request.groups} groups of devices and {sum_request.length} numbers; this device "
            f"insists on {device.groups}, as the plan has them"
        )
    if device.vouchers is not None:
        own = device.vouchers.reason(sum_request.federation, device.name, device.identity, device.voucher)
        if own:
            raise WireError(own)
    mask, channel, seed = (device.entropy(shamir.SECRET_BYTES) for _ in range(3))
    keys = PublicKeys(
        request=digest(request),
        device=device.name,
        mask_key=masks.public_of(mask),
        channel_key=masks.public_of(channel),
        seed_commitment=seed_commitment(seed),
        voucher=device.voucher,
    )
    sent = wrap(Kind.SUM_KEYS, sum_request.federation, device.name, written(keys), device.sign)
    state = ClientState(
        stage=ClientStage.KEYS,
        device=device.name,
        request=request,
        mask_private=mask,
        channel_private=channel,
        seed=seed,
        keys_sent=sent,
    )
    return ClientStep(state, ToServer(Kind.SUM_KEYS, sent))


def step(device: SumDevice, state: ClientState, event: FromServer | VectorReady) -> ClientStep:
    """Apply one event. What comes again is answered again; what comes too early changes nothing."""
    if state.stage is ClientStage.ABORTED:
        return ClientStep(state, None, state.reason)
    try:
        if isinstance(event, VectorReady):
            return _mask(device, state, event)
        return _ANSWERS[event.kind](device, state, event)
    except WireError as error:
        return _aborted(state, str(error))


def _aborted(state: ClientState, reason: str) -> ClientStep:
    left = ClientState(stage=ClientStage.ABORTED, device=state.device, request=state.request, reason=reason)
    return ClientStep(left, None, reason)


def _again(state: ClientState, before: bytes, now: bytes, sent: ToServer | None, what: str) -> ClientStep:
    """Answer what came before as it was answered then.

    Raises:
        AbortError: if it is not the same as before.
    """
    if before != now:
        raise AbortError(f"the server shows two different {what} in one sum")
    return ClientStep(state, sent)


def _early(state: ClientState, kind: str) -> ClientStep:
    return ClientStep(state, None, f"{kind} arrived too early: the device is at {state.stage}")


def _request(device: SumDevice, state: ClientState, message: FromServer) -> ClientStep:
    return _again(state, state.request, message.body, ToServer(Kind.SUM_KEYS, state.keys_sent), "requests")


def _members(device: SumDevice, state: ClientState, message: FromServer) -> ClientStep:
    """Check the list, and deal shares of both secrets to the neighbours."""
    body = message.shared or message.body
    if state.members:
        return _again(state, state.members, body, ToServer(Kind.SUM_SHARES, state.shares_sent), "lists of members")
    listed = membership(state.request, body)
    own = listed.places.get(device.name)
    if own is None or listed.members[own].keys != state.keys_sent or listed.members[own].identity != device.identity:
        raise AbortError("the list of members doesn't contain this device with its own keys")
    for member in listed.members:
        if device.known_identities.get(member.device, member.identity) != member.identity:
            raise AbortError(f"{member.device} has another identity in the list than before")
    _check_vouchers(device, listed)
    holders, threshold = listed.neighbours(own), listed.degree.threshold
    points = np.array(holders, np.uint64) + np.uint64(1)
    dealt = [shamir.split(secret, points, threshold, device.entropy) for secret in (state.mask_private, state.seed)]
    channel = masks.private_key(state.channel_private)
    sealed = tuple(
        masks.seal(
            listed.channel_key(channel, listed.keys_of(holder).channel_key, own, holder),
            mask_share + seed_share,
            listed.channel(own, holder),
        )
        for holder, mask_share, seed_share in zip(holders, *dealt, strict=True)
    )
    digests = [tuple(map(share_digest, shares)) for shares in dealt]
    shares = EncryptedShares(members=listed.digest, sealed=sealed, mask_key_digests=digests[0], seed_digests=digests[1])
    sent = wrap(Kind.SUM_SHARES, listed.request.federation, device.name, written(shares), device.sign)
    new = state.model_copy(update={"stage": ClientStage.SHARES, "members": body, "shares_sent": sent})
    return ClientStep(new, ToServer(Kind.SUM_SHARES, sent))


def _check_vouchers(device: SumDevice, listed: Membership) -> None:
    """Refuse a list with a member that may be the server's invention."""
    if device.vouchers is None:
        return
    for place, member in enumerate(listed.members):
        voucher = listed.keys_of(place).voucher
        if reason := device.vouchers.reason(listed.request.federation, member.device, member.identity, voucher):
            raise AbortError(reason)


def _shares(device: SumDevice, state: ClientState, message: FromServer) -> ClientStep:
    """Open what the neighbours have dealt; a text that cannot be opened is one share less."""
    body = message.body
    if state.delivered:
        return _again(state, state.delivered, body, None, "deliveries of shares")
    if state.stage is not ClientStage.SHARES:
        return _early(state, "shares")
    listed, delivered = membership(state.request, state.members), read(DeliveredShares, body)
    own = listed.places[device.name]
    _check_rising(delivered.dealers, range(len(listed.members)), "dealers")
    if delivered.members != listed.digest or own not in delivered.dealers:
        raise AbortError("the shares belong to another list of members, or this device's own were lost")
    held, channel = {}, masks.private_key(state.channel_private)
    expected = set(listed.neighbours(own)) & set(delivered.dealers)
    for share in delivered.shares:
        if share.sender in expected:
            key = listed.channel_key(channel, listed.keys_of(share.sender).channel_key, share.sender, own)
            text = masks.unseal(key, share.sealed, listed.channel(share.sender, own))
            if text is not None:
                held[share.sender] = text
    new = state.model_copy(update={"stage": ClientStage.READY, "delivered": body, "held": held})
    return ClientStep(new)


def _mask(device: SumDevice, state: ClientState, event: VectorReady) -> ClientStep:
    """Add the masks to the device's own numbers; whatever happens, one vector alone leaves under them."""
    if state.stage in (ClientStage.KEYS, ClientStage.SHARES):
        return _early(state, "the vector")
    if state.stage in (ClientStage.LIST, ClientStage.OPENED):
        return ClientStep(state, None, "the list of included devices is signed, so the vector can't be used any more")
    listed = membership(state.request, state.members)
    _check_vector(listed, event)
    masked = masked_vector(listed, state, event.vector).tobytes()
    if state.vector_sha256:
        if digest(masked) != state.vector_sha256:
            raise AbortError(
                "the device's numbers differ from those that it has sent: both would reveal their difference"
            )
        return ClientStep(state, ToServer(Kind.SUM_VECTOR, state.vector_sent, masked))
    dealers = read(DeliveredShares, state.delivered).dealers
    head = MaskedVector(members=listed.digest, dealers=dealers_digest(dealers), sha256=digest(masked))
    sent_head = wrap(Kind.SUM_VECTOR, listed.request.federation, device.name, written(head), device.sign)
    new = state.model_copy(update={"stage": ClientStage.VECTOR, "vector_sha256": head.sha256, "vector_sent": sent_head})
    return ClientStep(new, ToServer(Kind.SUM_VECTOR, sent_head, masked))


def _check_vector(listed: Membership, event: VectorReady) -> None:
    request = listed.request
    if event.layout != request.layout or event.vector.shape != (request.length // request.groups,):
        raise AbortError("the server requests a sum of other numbers than the plan's")
    if len(listed.members) * event.bound >= 1 << (request.bits - 1):
        raise AbortError(
            f"the sum of {len(listed.members)} numbers of up to {event.bound:,} does not fit {request.bits} bits"
        )
    if len(event.vector) and int(np.abs(event.vector).max()) > event.bound:
        raise AbortError(f"a number is beyond {event.bound:,}, which the scales of the plan allow")


def masked_vector(listed: Membership, state: ClientState, vector: NDArray[np.int64]) -> masks.RingVector:
    """Return x + PRG(b_u) + Σ_{v > u} PRG(s_uv) − Σ_{v < u} PRG(s_uv), over the neighbours v that dealt shares."""
    own, dealers = listed.places[state.device], set(read(DeliveredShares, state.delivered).dealers)
    total = listed.in_its_group(own, vector).astype(masks.dtype_of(listed.request.bits))  # wraps: −1 is 2^bits − 1
    total += listed.own_mask(state.seed, own)
    private = masks.private_key(state.mask_private)
    for other in listed.neighbours(own):
        if other in dealers:
            listed.add_pair_mask(total, private, own, other)
    return total


def _included(device: SumDevice, state: ClientState, message: FromServer) -> ClientStep:
    """Sign the list of those included, once."""
    body = message.shared or message.body
    if state.included:
        return _again(state, state.included, body, ToServer(Kind.SUM_LIST, state.list_sent), "lists of those included")
    if state.stage is not ClientStage.VECTOR:
        return _early(state, "the list of those included")
    listed, found = membership(state.request, state.members), read(IncludedList, body)
    own, dealers = listed.places[device.name], read(DeliveredShares, state.delivered).dealers
    if found.members != listed.digest or found.dealers != dealers:
        raise AbortError("the server shows two different lists of those who dealt shares in one sum")
    _check_rising(found.included, dealers, "those included")
    if own not in found.included:
        raise AbortError("this device's vector was late")
    if len(found.included) < max(listed.request.min_members, listed.degree.quorum):
        raise AbortError(f"the sum would be of {len(found.included)} devices: too few are left")
    if reason := listed.lacking(found.included):
        raise AbortError(reason)
    signature = device.sign(to_sign(Kind.SUM_LIST, listed.request.federation, device.name, body))
    sent = written(Confirmation(included=digest(body), signature=signature))
    new = state.model_copy(update={"stage": ClientStage.LIST, "included": body, "list_sent": sent})
    return ClientStep(new, ToServer(Kind.SUM_LIST, sent))


def _confirmed(device: SumDevice, state: ClientState, message: FromServer) -> ClientStep:
    """Open shares, once enough members have signed the same list; then forget all secrets."""
    if state.stage is ClientStage.OPENED:
        return ClientStep(state, ToServer(Kind.SUM_OPENED, state.opened_sent))
    if state.stage is not ClientStage.LIST:
        return _early(state, "the signatures of the list")
    listed, found = membership(state.request, state.members), read(ConfirmedList, message.body)
    signed_by = read(SignatureList, message.shared) if message.shared else found
    included = read(IncludedList, state.included)
    if {found.included, signed_by.included} != {digest(state.included)}:
        raise AbortError("the server shows two different lists of those included in one sum")
    present = set(included.included)
    signers = {entry.member: entry.signature for entry in signed_by.signatures if entry.member in present}
    valid = 0
    for member, signature in signers.items():
        signer = listed.members[member]
        text = to_sign(Kind.SUM_LIST, listed.request.federation, signer.device, state.included)
        valid += signed(text, signature, signer.identity)
        if valid == listed.degree.quorum:
            break
    if valid < listed.degree.quorum:
        raise AbortError(f"{valid} members have signed the list of those included, {listed.degree.quorum} are needed")
    _check_heads(listed, own=listed.places[device.name], included=included, heads=found.heads)
    sent = wrap(Kind.SUM_OPENED, listed.request.federation, device.name, written(_opened(state, included)), device.sign)
    left = ClientState(
        stage=ClientStage.OPENED,
        device=state.device,
        request=state.request,
        members=state.members,
        delivered=state.delivered,
        included=state.included,
        list_sent=state.list_sent,
        opened_sent=sent,
    )
    return ClientStep(left, ToServer(Kind.SUM_OPENED, sent))


def _check_heads(listed: Membership, own: int, included: IncludedList, heads: tuple[SignedHead, ...]) -> None:
    """See that every neighbour in the sum has masked its numbers with all dealers of the list."""
    by_member, present = {entry.member: entry.head for entry in heads}, set(included.included)
    for member in listed.neighbours(own):
        if member in present:
            name, identity = listed.members[member].device, listed.members[member].identity
            if member not in by_member:
                raise AbortError(f"the server does not show what {name} has signed of its vector")
            body = verified(Kind.SUM_VECTOR, listed.request.federation, name, identity, by_member[member])
            head = read(MaskedVector, body)
            if head.members != listed.digest or head.dealers != dealers_digest(included.dealers):
                raise AbortError(f"the server has told {name} of other dealers than the list has: it lacks masks")


def _opened(state: ClientState, included: IncludedList) -> RevealedShares:
    present = set(included.included)
    halves = {True: slice(shamir.SHARE_BYTES, None), False: slice(None, shamir.SHARE_BYTES)}
    shares = {
        is_present: tuple(
            OwnedShare(owner=owner, share=text[half])
            for owner, text in sorted(state.held.items())
            if (owner in present) is is_present
        )
        for is_present, half in halves.items()
    }
    return RevealedShares(included=digest(state.included), seeds=shares[True], mask_keys=shares[False])


def _check_rising(members: tuple[int, ...], allowed: range | tuple[int, ...], what: str) -> None:
    if any(first >= second for first, second in pairwise(members)) or not set(members) <= set(allowed):
        raise AbortError(f"the list of {what} does not rise, or has somebody who cannot be in it")


_ANSWERS: Mapping[ServerMessage, Callable[[SumDevice, ClientState, FromServer], ClientStep]] = {
    ServerMessage.REQUEST: _request,
    ServerMessage.MEMBERS: _members,
    ServerMessage.SHARES: _shares,
    ServerMessage.INCLUDED: _included,
    ServerMessage.CONFIRMED: _confirmed,
}
