"""What a lesson leaves behind, without a browser: labelled windows, and a head that knows them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edge_agent.errors import LabelError, StoreError
from edge_agent.storage.shared_sums import read_shared_sums
from edge_agent.storage.state_store import StateStore
from edge_agent.teaching.teacher import LEFT_ALONE_S, Teacher
from edge_agent.training.local_data import pipeline_settings
from har_pipeline import Recording, StreamPipeline, Window
from tests.edge_agent.teaching.taught_device import TaughtDevice
from tests.teaching_world import TeachingWorld, synthetic_world

pytestmark = pytest.mark.ci  # a network and everybody's sums are made first, which takes five seconds


class Sensor:
    """Windows that come when a test says so."""

    def __init__(self) -> None:
        self.windows: list[Window] = []

    def windows_since(self, number: int) -> tuple[int, list[Window]]:
        return len(self.windows), self.windows[number:]


@pytest.fixture(scope="module")
def world() -> TeachingWorld:
    return synthetic_world()


@pytest.fixture
def device(world: TeachingWorld, tmp_path: Path) -> Iterator[TaughtDevice]:
    found = TaughtDevice(tmp_path, world, 1.0)
    yield found
    found.close()


def measured(world: TeachingWorld, device: TaughtDevice, activity: str, from_s: float) -> list[Window]:
    """Cut somebody's motion to windows that begin at a time."""
    rows = world.recordings[activity]
    settings = replace(pipeline_settings(device.config.sensors, world.plan.data), keep_unlabelled=True)
    stream = StreamPipeline(settings, world.plan.labels)
    parts = [("acc", rows[:, 1:4]), ("gyro", rows[:, 4:7])]
    found = [
        window
        for sensor, values in parts
        for window in stream.push(Recording("me", "now", "", sensor, rows[:, 0] + from_s, values))
    ]
    return [*found, *stream.flush()]


def test_a_lesson_is_learnt_before_its_windows_are_in_the_database(world: TeachingWorld, device: TaughtDevice) -> None:
    now, sensor = [0.0], Sensor()
    teacher = Teacher(device.config, sensor, lambda: now[0])
    assert teacher.state()["result"]["windows"] == 0
    for number, activity in enumerate(("standing", "running")):
        teacher.start(activity)
        sensor.windows += measured(world, device, activity, 1e9 + 100 * number)
        state = teacher.state()
        assert state["message"] == f"{activity}: 20 s learnt. Choose the next one."
        assert state["lesson"] is None
    assert state["result"]["rows"] == ["standing", "running"]
    assert [sum(row) for row in state["result"]["matrix"]] == [4, 4]
    assert state["result"]["right"] >= 7
    assert device.counts() == {}


def test_an_own_activity_is_named_where_it_is_told_apart_and_nothing_else(
    world: TeachingWorld, device: TaughtDevice
) -> None:
    now, sensor = [0.0], Sensor()
    teacher = Teacher(device.config, sensor, lambda: now[0])
    pram = measured(world, device, "sitting", 1e9 + 1000)
    assert set(teacher.own_answers(pram)) == {None}  # there is none yet
    teacher.add("pram")
    for number, (activity, played) in enumerate((("standing",) * 2, ("running",) * 2, ("pram", "sitting"))):
        teacher.start(activity)
        sensor.windows += measured(world, device, played, 1e9 + 100 * number)
        teacher.state()
    answers = teacher.own_answers(pram)
    assert sum(answer is not None and answer.label == "pram" for answer in answers) >= 0.8 * len(pram)
    assert all(0.2 < answer.probability <= 1 for answer in answers if answer)
    others = [answer for name in ("standing", "running") for answer in teacher.own_answers(
        measured(world, device, name, 1e9 + 2000))]  # fmt: skip
    assert sum(answer is not None for answer in others) <= 0.1 * len(others)
    teacher.remove("pram")
    assert set(teacher.own_answers(pram)) == {None}


def test_a_lesson_that_no_page_asks_about_ends(device: TaughtDevice) -> None:
    now = [0.0]
    teacher = Teacher(device.config, Sensor(), lambda: now[0])
    teacher.start("walking")
    now[0] = LEFT_ALONE_S + 1
    assert teacher.state()["message"] == "walking: ended, since the page was closed."
    with pytest.raises(LabelError, match="no lesson is running"):
        teacher.pause()


def test_of_a_federation_that_trains_it_says_why_not(world: TeachingWorld, device: TaughtDevice) -> None:
    plan = world.plan.model_copy(update={"method": {"name": "fedavg"}})
    with closing(StateStore(device.data)) as store:
        store.put(plan=plan.model_dump_json())
    with pytest.raises(StoreError, match="learns by fedavg, which takes a round"):
        Teacher(device.config, Sensor()).state()


def test_sums_of_another_federation_are_refused(world: TeachingWorld, tmp_path: Path) -> None:
    path = tmp_path / "broadcast"
    path.write_bytes(world.broadcast)
    shared = read_shared_sums(path, len(world.plan.labels))
    assert shared.clients == world.clients
    assert np.array_equal(shared.sums.gram, world.shared.gram)
    with pytest.raises(StoreError, match="expected 5 classes"):
        read_shared_sums(path, 5)
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(StoreError, match="cannot be read"):
        read_shared_sums(path, 6)


def test_the_page_teaches_without_torch() -> None:
    program = "import json, sys, edge_agent.page.server; print(json.dumps('torch' in sys.modules))"
    ran = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=120)
    assert json.loads(ran.stdout) is False
