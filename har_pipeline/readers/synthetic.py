"""Synthetic recordings: an honest stand-in for a machine without data, not a claim about people.

Subjects × phones × body places. A body segment swings (Euler angles) and is shaken (harmonics of the step
frequency); the gyroscope reads the true rate of those angles and the accelerometer the same motion plus gravity in
the segment's frame, so that both agree physically. The phone then adds what phones add: its own rate (50 to 210 Hz, up
to 0.5 % off), time-stamp jitter, dropouts, scale, bias, noise, range and resolution. Amplitudes and cadences follow
the magnitudes of the RealWorld recordings by eye; nothing is fitted. Acceleration: specific force, as in a segment at
rest that reads +9.8 m/s² upwards. Every client has its own seed, so that adding a
client changes no other. The true cadence is the number that a regression learns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from gaitway.errors import did_you_mean
from har_pipeline.errors import SettingsError
from har_pipeline.origin import Origin
from har_pipeline.readers.archive import Source
from har_pipeline.readers.reader import Clients, Options, RecordingReader, chosen
from har_pipeline.readers.synthetic_motion import ACTIVITIES, Motion, move
from har_pipeline.recording import Recording, Sensor, device_of, subject_of

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
