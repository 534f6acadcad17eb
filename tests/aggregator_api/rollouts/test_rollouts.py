"""The staged release of a model version: what the server says to whom, what it counts, and what a halt takes back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from sqlalchemy.orm import Session
from typer.testing import CliRunner

from aggregator_api.cli.app import app as cli
from aggregator_api.core.errors import ConflictError, NotFoundError
from aggregator_api.federations import service
from aggregator_api.http.queries import listings
from aggregator_api.http.queries.listings import PageParams
from aggregator_api.http.queries.rollouts import RolloutDetail, RolloutDevice, detail, devices
from aggregator_api.rollouts import transitions
from aggregator_api.rollouts.service import NewRollout, RolloutService
from aggregator_api.storage.db.models import RolloutRow
from edge_agent.machine.releases import offered_to
from federation.plan import GroupWave, Plan
from federation.protocol import topics
from federation.protocol.messages import DeviceStatus, Offer, ReleaseOrder, ReleaseReport, read, write
from federation.protocol.signing import unwrap
from federation.rounds.rollout import RolloutPhase, is_within, place_of, reach_of
from tests.aggregator_api.bench import Bench, wait_for
from tests.aggregator_api.generated_devices import FEDERATION, tiny_plan

SOAK_S, PATIENCE_S = 1e6, 1e7  # beside which the time that the test takes is nothing


def plan(mode: str = "manual", *, rounds: int = 1, measured: int = 4, **settings: Any) -> Plan:
    """One round of devices a and b, whose models are released in waves of two fifths and of all."""
    rollout = {"mode": mode, "waves": (0.4, 1.0), "soak_s": SOAK_S, "wave_timeout_s": PATIENCE_S, **settings}
    promotion = {"min_devices": measured}
    return Plan.model_validate({**tiny_plan(rounds=rounds).model_dump(), "rollout": rollout, "promotion": promotion})


class Fleet(Bench):
    """A server with ten devices, asked at times of the test's choosing."""

    devices = tuple(f"g{n}" for n in range(10))
    waited = 0.0

    def arrive(self, *devices: str) -> None:
        """Let devices come in."""
        for device in devices or self.devices:
            self.say(device, "idle")

    def train(self) -> None:
        """Play the open round."""
        for device in self.invited():
            assert self.upload(self.update_of(device)).status == "accepted"

    def wait(self, seconds: float) -> None:
        """Let time pass for the rollouts; the server's own clock stands still beside it."""
        self.waited += seconds
        with self.runtime.database.read() as session:
            began = self.row(session, 1).started_at
        self.as_inbox(lambda: self.runtime.rollout_scheduler.tick(began + self.waited))

    def answer(self, device: str, answer: str = "adopted", *, rollout: int = 1, **said: Any) -> None:
        """Publish a device's status with what became of the model."""
        measured = {} if answer == "failed" else {"score": 0.9}
        report = {"instance": self.now().instance, "rollout": rollout, "answer": answer, **measured, **said}
        status = DeviceStatus(state="idle", examples=10, release=ReleaseReport.model_validate(report))
        self.send(topics.status(FEDERATION, device), write(status))

    def order(self) -> ReleaseOrder:
        """Return what was announced last."""
        announced = self.wires.announcements()[-1]
        assert announced.release is not None
        return announced.release

    @staticmethod
    def row(session: Session, number: int) -> RolloutRow:
        """Return a rollout's row."""
        found = transitions.numbered(session, service.get_federation(session, FEDERATION), number)
        assert found is not None
        return found

    def rollout(self, number: int = 1) -> RolloutDetail:
        """Describe a rollout as REST does."""
        with self.runtime.database.read() as session:
            return detail(session, self.row(session, number))

    def told(self, number: int = 1) -> dict[str, RolloutDevice]:
        """Return the devices of a rollout as REST does."""
        with self.runtime.database.read() as session:
            row = self.row(session, number)
            return {one.device: one for one in devices(session, row, None, PageParams(0, 500)).items}

    def kinds(self) -> list[str]:
        """Return what the journal says about rollouts."""
        with self.runtime.database.read() as session:
            events = listings.events(session, service.get_federation(session, FEDERATION), PageParams(0, 500)).items
            return [event.kind.removeprefix("rollout.") for event in events if event.kind.startswith("rollout.")]

    def aliases(self) -> dict[str, int]:
        """Return the names of versions, once every measure has been looked at."""
        self.as_inbox(self.runtime.promotion_scheduler.tick)
        with self.runtime.database.read() as session:
            found = listings.aliases(session, service.get_federation(session, FEDERATION))
        return {alias.alias: alias.version for alias in found}


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """Ten devices, a model of one round (version 1), and nothing released."""
    found = Fleet(tmp_path / "data", plan())
    found.arrive()
    found.train()
    wait_for(lambda: found.now().state == "finished")
    yield found
    found.runtime.stop()


REACH = reach_of([place_of(device, 1) for device in Fleet.devices], 0.4)
"""Below which four of the ten devices have their place in the rollout of version 1."""


def first_wave() -> list[str]:
    """The four devices that version 1 goes to first."""
    return [device for device in Fleet.devices if is_within(device, 1, REACH)]


def begun(fleet: Fleet) -> None:
    assert fleet.runtime.rollouts.start(FEDERATION, NewRollout()) == 1


def test_a_version_goes_out_in_waves_and_is_released_once_enough_have_adopted_it(fleet: Fleet) -> None:
    assert fleet.now().release is None
    before = fleet.now().model
    begun(fleet)
    order, first = fleet.order(), first_wave()
    assert order.candidate is not None
    assert (order.candidate.version, order.share_millionths, order.released, order.withdrawn) == (1, REACH, None, ())
    assert sorted(fleet.told()) == first
    assert len(first) == 4
    assert fleet.aliases() == {"latest": 1, "stable": 0, "canary": 1}
    for device in first:
        fleet.answer(device, score=0.9)
    fleet.wait(SOAK_S - 1)
    assert fleet.rollout().wave == 1
    fleet.wait(1)
    assert (fleet.rollout().wave, fleet.order().share_millionths) == (2, 1_000_000)
    assert sorted(fleet.told()) == sorted(fleet.devices)
    for device in set(fleet.devices) - set(first):
        fleet.answer(device, score=0.8)
    fleet.wait(SOAK_S)
    assert fleet.rollout().phase == "completed"
    done = fleet.order()
    assert (done.released, done.candidate, done.share_millionths) == (order.candidate, None, 0)
    assert done.serial > order.serial
    assert fleet.aliases() == {"latest": 1, "previous": 0, "stable": 1, "released": 1}
    progress = [(wave.devices, wave.adopted, wave.pending) for wave in fleet.rollout().progress]
    assert progress == [(len(first), len(first), 0), (10 - len(first), 10 - len(first), 0)]
    assert [kind for kind in fleet.kinds() if kind != "adopted"] == ["started", "wave", "completed"]
    assert fleet.now().model == before  # what rounds start from did not move


def test_a_clock_that_is_set_ends_no_wave(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator, real = fleet.runtime.coordinator, time.time
    begun(fleet)
    for device in first_wave():
        fleet.answer(device)
    monkeypatch.setattr(time, "time", lambda: real() + 2 * SOAK_S)
    coordinator.tick()
    fleet.runtime.rollout_scheduler.tick(fleet.runtime.clock())
    assert fleet.rollout().wave == 1
    fleet.runtime.rollout_scheduler.tick(fleet.runtime.clock() + SOAK_S)
    assert fleet.rollout().wave == 2


def test_two_failures_halt_it_and_everybody_goes_back(fleet: Fleet) -> None:
    begun(fleet)
    fleet.wait(PATIENCE_S)  # nobody has answered: nothing goes on
    assert fleet.rollout().wave == 1
    one, two, three = first_wave()[:3]
    fleet.answer(three, score=0.9)
    fleet.answer(one, "refused", score=0.4, reason="macro-F1 0.400 against 0.900")
    assert fleet.rollout().phase == "rolling"
    serial = fleet.order().serial
    fleet.answer(two, "failed", reason="it gives NaN")
    halted, order = fleet.rollout(), fleet.order()
    assert (halted.phase, halted.reason) == ("halted", "2 of 3 devices that answered have failed")
    assert (order.candidate, order.released, order.withdrawn) == (None, None, (1,))
    assert order.serial > serial
    assert (fleet.told()[one].reason, fleet.told()[two].answer) == ("macro-F1 0.400 against 0.900", "failed")
    assert fleet.aliases() == {"latest": 1, "stable": 0}
    fleet.answer(three, "rolled_back", reason="withdrawn")  # as it was told
    fleet.wait(PATIENCE_S)
    assert (fleet.rollout().successes, fleet.rollout().failures, fleet.rollout().progress[0].rolled_back) == (1, 2, 1)


def test_after_a_halt_what_was_released_before_stays_also_where_it_is_the_older_version(fleet: Fleet) -> None:
    begun(fleet)
    for device in fleet.devices:
        fleet.answer(device)  # also devices that were not asked yet
    assert set(fleet.told()) == set(first_wave())
    fleet.wait(SOAK_S)
    for device in fleet.devices:
        fleet.answer(device)
    fleet.wait(SOAK_S)
    released = fleet.order().released
    fleet.runtime.rollouts.start(FEDERATION, NewRollout(version=0))
    serial = fleet.order().serial
    fleet.runtime.rollouts.halt(FEDERATION, 2)
    order = fleet.order()
    assert (order.released, order.candidate, order.withdrawn) == (released, None, (2,))
    assert order.serial > serial
    # and what was completed can be taken back as well
    fleet.runtime.rollouts.halt(FEDERATION, 1)
    assert (fleet.order().released, fleet.order().withdrawn) == (None, (2, 1))
    with pytest.raises(ConflictError, match="the rollout is halted"):
        fleet.runtime.rollouts.halt(FEDERATION, 1)


def test_repeated_stale_and_foreign_reports_change_nothing(fleet: Fleet) -> None:
    begun(fleet)
    one, first = first_wave()[0], set(first_wave())
    outside = next(device for device in fleet.devices if device not in first)
    fleet.answer(one, "failed", reason="x")
    before = fleet.rollout()
    for _ in range(3):
        fleet.answer(one, "failed", reason="x")
    fleet.answer(outside, "failed")
    fleet.answer(one, "failed", rollout=7)
    fleet.answer(one, "adopted", instance="f" * 32)
    assert fleet.rollout() == before
    assert fleet.kinds().count("failed") == 1
    fleet.send(topics.status(FEDERATION, one), b'{"state": "idle", "release": {"answer": "perfect"}}')
    fleet.send(topics.status(FEDERATION, one), b'{"state": "idle", "release": null}')
    assert fleet.rollout() == before


def test_a_device_that_comes_later_belongs_to_its_wave(fleet: Fleet) -> None:
    begun(fleet)
    new = [f"new{n}" for n in range(20)]
    fleet.arrive(*new)
    fleet.wait(1)
    first = sorted((*fleet.devices, *new), key=lambda device: place_of(device, 1))[:12]  # two fifths of thirty
    assert set(fleet.told()) >= {*first, *first_wave()}
    assert fleet.rollout().members == len(fleet.told()) < 30


def test_the_operator_pauses_and_resumes(fleet: Fleet) -> None:
    begun(fleet)
    for device in first_wave():
        fleet.answer(device)
    fleet.runtime.rollouts.pause(FEDERATION, 1)
    fleet.wait(10 * SOAK_S)
    assert (fleet.rollout().phase, fleet.rollout().wave) == ("paused", 1)
    resumed = fleet.rollout().started_at + fleet.waited
    RolloutService(fleet.runtime.database, fleet.runtime.coordinator, lambda: resumed).resume(FEDERATION, 1)
    fleet.wait(SOAK_S - 1)
    assert fleet.rollout().wave == 1
    fleet.wait(1)
    assert fleet.rollout().wave == 2
    with pytest.raises(ConflictError, match="rollout 1 is rolling"):
        fleet.runtime.rollouts.start(FEDERATION, NewRollout(version=0))
    with pytest.raises(NotFoundError, match="no rollout 9"):
        fleet.runtime.rollouts.pause(FEDERATION, 9)


def test_automatically_each_version_follows_the_last_but_none_follows_a_halt(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path / "data", plan("automatic", rounds=3, measured=2, waves=(1.0,)))
    fleet.arrive("a", "b")
    for number in (1, 2):
        wait_for(partial(fleet.collects, number))
        fleet.train()
    wait_for(lambda: fleet.now().round == 3)
    # version 1 is rolling; version 2 has come meanwhile, and waits
    assert (fleet.rollout().version, fleet.rollout().phase) == (1, RolloutPhase.ROLLING)
    for device in ("a", "b"):
        fleet.answer(device)
    fleet.wait(SOAK_S)
    order = fleet.order()
    assert order.released is not None
    assert order.candidate is not None
    assert (order.released.version, order.candidate.version, fleet.rollout(2).version) == (1, 2, 2)
    fleet.answer("a", "failed", rollout=2)
    fleet.answer("b", "refused", rollout=2)
    fleet.train()
    wait_for(lambda: fleet.now().state == "finished")
    assert fleet.rollout(2).phase == "halted"
    assert fleet.order().candidate is None  # version 3 waits for the operator
    assert fleet.runtime.rollouts.start(FEDERATION, NewRollout()) == 3
    assert fleet.rollout(3).version == 3
    fleet.runtime.stop()


def test_where_devices_choose_for_themselves_nothing_is_released(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path / "data", tiny_plan(rounds=1))
    with pytest.raises(ConflictError, match=r"rollout\.mode is off"):
        fleet.runtime.rollouts.start(FEDERATION, NewRollout())
    assert fleet.now().release is None
    fleet.runtime.stop()


# ---- waves of groups


PILOT_FIRST = (GroupWave(tags=("pilot",)), 0.4, 1.0)


def tagged(fleet: Fleet, *devices: str) -> None:
    for device in devices:
        fleet.runtime.devices.set_tags(FEDERATION, device, ["pilot"])


def offers(fleet: Fleet, device: str) -> list[Offer]:
    topic = topics.offer(FEDERATION, device)
    sent = [(body, retain) for sent_to, body, retain in fleet.wires.sent if sent_to == topic]
    assert all(retain for _, retain in sent)
    return [read(Offer, unwrap(body).body) for body, _ in sent]


def pilots(fleet: Fleet) -> tuple[str, str]:
    """Two devices, of which the first is not in the share that follows."""
    outside = next(device for device in fleet.devices if device not in first_wave())
    return outside, first_wave()[0]


def test_the_first_wave_goes_to_a_group_and_no_one_else_and_the_shares_follow(fleet: Fleet) -> None:
    outside, within = pilots(fleet)
    tagged(fleet, outside, within)
    assert fleet.runtime.rollouts.start(FEDERATION, NewRollout(waves=PILOT_FIRST)) == 1
    assert sorted(fleet.told()) == sorted((outside, within))
    order = fleet.order()
    assert order.candidate is not None
    now = fleet.now()
    for device in fleet.devices:
        offered = [Offer(instance=now.instance, epoch=now.epoch, rollout=1)] if device in (outside, within) else []
        assert offers(fleet, device)[-1:] == offered
        given = offered_to(device, order, offered[0] if offered else None)
        assert (given == order.candidate) == bool(offered)
    stranger = next(device for device in fleet.devices if device not in (outside, within))
    fleet.answer(stranger, "failed")  # it was not asked
    assert stranger not in fleet.told()
    assert (fleet.rollout().share, fleet.rollout().tags) == (0.0, ["pilot"])
    for device in (outside, within):
        fleet.answer(device)
    fleet.wait(SOAK_S)
    assert (fleet.rollout().wave, fleet.order().share_millionths, fleet.rollout().tags) == (2, REACH, [])
    assert set(fleet.told()) == {outside, *first_wave()}
    assert [(one.tags, one.devices, one.adopted) for one in fleet.rollout().progress] == [
        (["pilot"], 2, 2),
        ([], len(first_wave()) - 1, 0),
    ]
    for device in first_wave():
        fleet.answer(device)
    fleet.wait(SOAK_S)
    assert sorted(fleet.told()) == sorted(fleet.devices)


def test_a_device_that_comes_into_the_group_during_its_wave_is_offered_the_model(fleet: Fleet) -> None:
    outside, within = pilots(fleet)
    tagged(fleet, within)
    fleet.runtime.rollouts.start(FEDERATION, NewRollout(waves=PILOT_FIRST))
    assert not offers(fleet, outside)
    tagged(fleet, outside)
    fleet.wait(1)
    assert len(offers(fleet, outside)) == 1
    assert fleet.rollout().members == 2
    fleet.answer(outside)
    fleet.runtime.coordinator.announce(FEDERATION)
    assert len(offers(fleet, outside)) == 1  # who has answered is not told again
    assert len(offers(fleet, within)) >= 2


def test_a_group_without_devices_and_waves_that_end_with_one_are_refused(fleet: Fleet) -> None:
    with pytest.raises(ConflictError, match="no device of 'walk' is in the group 'pilot'"):
        fleet.runtime.rollouts.start(FEDERATION, NewRollout(waves=PILOT_FIRST))
    with pytest.raises(ValidationError, match="the last one must be 1"):
        NewRollout(waves=PILOT_FIRST[:1])


def test_what_a_command_starts_and_halts_the_running_server_announces(fleet: Fleet) -> None:
    tagged(fleet, "g3")
    folder = str(fleet.runtime.settings.data_dir)

    def run(verb: str, *words: str) -> str:
        given = ["rollouts", verb, "--federation", FEDERATION, "--data-dir", folder, *words]
        done = CliRunner().invoke(cli, given)
        assert done.exit_code == 0, done.output
        return done.stdout

    fleet.runtime.coordinator.on_connected()  # as at the start of every server
    assert (
        run("start", "--version", "1", "--tag", "pilot")
        == "rollout 1, version 1, pilot first: 1 devices in the first wave\n"
    )
    fleet.wait(0)  # unless the server's own tick has come before
    assert fleet.order().candidate is not None
    assert len(offers(fleet, "g3")) == 1
    said = len(fleet.wires.announcements())
    fleet.wait(0)
    assert len(fleet.wires.announcements()) == said  # once is enough
    assert "pilot" in run("list")
    assert run("pause", "1") == "rollout 1: paused\n"
    assert run("resume", "1") == "rollout 1: rolling\n"
    assert run("halt", "1") == "rollout 1: halted\n"
    fleet.wait(0)
    assert fleet.order().withdrawn == (1,)
    refused = CliRunner().invoke(
        cli, ["rollouts", "start", "--federation", FEDERATION, "--data-dir", folder, "--tag", "x"]
    )
    assert (refused.exit_code, "is in the group 'x'" in refused.stderr) == (2, True)
