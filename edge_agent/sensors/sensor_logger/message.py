"""A message of the Sensor Logger app, parsed from untrusted bytes into arrays with checked units and signs.

{"messageId", "sessionId", "deviceId", "payload": [{"name", "time": nanoseconds, "values": {…}}]}: the same over HTTP
and MQTT. pydantic's parser bounds the depth (200), the caller the size, this module the number of entries.

The length of gravity distinguishes g from m/s² in any position. Samples alone don't reveal its sign (with all three
axes inverted, gravity still rotates as the gyroscope says), so it is checked in a known position: the phone lies flat,
screen up, and the user enters the annotation "calibrate".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, NamedTuple, Protocol

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from edge_agent.errors import MessageError
from edge_agent.machine.events import PhoneConditions
from gaitway.errors import first_problem
from gaitway.strict_numbers import TypedNumbers
from har_pipeline.recording import STANDARD_GRAVITY
from har_pipeline.units import AccelerationConvention, specific_force

MAX_ENTRIES = 20_000
"""In one message: all motion sensors at 400 Hz for twelve seconds."""
MOTION = ("accelerometer", "gravity", "totalacceleration", "gyroscope")
MAX_VALUES = {"accelerometer": 1000.0, "gravity": 1000.0, "totalacceleration": 1000.0, "gyroscope": 10_000.0}
"""What no phone's sensor can measure, in any unit; a larger value is broken."""
MAX_TEXT = 500
SPREAD_S = 600.0
"""An entry further than this from the middle of its message has a broken time."""
MAX_TIME_NS = 4_102_444_800 * 10**9  # the year 2100

Text = Annotated[str, Field(max_length=128)]


class Entry(TypedNumbers, BaseModel):
    """One reading of one sensor; what a sensor that is not used says is not looked at."""

    model_config = ConfigDict(extra="ignore")

    name: Text
    time: int | float | str
    values: Any = None


class Reading(Protocol):
    """What an entry is to `batch_of`: the app's own, or a row of an export."""

    @property
    def name(self) -> str:
        """The sensor."""
        ...

    @property
    def time(self) -> float | str:
        """Nanoseconds since 1970."""
        ...

    @property
    def values(self) -> Any:
        """Whatever came."""
        ...


class PhoneMessage(TypedNumbers, BaseModel):
    """What the app sends once per batch period."""

    model_config = ConfigDict(extra="ignore")

    message_id: int | None = Field(default=None, alias="messageId", ge=0, lt=2**53)
    session_id: Text = Field(default="", alias="sessionId")
    device_id: Text = Field(default="", alias="deviceId")
    payload: list[Entry] = Field(default_factory=list, max_length=MAX_ENTRIES)


class PhoneSamples(NamedTuple):
    """times_s (n,) on the phone's clock, values (n, 3) as they came."""

    times_s: np.ndarray
    values: np.ndarray


class Annotation(NamedTuple):
    """An annotation that the user made."""

    time_s: float
    text: str


class SampleBatch(NamedTuple):
    """A message as arrays; `broken` counts entries that were left out."""

    session: str
    device: str
    number: int | None
    motion: dict[str, PhoneSamples]
    notes: tuple[Annotation, ...] = ()
    conditions: tuple[PhoneConditions, ...] = ()
    broken: int = 0

    @property
    def samples(self) -> int:
        """Number of motion samples."""
        return sum(len(samples.times_s) for samples in self.motion.values())


def parse(body: bytes) -> SampleBatch | None:
    """Read a message; None for the app's test push, which is empty.

    Raises:
        MessageError: if it is not a message of the app.
    """
    if not body.strip():
        return None
    try:
        message = PhoneMessage.model_validate_json(body)
    except ValidationError as error:
        raise MessageError(f"not a message of Sensor Logger: {first_problem(error)}") from error
    if not message.payload:
        return None
    return batch_of(message.session_id, message.device_id, message.message_id, message.payload)


def batch_of(session: str, device: str, number: int | None, entries: Iterable[Reading]) -> SampleBatch:
    """Sort entries into arrays by sensor; what has no usable time or values is counted as broken."""
    rows: dict[str, list[tuple[float, float, float, float]]] = {name: [] for name in MOTION}
    notes, conditions, broken = [], [], 0
    for entry in entries:
        name, time_s = entry.name.lower().replace(" ", ""), seconds(entry.time)
        values = entry.values if isinstance(entry.values, dict) else {}
        if time_s is None:
            broken += 1
        elif name in rows:
            if (xyz := _xyz(values, MAX_VALUES[name])) is None:
                broken += 1
            else:
                rows[name].append((time_s, *xyz))
        elif name == "annotation":
            notes.append(Annotation(time_s, str(values.get("text", ""))[:MAX_TEXT]))
        elif found := conditions_of(name, values, time_s):
            conditions.append(found)
    motion = {name: _samples(values) for name, values in rows.items() if values}
    motion, strays = _without_strays(motion)
    return SampleBatch(session, device, number, motion, tuple(notes), tuple(conditions), broken + strays)


def seconds(time_ns: float | str) -> float | None:
    """Return a time of the app in seconds since 1970, or None if it is none."""
    try:
        value = int(time_ns) if isinstance(time_ns, str) else time_ns
        return float(value) / 1e9 if 0 <= value <= MAX_TIME_NS else None
    except (TypeError, ValueError):
        return None


def _xyz(values: dict[str, Any], largest: float) -> tuple[float, float, float] | None:
    try:
        x, y, z = (float(values[axis]) for axis in ("x", "y", "z"))
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    return (x, y, z) if all(math.isfinite(v) and abs(v) <= largest for v in (x, y, z)) else None


def _samples(rows: list[tuple[float, float, float, float]]) -> PhoneSamples:
    table = np.array(rows, dtype=np.float64)
    return PhoneSamples(table[:, 0], table[:, 1:])


def _without_strays(motion: dict[str, PhoneSamples]) -> tuple[dict[str, PhoneSamples], int]:
    if not motion:
        return motion, 0
    middle = float(np.median(np.concatenate([samples.times_s for samples in motion.values()])))
    kept, strays = {}, 0
    for name, samples in motion.items():
        near = np.abs(samples.times_s - middle) <= SPREAD_S
        strays += int(len(near) - near.sum())
        if near.any():
            kept[name] = PhoneSamples(samples.times_s[near], samples.values[near])
    return kept, strays


CHARGING = {"charging": True, "full": True, "unplugged": False}
UNMETERED = {"wifi": True, "ethernet": True, "cellular": False, "wimax": False}
BATTERY_TEMPERATURE = ("batterytemp", "batterytemperature")


def conditions_of(name: str, values: Mapping[str, Any], time_s: float) -> PhoneConditions | None:
    """Read an entry by its name in small letters without spaces; None for other sensors."""
    if name == "battery":
        level, low = values.get("batteryLevel"), values.get("lowPowerMode")
        return PhoneConditions(
            time_s,
            charging=CHARGING.get(str(values.get("batteryState")).lower()),
            battery=_between(level, 0.0, 1.0),
            low_power_mode=low if isinstance(low, bool) else None,
        )
    if name == "network":
        expensive = values.get("isConnectionExpensive")
        known = UNMETERED.get(str(values.get("type")).lower())
        return PhoneConditions(time_s, unmetered=not expensive if isinstance(expensive, bool) else known)
    if name in BATTERY_TEMPERATURE:
        return PhoneConditions(time_s, temperature_c=_between(values.get("temperature"), -60.0, 150.0))
    return None


def _between(value: object, low: float, high: float) -> float | None:
    if not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if low <= number <= high else None


CONVENTIONS: dict[str, AccelerationConvention] = {
    "android": "specific force",
    "standardised": "specific force",
    "ios": "gravity points down",
}
"""In which acceleration and gravity come; as specific force a phone flat on the table, screen up, has gravity +z."""
CALIBRATE = "calibrate"
ACCELERATIONS = ("accelerometer", "gravity", "totalacceleration")
MIN_SAMPLES = 5
MIN_TOTAL = 50
UNIT_G_RANGE = (0.5, 2.0)
NEAR_GRAVITY = (9.0, 10.6)
MIN_FLAT_GRAVITY = 8.5
MAX_ROTATION = 35.0
"""rad/s, the end of the range of a phone's gyroscope: 2,000 °/s."""
STANDARDISE = "switch on 'Standardise Units & Frames' in the app's settings, and set platform to standardised"


def signed(batch: SampleBatch, platform: str) -> SampleBatch:
    """Turn iOS's signs of acceleration and gravity into those of Android; the gyroscope's are the same."""
    convention = CONVENTIONS[platform]
    motion = {
        name: samples._replace(values=specific_force(samples.values, convention)) if name in ACCELERATIONS else samples
        for name, samples in batch.motion.items()
    }
    return batch._replace(motion=motion)


def wrong_units(batch: SampleBatch) -> str:
    """Say what is wrong with a message's units; '' if nothing is, or it is too short to tell."""
    if (gravity := batch.motion.get("gravity")) and len(gravity.times_s) >= MIN_SAMPLES:
        size = _size(gravity.values)
        if not NEAR_GRAVITY[0] <= size <= NEAR_GRAVITY[1]:
            return _not_gravity("gravity measures", size)
    if (total := batch.motion.get("totalacceleration")) and len(total.times_s) >= MIN_TOTAL:
        size = _size(total.values)
        if UNIT_G_RANGE[0] <= size <= UNIT_G_RANGE[1]:
            return _not_gravity("acceleration is around", size)
    if (gyro := batch.motion.get("gyroscope")) and len(gyro.times_s) >= MIN_SAMPLES:
        size = _size(gyro.values)
        if size > MAX_ROTATION:
            return f"wrong units: the gyroscope is around {size:.0f}, which looks like °/s; expected rad/s"
    return ""


def wrong_direction(batch: SampleBatch) -> str:
    """Say what is wrong with gravity while the phone lies flat, screen up; `batch` is signed already."""
    found = batch.motion.get("gravity") or batch.motion.get("totalacceleration")
    if found is None:
        return "calibrate: the annotation has no gravity; switch on Accelerometer and Gravity, and try again"
    x, y, z = found.values.mean(axis=0)
    if z <= -MIN_FLAT_GRAVITY:
        return (
            "calibrate: gravity points the wrong way. If the phone lies with its screen up, platform is set wrongly: "
            "ios for an iPhone, android for others, standardised if the app's 'Standardise Units & Frames' is on"
        )
    if z < MIN_FLAT_GRAVITY:
        return f"calibrate: lay the phone flat, screen up (gravity is x {x:.1f}, y {y:.1f}, z {z:.1f}, expected z 9.8)"
    return ""


def _size(values: np.ndarray) -> float:
    return float(np.median(np.linalg.norm(values, axis=1)))


def _not_gravity(what: str, size: float) -> str:
    like = (
        f"which looks like g; {STANDARDISE}"
        if UNIT_G_RANGE[0] <= size <= UNIT_G_RANGE[1]
        else "which no phone at rest has"
    )
    return f"wrong units: {what} {size:.2f}, {like}; expected {STANDARD_GRAVITY:.2f} m/s²"
