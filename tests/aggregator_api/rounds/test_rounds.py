"""How rounds end when not every device reports."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import select

from aggregator_api.rounds import opening
from aggregator_api.storage.db.models import FederationRow, RoundRow
from federation import wire
from federation.methods import method_from_json
from tests.aggregator_api.bench import Bench, wait_for
from tests.aggregator_api.generated_devices import FEDERATION, tiny_plan


def ends(bench: Bench) -> list[tuple[str, str]]:
    """Return every round's phase and reason."""
    with bench.runtime.database.read() as session:
        return [(row.phase, row.reason) for row in session.scalars(select(RoundRow).order_by(RoundRow.number))]


def test_the_first_updates_of_an_over_selected_cohort_are_enough(tmp_path: Path) -> None:
    bench = Bench(tmp_path, tiny_plan(rounds=1, clients=2, over_selection=1.5))
    bench.runtime.federations.pause(FEDERATION)
    for device in ("a", "b", "c"):
        bench.say(device, "ready")
    bench.runtime.federations.resume(FEDERATION)
    assert bench.invited() == ("a", "b", "c")
    state = wire.decode(bench.state(), limit_bytes=1 << 20)
    updates = [bench.update_of(device) for device in ("a", "c")]
    for update in updates:
        assert bench.upload(update).status == "accepted"
    wait_for(lambda: bench.now().state == "finished")
    assert ends(bench) == [("published", "")]
    expected = method_from_json({"name": "fedavg"}).aggregate(state, (update.update for update in updates))
    assert bench.state() == wire.encode(expected)
    bench.runtime.stop()


def test_at_the_deadline_the_updates_that_came_are_aggregated(tmp_path: Path) -> None:
    bench = Bench(tmp_path, tiny_plan(rounds=1, clients=None, minimum_clients=1, deadline_s=3600))
    bench.runtime.federations.pause(FEDERATION)
    bench.say("a", "ready")
    bench.say("b", "ready")
    bench.runtime.federations.resume(FEDERATION)
    initial, update = bench.state(), bench.update_of("b")
    assert bench.upload(update).status == "accepted"
    assert bench.now().state == "collecting"
    bench.pass_deadline()
    wait_for(lambda: bench.now().state == "finished")
    assert ends(bench) == [("published", "")]
    assert bench.state() == wire.encode(update.tree) != initial  # the mean of one
    bench.runtime.stop()


def test_a_round_without_enough_updates_fails_and_the_model_stays(tmp_path: Path) -> None:
    bench = Bench(tmp_path, tiny_plan(rounds=1, deadline_s=3600, max_failed_rounds=1))
    initial = bench.state()
    bench.say("a", "ready")
    bench.say("b", "ready")
    update, late = bench.update_of("a"), bench.update_of("b")
    assert bench.upload(update).status == "accepted"
    bench.pass_deadline()
    wait_for(lambda: bench.now().state == "paused")
    assert ends(bench) == [("failed", "quorum not reached: got 1 updates, 2 are needed")]
    assert bench.state() == initial
    assert "no round is open" in bench.refused(late)
    bench.runtime.stop()


def test_a_device_that_goes_away_does_not_close_the_round(tmp_path: Path) -> None:
    bench = Bench(tmp_path, tiny_plan(rounds=1))
    bench.say("a", "ready")
    bench.say("b", "ready")
    bench.upload(bench.update_of("a"))
    bench.say("b", "offline")  # a last will: it may come back with its update
    assert bench.now().state == "collecting"
    assert bench.upload(bench.update_of("b")).status == "accepted"
    wait_for(lambda: bench.now().state == "finished")
    bench.runtime.stop()


@pytest.mark.ci
def test_the_next_round_opens_after_the_interval_by_itself(tmp_path: Path) -> None:
    """Devices that do not train answer within a second: without an interval rounds would be over in minutes."""
    bench = Bench(tmp_path, tiny_plan(rounds=2, clients=1, minimum_clients=1, interval_s=2.0))
    bench.say("a", "ready")
    bench.upload(bench.update_of("a"))
    wait_for(lambda: ends(bench) == [("published", ""), ("collecting", "")])
    with bench.runtime.database.read() as session:
        first, second = session.scalars(select(RoundRow).order_by(RoundRow.number))
        assert second.opened_at - first.opened_at >= 2.0
    bench.upload(bench.update_of("a"))
    wait_for(lambda: bench.now().state == "finished")  # not after another interval
    bench.runtime.stop()


def test_an_interval_counts_from_the_last_opening_and_not_across_a_clock_that_was_set_back(tmp_path: Path) -> None:
    bench = Bench(tmp_path, tiny_plan(rounds=2, clients=1, minimum_clients=1, interval_s=3600.0))
    bench.say("a", "ready")
    bench.upload(bench.update_of("a"))
    wait_for(lambda: ends(bench) == [("published", "")])
    with bench.runtime.database.read() as session:
        federation = session.scalars(select(FederationRow)).one()
        plan = bench.runtime.coordinator.contract(federation).plan
        opened = session.scalars(select(RoundRow)).one().opened_at
        times = (opened + 3599, opened + 3600, opened - 5)
        assert [opening.due(session, federation, plan, now) for now in times] == [False, True, True]
        assert opening.rested(session, lambda _: plan, opened + 3599) == []
    assert "interval_s" not in tiny_plan(rounds=2).model_dump(mode="json")["rounds"]  # devices of 0.2.0 refuse it
    bench.runtime.stop()
