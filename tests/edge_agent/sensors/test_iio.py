"""Linux IIO on a false sysfs tree: what is found, how it is turned into units, and the polling."""

from __future__ import annotations

import queue
import threading
import time
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pytest

from edge_agent.config.sensors import IioSection, SensorsSection
from edge_agent.errors import SensorError
from edge_agent.machine.events import DataReady, Event, SensorFailed
from edge_agent.sensors import open_source
from edge_agent.sensors.iio import Poll, Reader, find_channel
from edge_agent.storage.window_store import WindowStore
from federation.plan import DataSpec
from har_pipeline import Recording
from tests.edge_agent.factories import make_config, make_plan
from tests.edge_agent.sensors.sensor_logger.phone import outcome
from tests.edge_agent.supervised import until


def device(root: Path, number: int, **files: object) -> Path:
    folder = root / f"iio:device{number}"
    folder.mkdir(parents=True)
    for name, value in files.items():
        (folder / name).write_text(f"{value}\n")
    return folder


def raw(prefix: str, x: int, y: int, z: int) -> dict[str, object]:
    return {f"{prefix}_{axis}_raw": value for axis, value in zip("xyz", (x, y, z), strict=True)}


def imu(root: Path, z: int = 16384) -> Path:
    """Write an MPU-6050 as its driver shows it: ±2 g in 16 bits, lying flat."""
    device(root, 0, name="ads1015", in_voltage0_raw=3)
    scales = {"in_accel_scale": 9.80665 / 16384, "in_anglvel_scale": 0.001064724, "sampling_frequency": 200}
    return device(root, 1, name="mpu6050", **raw("in_accel", 0, 0, z), **raw("in_anglvel", 10, -10, 0), **scales)


def test_readings_become_metres_and_radians(tmp_path: Path) -> None:
    folder = imu(tmp_path)
    settings = IioSection(root=tmp_path)
    acc, gyro = find_channel(settings, "acc"), find_channel(settings, "gyro")
    assert (acc.folder, acc.rate_hz, gyro.rate_hz) == (folder, 200.0, 200.0)
    np.testing.assert_allclose(acc.real(np.array([[0, 0, 16384.0]])), [[0, 0, 9.80665]])
    np.testing.assert_allclose(gyro.real(np.array([[100.0, 0, 0]])), [[0.1064724, 0, 0]])


def test_offset_scale_by_axis_and_mount_matrix(tmp_path: Path) -> None:
    by_axis = {"in_accel_x_scale": 0.5, "in_accel_y_scale": 0.25, "in_accel_z_scale": 2, "in_accel_y_offset": 8}
    mount = {"in_accel_mount_matrix": "0, -1, 0; 1, 0, 0; 0, 0, 1", "in_accel_sampling_frequency": 104.5}
    device(tmp_path, 3, **raw("in_accel", 2, 4, 6), **by_axis, **mount)
    channel = find_channel(IioSection(root=tmp_path), "acc")
    # ((2 + 0)/2, (4 + 8)/4, 6·2) = (1, 3, 12), turned
    np.testing.assert_allclose(channel.real(np.array([[2.0, 4.0, 6.0]])), [[-3.0, 1.0, 12.0]])
    assert channel.rate_hz == 104.5


def test_two_chips_and_a_chosen_one(tmp_path: Path) -> None:
    for number in (0, 1):
        device(tmp_path, number, **raw("in_accel", 1, 1, 1), in_accel_scale=number + 1)
    device(tmp_path, 2, **raw("in_anglvel", 1, 1, 1), in_anglvel_scale=1)
    assert find_channel(IioSection(root=tmp_path), "acc").folder.name == "iio:device0"
    assert find_channel(IioSection(root=tmp_path, accelerometer="iio:device1"), "acc").scale.tolist() == [2, 2, 2]
    assert find_channel(IioSection(root=tmp_path), "gyro").folder.name == "iio:device2"


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(SensorError, match=r"no accelerometer under .*: no device"):
        find_channel(IioSection(root=tmp_path), "acc")
    device(tmp_path, 0, name="bme280", in_temp_input=1)
    with pytest.raises(SensorError, match=r"iio:device0 \(bme280\)"):
        find_channel(IioSection(root=tmp_path), "gyro")
    device(tmp_path, 1, **raw("in_accel", 1, 1, 1))
    with pytest.raises(SensorError, match="no in_accel_scale"):
        find_channel(IioSection(root=tmp_path), "acc")
    device(tmp_path, 2, **raw("in_anglvel", 1, 1, 1), in_anglvel_scale="fine")
    with pytest.raises(SensorError, match="'fine'; expected a number"):
        find_channel(IioSection(root=tmp_path), "gyro")


def test_a_board_at_rest_is_collected_unlabelled_until_it_is_unplugged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge_agent.sensors.iio.FAILURE_TIMEOUT_S", 0.2)
    monkeypatch.setattr("edge_agent.sensors.collector.REPORT_S", 0.1)
    folder = imu(tmp_path / "iio")
    posted: queue.SimpleQueue[Event] = queue.SimpleQueue()
    own = {"sensors": SensorsSection(source="iio"), "iio": IioSection(root=tmp_path / "iio", rate_hz=100)}
    source = open_source(make_config(tmp_path / "data").model_copy(update=own), posted.put)
    source.start(make_plan().model_copy(update={"data": DataSpec(pipeline={"window": 32, "stride": 16})}))
    assert outcome(posted) == DataReady(0, measurable=False)
    with closing(WindowStore(tmp_path / "data")) as store:
        until(store.counts)  # a window takes 0.64 s and its delay
    (folder / "in_accel_z_raw").write_text("")
    while isinstance(event := outcome(posted), DataReady):
        pass  # windows without labels came meanwhile
    source.stop(5.0)
    assert isinstance(event, SensorFailed)
    assert "is it still connected" in event.reason
    with closing(WindowStore(tmp_path / "data")) as store, store.reading() as db:
        rows = db.execute("SELECT x, activity, start_s, origin FROM windows").fetchall()
    x = np.frombuffer(rows[0][0], "<f4").reshape(-1, 6)
    np.testing.assert_allclose(x[:, 2], 9.80665, rtol=1e-5)
    np.testing.assert_allclose(x[:, 3], 0.01064724, rtol=1e-5)
    assert (rows[0][1], rows[0][3]) == ("", "iio")
    assert abs(rows[0][2] - time.time()) < 600


def test_a_clock_that_is_set_begins_a_new_session_under_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_agent.sensors.iio.BATCH_S", 0.02)
    imu(tmp_path / "iio")
    channel = {kind: find_channel(IioSection(root=tmp_path / "iio"), kind) for kind in ("acc", "gyro")}
    real, stop = time.time, threading.Event()
    took = Took(stop)
    monkeypatch.setattr(time, "time", lambda: real() - 20_000 * 86_400 if took.batches < 4 else real())
    with ExitStack() as stack:
        Poll({kind: Reader(found, stack) for kind, found in channel.items()}, 0.005, took, stop).run()
    old, new = took.sessions
    assert (new[0] - real(), old[-1] - real()) == pytest.approx((0, -20_000 * 86_400), abs=60)
    assert all(times == sorted(times) for times in (old, new))


class Took:
    """A collector that only remembers the accelerometer's times by session, and says when that is enough."""

    def __init__(self, stop: threading.Event) -> None:
        self.stop, self.batches = stop, 0
        self._times: dict[str, list[float]] = {}

    @property
    def sessions(self) -> list[list[float]]:
        return list(self._times.values())

    def push(self, recording: Recording) -> None:
        if recording.sensor == "acc":
            self._times.setdefault(recording.session, []).extend(recording.times_s.tolist())

    def tick(self) -> None:
        self.batches += 1
        if self.batches >= 8:
            self.stop.set()


def test_a_mount_matrix_that_mirrors_is_refused(tmp_path: Path) -> None:
    mount = {"in_accel_mount_matrix": "0, 1, 0; 1, 0, 0; 0, 0, 1"}
    device(tmp_path, 0, **raw("in_accel", 2, 4, 6), in_accel_scale=0.01, **mount)
    with pytest.raises(SensorError, match=r"which mirrors or flattens.*expected a rotation"):
        find_channel(IioSection(root=tmp_path), "acc")
