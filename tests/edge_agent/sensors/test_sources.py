"""The table of sensor sources, and that one file and one entry make a new one."""

from __future__ import annotations

import queue
import threading
import time
from contextlib import closing
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from pydantic import Field, ValidationError

from edge_agent.config.section import Section
from edge_agent.config.sensors import SOURCES, SensorsSection
from edge_agent.doctor.check_result import Level
from edge_agent.doctor.sensors import check_sensors
from edge_agent.machine.events import DataReady, Event, SensorFailed
from edge_agent.sensors import collector, open_source
from edge_agent.sensors.collector import Collector
from edge_agent.sensors.source import SensorHealth, ThreadedSource
from edge_agent.storage.window_store import WindowStore
from edge_agent.supervisor.status import collected_windows
from federation.plan import Plan
from har_pipeline import Recording
from tests.edge_agent.factories import PLANS, make_config, make_plan


@pytest.mark.parametrize("name", SOURCES)
def test_every_entry_names_a_source(name: str) -> None:
    module, _, kind = SOURCES[name].partition(":")
    assert issubclass(getattr(import_module(module), kind), ThreadedSource)


def test_an_unknown_source_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ValidationError, match="did you mean 'iio'"):
        SensorsSection(source="iioo")


class StillOptions(Section):
    seconds: float = Field(default=20.0, gt=0)


class StillSource(ThreadedSource):
    """A board at rest, in half seconds; options of its own, no section."""

    def collect(self, plan: Plan, stop: threading.Event) -> None:
        seconds = self.options(StillOptions).seconds
        collector = Collector(self.config, plan, self.post, origin="still", live=True, stop=stop)
        began_s = time.time() - seconds
        try:
            for first in range(0, int(seconds * 100), 50):
                times_s = began_s + np.arange(first, first + 50) / 100
                collector.push(Recording("still", "1", "", "acc", times_s, np.tile((0.0, 0.0, 9.81), (50, 1))))
                collector.push(Recording("still", "1", "", "gyro", times_s, np.zeros((50, 3))))
            collector.end_session()
            collector.post_ready()
        finally:
            collector.close()


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SOURCES, "still", f"{__name__}:StillSource")


def test_one_file_and_one_entry_are_a_source(tmp_path: Path, still: None) -> None:
    own = {"sensors": SensorsSection(source="still", options={"seconds": 12})}
    config, posted = make_config(tmp_path).model_copy(update=own), queue.SimpleQueue[Event]()
    source = open_source(config, posted.put)
    source.start(make_plan())
    while not isinstance(event := posted.get(timeout=60), DataReady):
        assert not isinstance(event, SensorFailed), event
    source.stop(5.0)
    with closing(WindowStore(tmp_path)) as store, store.reading() as db:
        assert {origin for (origin,) in db.execute("SELECT origin FROM windows")} == {"still"}
    found = list(check_sensors(config, running=True))
    assert {each.check: each.level for each in found}["gravity"] is Level.OK
    assert not any("phone" in each.message + each.advice for each in found)


def test_wrong_options_of_a_source_are_told(tmp_path: Path, still: None) -> None:
    own = {"sensors": SensorsSection(source="still", options={"second": 12})}
    posted: queue.SimpleQueue[Event] = queue.SimpleQueue()
    source = open_source(make_config(tmp_path).model_copy(update=own), posted.put)
    source.start(make_plan())
    event = posted.get(timeout=60)
    source.stop(5.0)
    assert isinstance(event, SensorFailed)
    assert "[sensors] options: second: there is no such key; " in event.reason


class GSource(ThreadedSource):
    """A board at rest at 20 Hz whose acceleration is in g and whose gyroscope is switched off."""

    def collect(self, plan: Plan, stop: threading.Event) -> None:
        collector = Collector(self.config, plan, self.post, origin="g", live=False, stop=stop)
        times_s, random = np.arange(600) / 20, np.random.default_rng(0)
        collector.push(Recording("g", "1", "", "acc", times_s, random.normal((0, 0, 1), 0.003, (600, 3))))
        collector.push(Recording("g", "1", "", "gyro", times_s, np.zeros((600, 3))))
        collector.close()


def test_wrong_units_are_said_in_the_log_by_status_and_by_the_doctor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(SOURCES, "g", f"{__name__}:GSource")
    config = make_config(tmp_path).model_copy(update={"sensors": SensorsSection(source="g")})
    GSource(config, lambda event: None).collect(make_plan(), threading.Event())
    (logged,) = [each.getMessage() for each in caplog.records if each.name == "edge_agent.sensors.collector"]
    assert "accelerometer: |acceleration| is 0.99" in logged
    (said,) = [words for words in collected_windows(tmp_path, config.windows).words if "look wrong" in words]
    assert "set the unit of the acceleration to g" in said
    found = [each for each in check_sensors(config, running=True) if each.check == "signals"]
    assert {each.level for each in found} == {Level.WARNING, Level.OK}
    assert any("counts as masked" in each.message for each in found)


def test_what_was_put_right_is_forgotten_after_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("edge_agent.sensors.source.time.monotonic", lambda: now[0])
    health = SensorHealth("iio")
    values = np.random.default_rng(0).normal((0, 0, 1), 0.003, (600, 3))
    for hour, scale in enumerate((1.0, 9.81, 9.81)):
        now[0] = hour * 3700.0
        health.check(Recording("g", "1", "", "acc", now[0] + np.arange(600) / 50, scale * values))
        if hour == 1:
            assert [each.code for each in health.findings()] == ["gravity"]  # too early to tell
            now[0] += 100.0
        assert [each.code for each in health.findings()] == (["gravity"] if hour == 0 else [])


def test_deleted_and_relabelled_windows_are_news(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "REPORT_S", 0.05)
    monkeypatch.setattr(collector, "MAX_REPORT_DELAY_S", 0.05)
    posted: queue.SimpleQueue[Event] = queue.SimpleQueue()
    source = open_source(make_config(tmp_path), posted.put)
    source.start(PLANS["fedavg"])
    try:
        first = ready(posted)
        assert first.examples == len(first.keys) > 20
        with closing(WindowStore(tmp_path)) as other, other.writing() as db:
            db.execute("UPDATE windows SET activity = 'running' WHERE id = (SELECT MIN(id) FROM windows)")
        second = ready(posted)
        assert second.keys != first.keys
        with closing(WindowStore(tmp_path)) as other, other.writing() as db:
            db.execute("DELETE FROM windows WHERE id > (SELECT MIN(id) + 9 FROM windows)")
        assert ready(posted).examples < 10
    finally:
        source.stop(5.0)


def ready(posted: queue.SimpleQueue[Event]) -> DataReady:
    while not isinstance(event := posted.get(timeout=30), DataReady):
        pass
    return event
