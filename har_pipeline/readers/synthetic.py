"""Synthetic recordings, for machines without data; they don't represent people.

Subjects × phones × body places. A body segment swings (Euler angles) and is shaken (harmonics of the step frequency);
the gyroscope reads the true rate of those angles and the accelerometer the same motion plus gravity in the segment's
frame, so that both agree physically. The phone then adds what phones add: its own rate (50 to 210 Hz, up to 0.5 % off),
time-stamp jitter, dropouts, scale, bias, noise, range and resolution. Amplitudes and cadences follow the magnitudes of
the RealWorld recordings by eye; nothing is fitted. Acceleration: specific force, as in a segment at rest that reads
+9.8 m/s² upwards. Every client has its own seed, so that adding a client changes no other. The true cadence is the
number that a regression learns. The true motion of a segment is computed at 500 Hz.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from gaitway.errors import did_you_mean
from har_pipeline.errors import SettingsError
from har_pipeline.readers.archive import Source
from har_pipeline.readers.reader import Clients, Options, RecordingReader, chosen
from har_pipeline.recording import STANDARD_GRAVITY, Origin, Recording, Sensor, device_of, subject_of

CHUNK_S = 30.0
GAPS_PER_MINUTE = 0.3


class Phone(NamedTuple):
    """A model: rate_hz, jitter as a share of the period, range (m/s²), noise of both sensors (m/s², rad/s)."""

    rate_hz: float
    jitter: float
    range_m_s2: float
    acc_noise: float
    gyro_noise: float


PHONES = {
    "phone100": Phone(100.0, 0.08, 39.2, 0.03, 0.003),
    "phone200": Phone(200.0, 0.12, 78.4, 0.02, 0.002),
    "phone50": Phone(50.0, 0.03, 39.2, 0.06, 0.006),
    "phone150": Phone(150.0, 0.20, 39.2, 0.04, 0.004),
    "phone210": Phone(210.0, 0.10, 19.6, 0.05, 0.005),
}
PLACES = ("waist", "thigh", "shin", "chest", "forearm", "upperarm", "head")
DEFAULTS: dict[str, Any] = {"subjects": 4, "phones": 2, "places": 1, "minutes": 6.0, "seed": 0}


def recordings(source: Source | None, clients: Clients, options: Options) -> Iterator[Recording]:
    """Yield 30 s chunks of both sensors in step; client `s00_phone100-waist`, one session each."""
    phones = _names(options["phones"], tuple(PHONES), "phones")
    places = _names(options["places"], PLACES, "places")
    for subject in range(int(options["subjects"])):
        for phone in phones:
            for place in places:
                client = f"s{subject:02d}_{phone}-{place}"
                if chosen(client, clients):
                    yield from _client(client, subject, phone, place, options)


def _names(given: int | Sequence[str], known: tuple[str, ...], what: str) -> tuple[str, ...]:
    if isinstance(given, int):
        if not 1 <= given <= len(known):
            raise SettingsError(f"option {what} is {given}; from 1 to {len(known)} are known: {', '.join(known)}")
        return known[:given]
    for name in given:
        if name not in known:
            raise SettingsError(f"option {what}: unknown {name!r}; {did_you_mean(name, known)}")
    return tuple(given)


def _client(client: str, subject: int, phone: str, place: str, options: Options) -> Iterator[Recording]:
    seed, minutes = int(options["seed"]), float(options["minutes"])
    if not minutes > 0:
        raise SettingsError(f"option minutes is {minutes}; it must be above 0")
    identity = [seed, subject, tuple(PHONES).index(phone), PLACES.index(place)]
    random = np.random.default_rng(identity)
    motion = move(np.random.default_rng([seed, subject]), random, place, 60 * minutes)
    model = PHONES[phone]
    lost = _gaps(random, minutes)
    acc = _sense(random, motion, motion.force, model, "acc", lost)
    gyro = _sense(random, motion, motion.rate, model, "gyro", lost)
    for start in np.arange(0.0, 60 * minutes, CHUNK_S):
        for sensor, (times, values, activity, cadence) in (("acc", acc), ("gyro", gyro)):
            low, high = np.searchsorted(times, [start, start + CHUNK_S])
            name: Sensor = "acc" if sensor == "acc" else "gyro"
            number = cadence[low:high]
            yield Recording(client, "0", activity[low:high], name, times[low:high], values[low:high], number=number)


def _gaps(random: np.random.Generator, minutes: float) -> np.ndarray:
    """Draw dropouts as (start, end, sensor) rows in seconds; sensor 0 is acc, 1 gyro, 2 both."""
    count = random.poisson(GAPS_PER_MINUTE * minutes)
    start = random.uniform(0, 60 * minutes, count)
    return np.stack([start, start + random.uniform(0.05, 1.0, count), random.integers(0, 3, count)], axis=1)


def _sense(
    random: np.random.Generator, motion: Motion, truth: np.ndarray, model: Phone, sensor: Sensor, lost: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Sample the truth (T, 3) as the phone would: times (n,), values (n, 3), activities and steps a minute (n,)."""
    period = 1 / (model.rate_hz * random.uniform(0.995, 1.005))
    times = np.arange(random.uniform(0, period), motion.times_s[-1], period)
    # Clipped below half a period: delivery is late, but in order.
    times = times + period * np.clip(random.normal(0, model.jitter, len(times)), -0.45, 0.45)
    for start, end, which in lost:
        if which in (2, 0 if sensor == "acc" else 1):
            times = times[(times < start) | (times > end)]
    noise, bias, limit = (
        (model.acc_noise, 0.25, model.range_m_s2) if sensor == "acc" else (model.gyro_noise, 0.02, 34.9)
    )
    values = np.stack([np.interp(times, motion.times_s, truth[:, axis]) for axis in range(3)], axis=1)
    values = values * random.normal(1, 0.02, 3) + random.normal(0, bias, 3) + random.normal(0, noise, values.shape)
    resolution = limit / 2**15
    values = np.clip(np.rint(values / resolution) * resolution, -limit, limit)
    at = np.clip(np.searchsorted(motion.times_s, times), 0, len(motion.times_s) - 1)
    return times, values, np.array(ACTIVITIES)[motion.activity[at]], motion.cadence[at]


RATE_HZ = 500.0
BOUT_S = (15.0, 25.0)
BLEND_S = 0.8


class Activity(NamedTuple):
    """Steps per second, shaking (m/s²) forward, sideways, up, swing (rad), forward lean (rad), hardness of impact."""

    cadence_hz: float
    shake: tuple[float, float, float]
    swing: float
    lean: float
    impact: float


ACTIVITY_TABLE = {
    "sitting": Activity(0.25, (0.02, 0.02, 0.03), 0.004, -0.10, 0.0),
    "standing": Activity(0.40, (0.05, 0.06, 0.04), 0.010, 0.00, 0.0),
    "walking": Activity(1.85, (1.6, 1.0, 2.4), 0.24, 0.05, 0.5),
    "climbingup": Activity(1.55, (1.4, 1.1, 2.2), 0.36, 0.22, 0.3),
    "climbingdown": Activity(1.90, (1.5, 1.3, 3.4), 0.22, -0.08, 0.9),
    "running": Activity(2.70, (3.5, 2.2, 8.5), 0.45, 0.15, 0.8),
}
ACTIVITIES = tuple(ACTIVITY_TABLE)


class Place(NamedTuple):
    """How a place moves: share of the shaking and of the swing, mounting angles (rad), extra lean when seated."""

    shake: float
    swing: float
    mounting: tuple[float, float, float]
    seated_lean: float


PLACE_TABLE = {
    "waist": Place(0.9, 0.45, (0.1, 1.4, 0.0), -0.15),
    "thigh": Place(1.1, 1.4, (0.2, 1.5, 0.8), -1.40),
    "shin": Place(1.6, 2.2, (0.0, 1.6, -0.5), 0.10),
    "chest": Place(0.8, 0.35, (-0.1, 1.5, 1.6), -0.10),
    "forearm": Place(1.0, 1.6, (1.2, 0.3, 0.2), -0.60),
    "upperarm": Place(0.9, 1.0, (1.5, 0.9, 0.0), -0.20),
    "head": Place(0.7, 0.25, (0.0, 1.3, 2.8), 0.05),
}


class Motion(NamedTuple):
    """times_s (T,); force (T, 3) in m/s² and rate (T, 3) in rad/s in the phone's axes; activity (T,) indices.

    cadence (T,) in steps a minute, 0 where nobody walks or runs: who sits or stands sways, and takes no step.
    """

    times_s: np.ndarray
    force: np.ndarray
    rate: np.ndarray
    activity: np.ndarray
    cadence: np.ndarray


def move(subject: np.random.Generator, random: np.random.Generator, place: str, duration_s: float) -> Motion:
    """Draw the motion of one body place; `subject` holds the person's traits, `random` the rest."""
    count = int(duration_s * RATE_HZ) + 1
    cadence_trait, shake_trait, swing_trait = subject.normal(1, (0.07, 0.15, 0.15))
    gait = subject.normal(0, 1, (3, 4))
    activity, cadence, energy, sway, lean, impact = _course(random, count, PLACE_TABLE[place])
    phase = 2 * np.pi * np.cumsum(cadence * cadence_trait) / RATE_HZ + random.uniform(0, 2 * np.pi)
    shaking = shake_trait * energy * _harmonics(phase, impact, gait)
    # Limbs swing once per stride, that is two steps.
    swing = swing_trait * sway * np.sin(phase / 2 + gait[0, 0])
    angles = np.stack(
        [0.35 * swing_trait * sway * np.sin(phase / 2 + gait[1, 0]), lean + swing, 0.4 * sway * np.sin(phase / 2 + 1)]
    )
    force, rate = segment_readings(shaking, angles)
    mounting = rotation(np.array(PLACE_TABLE[place].mounting) + random.normal(0, 0.15, 3))
    steps = np.array([row.impact > 0 for row in ACTIVITY_TABLE.values()])[activity]
    minute = np.where(steps, 60 * cadence * cadence_trait, 0.0)
    return Motion(np.arange(count) / RATE_HZ, force @ mounting.T, rate @ mounting.T, activity, minute)


def _course(random: np.random.Generator, count: int, place: Place) -> tuple[np.ndarray, ...]:
    """Draw bouts, each activity once per cycle: index, cadence, shaking (3, T), swing, lean, impact."""
    activity = np.empty(count, dtype=np.int64)
    course = np.empty((7, count))
    start, waiting = 0, list[int]()
    while start < count:
        waiting = waiting or random.permutation(len(ACTIVITIES)).tolist()
        index = waiting.pop()
        end = start + int(random.uniform(*BOUT_S) * RATE_HZ)
        what = ACTIVITY_TABLE[ACTIVITIES[index]]
        pace, vigour = random.normal(1, (0.04, 0.1))
        lean = what.lean + (place.seated_lean if ACTIVITIES[index] == "sitting" else 0) + random.normal(0, 0.04)
        shake = np.array(what.shake) * vigour * place.shake
        column = [what.cadence_hz * pace, *shake, what.swing * vigour * place.swing, lean, what.impact]
        activity[start:end] = index
        course[:, start:end] = np.array(column)[:, None]
        start = end
    blend = np.hanning(int(BLEND_S * RATE_HZ) + 2)[1:-1]
    padded = np.pad(course, ((0, 0), (len(blend) // 2, len(blend) - 1 - len(blend) // 2)), mode="edge")
    smooth = np.stack([np.convolve(row, blend / blend.sum(), mode="valid") for row in padded])
    # Pace and vigour also drift within a bout.
    drift = 1 + 0.05 * np.sin(2 * np.pi * np.arange(count) / (RATE_HZ * random.uniform(5, 9)) + random.uniform(0, 6))
    return activity, smooth[0] * drift, smooth[1:4] * drift, smooth[4], smooth[5], smooth[6]


def _harmonics(phase: np.ndarray, impact: np.ndarray, gait: np.ndarray) -> np.ndarray:
    """Shaking of unit size (3, T): sideways once per stride, the rest per step; a hard impact has more overtones."""
    shape = np.empty((3, len(phase)))
    for axis in range(3):
        base = phase / 2 if axis == 1 else phase
        shape[axis] = np.sin(base + 0.3 * gait[axis, 0])
        for order in (2, 3, 4):
            shape[axis] += impact * 0.8**order * np.sin(order * base + 0.5 * gait[axis, order - 1])
    return shape


def segment_readings(shaking: np.ndarray, angles: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return specific force and angular rate (T, 3) in the segment's frame, from roll, pitch and yaw (3, T)."""
    roll, pitch, _ = angles
    d_roll, d_pitch, d_yaw = np.gradient(angles, 1 / RATE_HZ, axis=1)
    gravity = STANDARD_GRAVITY * np.stack(
        [-np.sin(pitch), np.cos(pitch) * np.sin(roll), np.cos(pitch) * np.cos(roll)], axis=1
    )
    rate = np.stack(
        [
            d_roll - d_yaw * np.sin(pitch),
            d_pitch * np.cos(roll) + d_yaw * np.sin(roll) * np.cos(pitch),
            d_yaw * np.cos(roll) * np.cos(pitch) - d_pitch * np.sin(roll),
        ],
        axis=1,
    )
    return gravity + shaking.T, rate


def rotation(angles: np.ndarray) -> np.ndarray:
    """Return rotation matrix (3, 3) of roll, pitch and yaw."""
    (cr, cp, cy), (sr, sp, sy) = np.cos(angles), np.sin(angles)
    about_x = np.array([[1, 0, 0], [0, cr, -sr], [0, sr, cr]])
    about_y = np.array([[cp, 0, sp], [0, 1, 0], [-sp, 0, cp]])
    about_z = np.array([[cy, -sy, 0], [sy, cy, 0], [0, 0, 1]])
    return np.asarray(about_z @ about_y @ about_x)


READER = RecordingReader(
    name="synthetic",
    summary="synthetic: subjects × phones × body places, 6 activities, 50 to 210 Hz, jitter and gaps; needs no files",
    labels=lambda options: ACTIVITIES,
    layouts=lambda options: (),
    recordings=recordings,
    acceleration="specific force",
    number=lambda options: "cadence (steps/min)",
    origin=lambda client: Origin("synthetic", subject_of(client), *device_of(client).split("-")),
    defaults=DEFAULTS,
)
