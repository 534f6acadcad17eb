"""Who is at fault where a secure sum cannot be opened, and what follows from it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from federation.protocol.signing import Kind, unwrap, wrap
from federation.secure_sums import server
from federation.secure_sums.messages import (
    EncryptedShares,
    FromDevice,
    RevealedShares,
    StageClosed,
    ToServer,
    read,
    written,
)
from federation.secure_sums.retries import Blamed, Retry, after_failure, after_publication, complete_groups
from federation.secure_sums.server import ServerStage
from federation.secure_sums.unmasking import blame
from tests.federation.secure_sums.small_sums import NAMES, Network, device, identity

LIAR = NAMES[2]


def resigned(kind: Kind, name: str, body: bytes) -> ToServer:
    return ToServer(kind, wrap(kind, "walk", name, body, identity(name).sign))


def unopenable(message: ToServer) -> ToServer:
    """Deal texts that no neighbour can open, with the right digests."""
    dealt = read(EncryptedShares, unwrap(message.payload).body)
    changed = dealt.model_copy(update={"sealed": tuple(bytes(len(text)) for text in dealt.sealed)})
    return resigned(Kind.SUM_SHARES, LIAR, written(changed))


def kept_back(message: ToServer) -> ToServer:
    """Open nobody's shares."""
    opened = read(RevealedShares, unwrap(message.payload).body)
    return resigned(Kind.SUM_OPENED, LIAR, written(opened.model_copy(update={"seeds": (), "mask_keys": ()})))


def lying(stage: ServerStage, change: object) -> Network:
    def deliver(now: ServerStage, messages: list[tuple[str, ToServer]]) -> Iterator[tuple[str, ToServer]]:
        for name, message in messages:
            yield name, change(message) if now is stage and name == LIAR else message  # type: ignore[operator]

    return Network(NAMES[:5], deliver=deliver)


def test_the_dealer_of_shares_that_nobody_can_open_is_named() -> None:
    state = lying(ServerStage.SHARES, unopenable).run()
    assert state.stage is ServerStage.FAILED
    assert state.finding.culprits == {LIAR: "4 of its neighbours could not open the shares that it dealt"}
    assert not state.finding.suspects
    assert not state.finding.silent


def test_a_dealer_of_another_secret_is_named() -> None:
    network = Network(NAMES[:5])

    def deliver(now: ServerStage, messages: list[tuple[str, ToServer]]) -> Iterator[tuple[str, ToServer]]:
        for name, message in messages:
            if now is ServerStage.KEYS and name == LIAR:
                own = network.states[LIAR]
                network.states[LIAR] = own.model_copy(update={"seed": bytes(len(own.seed))})
            yield name, message

    network.deliver = deliver
    ended = network.run()
    assert ended.finding.culprits == {LIAR: f"{LIAR} has dealt shares of another seed than its own"}


def test_a_holder_that_keeps_all_shares_back_does_not_hold_the_others_up() -> None:
    network = lying(ServerStage.OPENING, kept_back)
    state = network.run()
    assert state.stage is ServerStage.DONE
    assert list(server.result(state)) == list(network.sum_of(state))


def test_of_three_devices_one_that_keeps_back_the_shares_of_both_others_is_named() -> None:
    network = lying(ServerStage.OPENING, kept_back)
    network.names = NAMES[:3]
    network.devices = {name: device(name) for name in network.names}
    state = network.run()
    assert state.finding.culprits == {LIAR: "it did not open the shares of 2 of its neighbours"}


def test_who_is_silent_is_noted_where_too_few_are_left() -> None:
    gone = dict.fromkeys(NAMES[3:5], ServerStage.VECTORS)
    state = Network(NAMES[:5], lost=gone).run()
    assert state.stage is ServerStage.FAILED
    assert state.finding.silent == NAMES[3:5]
    assert not state.finding.culprits


def test_a_sum_of_all_fails_where_one_is_lost_and_is_not_opened() -> None:
    names = NAMES[:6]
    for stage in (ServerStage.KEYS, ServerStage.SHARES, ServerStage.VECTORS):
        network = Network(names, lost={names[0]: stage})
        began = server.begin(network.asked, {name: one.identity for name, one in network.devices.items()})
        state, messages = began.state.model_copy(update={"needs_all": True}), began.messages
        for at in (ServerStage.KEYS, ServerStage.SHARES, ServerStage.VECTORS, ServerStage.LISTS):
            for message in messages:
                for name, said in network.answers(at, message):
                    state = network.take(state, FromDevice(name, said.kind, said.payload, said.vector))
            closed = server.step(state, StageClosed())
            state, messages = closed.state, closed.messages
        assert state.stage is ServerStage.FAILED, stage
        assert "must be of all of them" in state.reason
        assert state.finding.silent == (names[0],)


def test_a_message_at_the_wrong_time_is_nobodys_fault_and_a_wrong_one_is() -> None:
    network = Network(NAMES[:4])
    began = server.begin(network.asked, {name: one.identity for name, one in network.devices.items()})
    ((name, keys),) = network.answers(ServerStage.KEYS, began.messages[0])
    early = server.step(began.state, FromDevice(name, Kind.SUM_SHARES, b"early"))
    wrong = server.step(began.state, FromDevice(name, Kind.SUM_KEYS, keys.payload[:-2]))
    stranger = server.step(began.state, FromDevice("stranger", Kind.SUM_KEYS, keys.payload))
    assert early.refusal
    assert not early.is_fault
    assert wrong.refusal
    assert wrong.is_fault
    assert stranger.refusal
    assert not stranger.is_fault


@pytest.mark.parametrize(("members", "liars"), [(5, 1), (7, 2), (9, 3)])
def test_no_honest_device_is_blamed_whatever_so_many_liars_do(members: int, liars: int) -> None:
    """Every pair in dispute has a liar in it; several choices of such pairs are tried for each choice of liars."""
    for lying_ones in itertools.combinations(range(members), liars):
        pairs = [(a, b) for a in range(members) for b in range(members) if a != b and {a, b} & set(lying_ones)]
        for step in range(1, 6):
            found = blame(pairs[::step], liars)
            assert set(found.culprits) <= set(lying_ones), (lying_ones, step)
            assert found.suspects or len(found.culprits) > 0


def failed(before: Retry, suspects: tuple[int, ...], least: int = 3, number: int = 1) -> Retry:
    return after_failure(before, Blamed(frozenset(), suspects, is_opened=True), least, number).retry


def test_an_impossible_sum_is_divided_until_the_smallest_groups_and_no_summand_comes_out_alone() -> None:
    """One of 24 spoils each sum that it is in: the sums that are seen have whole groups of at least three."""
    everybody, liar = tuple(range(24)), 17
    retry, seen, published = failed(Retry(), everybody), [set(everybody)], set[int]()
    for number in range(2, 40):
        if not retry.groups:
            break
        group = retry.groups[0]
        seen.append(set(group))
        if liar in group:
            retry = failed(retry, group, number=number)
        else:
            published |= set(group)
            retry = after_publication(retry)
    assert len(everybody) - len(published) < 6  # less than two groups of the least size
    assert liar not in published
    assert set(retry.left_out) == set(everybody) - published
    leaves = [group for group in seen if not any(other < group for other in seen)]
    assert sum(map(len, leaves)) == len(everybody)
    assert min(map(len, leaves)) >= 3
    # every sum that was seen is a sum of leaves: nothing else follows from all of them together
    for group in seen:
        assert set().union(*(leaf for leaf in leaves if leaf <= group)) == group


def test_a_group_that_lacks_somebody_is_not_summed() -> None:
    retry = failed(Retry(), tuple(range(8)))
    first, second = retry.groups
    dropped = complete_groups(retry, set(range(8)) - {first[0]})
    assert dropped.retry.groups == (second,)
    assert dropped.sit_out == set(first)
    silent = after_failure(retry, Blamed(frozenset({first[0]}), (), is_opened=False), 3, 2)
    assert silent.retry.groups == (second,)
    assert set(silent.retry.left_out) == set(first)


def test_too_few_to_divide_sit_out_and_come_back_after_a_version() -> None:
    division = after_failure(Retry(), Blamed(frozenset(), (1, 2, 3, 4, 5), is_opened=True), 3, 1)
    assert division.sit_out == {1, 2, 3, 4, 5}
    assert division.retry.left_out == (1, 2, 3, 4, 5)
    assert after_publication(division.retry) == Retry()


def test_a_failure_that_says_nothing_brings_nobody_further() -> None:
    before = Retry(left_out=(7,))
    assert after_failure(before, Blamed(frozenset(), (), is_opened=False), 3, 1).retry == before


def test_each_search_halves_the_suspects_with_the_most_strikes() -> None:
    liar, strikes = 4, dict.fromkeys(range(16), 0)
    for number in range(1, 5):
        found = Blamed(frozenset(), tuple(strikes), is_opened=True, strikes=strikes)
        groups = after_failure(Retry(), found, 3, number).retry.groups
        assert sorted(len(group) for group in groups) == [8, 8]
        (failed_group,) = [group for group in groups if liar in group]
        strikes = {member: strikes[member] + 1 if member in failed_group else 0 for member in strikes}
    assert [member for member, count in strikes.items() if count == max(strikes.values())] == [liar]
