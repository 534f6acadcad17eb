"""A device whose updates are refused again and again is left out of the next rounds, until an operator lets it back."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import select

from aggregator_api.http.queries.devices import TRAINS, activity
from aggregator_api.notifications import attention
from aggregator_api.storage.db import repositories
from aggregator_api.storage.db.models import DeviceRow, EventRow, FederationRow, RoundRow
from tests.aggregator_api.bench import Bench, wait_for
from tests.aggregator_api.generated_devices import FEDERATION, Parcel, tiny_plan


def strict(folder: Path, devices: str = "abz", **settings: Any) -> Bench:
    """Begin a federation whose rounds need all of their two devices, with one more device than that."""
    given = {"rounds": 2, "clients": None, "minimum_clients": 2, "deadline_s": 3600, **settings}
    bench = Bench(folder, tiny_plan(**given))
    bench.runtime.federations.pause(FEDERATION)
    for device in devices:
        bench.say(device, "ready")
    bench.runtime.federations.resume(FEDERATION)
    return bench


def bad(bench: Bench, device: str) -> Parcel:
    """Generate an update whose bytes are not those that it announces."""
    update = bench.update_of(device)
    return Parcel(update.manifest, update.data[:-1] + bytes([update.data[-1] ^ 1]), update.tree)


def phases(bench: Bench) -> list[str]:
    with bench.runtime.database.read() as session:
        return list(session.scalars(select(RoundRow.phase).order_by(RoundRow.number)))


def events(bench: Bench, kind: str) -> list[EventRow]:
    with bench.runtime.database.read() as session:
        return list(session.scalars(select(EventRow).where(EventRow.kind == kind)))


def device(bench: Bench, name: str) -> DeviceRow:
    with bench.runtime.database.read() as session:
        return session.scalars(select(DeviceRow).where(DeviceRow.name == name)).one()


def attention_words(bench: Bench) -> str:
    with bench.runtime.database.read() as session:
        row = session.scalars(select(FederationRow)).one()
        return " ".join(item.message for item in attention.of_federation(session, row))


def play(bench: Bench, number: int, good: str, culprit: str = "") -> None:
    """Let one round end: what `culprit` sends is bad."""
    wait_for(lambda: bench.collects(number))
    if culprit:
        bench.refused(bad(bench, culprit))
    for name in good:
        assert bench.upload(bench.update_of(name)).status == "accepted"
    wait_for(lambda: phases(bench)[number - 1] in ("published", "failed"))


def test_one_bad_device_does_not_end_a_strict_federation(tmp_path: Path) -> None:
    bench = strict(tmp_path, "az", rounds=2, clients=2, max_refused_updates=2)
    for number in (1, 2):
        play(bench, number, "a", "z")
    assert phases(bench) == ["failed", "failed"]
    assert device(bench, "z").suspended_at is not None
    assert bench.now().state == "waiting"  # two are needed, one may take part: a failed round has used nothing up
    bench.say("b", "ready")
    for number in (3, 4):
        play(bench, number, "ab")
        assert bench.invited() == () or "z" not in bench.invited()
    wait_for(lambda: bench.now().state == "finished")
    assert phases(bench) == ["failed", "failed", "published", "published"]
    bench.stop()


def test_the_operator_hears_of_a_suspension_and_lifts_it(tmp_path: Path) -> None:
    bench = strict(tmp_path, rounds=3, max_refused_updates=2)
    play(bench, 1, "ab", "z")
    assert device(bench, "z").suspended_at is None
    play(bench, 2, "ab", "z")
    assert phases(bench)[:2] == ["published", "published"]
    (told,) = events(bench, "device.suspended")
    assert (told.device, told.round_number) == ("z", 2)
    assert "2 updates in a row were refused" in told.detail
    assert "sha256" in told.detail
    assert "1 device is suspended" in attention_words(bench)
    with bench.runtime.database.read() as session:
        row = session.scalars(select(FederationRow)).one()
        doing = activity(session, row, device(bench, "z"))
    assert doing.heading != TRAINS
    assert "suspended" in doing.reason
    wait_for(lambda: bench.collects(3) and bench.invited() == ("a", "b"))  # announced first, then each is invited
    assert "is suspended" in bench.refused(bench.update_of("z"))
    assert len(events(bench, "device.suspended")) == 1

    bench.runtime.devices.reinstate(FEDERATION, "z")
    assert (device(bench, "z").suspended_at, device(bench, "z").refused_updates) == (None, 0)
    assert [event.device for event in events(bench, "device.reinstated")] == ["z"]
    assert "suspended" not in attention_words(bench)
    bench.runtime.devices.reinstate(FEDERATION, "z")  # twice changes nothing
    assert len(events(bench, "device.reinstated")) == 1
    bench.stop()


def test_a_lifted_suspension_opens_a_round_that_waited_for_the_device(tmp_path: Path) -> None:
    bench = strict(tmp_path, "az", rounds=1, clients=2, max_refused_updates=1)
    play(bench, 1, "a", "z")
    assert bench.now().state == "waiting"
    with bench.runtime.database.read() as session:
        row = session.scalars(select(FederationRow)).one()
        assert "1 device is suspended" in activity(session, row, device(bench, "a")).reason
    bench.runtime.devices.reinstate(FEDERATION, "z")
    play(bench, 2, "az")
    wait_for(lambda: bench.now().state == "finished")
    bench.stop()


def test_a_used_update_begins_the_count_anew_and_late_ones_do_not_count(tmp_path: Path) -> None:
    bench = strict(tmp_path, rounds=4, max_refused_updates=2)
    late = bench.update_of("z")
    play(bench, 1, "ab", "z")
    assert device(bench, "z").refused_updates == 1
    wait_for(lambda: bench.collects(2))
    bench.refused(late)
    assert device(bench, "z").refused_updates == 1  # it came at the wrong time, which is no fault of what it holds
    play(bench, 2, "abz")
    assert device(bench, "z").refused_updates == 0
    play(bench, 3, "ab", "z")
    assert device(bench, "z").suspended_at is None
    bench.stop()


def test_a_federation_that_fails_for_ever_is_paused(tmp_path: Path) -> None:
    bench = strict(tmp_path, "az", rounds=2, clients=2, max_refused_updates=None, max_failed_rounds=3)
    for number in (1, 2, 3):
        play(bench, number, "a", "z")
    assert phases(bench) == ["failed"] * 3
    assert bench.now().state == "paused"
    *_, paused = events(bench, "federation.paused")
    assert "3 rounds in a row have failed" in paused.detail
    assert "3 rounds in a row have failed" in attention_words(bench)
    bench.runtime.federations.resume(FEDERATION)
    play(bench, 4, "a", "z")
    wait_for(lambda: bench.collects(5))  # it has as many attempts again
    for number in (5, 6):
        play(bench, number, "az")
    wait_for(lambda: bench.now().state == "finished")
    bench.stop()


def test_a_device_left_out_of_round_after_round_is_suspended(tmp_path: Path) -> None:
    from tests.aggregator_api.updates.test_screening import Fleet

    fleet = Fleet(tmp_path, "abcz", rounds=3, max_refused_updates=2)
    for number in (1, 2):
        wait_for(partial(fleet.bench.collects, number))
        fleet.play([fleet.step(name) for name in "abc"] + [fleet.step("z", 1000.0)])
    assert device(fleet.bench, "z").suspended_at is not None
    # announced first, then each is invited
    wait_for(lambda: fleet.bench.collects(3) and fleet.bench.invited() == ("a", "b", "c"))
    fleet.stop()


def test_published_rounds_are_counted_without_looking_at_all_rounds(tmp_path: Path) -> None:
    bench = strict(tmp_path, "az", rounds=2, clients=2, max_refused_updates=None)
    play(bench, 1, "a", "z")
    play(bench, 2, "az")
    wait_for(lambda: bench.collects(3))
    with bench.runtime.database.read() as session:
        row = session.scalars(select(FederationRow)).one()
        assert repositories.progress(session, row) == (1, 0)
        assert row.parsed_plan.rounds.rounds == 2
    bench.refused(bad(bench, "z"))
    bench.upload(bench.update_of("a"))
    wait_for(lambda: phases(bench)[2] == "failed")
    with bench.runtime.database.read() as session:
        assert repositories.progress(session, row) == (1, 1)
    bench.stop()
