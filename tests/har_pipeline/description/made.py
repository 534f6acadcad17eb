"""Recordings of two foreign layouts, made from numbers that the tests know; nothing here is read by our code."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from docs.examples.make_recordings import write_respeck, write_sisfall

G = 9.80665
RESPECK: dict[str, Any] = {
    "files": r"subject(?P<client>\d+)/respeck/(?P<activity>[^/]+)\.csv",
    "labels": ["sitting", "walking_slow"],
    "time": {"column": "timestamp", "unit": "ms"},
    "acceleration": "specific force",
    "acc": {"columns": ["accel_x", "accel_y", "accel_z"], "unit": "g"},
    "gyro": {"columns": ["gyro_x", "gyro_y", "gyro_z"], "unit": "deg/s"},
}
SISFALL: dict[str, Any] = {
    "files": r"(?P<activity>D\d+)_(?P<client>S[AE]\d+)_(?P<session>R\d+)\.txt",
    "header": False,
    "trailing": ";",
    "labels": {"names": ["walking", "sitting"], "map": {"D01": "walking", "D08": "sitting"}},
    "rate_hz": 200,
    "acceleration": "specific force",
    "acc": {"columns": [1, 2, 3], "unit": "g", "scale": 1 / 256},
    "gyro": {"columns": [4, 5, 6], "unit": "deg/s", "scale": 2000 / 2**15},
}


class Truth(NamedTuple):
    """What a file holds: times (n,) in s, acc (n, 3) in m/s², gyro (n, 3) in rad/s."""

    times_s: np.ndarray
    acc: np.ndarray
    gyro: np.ndarray


def motion(count: int, rate_hz: float, *, moving: bool, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A body part in g and deg/s: at rest with some noise, or swinging twice a second."""
    random, t = np.random.default_rng(seed), np.arange(count) / rate_hz
    swing = np.stack([np.sin(2 * np.pi * 2 * t + phase) for phase in (0, 1, 2)], axis=1) * moving
    acc = np.array([0, 0, 1]) + 0.3 * swing + random.normal(0, 0.01, (count, 3))
    return acc, 100 * swing + random.normal(0, 1, (count, 3))


def respeck(folder: Path, *, count: int = 1500) -> dict[str, Truth]:
    """`subject12/respeck/walking_slow.csv`: 25 Hz, g and deg/s, milliseconds since 1970."""
    truths = {}
    for subject in (3, 12):
        for activity in ("walking_slow", "sitting"):
            acc, gyro = motion(count, 25, moving=activity != "sitting", seed=subject)
            ms = 1_600_000_000_000 + 40 * np.arange(count) + (0 if activity == "sitting" else 10**7)
            name = f"subject{subject}/respeck/{activity}.csv"
            write_respeck(folder / name, ms, acc, gyro)
            truths[name] = Truth(ms / 1000, acc.round(5) * G, np.deg2rad(gyro.round(5)))
    return truths


def sisfall(folder: Path, *, count: int = 3000) -> dict[str, Truth]:
    """`D01_SA03_R02.txt`: 200 Hz, counts of two accelerometers around a gyroscope, `;` at the end, no time."""
    truths = {}
    for number, (activity, subject, trial) in enumerate(
        (activity, subject, trial) for activity in ("D01", "D08") for subject in ("SA03", "SE11") for trial in (1, 2)
    ):
        acc, gyro = motion(count, 200, moving=activity == "D01", seed=number)
        other, _ = motion(count, 200, moving=activity == "D01", seed=100 + number)
        name = f"{activity}_{subject}_R{trial:02d}.txt"
        counts = write_sisfall(folder / name, acc, gyro, other)
        truths[name] = Truth(np.arange(count) / 200, counts[:, :3] / 256 * G, np.deg2rad(counts[:, 3:6] * 2000 / 2**15))
    return truths
