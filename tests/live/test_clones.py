"""One device's folder on two machines: the second is noticed, told and stopped, and a restart is not taken for one."""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path

import pytest

from aggregator_api.devices.presence import CloneDetector, CloneVerdict
from aggregator_api.federations import service
from aggregator_api.storage.db import repositories
from aggregator_api.storage.db.models import DeviceRow
from tests.live.enrolled_world import FEDERATION, World, agent, until

pytestmark = pytest.mark.ci

NOTHING, TOLD = CloneVerdict(), CloneVerdict(stop=True)


def row(world: World, name: str) -> DeviceRow:
    with world.runtime.database.read() as session:
        found = repositories.find_device(session, service.get_federation(session, FEDERATION), name)
        assert found is not None
        return found


@pytest.mark.service
@pytest.mark.parametrize(("transport", "name"), [("mqtt", "a"), ("http", "h")])
def test_the_second_of_two_with_one_name_is_told_and_stops(
    transport: str, name: str, world: World, tmp_path: Path
) -> None:
    """They take the connection from each other for ever, twice a second, where nobody tells them."""
    first = world.enrolled(tmp_path / "first", name)
    first = first.model_copy(update={"server": first.server.model_copy(update={"transport": transport})})
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    second = first.model_copy(update={"agent": first.agent.model_copy(update={"data_dir": tmp_path / "second"})})
    with agent(first) as original:
        until(lambda: original.connected and row(world, name).state == "ready")
        with agent(second) as clone:
            until(lambda: clone.says("stopped by the server: another machine uses this device's name"))
            assert row(world, name).cloned_at is not None
            marked = re.search(rb'gaitway_cloned_devices\{federation="f"\} ([12])\.0', world.app.state.metrics.render())
            assert marked is not None
            until(lambda: original.connected)
            calm = original.supervisor.agent
            time.sleep(3)
            assert (calm.connected, original.supervisor.agent.connected) == (True, True)
            assert not clone.connected
            assert clone.says("without a connection: stopped by the server")
            assert not original.stop_reason


@pytest.mark.service
def test_a_device_that_is_restarted_is_no_clone(world: World, tmp_path: Path) -> None:
    config = world.enrolled(tmp_path, "b")
    for _ in range(3):
        with agent(config) as device:
            until(lambda: device.connected and row(world, "b").state == "ready")
        until(lambda: row(world, "b").state == "offline")
    assert row(world, "b").cloned_at is None


class Ear:
    """What a server hears of one device, and when."""

    def __init__(self) -> None:
        self.clones, self.now, self.numbers = CloneDetector(), 0.0, dict[str, int]()

    def hear(self, session: str, number: int | None = None, *, after_s: float = 1.0) -> CloneVerdict:
        self.now += after_s
        self.numbers[session] = self.numbers.get(session, 0) + 1 if number is None else number
        return self.clones.observe("f", "d", session, self.numbers[session], self.now)


def test_restarts_duplicates_and_last_wills_prove_nothing() -> None:
    ear = Ear()
    for run in map(str, range(40)):
        assert [ear.hear(run), ear.hear(run), ear.hear("", 0)] == [NOTHING] * 3
    for _ in range(5):  # as a broker sends again what was not acknowledged
        assert [ear.hear("38", 2), ear.hear("39", 1), ear.hear("39", 2)] == [NOTHING] * 3


def test_the_second_return_is_the_proof_and_who_came_later_is_told() -> None:
    ear = Ear()
    assert [ear.hear(s) for s in "AABA"] == [NOTHING] * 4
    assert ear.hear("B") == CloneVerdict(cloned=True, stop=True)
    assert [ear.hear("A"), ear.hear("B"), ear.hear("A")] == [NOTHING, TOLD, NOTHING]


def test_returns_that_lie_far_apart_prove_nothing() -> None:
    ear = Ear()
    ear.hear("A")
    for _ in range(5):
        assert [ear.hear("B", after_s=700), ear.hear("A", after_s=700)] == [NOTHING, NOTHING]


def test_who_was_told_stays_told_until_the_other_is_gone() -> None:
    ear = Ear()
    said = [ear.hear(s) for s in "ABAB"]
    assert said[-1] == CloneVerdict(cloned=True, stop=True)
    assert ear.hear("A") == NOTHING
    assert ear.hear("B", after_s=300) == TOLD
    assert ear.hear("C") == NOTHING  # the first was restarted
    assert ear.hear("B", after_s=600) == TOLD
    assert ear.hear("C") == NOTHING
    assert ear.hear("B", after_s=900) == TOLD
    assert ear.hear("B", after_s=900) == NOTHING  # nobody else is there any more
