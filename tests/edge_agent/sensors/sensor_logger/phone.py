"""A phone that walks and rests: what its sensors measure, as the messages of Sensor Logger."""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from edge_agent.machine.events import DataReady, Event, SensorFailed
from har_pipeline import PipelineSettings, Recording, StreamPipeline, Window

BEGAN_S = 1_790_000_000.0
LABELS = ("Downstairs", "Upstairs", "Walking", "Sitting", "Standing", "Running")
SETTINGS = PipelineSettings(keep_unlabelled=True)


def walk(
    seconds: float, rate_hz: float = 100.0, began_s: float = BEGAN_S, seed: int = 0
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Times (n,) and, by sensor, values (n, 3) with Android's signs: gravity of 9.81 m/s² that slowly tilts."""
    random = np.random.default_rng(seed)
    count = int(seconds * rate_hz)
    # on the clock of nanoseconds, with jitter, as a phone has it
    t = began_s + np.round((np.arange(count) + random.uniform(-0.2, 0.2, count)) / rate_hz, 6)
    tilt, s = 0.3 * np.sin(2 * np.pi * 0.05 * (t - began_s)), t - began_s
    gravity = 9.80665 * np.stack([np.sin(tilt), np.zeros(count), np.cos(tilt)], axis=1)
    own = np.stack([np.sin(12 * s), 0.5 * np.sin(6 * s), 2 * np.sin(12 * s + 1)], axis=1) + random.normal(
        0, 0.05, (count, 3)
    )
    gyro = np.stack([np.zeros(count), 0.3 * np.cos(s), 0.2 * np.sin(6 * s)], axis=1)
    return t, {"accelerometer": own, "gravity": gravity, "gyroscope": gyro}


def entries(times_s: np.ndarray, sensors: dict[str, np.ndarray], sign: float = 1.0) -> list[dict[str, Any]]:
    """One entry per sample in order of time; `sign` is −1 for what an iPhone says of acceleration and gravity."""
    found = []
    for i, time_s in enumerate(times_s):
        for name, values in sensors.items():
            x, y, z = (sign if name != "gyroscope" else 1.0) * values[i]
            found.append({"name": name, "time": round(time_s * 1e9), "values": {"x": x, "y": y, "z": z}})
    return found


def messages(
    payload: Iterable[dict[str, Any]],
    per_message: int = 60,
    session: str = "s1",
    device: str = "phone-1",
    first: int = 0,
) -> list[dict[str, Any]]:
    """Cut entries into messages, as the app does once per batch period."""
    rows = list(payload)
    return [
        {"messageId": first + n, "sessionId": session, "deviceId": device, "payload": rows[at : at + per_message]}
        for n, at in enumerate(range(0, len(rows), per_message))
    ]


def annotation(time_s: float, text: str) -> dict[str, Any]:
    """What the app sends when its user writes something."""
    return {
        "name": "annotation",
        "time": round(time_s * 1e9),
        "values": {"text": text, "millisecond_press_duration": 9},
    }


def bodies(found: Iterable[dict[str, Any]]) -> Iterator[bytes]:
    """Return messages as they travel."""
    return (json.dumps(message).encode() for message in found)


def expected_windows(
    times_s: np.ndarray,
    sensors: dict[str, np.ndarray],
    activity: str | np.ndarray = "",
    labels: tuple[str, ...] = LABELS,
) -> list[Window]:
    """Push total acceleration and the gyroscope through the batch pipeline: what the phone's way must come to."""
    pipeline = StreamPipeline(SETTINGS, labels)
    total = sensors["accelerometer"] + sensors["gravity"]
    times_s = np.round(times_s * 1e9) / 1e9
    found = pipeline.push(Recording("phone", "s1", activity, "acc", times_s, total))
    found += pipeline.push(Recording("phone", "s1", activity, "gyro", times_s, sensors["gyroscope"]))
    return found + pipeline.flush()


def outcome(posted: queue.SimpleQueue[Event], seconds: float = 60.0) -> DataReady | SensorFailed:
    """Wait for what a source says of itself; what else it posts is passed over."""
    until = time.monotonic() + seconds
    while True:
        event = posted.get(timeout=max(0.01, until - time.monotonic()))
        if isinstance(event, DataReady | SensorFailed):
            return event
