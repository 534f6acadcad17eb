"""The server's clock is set in the middle of a round: nobody loses or gains time, and nothing is deleted."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from aggregator_api.auth.signing import Signer
from aggregator_api.rounds.deadlines import SteadyClock
from aggregator_api.storage.db.models import DeviceRow, RoundRow
from tests.aggregator_api.bench import Bench, wait_for
from tests.aggregator_api.generated_devices import tiny_plan

HOUR_S, DAY_S = 3600.0, 86_400.0
LEAPS = [sign * size for sign in (1, -1) for size in (HOUR_S, DAY_S, 3653 * DAY_S)]
FEW_LEAPS = [
    pytest.param(leap, marks=pytest.mark.ci if leap in (-HOUR_S, 3653 * DAY_S) else pytest.mark.slow) for leap in LEAPS
]  # 6 s each
LONG_S = 1000.0
Leap = Callable[[float], None]


@pytest.fixture
def leap(monkeypatch: pytest.MonkeyPatch) -> Leap:
    """Set the clock of this process, as NTP does."""
    real = time.time

    def leap(seconds: float) -> None:
        monkeypatch.setattr(time, "time", lambda: real() + seconds)

    return leap


def opened(folder: Path, **rounds: float | None) -> Bench:
    """A server whose round 1 has a's update and waits for b."""
    bench = Bench(folder, tiny_plan(rounds=1, **{"minimum_clients": 1, **rounds}))
    for device in ("a", "b"):
        bench.say(device, "ready")
    bench.upload(bench.update_of("a"))
    return bench


def first_round(bench: Bench) -> RoundRow:
    with bench.runtime.database.read() as session:
        row = session.get(RoundRow, 1)
        assert row is not None
        return row


@pytest.mark.parametrize("seconds", LEAPS)
def test_a_round_lasts_as_long_as_it_should(tmp_path: Path, leap: Leap, seconds: float) -> None:
    bench = opened(tmp_path, deadline_s=LONG_S)
    leap(seconds)
    bench.runtime.coordinator.tick()
    row = first_round(bench)
    assert (row.phase, row.deadline_passed) == ("collecting", False)
    assert row.deadline_at is not None
    assert 0 < row.deadline_at - time.time() <= LONG_S + 1
    assert row.deadline_at - row.opened_at == pytest.approx(LONG_S, abs=60)
    assert bench.wires.announcements()[-1].deadline == row.deadline_at
    bench.pass_deadline()
    bench.runtime.coordinator.tick()
    wait_for(lambda: first_round(bench).phase == "published")
    bench.runtime.stop()


@pytest.mark.parametrize("seconds", FEW_LEAPS)
def test_a_device_that_has_gone_is_given_up_in_good_time(tmp_path: Path, leap: Leap, seconds: float) -> None:
    bench = opened(tmp_path)
    bench.say("b", "offline")
    bench.runtime.coordinator.listening_since -= 3600
    leap(seconds)
    bench.runtime.coordinator.tick()
    assert first_round(bench).phase == "collecting"
    bench.runtime.coordinator.listening_since -= 121  # it has been silent for so long since
    if seconds > 0:
        with bench.runtime.database.write() as session:
            session.query(DeviceRow).filter_by(name="b").one().seen_at -= 121
    bench.runtime.coordinator.tick()
    wait_for(lambda: first_round(bench).phase == "published")
    bench.runtime.stop()


@pytest.mark.parametrize("seconds", [-HOUR_S, -3653 * DAY_S])
def test_a_server_that_starts_in_the_past_waits_for_one_round_at_most(
    tmp_path: Path, leap: Leap, seconds: float
) -> None:
    opened(tmp_path, deadline_s=LONG_S).runtime.stop()
    leap(seconds)
    bench = Bench(tmp_path)
    row = first_round(bench)
    assert row.phase == "collecting"
    assert row.deadline_at is not None
    assert 0 < row.deadline_at - time.time() <= LONG_S + 1
    leap(0)  # and then the network sets its clock
    bench.runtime.coordinator.tick()
    row = first_round(bench)
    assert row.phase == "collecting"
    assert row.deadline_at is not None
    assert 0 < row.deadline_at - time.time() <= LONG_S + 1
    bench.upload(bench.update_of("b"))
    wait_for(lambda: first_round(bench).phase == "published")
    bench.runtime.stop()


def test_a_blob_that_is_new_is_not_taken_for_an_old_one(tmp_path: Path, leap: Leap) -> None:
    bench = Bench(tmp_path, tiny_plan(), gc_grace_s=60)
    stored = bench.runtime.blobs.put(b"its row comes in a moment")
    leap(DAY_S)
    bench.runtime.collect_garbage()
    bench.runtime.coordinator.tick()
    bench.runtime.collect_garbage()
    assert bench.runtime.blobs.has(stored.sha256)
    clock = bench.runtime.clock
    assert clock.followed_at is not None
    clock.followed_at -= 61
    bench.runtime.collect_garbage()
    assert not bench.runtime.blobs.has(stored.sha256)
    bench.runtime.stop()


@pytest.mark.parametrize("seconds", [20 * DAY_S, -20 * DAY_S])
def test_announcements_are_renewed_after_the_clock_was_set(leap: Leap, seconds: float) -> None:
    signer = Signer(lambda message: bytes(64), 30 * DAY_S, lambda: time.time())
    assert not signer.renewal_is_due()
    leap(seconds)
    assert signer.renewal_is_due()
    assert not signer.renewal_is_due()
    assert 30 * DAY_S <= signer.expires() - time.time() <= 31 * DAY_S


def test_what_is_slewed_away_is_no_leap(leap: Leap) -> None:
    clock = SteadyClock()
    leap(0.5)
    assert (clock.leap_s(), clock.was_stable_for(0.0)) == (0.0, True)
    leap(-50)
    assert clock.leap_s() == pytest.approx(-50, abs=1)
    clock.follow(clock.leap_s())
    assert clock() == pytest.approx(time.time(), abs=1)
    assert (clock.leap_s(), clock.was_stable_for(60.0)) == (0.0, False)
