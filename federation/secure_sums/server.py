"""The server's half of a secure sum as a state machine without I/O: an event goes in, the state and messages come out.

keys → shares → vectors → lists → opening → done, or failed with a reason. Each stage ends when whoever drives it says
so: all have answered, or the time is up. The state is written before a message is sent; a server that was killed goes
on from what was written. Of the devices' vectors it keeps their sum alone, which is uniformly random until the shares
are opened, and of a device whose vector comes twice or late it adds nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from federation.errors import WireError
from federation.protocol.signing import Kind, to_sign, unwrap
from federation.secure_sums import masks
from federation.secure_sums.membership import Membership, membership, signed, verified
from federation.secure_sums.messages import (
    MAX_SIGNED_BYTES,
    Confirmation,
    ConfirmedList,
    DeliveredShares,
    EncryptedShares,
    FromDevice,
    IncludedList,
    ListedMember,
    MaskedVector,
    MemberList,
    MemberSignature,
    PublicKeys,
    RevealedShares,
    SealedShare,
    SecureMessage,
    ServerMessage,
    SignatureList,
    SignedHead,
    StageClosed,
    SumRequest,
    ToDevice,
    dealers_digest,
    digest,
    read,
    written,
)
from federation.secure_sums.retries import SumFinding
from federation.secure_sums.unmasking import Opening, UnmaskingError, unmasked
from gaitway.python310 import StrEnum

MAX_INLINE_BYTES = 64 * 1024
"""Of what all members are told alike: what is longer comes apart from what each is told, once for all."""


APART = b"apart"
"""Stands for what all are told by a blob, in a message of which that alone is needed."""


class ServerStage(StrEnum):
    """What the server waits for, or how it has ended."""

    KEYS = "keys"
    SHARES = "shares"
    VECTORS = "vectors"
    LISTS = "lists"
    OPENING = "opening"
    DONE = "done"
    FAILED = "failed"


class ServerState(SecureMessage):
    """Everything that the server must not lose in a sum; messages as they came, by device."""

    stage: ServerStage = ServerStage.KEYS
    request: bytes
    identities: dict[str, bytes]
    keys: dict[str, bytes] = Field(default_factory=dict)
    members: bytes = b""
    shares: dict[str, bytes] = Field(default_factory=dict)
    dealers: tuple[int, ...] = ()
    vectors: dict[str, bytes] = Field(default_factory=dict)  # the heads: names and digests
    total: bytes = b""  # of the masked vectors; in the end of the devices' own
    included: bytes = b""
    signatures: dict[str, bytes] = Field(default_factory=dict)
    opened: dict[str, bytes] = Field(default_factory=dict)
    reason: str = ""
    needs_all: bool = False  # whether the sum is of all who are asked, or fails (`federation.secure_sums.retries`)
    finding: SumFinding = Field(default_factory=SumFinding)  # of a sum that failed


class ServerStep(NamedTuple):
    """The result of an event; `refusal` says why a message was not taken, and `is_fault` whether that is its sender's.

    A message that only comes at the wrong time is nobody's fault.
    """

    state: ServerState
    messages: tuple[ToDevice, ...] = ()
    refusal: str = ""
    is_fault: bool = False


class UntimelyError(WireError):
    """A message comes too late or too early, or nobody has asked for it."""


def begin(request: SumRequest, identities: Mapping[str, bytes]) -> ServerStep:
    """Ask devices, whose ed25519 keys are known, for their keys."""
    body = written(request)
    state = ServerState(request=body, identities=dict(identities))
    return ServerStep(state, tuple(ToDevice(name, ServerMessage.REQUEST, body) for name in sorted(identities)))


def step(state: ServerState, event: FromDevice | StageClosed) -> ServerStep:
    """Apply one event. A message that is wrong, late or second changes nothing; the same again is taken silently."""
    if isinstance(event, StageClosed):
        return _CLOSINGS[state.stage](state) if state.stage in _CLOSINGS else ServerStep(state)
    try:
        return (
            _TAKES[event.kind](state, event)
            if event.kind in _TAKES
            else ServerStep(state, (), "no such message", is_fault=True)
        )
    except WireError as error:
        return ServerStep(state, (), str(error), is_fault=not isinstance(error, UntimelyError))


def repeated(state: ServerState) -> tuple[ToDevice, ...]:
    """Return what the devices were told last, from the state alone: the same bytes, as often as it is asked."""
    if state.stage is ServerStage.KEYS:
        return tuple(ToDevice(name, ServerMessage.REQUEST, state.request) for name in sorted(state.identities))
    if state.stage not in _CLOSINGS:
        return ()
    order = list(_CLOSINGS)
    before = order[order.index(state.stage) - 1]
    return _CLOSINGS[before](state.model_copy(update={"stage": before})).messages


def repeated_to(state: ServerState, device: str, *, is_apart: bool) -> ToDevice | None:
    """Return what one device was told last, as `repeated` has it; None where it was told nothing.

    Of what others have said, its neighbours' shares and heads of vectors are enough; where all are told alike by a blob
    (`is_apart`), that blob's content is not made again.
    """
    if state.stage is ServerStage.KEYS:
        return ToDevice(device, ServerMessage.REQUEST, state.request) if device in state.identities else None
    if state.stage not in _CLOSINGS:
        return None
    listed = membership(state.request, state.members)
    if device not in listed.places:
        return None
    own = listed.places[device]
    if state.stage is ServerStage.VECTORS:
        return ToDevice(device, ServerMessage.SHARES, _delivered(state, listed, own)) if own in state.dealers else None
    if state.stage is ServerStage.OPENING:
        signatures = () if is_apart else _signatures(state, listed)
        heads = {listed.places[name]: payload for name, payload in state.vectors.items()}
        shared = APART if is_apart else b""
        message = ToDevice(device, ServerMessage.CONFIRMED, _confirmed(state, listed, own, signatures, heads), shared)
        return message if own in heads else None
    body, kind = (
        (state.members, ServerMessage.MEMBERS)
        if state.stage is ServerStage.SHARES
        else (state.included, ServerMessage.INCLUDED)
    )
    return ToDevice(device, kind, *_apart(body))


def missing(state: ServerState) -> Collection[str]:
    """Return the devices that are still waited for in this stage."""
    if state.stage is ServerStage.KEYS:
        return state.identities.keys() - state.keys.keys()
    if state.stage not in _CLOSINGS:
        return ()
    listed = membership(state.request, state.members)
    if state.stage is ServerStage.SHARES:
        return listed.places.keys() - state.shares.keys()
    if state.stage is ServerStage.VECTORS:
        return {listed.members[index].device for index in state.dealers} - state.vectors.keys()
    return state.vectors.keys() - (state.signatures if state.stage is ServerStage.LISTS else state.opened).keys()


def result(state: ServerState) -> NDArray[np.int64]:
    """Return the sum (length,) of a state that is done, as signed whole numbers."""
    request = read(SumRequest, state.request)
    if state.stage is not ServerStage.DONE:
        raise WireError(f"there is no sum: {state.reason or state.stage}")
    return np.frombuffer(state.total, f"<i{request.bits // 8}").astype(np.int64)


def included_devices(state: ServerState) -> tuple[str, ...]:
    """Return whose vectors are in the sum, by name."""
    return tuple(sorted(state.vectors))


# ---- messages of devices


def _expect(state: ServerState, stage: ServerStage, kept: Mapping[str, bytes], device: str, payload: bytes) -> bool:
    """Whether a device's message is new; False for one that has been taken before, bit for bit.

    Raises:
        WireError: if it is another one than was taken, or comes at another time.
    """
    if device in kept:
        if kept[device] == payload:
            return False
        raise WireError(f"{device} has already sent something else")
    if state.stage is not stage:
        raise UntimelyError(f"{device} is too late or too early: the sum is at {state.stage}")
    return True


def _body(state: ServerState, event: FromDevice) -> bytes:
    """Return what an invited device has signed."""
    if event.device not in state.identities:
        raise UntimelyError(f"{event.device} is not asked")
    federation = read(SumRequest, state.request).federation
    return verified(event.kind, federation, event.device, state.identities[event.device], event.payload)


_ANY_KEY = masks.private_key(bytes(range(32)))


def _take_keys(state: ServerState, event: FromDevice) -> ServerStep:
    if not _expect(state, ServerStage.KEYS, state.keys, event.device, event.payload):
        return ServerStep(state)
    keys = read(PublicKeys, _body(state, event), MAX_SIGNED_BYTES)
    if keys.device != event.device or keys.request != digest(state.request):
        raise WireError(f"the keys of {event.device} are those of another device or sum")
    if len(event.payload) > MAX_SIGNED_BYTES:
        raise WireError(f"the keys of {event.device} are too long")
    for key in (keys.mask_key, keys.channel_key):
        masks.pair_key(_ANY_KEY, key, b"usable")  # refuses points of small order
    return ServerStep(state.model_copy(update={"keys": {**state.keys, event.device: event.payload}}))


def _take_shares(state: ServerState, event: FromDevice) -> ServerStep:
    if not _expect(state, ServerStage.SHARES, state.shares, event.device, event.payload):
        return ServerStep(state)
    listed, own = _place(state, event.device)
    shares = read(EncryptedShares, _body(state, event))
    if shares.members != listed.digest:
        raise WireError(f"{event.device} has been shown another list of members")
    if any(
        len(part) != len(listed.neighbours(own))
        for part in (shares.sealed, shares.mask_key_digests, shares.seed_digests)
    ):
        raise WireError(f"{event.device} has not dealt one share to each of its neighbours")
    return ServerStep(state.model_copy(update={"shares": {**state.shares, event.device: event.payload}}))


def _take_vector(state: ServerState, event: FromDevice) -> ServerStep:
    if not _expect(state, ServerStage.VECTORS, state.vectors, event.device, event.payload):
        return ServerStep(state)
    listed, own = _place(state, event.device)
    head = read(MaskedVector, _body(state, event))
    if own not in state.dealers:
        raise UntimelyError(f"{event.device} has dealt no shares in time")
    if head.members != listed.digest or head.dealers != dealers_digest(state.dealers):
        raise WireError(f"{event.device} has masked for other lists")
    kind = masks.dtype_of(listed.request.bits)
    if len(event.vector) != listed.request.length * kind.itemsize or digest(event.vector) != head.sha256:
        raise WireError(f"the vector of {event.device} is not the one that it has signed")
    total = np.frombuffer(event.vector, kind)
    if state.total:
        total = total + np.frombuffer(state.total, kind)
    vectors = {**state.vectors, event.device: event.payload}
    return ServerStep(state.model_copy(update={"vectors": vectors, "total": total.tobytes()}))


def _take_signature(state: ServerState, event: FromDevice) -> ServerStep:
    if not _expect(state, ServerStage.LISTS, state.signatures, event.device, event.payload):
        return ServerStep(state)
    listed, _ = _place(state, event.device)
    confirmation = read(Confirmation, event.payload, MAX_SIGNED_BYTES)
    text = to_sign(Kind.SUM_LIST, listed.request.federation, event.device, state.included)
    if event.device not in state.vectors or not signed(text, confirmation.signature, state.identities[event.device]):
        raise WireError(f"{event.device} has not signed this list of those included")
    return ServerStep(state.model_copy(update={"signatures": {**state.signatures, event.device: event.payload}}))


def _take_opened(state: ServerState, event: FromDevice) -> ServerStep:
    if not _expect(state, ServerStage.OPENING, state.opened, event.device, event.payload):
        return ServerStep(state)
    if event.device not in state.vectors:
        raise UntimelyError(f"{event.device} is not included")
    if read(RevealedShares, _body(state, event)).included != digest(state.included):
        raise WireError(f"{event.device} has opened its shares for another list")
    return ServerStep(state.model_copy(update={"opened": {**state.opened, event.device: event.payload}}))


def _place(state: ServerState, device: str) -> tuple[Membership, int]:
    """Return the list and the device's place in it.

    Raises:
        WireError: if there is no list yet, or the device is not in it.
    """
    if not state.members:
        raise UntimelyError(f"{device} is too early: the sum is at {state.stage}")
    listed = membership(state.request, state.members)
    if device not in listed.places:
        raise UntimelyError(f"{device} is not in the list of members")
    return listed, listed.places[device]


_TAKES = {
    Kind.SUM_KEYS: _take_keys,
    Kind.SUM_SHARES: _take_shares,
    Kind.SUM_VECTOR: _take_vector,
    Kind.SUM_LIST: _take_signature,
    Kind.SUM_OPENED: _take_opened,
}


# ---- the end of each stage


def _failed(state: ServerState, reason: str, finding: SumFinding | None = None) -> ServerStep:
    """Give up; what has come says nothing and is dropped, but for who was silent, or is to blame."""
    left = ServerState(
        stage=ServerStage.FAILED,
        request=state.request,
        identities=state.identities,
        reason=reason,
        finding=finding or SumFinding(silent=tuple(sorted(missing(state)))),
    )
    return ServerStep(left)


def _incomplete(state: ServerState, count: int) -> str:
    """Say that somebody lacks in a sum that must be of all who are asked; empty if nobody does, or it need not be."""
    invited = len(state.identities)
    if not state.needs_all or count == invited:
        return ""
    return f"{count} of {invited} devices are left, and the sum must be of all of them, for their sum was seen before"


def _close_keys(state: ServerState) -> ServerStep:
    request = read(SumRequest, state.request)
    if reason := _incomplete(state, len(state.keys)):
        return _failed(state, reason)
    if (count := len(state.keys)) < (needed := request.min_members * request.groups):
        return _failed(state, f"the keys of {count} devices came, {needed} are needed")
    members = tuple(
        ListedMember(device=name, identity=state.identities[name], keys=state.keys[name]) for name in sorted(state.keys)
    )
    body = written(MemberList(request=digest(state.request), members=members))
    new = state.model_copy(update={"stage": ServerStage.SHARES, "members": body})
    own, shared = _apart(body)
    return ServerStep(new, tuple(ToDevice(name, ServerMessage.MEMBERS, own, shared) for name in sorted(state.keys)))


def _close_shares(state: ServerState) -> ServerStep:
    listed = membership(state.request, state.members)
    dealt = {listed.places[name]: _read_shares(state.shares[name]) for name in sorted(state.shares)}
    if reason := _incomplete(state, len(dealt)) or _too_few(listed, len(dealt), "have dealt shares"):
        return _failed(state, reason)
    dealers = tuple(sorted(dealt))
    inbox: dict[int, list[SealedShare]] = {index: [] for index in dealers}
    for dealer, shares in sorted(dealt.items()):
        for holder, sealed in zip(listed.neighbours(dealer), shares.sealed, strict=True):
            if holder in inbox:
                inbox[holder].append(SealedShare(sender=dealer, sealed=sealed))
    messages = tuple(
        ToDevice(
            listed.members[index].device,
            ServerMessage.SHARES,
            written(DeliveredShares(members=listed.digest, dealers=dealers, shares=tuple(shares))),
        )
        for index, shares in inbox.items()
    )
    return ServerStep(state.model_copy(update={"stage": ServerStage.VECTORS, "dealers": dealers}), messages)


def _close_vectors(state: ServerState) -> ServerStep:
    listed = membership(state.request, state.members)
    if reason := _incomplete(state, len(state.vectors)) or _too_few(
        listed, len(state.vectors), "have sent their vectors"
    ):
        return _failed(state, reason)
    included = tuple(sorted(listed.places[name] for name in state.vectors))
    if reason := listed.lacking(included):
        return _failed(state, reason)
    body = written(IncludedList(members=listed.digest, dealers=state.dealers, included=included))
    new = state.model_copy(update={"stage": ServerStage.LISTS, "included": body})
    own, shared = _apart(body)
    return ServerStep(new, tuple(ToDevice(name, ServerMessage.INCLUDED, own, shared) for name in sorted(state.vectors)))


def _apart(body: bytes) -> tuple[bytes, bytes]:
    """Return what each member is told by itself, and what all are told alike."""
    return (body, b"") if len(body) <= MAX_INLINE_BYTES else (b"", body)


def _too_few(listed: Membership, count: int, what: str) -> str:
    needed = max(listed.request.min_members, listed.degree.quorum)
    return f"{count} of {len(listed.members)} members {what}, {needed} are needed" if count < needed else ""


def _close_lists(state: ServerState) -> ServerStep:
    listed = membership(state.request, state.members)
    if (count := len(state.signatures)) < listed.degree.quorum:
        return _failed(state, f"{count} members have signed the list, {listed.degree.quorum} are needed")
    signatures = _signatures(state, listed)
    heads = {listed.places[name]: payload for name, payload in state.vectors.items()}
    apart = written(SignatureList(included=digest(state.included), signatures=signatures))
    if len(apart) <= MAX_INLINE_BYTES:
        apart = b""
    common = () if apart else signatures
    messages = []
    for name in sorted(state.vectors):
        body = _confirmed(state, listed, listed.places[name], common, heads)
        messages.append(ToDevice(name, ServerMessage.CONFIRMED, body, apart))
    return ServerStep(state.model_copy(update={"stage": ServerStage.OPENING}), tuple(messages))


def _signatures(state: ServerState, listed: Membership) -> tuple[MemberSignature, ...]:
    """Return as many signatures of the list as a quorum has."""
    return tuple(
        MemberSignature(member=listed.places[name], signature=read(Confirmation, payload).signature)
        for name, payload in sorted(state.signatures.items())[: listed.degree.quorum]
    )


def _confirmed(
    state: ServerState,
    listed: Membership,
    own: int,
    signatures: tuple[MemberSignature, ...],
    heads: Mapping[int, bytes],
) -> bytes:
    """Write what a member is told before it opens shares: the signatures, and what its neighbours have signed."""
    near = tuple(SignedHead(member=other, head=heads[other]) for other in listed.neighbours(own) if other in heads)
    return written(ConfirmedList(included=digest(state.included), signatures=signatures, heads=near))


def _delivered(state: ServerState, listed: Membership, own: int) -> bytes:
    """Write what a dealer's neighbours have dealt to it."""
    shares = []
    for dealer in listed.neighbours(own):
        if dealer in state.dealers:
            sealed = _read_shares(state.shares[listed.members[dealer].device]).sealed
            shares.append(SealedShare(sender=dealer, sealed=sealed[listed.neighbours(dealer).index(own)]))
    return written(DeliveredShares(members=listed.digest, dealers=state.dealers, shares=tuple(shares)))


def _close_opening(state: ServerState) -> ServerStep:
    listed = membership(state.request, state.members)
    shares = {listed.places[name]: _read_shares(payload) for name, payload in state.shares.items()}
    opened = {listed.places[name]: read(RevealedShares, unwrap(payload).body) for name, payload in state.opened.items()}
    included = {listed.places[name] for name in state.vectors}
    masked = np.frombuffer(state.total, masks.dtype_of(listed.request.bits))
    try:
        total = unmasked(listed, masked, included, Opening(state.dealers, shares, opened))
    except UnmaskingError as error:
        names = {index: member.device for index, member in enumerate(listed.members)}
        finding = SumFinding(
            culprits={names[index]: why for index, why in error.culprits.items()},
            suspects=tuple(sorted(names[index] for index in error.suspects)),
            silent=() if error.culprits else tuple(sorted(missing(state))),
        )
        return _failed(state, str(error), finding)
    # what the secrets were pieced together from is no longer needed, and should not lie anywhere
    done = {"stage": ServerStage.DONE, "total": total.tobytes(), "opened": {}, "shares": {}}
    return ServerStep(state.model_copy(update=done))


def _read_shares(payload: bytes) -> EncryptedShares:
    return read(EncryptedShares, unwrap(payload).body)  # its signature was verified when it came


_CLOSINGS = {
    ServerStage.KEYS: _close_keys,
    ServerStage.SHARES: _close_shares,
    ServerStage.VECTORS: _close_vectors,
    ServerStage.LISTS: _close_lists,
    ServerStage.OPENING: _close_opening,
}
