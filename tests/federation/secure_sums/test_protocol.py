"""Whatever is lost, late, twice, forged or a lie: the exact sum of those included, or an end with a reason."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from federation.errors import WireError
from federation.protocol.signing import Kind, unwrap, wrap
from federation.secure_sums import client, server
from federation.secure_sums.client import ClientStage
from federation.secure_sums.membership import Membership, groups_of, membership
from federation.secure_sums.messages import (
    EncryptedShares,
    FromDevice,
    FromServer,
    PublicKeys,
    RevealedShares,
    ServerMessage,
    ToServer,
    VectorReady,
    read,
    written,
)
from federation.secure_sums.server import ServerStage, ServerState
from tests.federation.secure_sums.small_sums import (
    LAYOUT,
    LENGTH,
    NAMES,
    STAGES,
    Network,
    device,
    identity,
    request,
)

many = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
losses = st.dictionaries(st.sampled_from(NAMES[:7]), st.sampled_from(STAGES), max_size=4)


def exact_or_failed(network: Network, state: ServerState) -> bool:
    """Hold what came out against the vectors of those included; whether there is a sum."""
    if state.stage is ServerStage.FAILED:
        assert state.reason
        assert not state.total, "nothing of the sum is kept"
        return False
    assert state.stage is ServerStage.DONE
    assert np.array_equal(server.result(state), network.sum_of(state))
    return True


@pytest.mark.parametrize("bits", [32, 64])
def test_the_sum_is_exact_when_nobody_is_lost(bits: int) -> None:
    network = Network(NAMES[:5], request(bits=bits))
    state = network.run()
    assert exact_or_failed(network, state)
    assert server.included_devices(state) == NAMES[:5]
    assert all(own.stage is ClientStage.OPENED and not own.seed for own in network.states.values())
    assert network.refusals == []


@pytest.mark.parametrize("stage", STAGES)
def test_a_few_may_be_lost_at_any_stage(stage: ServerStage) -> None:
    network = Network(NAMES, lost={NAMES[2]: stage, NAMES[7]: stage})
    state = network.run()
    assert exact_or_failed(network, state)
    came_to_vectors = STAGES.index(stage) > STAGES.index(ServerStage.VECTORS)
    assert len(server.included_devices(state)) == (12 if came_to_vectors else 10)


@many
@given(lost=losses, size=st.integers(3, 7), chance=st.integers(0, 2**32))
def test_any_lost_any_order_twice_and_late(lost: dict[str, ServerStage], size: int, chance: int) -> None:
    """Messages of a stage come in any order, twice, or a stage too late; all of both ends is killed at each event."""
    rng, kept = random.Random(chance), list[tuple[str, ToServer]]()

    def deliver(stage: ServerStage, messages: list[tuple[str, ToServer]]) -> Iterator[tuple[str, ToServer]]:
        late = [pair for pair in messages if rng.random() < 0.1]
        now = [pair for pair in messages if pair not in late]
        again = [pair for pair in [*now, *kept] if rng.random() < 0.3]
        kept.extend(late)
        yield from rng.sample([*now, *again], len(now) + len(again))

    network = Network(NAMES[:size], lost=lost, deliver=deliver)
    exact_or_failed(network, network.run())


@pytest.mark.parametrize(("lost", "reason"), [
    (dict.fromkeys(NAMES[:10], ServerStage.KEYS), "keys of 2 devices came, 3 are needed"),
    (dict.fromkeys(NAMES[:7], ServerStage.SHARES), "5 of 12 members have dealt shares, 8 are needed"),
    (dict.fromkeys(NAMES[:7], ServerStage.VECTORS), "5 of 12 members have sent their vectors, 8 are needed"),
    (dict.fromkeys(NAMES[:7], ServerStage.LISTS), "5 members have signed the list, 8 are needed"),
    (dict.fromkeys(NAMES[:7], ServerStage.OPENING), "shares of the seed of device0 came, 6 are needed"),
])  # fmt: skip
def test_too_few_end_the_sum_in_words(lost: dict[str, ServerStage], reason: str) -> None:
    state = Network(NAMES, lost=lost).run()
    assert state.stage is ServerStage.FAILED
    assert reason in state.reason


# ---- devices that lie


def changed(kind: Kind, name: str, change: object) -> object:
    """Return a delivery in which one device's message of a kind is changed, and signed again by its own key."""

    def deliver(stage: ServerStage, messages: list[tuple[str, ToServer]]) -> Iterator[tuple[str, ToServer]]:
        for who, message in messages:
            if message.kind is kind and who == name:
                body = change(unwrap(message.payload).body)  # type: ignore[operator]
                yield who, message._replace(payload=wrap(kind, "walk", name, body, identity(name).sign))
            else:
                yield who, message

    return deliver


def of_small_order(body: bytes) -> bytes:
    return written(read(PublicKeys, body).model_copy(update={"mask_key": bytes(32)}))


def other_seed(body: bytes) -> bytes:
    return written(read(PublicKeys, body).model_copy(update={"seed_commitment": bytes(32)}))


def unreadable_shares(body: bytes) -> bytes:
    shares = read(EncryptedShares, body)
    return written(shares.model_copy(update={"sealed": tuple(bytes(len(one)) for one in shares.sealed)}))


def shares_of_others(body: bytes) -> bytes:
    """Say of each share that it is of the next one's secret."""
    opened = read(RevealedShares, body)
    owners = [one.owner for one in opened.seeds]
    turned = zip(opened.seeds, [*owners[1:], owners[0]], strict=True)
    return written(opened.model_copy(update={"seeds": tuple(s.model_copy(update={"owner": o}) for s, o in turned)}))


def false_shares(body: bytes) -> bytes:
    opened = read(RevealedShares, body)
    return written(
        opened.model_copy(update={"seeds": tuple(one.model_copy(update={"share": bytes(44)}) for one in opened.seeds)})
    )


def keys_for_seeds(body: bytes) -> bytes:
    """Open of those who are present what is due of those who are lost."""
    opened = read(RevealedShares, body)
    return written(opened.model_copy(update={"seeds": (), "mask_keys": opened.seeds}))


@pytest.mark.parametrize(("kind", "change", "refusal", "survives"), [
    (Kind.SUM_KEYS, of_small_order, "has small order", True),
    (Kind.SUM_KEYS, lambda body: body.replace(b"device1", b"device2"), "those of another device", True),
    (Kind.SUM_KEYS, lambda body: b"{", "PublicKeys", True),
    (Kind.SUM_KEYS, other_seed, None, True),  # as if on the way: the device does not find its own keys in the list
    (Kind.SUM_SHARES, unreadable_shares, None, False),
    (Kind.SUM_SHARES, lambda body: written(read(EncryptedShares, body).model_copy(update={"sealed": ()})),
     "one share to each", True),
    (Kind.SUM_VECTOR, lambda body: body.replace(body[-20:-10], b"A" * 10), "not the one that it has signed", True),
    (Kind.SUM_OPENED, shares_of_others, None, True),
    (Kind.SUM_OPENED, false_shares, None, True),
    (Kind.SUM_OPENED, keys_for_seeds, None, True),
])  # fmt: skip
def test_a_device_that_lies_changes_no_sum(kind: Kind, change: object, refusal: str | None, survives: bool) -> None:
    """One that publishes or deals what is not so ends the sum, by its name; any other is left out or not needed."""
    network = Network(NAMES[:8], deliver=changed(kind, NAMES[1], change))  # type: ignore[arg-type]
    state = network.run()
    assert exact_or_failed(network, state) is survives
    assert survives or NAMES[1] in state.reason
    assert refusal is None or any(refusal in one for one in network.refusals)


@pytest.mark.parametrize(("secret", "lost", "what"), [
    ("seed", {}, "another seed than its own"),
    ("mask_private", {NAMES[1]: ServerStage.VECTORS}, "another key than its own"),
])  # fmt: skip
def test_a_device_that_deals_another_secret_than_it_published_ends_the_sum(
    secret: str, lost: dict[str, ServerStage], what: str
) -> None:
    def deliver(stage: ServerStage, messages: list[tuple[str, ToServer]]) -> Iterator[tuple[str, ToServer]]:
        if stage is ServerStage.KEYS:
            honest = network.states[NAMES[1]]
            network.states[NAMES[1]] = honest.model_copy(update={secret: bytes(range(32))})
        yield from messages

    network = Network(NAMES[:8], deliver=deliver, lost=lost)
    state = network.run()
    assert not exact_or_failed(network, state)
    assert NAMES[1] in state.reason
    assert what in state.reason


@pytest.mark.parametrize("kind", [Kind.SUM_KEYS, Kind.SUM_SHARES, Kind.SUM_VECTOR, Kind.SUM_OPENED])
def test_a_message_that_its_device_has_not_signed_is_not_taken(kind: Kind) -> None:
    def deliver(stage: ServerStage, messages: list[tuple[str, ToServer]]) -> Iterator[tuple[str, ToServer]]:
        for who, message in messages:
            if message.kind is kind and who == NAMES[1]:
                body = unwrap(message.payload).body
                forged = wrap(kind, "walk", who, body, identity(NAMES[2]).sign)
                yield who, message._replace(payload=forged)
                yield who, message._replace(payload=body)
                yield NAMES[2], message  # another one's message, under one's own name
            yield who, message

    network = Network(NAMES[:8], deliver=deliver)
    state = network.run()
    assert exact_or_failed(network, state)
    assert len(server.included_devices(state)) == 8
    assert sum("isn't signed with its key" in one for one in network.refusals) == 3


def test_a_vector_comes_once_whatever_the_device_sends() -> None:
    """A second, other vector is refused; the same one again adds nothing."""

    def deliver(stage: ServerStage, messages: list[tuple[str, ToServer]]) -> Iterator[tuple[str, ToServer]]:
        for who, message in messages:
            yield from ((who, message), (who, message))
            if stage is ServerStage.VECTORS and who == NAMES[0]:
                yield who, message._replace(payload=message.payload + b" ")

    network = Network(NAMES[:5], deliver=deliver)
    assert exact_or_failed(network, network.run())
    assert network.refusals == [f"{NAMES[0]} has already sent something else"]


def test_a_stranger_is_not_taken() -> None:
    began = server.begin(request(), {name: device(name).identity for name in NAMES[:3]})
    keys = client.begin(device("stranger"), began.messages[0].body).message
    assert keys is not None
    taken = server.step(began.state, FromDevice("stranger", keys.kind, keys.payload))
    assert (taken.state, taken.refusal) == (began.state, "stranger is not asked")


# ---- the device's own numbers


def ready() -> tuple[Network, str]:
    """Return a network whose devices have their neighbours' shares, and one of the devices."""
    network = Network(NAMES[:5], lost=dict.fromkeys(NAMES[1:5], ServerStage.LISTS))
    network.run()
    return network, NAMES[1]


@pytest.mark.parametrize(("vector", "bound", "layout", "reason"), [
    (np.ones(LENGTH, np.int64), 1000, LAYOUT, "numbers differ from those that it has sent"),
    (np.zeros(LENGTH + 1, np.int64), 1000, LAYOUT, "other numbers than the plan's"),
    (np.zeros(LENGTH, np.int64), 1000, bytes([1]) * 32, "other numbers than the plan's"),
    (np.full(LENGTH, 1001), 1000, LAYOUT, "a number is beyond 1,000"),
    (np.zeros(LENGTH, np.int64), 2**29, LAYOUT, "does not fit 32 bits"),
])  # fmt: skip
def test_a_device_gives_up_before_it_sends_what_would_say_something(
    vector: np.ndarray, bound: int, layout: bytes, reason: str
) -> None:
    network, name = ready()
    step = client.step(network.devices[name], network.states[name], VectorReady(vector, bound, layout))
    assert step.state.stage is ClientStage.ABORTED
    assert reason in step.reason
    assert not step.state.seed


def test_a_device_insists_on_its_plan() -> None:
    for own in (device("device0", colluding=300), device("device0", min_members=10)):
        with pytest.raises(WireError, match="this device insists on"):
            client.begin(own, written(request()))


def test_what_comes_again_is_answered_again_and_what_comes_too_early_changes_nothing() -> None:
    network = Network(NAMES[:5])
    began = server.begin(network.asked, {name: one.identity for name, one in network.devices.items()})
    own = device(NAMES[0])
    first = client.begin(own, began.messages[0].body)
    again = client.step(own, first.state, FromServer(ServerMessage.REQUEST, began.messages[0].body))
    assert (again.state, again.message) == (first.state, first.message)
    for kind in (ServerMessage.SHARES, ServerMessage.INCLUDED, ServerMessage.CONFIRMED):
        early = client.step(own, first.state, FromServer(kind, b"{}"))
        assert (early.state, early.message) == (first.state, None)
        assert "too early" in early.reason


@dataclass
class Asking(Network):
    """In each stage every device asks again what it was told last."""

    seen: set[ServerStage] = field(default_factory=set)

    def take(self, state: ServerState, event: FromDevice) -> ServerState:
        for said in server.repeated(state) if state.stage not in self.seen else ():
            is_apart = bool(said.shared) and state.stage is ServerStage.OPENING
            near = neighbourhood(state, said.device, all_sign=not is_apart)
            found = server.repeated_to(near, said.device, is_apart=is_apart)
            assert found is not None
            assert found == said or (is_apart and found == said._replace(shared=server.APART))
        self.seen.add(state.stage)
        return super().take(state, event)


def neighbourhood(state: ServerState, name: str, *, all_sign: bool) -> ServerState:
    """Return a state without what a device's neighbours have not said."""
    if not state.members:
        return state
    listed = membership(state.request, state.members)
    near = {name, *(listed.members[place].device for place in listed.neighbours(listed.places[name]))}
    own = {
        each: {other: said for other, said in getattr(state, each).items() if other in near}
        for each in ("keys", "shares", "vectors", *(() if all_sign else ("signatures",)))
    }
    return state.model_copy(update=own)


@pytest.mark.parametrize("inline_bytes", [server.MAX_INLINE_BYTES, 100])
def test_each_device_is_told_again_the_same_from_its_neighbours_messages_alone(
    inline_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MAX_INLINE_BYTES", inline_bytes)
    names = tuple(f"device{number:02d}" for number in range(30))
    lost = {names[3]: ServerStage.SHARES, names[7]: ServerStage.VECTORS}
    network = Asking(names, request(colluding=0, lost=50), lost)
    state = network.run()
    assert network.seen == set(STAGES)
    assert np.array_equal(server.result(state), network.sum_of(state))
    assert server.repeated_to(state, names[0], is_apart=False) is None  # it is over


GROUPED = request(groups=3, length=3 * LENGTH)


def test_the_sums_of_groups_are_exact_whoever_is_lost() -> None:
    network = Network(NAMES, GROUPED, {NAMES[3]: ServerStage.VECTORS, NAMES[7]: ServerStage.OPENING})
    state = network.run()
    assert state.stage is ServerStage.DONE, state.reason
    assert server.result(state).tolist() == network.sum_of(state).tolist()
    listed = membership(state.request, state.members)
    assert sorted(Counter(listed.groups).values()) == [4, 4, 4]
    other = groups_of([member.device for member in listed.members], 3, 2)
    assert other != listed.groups, "they are dealt anew in each round"


def test_a_device_signs_no_list_in_which_a_group_has_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server says that all but two of a group are lost: their sum would be in the open to it and one of them."""
    first = groups_of(NAMES, 3, 1)
    lost = [name for name, group in zip(NAMES, first, strict=True) if group == 0][:2]
    network = Network(NAMES, GROUPED, dict.fromkeys(lost, ServerStage.VECTORS))
    assert network.run().reason == "a group's sum would have 2 devices; 3 are needed"
    monkeypatch.setattr(server, "membership", careless)
    lied_to = Network(NAMES, GROUPED, dict.fromkeys(lost, ServerStage.VECTORS))
    lied_to.run()
    left = [state for name, state in lied_to.states.items() if name not in lost]
    assert {state.reason for state in left} == {"a group's sum would have 2 devices; 3 are needed"}
    assert {state.stage for state in left} == {ClientStage.ABORTED}


def careless(*given: bytes) -> Membership:
    found = membership(*given)
    return Careless(found.request, found.request_digest, found.digest, found.members)


class Careless(Membership):
    """As a server that would take any sum has it."""

    def lacking(self, included: Iterable[int]) -> str:
        return ""
