"""Make two small data sets as strangers keep them, below OUT: `python docs/examples/make_recordings.py OUT`.

`OUT/chest/subject12/respeck/walking_slow.csv`: a chest band at 25 Hz, in g and deg/s, with milliseconds since 1970.
`OUT/waist/D01_SA03_R02.txt`: a belt box at 200 Hz, no header, no time, counts of two accelerometers around a gyroscope.

The persons are generated (`har_pipeline.readers.synthetic`): a body segment swings and is shaken by its steps,
and both sensors measure that one motion, with gravity. Each person has an own pace, vigour and way to wear the sensor.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from har_pipeline.readers.synthetic import ACTIVITIES, RATE_HZ, Motion, move
from har_pipeline.recording import STANDARD_GRAVITY

SUBJECTS = (3, 7, 12, 20)
MINUTES = 8.0
CHEST_NAMES = {
    "sitting": "sitting",
    "standing": "standing",
    "walking": "walking_slow",
    "climbingup": "stairs_up",
    "climbingdown": "stairs_down",
    "running": "running",
}
WAIST_CODES = {"walking": "D01", "running": "D03", "climbingup": "D05", "sitting": "D08"}
WAIST_SUBJECTS = ("SA03", "SA05", "SE11")
BEGIN_MS = 1_600_000_000_000
DAY_MS = 86_400_000
COUNTS_PER_G, COUNTS_PER_DEG_S, OTHER_COUNTS_PER_G = 256, 2**15 / 2000, 1024
"""±16 g in 13 bits, ±2000 deg/s in 16 bits, and ±8 g in 14 bits."""


class Bout(NamedTuple):
    """A stretch of one activity: times_s (n,), acc (n, 3) in g with gravity, gyro (n, 3) in deg/s."""

    activity: str
    times_s: np.ndarray
    acc: np.ndarray
    gyro: np.ndarray


def bouts(person: int, place: str, rate_hz: float, minutes: float) -> Iterator[Bout]:
    """Yield what a person does one after the other, as a sensor of that rate measures it."""
    random = np.random.default_rng([person, int(rate_hz)])
    motion = move(np.random.default_rng(person), random, place, 60 * minutes)
    edges = np.flatnonzero(np.diff(motion.activity)) + 1
    for begin, end in zip([0, *edges], [*edges, len(motion.activity)], strict=True):
        yield _sampled(motion, begin, end, rate_hz, random)


def _sampled(motion: Motion, begin: int, end: int, rate_hz: float, random: np.random.Generator) -> Bout:
    """Sample a stretch; nothing in the motion is faster than 12 Hz, so that no rate here folds it."""
    times_s = np.arange(np.ceil(begin / RATE_HZ * rate_hz), (end - 1) / RATE_HZ * rate_hz) / rate_hz
    both = np.hstack([motion.force / STANDARD_GRAVITY, np.degrees(motion.rate)])
    values = np.stack([np.interp(times_s, motion.times_s, axis) for axis in both.T], axis=1)
    values += random.normal(0, [0.005] * 3 + [0.5] * 3, values.shape)
    return Bout(ACTIVITIES[motion.activity[begin]], times_s, values[:, :3], values[:, 3:])


def write_respeck(path: Path, times_ms: np.ndarray, acc: np.ndarray, gyro: np.ndarray) -> None:
    """Write one file with a header: times_ms (n,), acc (n, 3) in g and gyro (n, 3) in deg/s."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [
        f"{ms},{','.join(f'{value:.5f}' for value in row)}"
        for ms, row in zip(times_ms.tolist(), np.hstack([acc, gyro]).tolist(), strict=True)
    ]
    path.write_text("\n".join(["timestamp,accel_x,accel_y,accel_z,gyro_x,gyro_y,gyro_z", *rows]) + "\n")


def write_sisfall(path: Path, acc: np.ndarray, gyro: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Write one file of counts: acc and other (n, 3) in g, gyro (n, 3) in deg/s; return the counts (n, 9)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    exact = np.hstack([acc * COUNTS_PER_G, gyro * COUNTS_PER_DEG_S, other * OTHER_COUNTS_PER_G])
    counts: np.ndarray = exact.round().astype(int)
    path.write_text("".join(" " + ", ".join(f"{count:4d}" for count in row) + ";\n" for row in counts.tolist()))
    return counts


def make_chest(folder: Path) -> None:
    """A folder for each subject, a file for each activity; a file holds every time that it was done that day."""
    for subject in SUBJECTS:
        day_ms = BEGIN_MS + subject * DAY_MS
        done = list(bouts(subject, "chest", 25, MINUTES))
        for activity, name in CHEST_NAMES.items():
            same = [bout for bout in done if bout.activity == activity]
            times_ms = day_ms + np.concatenate([bout.times_s for bout in same]) * 1000
            acc, gyro = (np.concatenate([getattr(bout, sensor) for bout in same]) for sensor in ("acc", "gyro"))
            write_respeck(folder / f"subject{subject}/respeck/{name}.csv", times_ms.round().astype(int), acc, gyro)


def make_waist(folder: Path) -> None:
    """A file for each trial, named by activity, subject and trial, with two accelerometers of different ranges."""
    for number, subject in enumerate(WAIST_SUBJECTS):
        trials = dict.fromkeys(WAIST_CODES, 0)
        for bout in bouts(100 + number, "waist", 200, MINUTES):
            if bout.activity in trials:
                trials[bout.activity] += 1
                name = f"{WAIST_CODES[bout.activity]}_{subject}_R{trials[bout.activity]:02d}.txt"
                write_sisfall(folder / name, bout.acc, bout.gyro, bout.acc)


def main() -> None:
    """Write both data sets below the folder that is named."""
    if len(sys.argv) != 2:
        raise SystemExit(f"usage: {sys.argv[0]} OUT")
    out = Path(sys.argv[1])
    make_chest(out / "chest")
    make_waist(out / "waist")
    print(f"{out}/chest: {len(SUBJECTS)} subjects; {out}/waist: {len(WAIST_SUBJECTS)} subjects")


if __name__ == "__main__":
    main()
