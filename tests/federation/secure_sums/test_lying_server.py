"""A server that lies gets no device's secrets: devices give up, or open one kind of share for one list."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from federation.protocol.signing import Kind, unwrap, wrap
from federation.secure_sums import client
from federation.secure_sums.client import ClientStage, ClientStep
from federation.secure_sums.membership import membership
from federation.secure_sums.messages import (
    Confirmation,
    ConfirmedList,
    DeliveredShares,
    EncryptedShares,
    FromServer,
    IncludedList,
    ListedMember,
    MemberList,
    MemberSignature,
    PublicKeys,
    RevealedShares,
    SealedShare,
    ServerMessage,
    SignedHead,
    digest,
    read,
    written,
)
from federation.secure_sums.server import ServerStage
from tests.federation.secure_sums.small_sums import NAMES, Network, device, identity, reloaded, request


class LyingServer:
    """Twelve devices that have sent their vectors, and a server that says what a test wants to each of them."""

    def __init__(self) -> None:
        self.network = replace(_with_vectors_sent(), states=dict(_with_vectors_sent().states))
        own = self.network.states[NAMES[0]]
        self.listed = membership(own.request, own.members)
        self.everybody = tuple(range(len(NAMES)))
        self.heads = [self.network.states[name].vector_sent for name in NAMES]

    def tell(self, name: str, kind: ServerMessage, body: bytes) -> ClientStep:
        step = client.step(self.network.devices[name], self.network.states[name], FromServer(kind, body))
        self.network.states[name] = reloaded(step.state)
        return step

    def included(self, without: set[int]) -> bytes:
        left = tuple(index for index in self.everybody if index not in without)
        return written(IncludedList(members=self.listed.digest, dealers=self.everybody, included=left))

    def opened(self, name: str, body: bytes, signatures: dict[int, bytes]) -> RevealedShares | None:
        signed = tuple(MemberSignature(member=m, signature=s) for m, s in sorted(signatures.items()))
        heads = tuple(SignedHead(member=m, head=head) for m, head in enumerate(self.heads) if head)
        confirmed = written(ConfirmedList(included=digest(body), signatures=signed, heads=heads))
        step = self.tell(name, ServerMessage.CONFIRMED, confirmed)
        return read(RevealedShares, unwrap(step.message.payload).body) if step.message else None


@cache
def _with_vectors_sent() -> Network:
    network = Network(NAMES, lost=dict.fromkeys(NAMES, ServerStage.LISTS))
    network.run()
    return network


def signature(step: ClientStep) -> bytes:
    assert step.message is not None, step.reason
    return read(Confirmation, step.message.payload).signature


def test_it_works_when_the_server_does_not_lie() -> None:
    """Else the tests below would say nothing."""
    server = LyingServer()
    lost = server.listed.neighbours(0)[0]  # who they are follows from keys that are drawn anew
    body = server.included({lost})
    there = [member for member in range(12) if member != lost]
    signatures = {m: signature(server.tell(NAMES[m], ServerMessage.INCLUDED, body)) for m in there}
    opened = server.opened(NAMES[0], body, signatures)
    assert opened is not None
    assert [one.owner for one in opened.mask_keys] == [lost]
    assert sorted(one.owner for one in opened.seeds) == [one for one in server.listed.neighbours(0) if one != lost]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(shown=st.lists(st.booleans(), min_size=12, max_size=12), working_for_it=st.sets(st.integers(1, 11), max_size=2))
def test_two_lists_never_open_both_secrets_of_anybody(shown: list[bool], working_for_it: set[int]) -> None:
    """Some are shown that device 0 is there, others that it is lost; those who work for the server sign both lists."""
    server = LyingServer()
    bodies = {True: server.included(set()), False: server.included({0})}
    signatures: dict[bool, dict[int, bytes]] = {True: {}, False: {}}
    for member in range(1, 12):
        if member in working_for_it:
            for is_there, body in bodies.items():
                # with its own key it signs whatever the server wants
                saved = server.network.states[NAMES[member]]
                signatures[is_there][member] = signature(server.tell(NAMES[member], ServerMessage.INCLUDED, body))
                server.network.states[NAMES[member]] = saved
        else:
            body = bodies[shown[member]]
            signatures[shown[member]][member] = signature(server.tell(NAMES[member], ServerMessage.INCLUDED, body))
    shares = Counter(seed=len(working_for_it), key=len(working_for_it))  # they hold both shares of theirs
    for member in set(range(1, 12)) - working_for_it:
        opened = server.opened(NAMES[member], bodies[shown[member]], signatures[shown[member]])
        if opened is not None:
            shares["seed"] += any(one.owner == 0 for one in opened.seeds)
            shares["key"] += any(one.owner == 0 for one in opened.mask_keys)
    threshold = server.listed.degree.threshold
    assert min(shares["seed"], shares["key"]) < threshold
    reasons = {state.reason for state in server.network.states.values() if state.stage is ClientStage.ABORTED}
    assert all("members have signed the list" in reason for reason in reasons)


def test_a_device_that_was_told_of_fewer_dealers_is_not_opened() -> None:
    """Else the server would have the vector of device 0 without most masks, and the seed of the last one from others.

    It tells device 0 that nobody but a few has dealt shares, and everybody else the truth, and lists device 0.
    """
    server = LyingServer()
    own, listed = server.network.devices[NAMES[0]], server.listed
    few = (0, *listed.neighbours(0)[:2])
    begun = (
        _with_vectors_sent()
        .states[NAMES[0]]
        .model_copy(
            update={"stage": ClientStage.SHARES, "delivered": b"", "vector_sha256": b"", "vector_sent": b"", "held": {}}
        )
    )
    told = written(DeliveredShares(members=listed.digest, dealers=few, shares=()))
    ready = client.step(own, begun, FromServer(ServerMessage.SHARES, told))
    masked = client.step(own, ready.state, server.network.vectors[NAMES[0]])
    assert masked.message is not None, "the device cannot know yet"
    server.network.states[NAMES[0]] = masked.state
    server.heads[0] = masked.message.payload
    body = server.included(set())
    signatures = {m: signature(server.tell(NAMES[m], ServerMessage.INCLUDED, body)) for m in range(1, 12)}
    for member in listed.neighbours(0):
        assert server.opened(NAMES[member], body, signatures) is None
        assert "it lacks masks" in server.network.states[NAMES[member]].reason
    assert "two different lists of those who dealt" in server.tell(NAMES[0], ServerMessage.INCLUDED, body).reason


@pytest.mark.parametrize(("head", "reason"), [(b"", "does not show what device3 has signed"), (b"x", "isn't signed")])
def test_without_the_head_of_a_neighbour_nothing_is_opened(head: bytes, reason: str) -> None:
    server = LyingServer()
    body = server.included(set())
    signatures = {m: signature(server.tell(NAMES[m], ServerMessage.INCLUDED, body)) for m in range(12)}
    asks = next(m for m in range(12) if 3 in server.listed.neighbours(m))
    server.heads[3] = head
    assert server.opened(NAMES[asks], body, signatures) is None
    assert reason in server.network.states[NAMES[asks]].reason


def test_a_second_list_ends_it_for_the_device() -> None:
    server = LyingServer()
    server.tell(NAMES[0], ServerMessage.INCLUDED, server.included({3}))
    step = server.tell(NAMES[0], ServerMessage.INCLUDED, server.included({4}))
    assert "two different lists of those included" in step.reason
    assert step.state.stage is ClientStage.ABORTED
    assert not step.state.held


@pytest.mark.parametrize("forgery", ["too few", "another list", "of those lost", "one of them twelve times", "random"])
def test_shares_are_opened_for_a_list_that_enough_members_have_signed_alone(forgery: str) -> None:
    server = LyingServer()
    body, other = server.included({3, 4}), server.included({3})
    signatures = {
        m: signature(server.tell(NAMES[m], ServerMessage.INCLUDED, body)) for m in range(12) if m not in (3, 4)
    }
    body_shown = body
    match forgery:
        case "too few":
            signatures = dict(list(signatures.items())[:7])
        case "another list":
            body_shown = other
        case "of those lost":
            signatures = {**dict(list(signatures.items())[:6]), 3: signatures[5], 4: signatures[5]}
        case "one of them twelve times":
            signatures = dict.fromkeys(range(12), signatures[5])
        case "random":
            signatures = dict.fromkeys(range(12), bytes(64))
    assert server.opened(NAMES[0], body_shown, signatures) is None
    assert server.network.states[NAMES[0]].stage is ClientStage.ABORTED


@pytest.mark.parametrize(("changes", "reason"), [
    ({"included": (1, 2, 3, 4, 5, 6, 7, 8, 9)}, "was late"),
    ({"included": (0, 1, 2, 3, 4)}, "the sum would be of 5 devices"),
    ({"included": (0, 0, 1, 2, 3, 4, 5, 6)}, "does not rise"),
    ({"included": (*range(11), 13)}, "cannot be in it"),
    ({"dealers": tuple(range(11)), "included": tuple(range(11))}, "two different lists of those who dealt"),
    ({"members": bytes(32)}, "two different lists of those who dealt"),
])  # fmt: skip
def test_a_list_of_those_included_that_cannot_be_is_not_signed(changes: dict[str, object], reason: str) -> None:
    server = LyingServer()
    body = read(IncludedList, server.included(set())).model_copy(update=changes)
    step = server.tell(NAMES[0], ServerMessage.INCLUDED, written(body))
    assert step.message is None
    assert reason in step.reason


# ---- lists of members


def begun() -> tuple[dict[str, ClientStep], bytes]:
    asked = written(request())
    return {name: client.begin(device(name), asked) for name in NAMES[:5]}, asked


def members(begun_steps: dict[str, ClientStep]) -> list[ListedMember]:
    return [
        ListedMember(device=name, identity=device(name).identity, keys=step.state.keys_sent)
        for name, step in begun_steps.items()
    ]


def forged(asked: bytes, name: str, signer: str) -> bytes:
    keys = PublicKeys(
        request=digest(asked), device=name, mask_key=b"\1" * 32, channel_key=b"\2" * 32, seed_commitment=bytes(32)
    )
    return wrap(Kind.SUM_KEYS, "walk", name, written(keys), identity(signer).sign)


@pytest.mark.parametrize(("forgery", "reason"), [
    ("keys of the server's", "isn't signed with its key"),
    ("keys of another sum", "belong to another device or sum"),
    ("twice", "lists a device twice"),
    ("not in order", "isn't sorted by name"),
    ("one identity for two", "lists a device twice"),
    ("without this device", "doesn't contain this device"),
    ("with other keys of this device", "doesn't contain this device"),
    ("of another request", "belongs to another sum"),
    ("a device's identity has changed", "another identity in the list than before"),
])  # fmt: skip
def test_a_list_of_members_that_is_forged_ends_it(forgery: str, reason: str) -> None:
    """The server may invent keys, devices and lists; what it cannot make are signatures."""
    steps, asked = begun()
    listed, own = members(steps), device(NAMES[0], known_identities={NAMES[1]: device(NAMES[1]).identity})
    said = digest(asked)
    match forgery:
        case "keys of the server's":
            listed[1] = listed[1].model_copy(update={"keys": forged(asked, NAMES[1], "server")})
        case "keys of another sum":
            listed[1] = listed[1].model_copy(update={"keys": forged(b"", NAMES[1], NAMES[1])})
        case "twice":
            listed.insert(1, listed[1])
        case "not in order":
            listed[1], listed[2] = listed[2], listed[1]
        case "one identity for two":
            listed[2] = listed[2].model_copy(update={"identity": listed[1].identity})
        case "without this device":
            del listed[0]
        case "with other keys of this device":
            listed[0] = listed[0].model_copy(update={"keys": forged(asked, NAMES[0], NAMES[0])})
        case "of another request":
            said = bytes(32)
        case "a device's identity has changed":
            sybil = device("sybil")
            keys = forged(asked, NAMES[1], "sybil")
            listed[1] = listed[1].model_copy(update={"identity": sybil.identity, "keys": keys})
    body = written(MemberList(request=said, members=tuple(listed)))
    step = client.step(own, steps[NAMES[0]].state, FromServer(ServerMessage.MEMBERS, body))
    assert step.message is None
    assert reason in step.reason
    assert step.state.stage is ClientStage.ABORTED


def test_two_lists_of_members_end_it() -> None:
    steps, asked = begun()
    own, listed = device(NAMES[0]), members(steps)
    first, second = (written(MemberList(request=digest(asked), members=tuple(some))) for some in (listed, listed[:4]))
    dealt = client.step(own, steps[NAMES[0]].state, FromServer(ServerMessage.MEMBERS, first))
    assert dealt.message is not None
    step = client.step(own, dealt.state, FromServer(ServerMessage.MEMBERS, second))
    assert "two different lists of members" in step.reason


def test_a_share_that_was_dealt_to_another_device_cannot_be_opened() -> None:
    """The server swaps what it relays: the texts are bound to sender and receiver."""
    network = Network(NAMES[:5], lost=dict.fromkeys(NAMES[:5], ServerStage.VECTORS))
    network.run()
    deal = network.states[NAMES[1]]
    shares = {name: state for name, state in network.states.items() if state.shares_sent}
    assert len(shares) == 5
    listed = membership(deal.request, deal.members)
    dealt = {
        listed.places[name]: read(EncryptedShares, unwrap(state.shares_sent).body) for name, state in shares.items()
    }
    own = listed.places[NAMES[1]]
    wrong = tuple(
        SealedShare(sender=sender, sealed=dealt[sender].sealed[listed.neighbours(sender).index((own + 1) % 5)])
        for sender in range(5)
        if sender not in (own, (own + 1) % 5)
    )
    body = written(DeliveredShares(members=listed.digest, dealers=(0, 1, 2, 3, 4), shares=wrong))
    step = client.step(network.devices[NAMES[1]], deal, FromServer(ServerMessage.SHARES, body))
    assert (step.state.stage, step.state.held) == (ClientStage.READY, {})
