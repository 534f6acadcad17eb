"""A device that is online and never answers is left out for a while, holds nobody up, and returns by itself."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from sqlalchemy import select

from aggregator_api.devices.presence import FIRST_REST_S, MAX_MISSED, MAX_REST_S
from aggregator_api.http.queries.devices import activity, waiting_for
from aggregator_api.storage.db.models import DeviceRow, FederationRow, RoundRow, UpdateRow
from federation.rounds.server_round import MIN_SILENCE_S
from tests.aggregator_api.bench import Bench, wait_for
from tests.aggregator_api.rounds.test_suspensions import device, events, phases, strict

ALL = "abz"


def ends(bench: Bench, number: int, heard: str) -> None:
    """Let one round end, at its deadline unless all devices have answered."""
    wait_for(lambda: bench.collects(number))
    for name in heard:
        assert bench.upload(bench.update_of(name)).status == "accepted"
    if heard != ALL:
        bench.pass_deadline()
        bench.as_inbox(bench.runtime.coordinator.tick)
    wait_for(lambda: phases(bench)[number - 1] in ("published", "failed"))


def rest_is_over(bench: Bench) -> None:
    with bench.runtime.database.write() as session:
        for row in session.scalars(select(DeviceRow).where(DeviceRow.left_out_until.is_not(None))):
            row.left_out_until = bench.runtime.clock() - 1.0
    bench.as_inbox(bench.runtime.coordinator.tick)


def federation(bench: Bench) -> FederationRow:
    with bench.runtime.database.read() as session:
        return session.scalars(select(FederationRow)).one()


def words(bench: Bench) -> tuple[str, str]:
    """Return what the federation waits for, and why z does not train."""
    with bench.runtime.database.read() as session:
        row = session.scalars(select(FederationRow)).one()
        silent = session.scalars(select(DeviceRow).where(DeviceRow.name == "z")).one()
        return waiting_for(session, row), activity(session, row, silent).reason


@pytest.fixture(params=[{"clients": None}, {"clients": 3}], ids=["everybody is drawn", "three are drawn"])
def quorum_of_two(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    return strict(tmp_path / "data", ALL, rounds=20, **request.param)


def test_the_others_do_not_wait_for_a_silent_device_for_ever(quorum_of_two: Bench) -> None:
    bench = quorum_of_two
    for number in range(1, MAX_MISSED + 1):
        ends(bench, number, "ab")
    left_out_until = device(bench, "z").left_out_until
    assert left_out_until is not None
    assert left_out_until == pytest.approx(bench.runtime.clock() + FIRST_REST_S, abs=60)
    (told,) = events(bench, "device.left_out")
    assert (told.device, told.detail) == ("z", "it missed 3 rounds in a row; it can be drawn again in 120 s")
    # the next round is not late: it ends as soon as both have answered
    wait_for(lambda: bench.collects(MAX_MISSED + 1))
    for name in "ab":
        assert bench.upload(bench.update_of(name)).status == "accepted"
    wait_for(lambda: bench.collects(MAX_MISSED + 2))
    assert phases(bench) == ["published"] * (MAX_MISSED + 1) + ["collecting"]
    assert "missed 3 rounds in a row" in words(bench)[1]
    # it returns by itself, and one update makes it as good as any
    for name in "ab":
        bench.upload(bench.update_of(name))
    wait_for(lambda: bench.collects(MAX_MISSED + 3))
    rest_is_over(bench)
    for name in "ab":
        bench.upload(bench.update_of(name))
    wait_for(lambda: bench.collects(MAX_MISSED + 4))
    ends(bench, MAX_MISSED + 4, ALL)
    assert (device(bench, "z").missed_rounds, device(bench, "z").left_out_until) == (0, None)
    bench.stop()


def test_a_quorum_of_everybody_waits_and_is_not_paused(tmp_path: Path) -> None:
    bench = strict(tmp_path / "data", ALL, rounds=20, minimum_clients=3)
    rest_s, number = FIRST_REST_S, 0
    for _ in range(MAX_MISSED - 1):
        number += 1
        ends(bench, number, "ab")
    for _ in range(8):  # more than rounds.max_failed_rounds
        number += 1
        ends(bench, number, "ab")
        assert device(bench, "z").left_out_until == pytest.approx(bench.runtime.clock() + rest_s, abs=60)
        assert [row.missed_rounds for row in (device(bench, "a"), device(bench, "z"))] == [0, number]
        assert (federation(bench).status, bench.now().state) == ("running", "waiting")
        assert "1 is left out for a while" in words(bench)[0]
        rest_is_over(bench)
        rest_s = min(MAX_REST_S, 2 * rest_s)
    assert set(phases(bench)[:number]) == {"failed"}
    ends(bench, number + 1, ALL)
    assert phases(bench)[number] == "published"
    assert device(bench, "z").missed_rounds == 0
    bench.stop()


def test_who_is_not_awaited_any_more_has_missed_nothing(tmp_path: Path) -> None:
    """An over-selected round ends when enough have answered: the others were not too late for anything."""
    bench = strict(tmp_path / "data", ALL, rounds=3, clients=2, over_selection=1.5)
    wait_for(lambda: bench.collects(1))
    for name in "ab":
        assert bench.upload(bench.update_of(name)).status == "accepted"
    wait_for(lambda: bench.collects(2))
    assert device(bench, "z").missed_rounds == 0
    bench.stop()


def passes(bench: Bench, seconds: float) -> None:
    """Let time pass in the open round, in which every device stays as it is, and look who is silent."""
    with bench.runtime.database.write() as session:
        row = session.scalars(select(RoundRow).order_by(RoundRow.number.desc()).limit(1)).one()
        row.opened_at -= seconds
        for update in session.scalars(select(UpdateRow).where(UpdateRow.round_id == row.id)):
            update.received_at -= seconds
    coordinator = bench.runtime.coordinator
    coordinator.listening_since = coordinator.offline_checked_at = -math.inf
    bench.as_inbox(coordinator.tick)


def test_a_round_without_a_deadline_gives_up_who_is_online_and_silent(tmp_path: Path) -> None:
    bench = strict(tmp_path / "data", ALL, rounds=20, deadline_s=None)
    for number in range(1, MAX_MISSED + 1):
        wait_for(lambda number=number: bench.collects(number))  # type: ignore[misc]
        passes(bench, 10 * MIN_SILENCE_S)
        assert phases(bench)[-1] == "collecting"  # nobody is held up yet
        with bench.runtime.database.write() as session:
            session.scalars(select(RoundRow).where(RoundRow.number == number)).one().opened_at = bench.runtime.clock()
        for name in "ab":
            assert bench.upload(bench.update_of(name)).status == "accepted"
        passes(bench, MIN_SILENCE_S - 60)
        assert phases(bench)[-1] == "collecting"
        passes(bench, 120)
        wait_for(lambda number=number: phases(bench)[number - 1] == "published")  # type: ignore[misc]
        assert device(bench, "z").missed_rounds == number
    assert device(bench, "z").left_out_until is not None
    bench.stop()


@pytest.mark.parametrize("state", ["ready", "offline"])
def test_a_quorum_of_everybody_without_a_deadline_is_not_paused(tmp_path: Path, state: str) -> None:
    bench = strict(tmp_path / "data", ALL, rounds=20, minimum_clients=3, deadline_s=None)
    for number in range(1, MAX_MISSED + 8):  # more than rounds.max_failed_rounds
        wait_for(lambda number=number: bench.collects(number))  # type: ignore[misc]
        for name in "ab":
            assert bench.upload(bench.update_of(name)).status == "accepted"
        bench.say("z", state)
        if state == "offline":
            with bench.runtime.database.write() as session:
                session.scalars(select(DeviceRow).where(DeviceRow.name == "z")).one().seen_at -= 3600
        passes(bench, MIN_SILENCE_S + 60 if state == "ready" else 0)
        wait_for(lambda number=number: phases(bench)[number - 1] == "failed")  # type: ignore[misc]
        assert federation(bench).status == "running"
        bench.say("z", "ready")
        rest_is_over(bench)
    assert device(bench, "z").missed_rounds == MAX_MISSED + 7
    wait_for(lambda: bench.collects(MAX_MISSED + 8))
    ends(bench, MAX_MISSED + 8, ALL)
    assert phases(bench)[MAX_MISSED + 7] == "published"
    bench.stop()
