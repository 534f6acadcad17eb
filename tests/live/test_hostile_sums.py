"""A device that lies in secure sums gets strikes and is suspended, and the others' federation goes on.

The server is the real one, and devices are the agent's own half of the protocol; one of them lies in one part.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import select

from aggregator_api.devices import contributions
from aggregator_api.rounds.coordinator import Coordinator
from aggregator_api.storage.db.models import DeviceRow, EventRow, FederationRow, RoundRow, SecureSumRow
from federation import wire
from federation.plan import Plan, SecureSettings
from federation.secure_sums.summation import SumLayout
from tests.aggregator_api.bench import Bench, wait_for
from tests.aggregator_api.generated_devices import FEDERATION, tiny_plan
from tests.live.hostile_sums import Change, HostileDevice, Participant, adding, no_keys, unopenable_shares
from tests.live.summing_devices import SummingDevice, layout_of, pass_stage
from tests.live.test_whole_sums import SumsDevice, in_the_open, say_all, whole_sums_plan
from tests.live.walks import assert_same

LIAR = "zed"
STAGES = 8


def private_plan() -> Plan:
    plan = tiny_plan(rounds=50, clients=None, max_refused_updates=2, max_weight_ratio=None, norm_factor=None)
    return plan.model_copy(update={"secure": SecureSettings(mode="masked", lost_share=0.0)})


def federation(folder: Path, honest: str, part: str, change: Change) -> tuple[Bench, dict[str, SummingDevice]]:
    server = Bench(folder / "server", private_plan())
    server.as_inbox(lambda: server.runtime.federations.pause(FEDERATION))  # else a round opens for the first three
    names = [*(f"dev-{letter}" for letter in honest), LIAR]
    devices: dict[str, SummingDevice] = {name: Participant(folder, name) for name in names[:-1]}
    devices[LIAR] = HostileDevice(folder, LIAR).lies(part, change)  # type: ignore[arg-type]
    for one in devices.values():
        one.enrol(server)
    for name in devices:
        server.say(name, "ready")
    server.as_inbox(lambda: server.runtime.federations.resume(FEDERATION))
    return server, devices


def numbers(layout: SumLayout, name: str) -> np.ndarray:
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4])
    found = np.random.default_rng(seed).integers(-900, 900, layout.length)
    at = 0
    for segment in layout.segments:
        size = int(np.prod(segment.shape))
        if segment.name == "weight":
            found[at] = 10
        if segment.name.startswith("gains/"):
            found[at : at + size] = 0
        at += size
    return np.asarray(found, np.int64)


def play(server: Bench, devices: dict[str, SummingDevice], number: int) -> str:
    """Play a round to its end, with whom it invites; return how it ended."""
    wait_for(lambda: server.collects(number))
    for name in invited(server, number):
        one = devices[name]
        wait_for(lambda one=one: server.wires.invitations(one.name)[-1].round == number)
        one.begin(server, numbers(layout_of(server), name))
    return carried_out(server, devices, number)


def carried_out(server: Bench, devices: Mapping[str, SummingDevice], number: int) -> str:
    """Carry out the sum of a round whose devices have begun; return how it ended."""
    for name in invited(server, number):
        devices[name].send(server)
    wait_for(lambda: stage(server, number) != "keys")
    for _ in range(STAGES):
        if ended(server, number):
            break
        before = stage(server, number)
        for name in invited(server, number):
            if server.wires.invitations(name)[-1].round == number:
                devices[name].take_part(server)
        if stage(server, number) == before and not ended(server, number):
            pass_stage(server)
    wait_for(lambda: ended(server, number))
    return ended(server, number)


def has_opened(server: Bench, number: int) -> bool:
    with server.runtime.database.read() as session:
        return session.scalars(select(RoundRow).where(RoundRow.number == number)).first() is not None


def invited(server: Bench, number: int) -> list[str]:
    with server.runtime.database.read() as session:
        row = session.scalars(select(RoundRow).where(RoundRow.number == number)).one()
        return sorted(part.device.name for part in row.participations)


def stage(server: Bench, number: int) -> str:
    with server.runtime.database.read() as session:
        query = select(SecureSumRow.stage).join(RoundRow, RoundRow.id == SecureSumRow.round_id)
        return session.scalars(query.where(RoundRow.number == number)).one()


def ended(server: Bench, number: int) -> str:
    with server.runtime.database.read() as session:
        phase = session.scalars(select(RoundRow.phase).where(RoundRow.number == number)).one()
    return phase if phase in ("published", "failed") else ""


def row_of(server: Bench, name: str) -> DeviceRow:
    with server.runtime.database.read() as session:
        return session.scalars(select(DeviceRow).where(DeviceRow.name == name)).one()


def status(server: Bench) -> str:
    with server.runtime.database.read() as session:
        return session.scalars(select(FederationRow.status)).one()


def details(server: Bench, kind: str) -> list[str]:
    with server.runtime.database.read() as session:
        return list(session.scalars(select(EventRow.detail).where(EventRow.kind == kind).order_by(EventRow.id)))


def suspended(server: Bench) -> list[str]:
    with server.runtime.database.read() as session:
        return list(session.scalars(select(DeviceRow.name).where(DeviceRow.suspended_at.is_not(None))))


def test_a_dealer_of_shares_that_nobody_can_open_is_suspended_and_the_others_go_on(tmp_path: Path) -> None:
    server, devices = federation(tmp_path, "abcd", "shares", unopenable_shares)
    ends = [play(server, devices, number) for number in range(1, 6)]
    # each time the others go on without it at once, and after a version it may try again
    assert ends == ["failed", "published", "failed", "published", "published"]
    assert suspended(server) == [LIAR]
    assert "could not open the shares that it dealt" in row_of(server, LIAR).suspension_reason
    assert LIAR not in invited(server, 2)
    assert status(server) == "running"
    server.stop()


def test_who_adds_impossible_numbers_is_found_in_ever_smaller_groups(tmp_path: Path) -> None:
    server, devices = federation(tmp_path, "abcde", "vector", adding({0: 1 << 28}))
    ends, groups, number = [], [], 0
    while not suspended(server):
        number += 1
        assert number < 40, ends
        ends.append(play(server, devices, number))
        groups.append(invited(server, number))
        assert (ends[-1] == "failed") == (LIAR in groups[-1])  # nothing of its numbers is published
        assert len(groups[-1]) >= 3
        assert status(server) == "running"
    assert suspended(server) == [LIAR]
    assert "published" in ends
    assert any("impossible" in one for one in details(server, "round.failed"))
    assert any("disjoint groups" in one for one in details(server, "round.retried"))
    server.stop()


def test_too_few_devices_to_be_divided_pause_at_once_and_the_operator_is_told_who_they_are(tmp_path: Path) -> None:
    server, devices = federation(tmp_path, "abcd", "vector", adding({0: 1 << 28}))
    before = server.state()
    assert play(server, devices, 1) == "failed"
    wait_for(lambda: status(server) == "paused")
    reason = details(server, "federation.paused")[-1]
    assert "one of dev-a, dev-b, dev-c, dev-d, zed adds what no device can" in reason
    assert "that takes 6 devices" in reason
    assert server.state() == before
    assert suspended(server) == []
    server.stop()


def test_refused_keys_suspend_their_device(tmp_path: Path) -> None:
    server, devices = federation(tmp_path, "abcd", "keys", no_keys)
    for number in range(1, 4):
        assert play(server, devices, number) == "published"
    assert suspended(server) == [LIAR]
    server.stop()


class HostileSumsDevice(HostileDevice, SumsDevice):
    """One that adds what no windows add up to."""


class HonestSumsDevice(Participant, SumsDevice):
    """One of the others."""


@pytest.fixture
def summing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Bench, dict[str, SumsDevice]]]:
    """Six honest devices of a continuous federation, and a liar."""
    monkeypatch.setattr("aggregator_api.federations.exports.onnx", lambda made: b"onnx")
    plan = whole_sums_plan()
    quick = plan.rounds.model_copy(update={"max_refused_updates": 2})
    server = Bench(tmp_path / "server", plan.model_copy(update={"rounds": quick}))
    devices: dict[str, SumsDevice] = {name: HonestSumsDevice(tmp_path, name) for name in "abcdef"}
    liar = HostileSumsDevice(tmp_path, LIAR)
    liar.lies("vector", adding({0: 1 << 50}, bits=64))
    devices[LIAR] = liar
    for number, one in enumerate(devices.values()):
        one.enrol(server)
        one.has(number + 1)
    yield server, devices
    server.stop()


def play_sums(server: Bench, devices: dict[str, SumsDevice], number: int) -> tuple[list[str], str]:
    """Play a round of whole sums to its end; return whom it invited, and how it ended."""
    # a continuous federation announces the number of its next round before that round is opened
    wait_for(lambda: has_opened(server, number))
    names = invited(server, number)
    for name in names:
        devices[name].begin_sums(server, number)
    return names, carried_out(server, dict(devices), number)


def test_whole_sums_that_are_impossible_are_divided_and_what_is_published_is_of_the_honest_alone(
    summing: tuple[Bench, dict[str, SumsDevice]],
) -> None:
    server, devices = summing
    initial = server.state()
    say_all(server, devices.values())
    played = [play_sums(server, devices, number) for number in (1, 2, 3)]
    groups = [names for names, _ in played]
    assert groups[0] == sorted(devices)
    assert sorted(groups[1] + groups[2]) == groups[0]  # disjoint, and nobody lacks
    assert min(len(group) for group in groups) >= 3
    assert [end for _, end in played] == ["failed" if LIAR in group else "published" for group in groups]
    (honest,) = [group for group in groups if LIAR not in group]
    data = server.state()
    opened = in_the_open(server, initial, {name: devices[name].seed or 0 for name in honest})
    assert_same(wire.decode(data, limit_bytes=len(data)), opened, "of the group that is possible")
    assert sitting_out(server) == sorted(set(devices) - set(honest))
    assert suspended(server) == []
    assert "until their sums have changed" in details(server, "round.retried")[-1]
    assert status(server) == "running"
    server.as_inbox(server.runtime.coordinator.tick)
    assert not has_opened(server, 4)  # what was seen is not added again, and nobody else has changed


def test_the_honest_devices_of_an_impossible_sum_return_with_other_sums_and_only_the_liar_is_suspended(
    summing: tuple[Bench, dict[str, SumsDevice]],
) -> None:
    server, devices = summing
    honest = sorted(set(devices) - {LIAR})
    say_all(server, devices.values())
    number, ends = 0, list[str]()
    while sitting_out(server) == []:
        number += 1
        ends.append(play_sums(server, devices, number)[1])
    while len(ends) < 3:
        ends.append(play_sums(server, devices, number := number + 1)[1])

    for name in honest:
        devices[name].has(100 + number)
    say_all(server, devices.values())
    names, end = play_sums(server, devices, number := number + 1)
    assert (names, end) == (honest, "published")  # the liar alone has the sums that were seen

    while not suspended(server):
        assert number < 60
        if not has_opened(server, number + 1):
            for name in devices:
                devices[name].has(200 + number)
            say_all(server, devices.values())
        names, end = play_sums(server, devices, number := number + 1)
        assert (end == "failed") == (LIAR in names)
        assert len(names) >= 3
        assert status(server) == "running"
    assert suspended(server) == [LIAR]


def test_keys_of_sums_that_were_seen_are_refused_whatever_its_status_said(
    summing: tuple[Bench, dict[str, SumsDevice]],
) -> None:
    server, devices = summing
    say_all(server, devices.values())
    for number in (1, 2, 3):
        play_sums(server, devices, number)
    before = sitting_out(server)
    (innocent, *_) = set(before) - {LIAR}
    seen = devices[innocent].seed
    devices[innocent].has(99)  # so it says, and adds the same once more
    for name in set(devices) - set(before):
        devices[name].has(300 + (devices[name].seed or 0))
    say_all(server, devices.values())
    wait_for(lambda: has_opened(server, 4))
    assert innocent in invited(server, 4)
    devices[innocent].has(seen)
    devices[innocent].begin_sums(server, 4)
    devices[innocent].send(server)
    assert "aren't added again" in devices[innocent].answers[-1].reason
    assert suspended(server) == []


def test_an_opened_sum_that_becomes_no_version_was_seen_all_the_same(
    summing: tuple[Bench, dict[str, SumsDevice]], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, devices = summing
    del devices[LIAR]
    say_all(server, devices.values())

    def end(coordinator: Coordinator, name: str) -> None:
        coordinator.fail_round(name, 1, "the disk is full")

    monkeypatch.setattr(Coordinator, "add_up", end)
    names, ended_as = play_sums(server, devices, 1)
    assert ended_as == "failed"
    assert sitting_out(server) == names == sorted(devices)
    server.as_inbox(server.runtime.coordinator.tick)
    assert not has_opened(server, 2)


def sitting_out(server: Bench) -> list[str]:
    with server.runtime.database.read() as session:
        federation = session.scalars(select(FederationRow)).one()
        out = contributions.sitting_out(session, federation)
        return sorted(session.scalars(select(DeviceRow.name).where(DeviceRow.id.in_(out))))
