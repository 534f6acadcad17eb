"""A device of a private continuous federation that never comes back: the sums of the others are collected anew.

What is compared with is a federation in the open that never had the device.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from sqlalchemy import select

from aggregator_api.db.models import DeviceRow, FederationRow, MaskedContributionRow, SecureSumRow
from aggregator_api.devices import withdrawals
from aggregator_api.errors import ConflictError
from aggregator_api.retention import rows
from edge_agent.supervisor import masked_parts
from federation.protocol import topics
from tests.aggregator_api.bench import Bench, wait_for
from tests.aggregator_api.generated_devices import FEDERATION, status
from tests.live.summing_devices import pass_stage
from tests.live.test_masked_batches import (
    STAGES,
    BatchDevice,
    carry_out,
    federation,
    fsck,
    in_the_open,
    opens,
    phase_of,
    published,
)
from tests.live.walks import assert_same


def withdraw(server: Bench, name: str, *, at_once: bool = False) -> None:
    with server.runtime.database.write() as session:
        row = session.scalars(select(FederationRow)).one()
        device = session.scalars(select(DeviceRow).where(DeviceRow.name == name)).one()
        withdrawals.withdraw(session, row, device, at_once=at_once)
    server.as_inbox(lambda: server.runtime.coordinator.devices_changed(FEDERATION))


def tell(server: Bench, device: BatchDevice, state: str, **more: bool) -> None:
    said = status(state, examples=1).decode()
    words = "".join(f'"{name}":{str(value).lower()},' for name, value in more.items())
    server.send(topics.status(FEDERATION, device.name), said.replace("{", "{" + words, 1).encode())


def is_asked(server: Bench, device: BatchDevice, number: int) -> bool:
    said = device.invitation(server)
    return said.round == number and said.sum is not None and said.sum.kind == "request"


def begin(server: Bench, devices: list[BatchDevice], number: int) -> None:
    wait_for(lambda: phase_of(server, number) == "collecting")
    wait_for(lambda: all(is_asked(server, one, number) for one in devices))
    for one in devices:
        one.begin_batch(server)
        one.send(server)


def is_due(server: Bench) -> bool:
    with server.runtime.database.read() as session:
        return session.scalars(select(FederationRow.anew_due_at)).one() is not None


def rests(server: Bench, number: int) -> None:
    """See that no batch begins, although a server looks."""
    server.as_inbox(server.runtime.coordinator.tick)
    assert phase_of(server, number) == ""


@pytest.mark.ci
def test_the_sums_are_those_that_never_had_the_device_also_after_kills_and_a_batch_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, devices = federation(tmp_path, monkeypatch)
    initial = server.state()
    ada, bob, cyd, dan, eve = devices
    opens(server, devices, 1)
    carry_out(server, devices)
    published(server, 1, devices)
    left = [ada, bob, cyd, dan]
    for one in left:
        tell(server, one, "idle", changed=False)
    tell(server, eve, "offline")
    withdraw(server, "eve")
    rests(server, 2)  # nobody else has changes: what the server would see of it is eve's alone
    ada.has(11)
    tell(server, ada, "idle", changed=True)
    rests(server, 2)
    tell(server, dan, "offline")
    bob.has(12)
    tell(server, bob, "idle", changed=True)
    rests(server, 2)  # dan is away, and has a day to come back
    before = server.state()
    tell(server, dan, "idle", changed=False)

    begin(server, left, 2)  # too few stay for the sum
    pass_stage(server)
    wait_for(lambda: phase_of(server, 2) == "failed")
    assert server.state() == before
    for one in left:
        wait_for(lambda one=one: one.invitation(server).sum.kind == "settled" or is_asked(server, one, 3))

    for one in (ada, bob):
        tell(server, one, "idle", changed=True)
    begin(server, left, 3)
    for _stage in STAGES:
        server.stop()
        server = Bench(tmp_path / "server")
        for one in left:
            one.take_part(server)
    after = published(server, 3, left)
    assert_same(after, in_the_open(server, initial, {"ada": 11, "bob": 12, "cyd": 3, "dan": 4}), "without the lost one")
    fsck(server)
    assert not is_due(server)
    with server.runtime.database.read() as session:
        assert session.scalars(select(SecureSumRow.is_anew).order_by(SecureSumRow.round_id)).all() == [
            False,
            True,
            True,
        ]

    # whoever is in it goes on from what it has in it
    cyd.has(13)
    dan.has(14)
    ada.has(None)
    batch = [ada, cyd, dan]
    opens(server, batch, 4)
    carry_out(server, batch)
    seeds = {"bob": 12, "cyd": 13, "dan": 14}
    assert_same(published(server, 4, batch), in_the_open(server, initial, seeds), "a batch after it")
    fsck(server)
    with pytest.raises(ConflictError, match="there are none to take out"):
        withdraw(server, "eve")
    server.stop()


@pytest.mark.ci
def test_a_person_leaves_with_a_device_that_has_lost_its_sums_and_who_was_away_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, devices = federation(tmp_path, monkeypatch)
    initial = server.state()
    ada, bob, cyd, dan, eve = devices
    opens(server, devices, 1)
    carry_out(server, devices)
    published(server, 1, devices)
    with eve.store() as store:
        store.put(**masked_parts.pairs_of(masked_parts.load(store)._replace(parts={})))
    for one in (ada, bob, cyd):
        one.has(20 + devices.index(one))
        tell(server, one, "collecting", changed=False)
    tell(server, eve, "idle", leaving=True)
    assert is_due(server)
    tell(server, dan, "offline")
    with server.runtime.database.write() as session:  # a day later
        session.scalars(select(FederationRow)).one().anew_due_at = time.time() - 1
    for one in (ada, bob):
        tell(server, one, "idle", changed=True)
    tell(server, cyd, "idle", changed=False)
    batch = [ada, bob, cyd]
    begin(server, batch, 2)
    carry_out(server, batch)
    after = published(server, 2, batch)
    assert_same(after, in_the_open(server, initial, {"ada": 20, "bob": 21, "cyd": 22}), "without two")
    fsck(server)
    for one in (dan, eve):
        assert one.hear_settled(server) == ""
        with one.store() as store:
            assert masked_parts.known(store) == (None, "")  # it is told that nothing of it is in the sums
    ada.has(31)
    bob.has(32)
    batch = [ada, bob, dan]
    opens(server, batch, 3)
    carry_out(server, batch)
    seeds = {"ada": 31, "bob": 32, "cyd": 22, "dan": 4}
    assert_same(published(server, 3, batch), in_the_open(server, initial, seeds), "after one came back")
    with server.runtime.database.write() as session:
        row = session.scalars(select(FederationRow)).one()
        rows.remove_device(
            session, row, session.scalars(select(DeviceRow).where(DeviceRow.name == "dan")).one(), dry_run=False
        )
        assert row.anew_due_at is not None
        assert session.scalars(select(MaskedContributionRow.batch)).all().count("") == 1  # eve's
    server.stop()
