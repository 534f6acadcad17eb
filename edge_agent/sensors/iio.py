"""A board's own IMU under Linux Industrial I/O, polled through sysfs.

A value is (raw + offset) · scale, in m/s² and rad/s (the kernel's sysfs-bus-iio ABI); a mount matrix turns it into the
board's axes. Offset and scale may be given for the sensor or for each axis.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Literal, NamedTuple, Protocol

import numpy as np

from edge_agent.config.sensors import IioSection
from edge_agent.errors import SensorError
from edge_agent.sensors.collector import Collector
from edge_agent.sensors.source import ThreadedSource
from federation.plan import Plan
from har_pipeline import Recording

log = logging.getLogger(__name__)

AXES = ("x", "y", "z")
KINDS: dict[Literal["acc", "gyro"], str] = {"acc": "in_accel", "gyro": "in_anglvel"}
BATCH_S = 0.5
MIN_HZ = 50.0
"""Of a sensor's own rate: the pipeline's low pass reaches to 22 Hz."""
MIN_CLOCK_STEP_S = 2.0
FAILURE_TIMEOUT_S = 5.0
"""Of failing readings, after which the source gives up."""


class Channel(NamedTuple):
    """One sensor of one device: offset (3,), scale (3,), mount (3, 3); `rate_hz` None if the kernel does not say."""

    folder: Path
    prefix: str
    offset: np.ndarray
    scale: np.ndarray
    mount: np.ndarray
    rate_hz: float | None

    def real(self, raw: np.ndarray) -> np.ndarray:
        """Turn raw readings (n, 3) into m/s² or rad/s in the board's axes."""
        found: np.ndarray = ((raw + self.offset) * self.scale) @ self.mount.T
        return found


def find_channel(settings: IioSection, kind: Literal["acc", "gyro"]) -> Channel:
    """Return the chosen device's sensor, or the first there is.

    Raises:
        SensorError: if there is none, or what the kernel says of it is incomplete.
    """
    prefix, chosen = KINDS[kind], settings.accelerometer if kind == "acc" else settings.gyroscope
    devices = sorted(settings.root.glob("iio:device*")) if chosen is None else [settings.root / chosen]
    for folder in devices:
        if all((folder / f"{prefix}_{axis}_raw").is_file() for axis in AXES):
            return _channel(folder, prefix)
    what = "accelerometer" if kind == "acc" else "gyroscope"
    seen = ", ".join(f"{device.name} ({_word(device / 'name') or 'no name'})" for device in devices) or "no device"
    raise SensorError(
        f"no {what} under {settings.root}: {seen}; load the driver of the IMU, or set [iio] {what}, and see `doctor`"
    )


def _channel(folder: Path, prefix: str) -> Channel:
    scale = [_number(folder, f"{prefix}_{axis}_scale", f"{prefix}_scale") for axis in AXES]
    if any(value is None or value <= 0 for value in scale):
        raise SensorError(f"{folder} has no {prefix}_scale, so its readings have no unit; is the driver complete?")
    offset = [_number(folder, f"{prefix}_{axis}_offset", f"{prefix}_offset") or 0.0 for axis in AXES]
    rate_hz = _number(folder, f"{prefix}_sampling_frequency", "sampling_frequency")
    return Channel(folder, prefix, np.array(offset), np.array(scale, dtype=np.float64), _mount(folder, prefix), rate_hz)


def _mount(folder: Path, prefix: str) -> np.ndarray:
    text = _word(folder / f"{prefix}_mount_matrix") or _word(folder / "in_mount_matrix")
    if not text:
        return np.eye(3)
    try:
        matrix = np.array([[float(cell) for cell in row.split(",")] for row in text.split(";")]).reshape(3, 3)
    except ValueError as error:
        raise SensorError(f"the mount matrix of {folder} is {text!r}; expected nine numbers") from error
    if not np.linalg.det(matrix) > 0:
        raise SensorError(
            f"the mount matrix of {folder} is {text!r}, which mirrors or flattens, as no mounting of a sensor does; "
            "expected a rotation: correct the sign of one row in the board's device tree"
        )
    return matrix


def _number(folder: Path, *names: str) -> float | None:
    for name in names:
        if text := _word(folder / name):
            try:
                return float(text)
            except ValueError as error:
                raise SensorError(f"{folder / name} is {text!r}; expected a number") from error
    return None


def _word(path: Path) -> str:
    try:
        return path.read_text(errors="replace")[:1000].strip()
    except OSError:
        return ""


class Reader:
    """Keeps the three files of a channel open."""

    def __init__(self, channel: Channel, stack: ExitStack) -> None:
        self.channel = channel
        names = [channel.folder / f"{channel.prefix}_{axis}_raw" for axis in AXES]
        self._files: list[IO[bytes]] = [stack.enter_context(name.open("rb", buffering=0)) for name in names]

    def read(self) -> tuple[float, float, float]:
        """Read the three axes; raises OSError or ValueError."""
        found = []
        for file in self._files:
            file.seek(0)
            found.append(float(file.read(64)))
        return (found[0], found[1], found[2])


class IioSource(ThreadedSource):
    """Reads both sensors `rate_hz` times a second, by a clock that does not jump."""

    def collect(self, plan: Plan, stop: threading.Event) -> None:
        """Poll until `stop` is set."""
        settings = self.config.iio
        channels = {kind: find_channel(settings, kind) for kind in KINDS}
        declared_hz = dict.fromkeys(("acc", "gyro"), self.config.iio.rate_hz)
        collector = Collector(self.config, plan, self.post, origin="iio", live=True, stop=stop)
        collector.health.declare(declared_hz)
        try:
            for kind, channel in channels.items():
                log.info(
                    "sensor found kind=%s channel=%s rate=%s",
                    kind,
                    channel.folder,
                    f"{channel.rate_hz} Hz" if channel.rate_hz else "unknown",
                )
                if channel.rate_hz and channel.rate_hz < MIN_HZ:
                    collector.health.note(f"{channel.folder} samples at {channel.rate_hz} Hz only; set its rate higher")
            collector.post_ready()
            with ExitStack() as stack:
                readers = {kind: Reader(channel, stack) for kind, channel in channels.items()}
                Poll(readers, 1.0 / settings.rate_hz, collector, stop).run()
        finally:
            collector.close()


class Sink(Protocol):
    """Where the readings go: a collector."""

    def push(self, recording: Recording) -> None:
        """Take a stretch of one sensor."""
        ...

    def tick(self) -> None:
        """Do what is due."""
        ...


class Poll:
    """The loop: batches of readings of half a second go to the collector."""

    def __init__(
        self,
        readers: dict[Literal["acc", "gyro"], Reader],
        period_s: float,
        collector: Sink,
        stop: threading.Event,
    ) -> None:
        self.readers, self.period_s, self.collector, self.stop = readers, period_s, collector, stop
        self._begin()

    def _begin(self) -> None:
        # the wall clock once, then the monotonic clock: the little steps of NTP would tear the windows apart
        self._wall_s, self._began_s = time.time(), time.monotonic()
        self._session = f"{self._wall_s:.3f}"

    def _follow_clock(self) -> None:
        """Begin a new session where the clock was set, as after a start without a network: labels come by its time."""
        ahead_s = time.time() - (self._wall_s + time.monotonic() - self._began_s)
        if abs(ahead_s) > MIN_CLOCK_STEP_S:
            self._begin()
            log.info("clock stepped step_s=%+.0f session=%s", ahead_s, self._session)

    def run(self) -> None:
        """Read until stopped; raises SensorError if the sensor is gone."""
        due = pushed = worked = time.monotonic()
        rows: list[tuple[float, ...]] = []
        while not self.stop.is_set():
            try:
                acc, gyro = self.readers["acc"].read(), self.readers["gyro"].read()
                worked = time.monotonic()
                rows.append((self._wall_s + worked - self._began_s, *acc, *gyro))
            except (OSError, ValueError) as error:
                if time.monotonic() - worked > FAILURE_TIMEOUT_S:
                    raise SensorError(f"the sensor cannot be read any more: {error}; is it still connected?") from error
            if time.monotonic() - pushed >= BATCH_S:
                pushed = time.monotonic()
                self._push(rows)
                rows = []
                self._follow_clock()
            # after a delay the missed readings are not made up for
            due = max(due + self.period_s, time.monotonic() - self.period_s)
            self.stop.wait(max(0.0, due - time.monotonic()))
        self._push(rows)

    def _push(self, rows: list[tuple[float, ...]]) -> None:
        table = np.array(rows, dtype=np.float64).reshape(-1, 7)
        for kind, reader in self.readers.items():
            values = reader.channel.real(table[:, 1:4] if kind == "acc" else table[:, 4:7])
            self.collector.push(Recording("iio", self._session, "", kind, table[:, 0], values))
        self.collector.tick()
