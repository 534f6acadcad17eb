"""Exports of phones' apps in exactly their layouts, made from one movement that the tests know."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple

import numpy as np

from gaitway.python310 import UTC
from tests.har_pipeline.layouts import Files

G = 9.80665
BEGAN_S = 1_772_741_672.5
RATE_HZ = 100.0


class Movement(NamedTuple):
    """Times (n,) in s since the beginning; specific force, its gravity and the angular rate (n, 3), as Android's."""

    times_s: np.ndarray
    total: np.ndarray
    gravity: np.ndarray
    gyro: np.ndarray


def movement(seconds: float = 12.0, *, seed: int = 0) -> Movement:
    """A phone in a pocket, its top turned down by a quarter, that swings twice a second."""
    random, t = np.random.default_rng(seed), np.arange(int(seconds * RATE_HZ)) / RATE_HZ
    angle = 0.4 * np.sin(2 * np.pi * 2 * t)
    gravity = G * np.stack([np.sin(angle), -0.6 * np.cos(angle), 0.8 * np.cos(angle)], axis=1)
    linear = np.stack([np.sin(2 * np.pi * 2 * t + phase) for phase in (0, 1, 2)], axis=1)
    linear += random.normal(0, 0.05, linear.shape)
    gyro = np.stack([0.2 * linear[:, 0], 0.4 * 4 * np.pi * np.cos(2 * np.pi * 2 * t), 0 * t], axis=1)
    return Movement(t, gravity + linear, gravity, gyro)


def face_up(seconds: float = 12.0) -> Movement:
    """A phone on a table, its screen up: specific force is +9.81 on z."""
    t = np.arange(int(seconds * RATE_HZ)) / RATE_HZ
    gravity = np.tile([0.0, 0.0, G], (len(t), 1))
    # so that no reading repeats the one before, in the digits that apps write
    noise = 1e-3 * np.random.default_rng(0).normal(size=gravity.shape)
    return Movement(t, gravity + noise, gravity, noise)


def _csv(header: str, rows: list[list[object]], separator: str = ",", decimal: str = ".") -> bytes:
    lines = [separator.join(str(cell).replace(".", decimal) for cell in row) for row in rows]
    return "\n".join([header, *lines, ""]).encode()


# ---- Sensor Logger


def sensor_logger_table(times_s: np.ndarray, values: np.ndarray, axes: str = "zyx") -> bytes:
    """`time,seconds_elapsed,z,y,x`, nanoseconds since 1970."""
    rows = [
        [round((BEGAN_S + t) * 1e9), t, *(f"{row['xyz'.index(axis)]:.9f}" for axis in axes)]
        for t, row in zip(times_s, values, strict=True)
    ]
    return _csv(f"time,seconds_elapsed,{','.join(axes)}", rows)


def sensor_logger_metadata(
    platform: str = "android", *, standardised: bool = False, device: str = "832809b8-84b8"
) -> bytes:
    return _csv(
        "version,device name,recording epoch time,recording time,recording timezone,platform,appVersion,device id,"
        "sensors,sampleRateMs,standardisation,platform version,fusion",
        [[3, "A phone", round(BEGAN_S * 1e3), "2026-03-05_20-14-32", "Africa/Kigali", platform, "1_54", device,
          "Accelerometer|Gravity|Gyroscope|Annotation", "10|10|10|", str(standardised).lower(), "26", "system"]],
    )  # fmt: skip


def sensor_logger_annotations(*notes: tuple[float, str]) -> bytes:
    rows: list[list[object]] = [[round((BEGAN_S + at) * 1e9), at, text, 84] for at, text in notes]
    return _csv("time,seconds_elapsed,text,millisecond_press_duration", rows)


def sensor_logger(
    platform: str = "android",
    *,
    standardised: bool = False,
    total: bool = False,
    notes: tuple[tuple[float, str], ...] = ((0.0, "Walking"), (8.0, "stop")),
    device: str = "832809b8-84b8",
    seed: int = 0,
    moved: Movement | None = None,
) -> Files:
    """A phone's export: acceleration without gravity, and gravity at other times, or the total."""
    moved = moved or movement(seed=seed)
    sign = -1.0 if platform == "ios" and not standardised else 1.0
    files = {
        "Accelerometer.csv": sensor_logger_table(moved.times_s, sign * (moved.total - moved.gravity)),
        "Gravity.csv": sensor_logger_table(moved.times_s, sign * moved.gravity),
        "Gyroscope.csv": sensor_logger_table(moved.times_s, moved.gyro),
        "Metadata.csv": sensor_logger_metadata(platform, standardised=standardised, device=device),
    }
    if total:
        del files["Gravity.csv"]
        files["TotalAcceleration.csv"] = sensor_logger_table(moved.times_s, sign * moved.total, "yzx")
    if notes:
        files["Annotation.csv"] = sensor_logger_annotations(*notes)
    return files


def wrist_motion(*, standardised: bool = False, seed: int = 0, moved: Movement | None = None) -> bytes:
    """An Apple Watch's table: gravity and acceleration in g, gravity pointing down, unless they are standardised."""
    moved = moved or movement(seed=seed)
    factor = 1.0 if standardised else -1 / G
    quantities = (moved.gyro, factor * moved.gravity, factor * (moved.total - moved.gravity))
    rows: list[list[object]] = [
        [round((BEGAN_S + t) * 1e9), t, *(f"{each:.9f}" for each in row), 1, 0, 0, 0]
        for t, row in zip(moved.times_s, np.hstack(quantities), strict=True)
    ]
    names = [f"{what}{axis}" for what in ("rotationRate", "gravity", "acceleration") for axis in "XYZ"]
    quaternion = ["quaternionW", "quaternionX", "quaternionY", "quaternionZ"]
    return _csv(",".join(["time", "seconds_elapsed", *names, *quaternion]), rows)


# ---- phyphox


def phyphox(
    separator: str = ",",
    decimal: str = ".",
    *,
    raw: bool = False,
    linear: bool = False,
    pause_s: float = 0.0,
    seed: int = 0,
    moved: Movement | None = None,
) -> Files:
    """`raw`: columns as in experiments of one table; `linear`: without gravity, and gravity; paused in the middle."""
    moved = moved or movement(seed=seed)

    def table(names: list[str], values: np.ndarray) -> bytes:
        header = separator.join(f'"{name}"' for name in ["Time (s)", *names])
        rows = [[f"{t:.9E}", *(f"{each:.9E}" for each in row)] for t, row in zip(moved.times_s, values, strict=True)]
        return _csv(header, rows, separator, decimal)

    acc, rate = [f"{axis} (m/s^2)" for axis in "XYZ"], [f"{axis} (rad/s)" for axis in "XYZ"]
    files = {"Accelerometer.csv": table(acc, moved.total), "Gyroscope.csv": table(rate, moved.gyro)}
    if raw:
        names = [f"Acceleration {axis} (m/s^2)" for axis in "xyz"] + ["Absolute acceleration (m/s^2)"]
        names += [f"Gyroscope {axis} (rad/s)" for axis in "xyz"]
        size = np.linalg.norm(moved.total, axis=1, keepdims=True)
        files = {"Raw Data.csv": table(names, np.hstack([moved.total, size, moved.gyro]))}
    if linear:
        del files["Accelerometer.csv"]
        files["Linear Accelerometer.csv"] = table(acc, moved.total - moved.gravity)
        files["Gravity.csv"] = table(acc, moved.gravity)
    middle_s = moved.times_s[len(moved.times_s) // 2] - 0.005
    events = [("START", 0.0, BEGAN_S), ("PAUSE", middle_s, BEGAN_S + middle_s)]
    events += [("START", middle_s, BEGAN_S + middle_s + pause_s)]
    device = [["version", "1.1.16"], ["deviceModel", "iPhone14-2"], ["deviceBrand", "Apple"]]
    header = separator.join(f'"{name}"' for name in ("event", "experiment time", "system time", "system time text"))
    files["meta/time.csv"] = _csv(
        header,
        [[f'"{what}"', f"{own:.15E}", f"{system:.3f}", '"-"'] for what, own, system in events],
        separator,
        decimal,
    )
    files["meta/device.csv"] = _csv(
        separator.join(['"property"', '"value"']), [[f'"{name}"', f'"{value}"'] for name, value in device], separator
    )
    return files


# ---- AndroSensor and Physics Toolbox: one table with everything


def androsensor(
    separator: str = ";",
    *,
    sep_line: bool = True,
    unit: str = "m/s²",
    total: bool = True,
    moved: Movement | None = None,
) -> bytes:
    moved = moved or movement()
    triples = {"GRAVITY": moved.gravity, "LINEAR ACCELERATION": moved.total - moved.gravity}
    triples = {"ACCELEROMETER": moved.total, **triples} if total else triples
    names = [f"{what} {axis} ({unit})" for what in triples for axis in "XYZ"]
    names += [f"GYROSCOPE {axis} (rad/s)" for axis in "XYZ"] + ["LIGHT (lux)", "Satellites in range"]
    began = datetime.fromtimestamp(BEGAN_S, UTC)
    rows = []
    for at, t in enumerate(moved.times_s):
        now = began + timedelta(seconds=float(t))
        values = [f"{each:.5f}" for triple in (*triples.values(), moved.gyro) for each in triple[at]]
        date = now.strftime("%Y-%m-%d %H:%M:%S:") + f"{now.microsecond // 1000:03d}"
        rows.append([*values, 53, "0 / 21", round(1000 * t) + 10, date])
    header = separator.join([*names, "Time since start in ms ", "YYYY-MO-DD HH-MI-SS_SSS"])
    return (b"sep=;\n" if sep_line else b"") + _csv(header, rows, separator)


def physics_toolbox(
    separator: str = ",", decimal: str = ".", *, clock: bool = False, sign: float = 1.0, moved: Movement | None = None
) -> bytes:
    """A row for each sensor's reading, in turn: the others' are those before, at first zeros."""
    moved = moved or movement()
    triples = (sign * moved.total / G, sign * (moved.total - moved.gravity), moved.gyro)
    last = [np.zeros(3)] * 3
    rows = []
    for at, t in enumerate(moved.times_s):
        for sensor, values in enumerate(triples):
            last[sensor] = values[at]
            when = t + 0.001 * sensor
            time = f"{when:.6f}"
            if clock:
                since = 23 * 3600 + 59 * 60 + 55 + when
                hours, minutes, whole = int(since // 3600) % 24, int(since // 60) % 60, int(since) % 60
                time = f"{hours:02d}:{minutes:02d}:{whole:02d}:{round(since * 1000) % 1000:03d}"
            rows.append([time, *(f"{each:.6f}" for triple in last for each in triple), ""])
    header = separator.join(["time", "gFx", "gFy", "gFz", "ax", "ay", "az", "wx", "wy", "wz", ""])
    return _csv(header, rows, separator, decimal)
