"""A server that was killed goes on where its rows say, over the same folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from aggregator_api.rounds.background_jobs import BackgroundJobs
from federation import wire
from federation.methods import method_from_json
from tests.aggregator_api.bench import Bench, wait_for
from tests.aggregator_api.generated_devices import FEDERATION, tiny_plan


def abandon(bench: Bench) -> None:
    """Leave a server as if it had been killed: nothing more is written."""
    bench.runtime.stop()


def test_a_round_goes_on_with_one_of_two_updates_in(tmp_path: Path) -> None:
    before = Bench(tmp_path, tiny_plan(rounds=1))
    before.say("a", "ready")
    before.say("b", "ready")
    state = wire.decode(before.state(), limit_bytes=1 << 20)
    first, second = before.update_of("a", examples=20), before.update_of("b")
    assert before.upload(first).status == "accepted"
    # of the second only two chunks have come when the server dies
    before.begin(second)
    for n in (0, 1):
        before.send(second.topic("chunk", n), second.chunks()[n])
    abandon(before)

    after = Bench(tmp_path)
    again = after.wires.announcements()[-1]
    assert (again.state, again.round, again.invited) == ("collecting", 1, 2)
    assert after.invited() == ("b",)  # a has reported: nothing more is asked of it
    assert after.begin(first).status == "accepted"  # its answer may have been lost
    assert after.begin(second).next_chunk == 2
    for n, chunk in list(enumerate(second.chunks()))[2:]:
        after.send(second.topic("chunk", n), chunk)
    after.send(second.topic("end"))
    assert after.last("b").status == "accepted"
    wait_for(lambda: after.now().state == "finished")
    expected = method_from_json({"name": "fedavg"}).aggregate(state, iter([first.update, second.update]))
    assert after.state() == wire.encode(expected)
    after.runtime.stop()


def test_bytes_lost_in_a_power_cut_are_asked_for_again(tmp_path: Path) -> None:
    before = Bench(tmp_path, tiny_plan(rounds=1))
    before.say("a", "ready")
    before.say("b", "ready")
    update = before.update_of("a")
    before.begin(update)
    for n, chunk in enumerate(update.chunks()):
        before.send(update.topic("chunk", n), chunk)
    abandon(before)
    (part,) = (tmp_path / "spool").glob("*/*/*.part")
    part.write_bytes(bytes(part.stat().st_size))

    after = Bench(tmp_path)
    after.begin(update)
    after.send(update.topic("end"))
    assert (after.last("a").status, after.last("a").next_chunk) == ("send", 0)
    assert after.upload(update).status == "accepted"
    after.runtime.stop()


def test_an_aggregation_that_was_cut_off_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = Bench(tmp_path, tiny_plan(rounds=1))
    before.say("a", "ready")
    before.say("b", "ready")
    monkeypatch.setattr(BackgroundJobs, "aggregate", lambda *_: None)  # the power goes just here
    before.upload(before.update_of("a"))
    before.upload(before.update_of("b"))
    assert before.now().state == "aggregating"
    initial = before.state()
    abandon(before)
    monkeypatch.undo()

    after = Bench(tmp_path)
    wait_for(lambda: after.now().state == "finished")
    assert after.state() != initial
    after.runtime.stop()


def test_a_paused_federation_is_paused_after_a_restart(tmp_path: Path) -> None:
    before = Bench(tmp_path, tiny_plan())
    before.say("a", "ready")
    before.say("b", "ready")
    before.runtime.federations.pause(FEDERATION)
    for device in ("a", "b"):
        assert before.upload(before.update_of(device)).status == "accepted"
    abandon(before)

    after = Bench(tmp_path)
    assert after.wires.announcements()[-1].state == "paused"
    after.runtime.federations.resume(FEDERATION)
    wait_for(lambda: after.now().round == 2)
    after.runtime.stop()
