"""Checks that recordings are as described: units, time, rate, lost and repeated samples, dead channels.

Counts and histograms are kept, never samples, so that a device can watch its sensors for as long as it runs; whole
recordings, chunks of them and live samples are judged alike. The limits were set so that no known data set passes
any of them: tests/har_pipeline/test_known_windows.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

import numpy as np

from har_pipeline.recording import STANDARD_GRAVITY, Recording
from har_pipeline.signals.tally import AXES, Tally
from har_pipeline.units import AccelerationConvention

Severity = Literal["note", "warning", "error"]
SENSORS = {"acc": "accelerometer", "gyro": "gyroscope"}

MIN_SAMPLES = 256
"""Fewer say nothing about levels, rates and dead channels."""
MIN_RATE_HZ, MAX_RATE_HZ = 5.0, 2000.0
"""No sensor for human movement is slower or faster: then the unit of time is wrong."""
RATE_TOLERANCE = 0.2
TOLERANCE = 0.15
SCALES = (
    (1.0, "that looks like g; set the unit of the acceleration to g"),
    (1000.0, "that looks like mg; set the unit of the acceleration to mg"),
    (STANDARD_GRAVITY**2, "that is 9.8 times too large, as if m/s² had been taken for g; set its unit to m/s²"),
    (1 / STANDARD_GRAVITY, "that is g divided by 9.8 once too often; set the unit of the acceleration to g"),
)
IN_MOTION = (5.0, 16.0)
"""Half of all accelerations are larger, half smaller than a number in here, if they are in m/s² with gravity."""
WITHOUT_GRAVITY = 0.6
"""Below this share of a second's acceleration that keeps its direction, nothing pulls down."""
DECLARED_WITHOUT_GRAVITY = (
    "it is declared as without gravity, which doesn't suit models trained on accelerations with gravity "
    "windows, nor the other way round; take the acceleration that includes it, or add it (acc.add)"
)
WITHOUT_GRAVITY_IN_MOTION = 0.35
"""The same where sizes are as with gravity: who jogs has 0.48 to 0.63 with it, 0.06 to 0.24 without (MotionSense)."""
TURNED = 1.6
"""Ratio of the sizes' quartiles: about gravity's size and narrower it is gravity, of a device that turns; linear
acceleration of people has 1.8 and more."""
ROTATION = 20.0
"""rad/s: one second in twenty turns faster on average only if it is in degrees."""
TINY_ROTATION, WALKING = 0.1, 1.5
"""Who shakes by so many m/s² turns by more than that many rad/s."""
COARSE_ROTATION = 0.01
"""rad/s: whoever rounds to as much writes zeros at rest, over and over."""
OF_ROUNDING = {"zeros", "frozen", "repeated_samples"}
RATIO = 8.0
PEAKS = {"acc": (2000.0, "m/s²"), "gyro": (200.0, "rad/s")}
"""Of single numbers, where the unit is right: 200 g and 11,000 degrees a second, which no sensor on a body measures."""
LOST, REPEATED = 0.15, 0.3
SHIFTED, INTERPOLATED_HZ = 0.002, 45.0
"""A sensor that is slower than this is interpolated, through samples that stand where they do not belong."""
SILENT, FROZEN = 0.2, 0.2
"""Shares of the time in which a sensor gives nothing while the other does, or the same three numbers over and over."""
MIXED = 0.5
"""Share of the time in which two signals take turns."""
ZERO = 0.01
"""Share of samples whose three numbers are exactly 0; known sets have none."""
CLOCKS_APART_S, SAME_SHIFT_S, MIN_APART_S = 2.0, 1.0, 4.0
"""Two sensors of which all times are so far apart, alike at both ends of so many seconds, are on two clocks."""
LAG_S = 10.0
"""A sensor that is pushed in long pieces, after the other, is not silent."""


class Finding(NamedTuple):
    """What a check found: `code` names it for programs, `message` says what came, what was expected and what to do.

    An error leaves nothing to learn from; a warning is very probably wrong data; a note is only told. `sensor` is
    "acc", "gyro", or "" where it concerns both.
    """

    severity: Severity
    code: str
    client: str
    sensor: str
    message: str

    @property
    def where(self) -> str:
        """Name the client and, if it concerns one of them, its sensor."""
        return f"{self.client}, {SENSORS[self.sensor]}" if self.sensor else self.client


class SignalChecks:
    """Judges the recordings of any number of clients while they pass; memory does not grow with their length.

    `declared_hz` is the rate that a description or plan states of a sensor ("acc", "gyro"), where one does, and
    `acceleration` the convention in which the accelerometer's samples came.
    """

    def __init__(
        self,
        declared_hz: Mapping[str, float] | None = None,
        acceleration: AccelerationConvention = "specific force",
    ) -> None:
        self._declared_hz, self._acceleration = dict(declared_hz or {}), acceleration
        self._tallies: dict[str, dict[str, Tally]] = {}

    def add(self, recording: Recording) -> None:
        """Take note of a recording, or of a chunk of one; its sessions must come one after another."""
        if np.shape(recording.values) != (len(recording.times_s), 3):
            return  # the pipeline refuses it
        sensors = self._tallies.setdefault(recording.client, {})
        sensors.setdefault(recording.sensor, Tally()).add(recording.session, recording.times_s, recording.values)

    def skipped(self, client: str, sensor: str, rows: int) -> None:
        """Take note of rows that a reader could not use, because cells were missing or no numbers."""
        self._tallies.setdefault(client, {}).setdefault(sensor, Tally()).unusable += rows

    def findings(self) -> tuple[Finding, ...]:
        """Return what is odd so far, by client and sensor; empty if nothing is."""
        return tuple(self._judge())

    def rates_hz(self) -> dict[str, dict[str, float]]:
        """Return the samples a second of each client's sensors, pauses left out, where there were some."""
        return {
            client: {sensor: tally.rate_hz for sensor, tally in sorted(sensors.items()) if np.isfinite(tally.rate_hz)}
            for client, sensors in self._tallies.items()
        }

    def no_windows(self, client: str, window_s: float, max_gap_s: float) -> Finding:
        """Say why a client has no window: one sensor only, clocks that never meet, the time unit, or gaps."""
        sensors = self._tallies.get(client, {})
        return Finding("error", "no_windows", client, "", f"no window results: {_reason(sensors, window_s, max_gap_s)}")

    @property
    def _is_without_gravity(self) -> bool:
        return self._acceleration == "without gravity"

    def _judge(self) -> Iterator[Finding]:
        for client in sorted(self._tallies):
            sensors = self._tallies[client]
            for sensor in sorted(sensors):
                for severity, code, words in _of_one(sensor, sensors[sensor], self._declared_hz.get(sensor)):
                    if not (self._is_without_gravity and code in ("gravity", "no_gravity")):
                        yield Finding(severity, code, client, sensor, words)
            if "acc" in sensors and self._is_without_gravity:
                yield Finding("warning", "no_gravity", client, "acc", DECLARED_WITHOUT_GRAVITY)
            if "acc" in sensors and "gyro" in sensors:
                for sensor, other in (("acc", "gyro"), ("gyro", "acc")):
                    for severity, code, words in _silence(sensors[sensor], sensors[other], SENSORS[other]):
                        yield Finding(severity, code, client, sensor, words)
                for severity, code, words in (
                    *_clocks(sensors["acc"], sensors["gyro"]),
                    *_of_both(sensors["acc"], sensors["gyro"]),
                ):
                    yield Finding(severity, code, client, "gyro", words)


def grouped(findings: Iterable[Finding], clients: int) -> list[tuple[Severity, str, str]]:
    """Lay findings of one code and sensor together: severity, who has it, and the first one's words."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.code, finding.sensor), []).append(finding)
    rows = []
    for same in groups.values():
        first, names = same[0], [finding.client for finding in same]
        who = first.client
        if len(names) > 1:
            every = "both clients" if clients == 2 else f"all {clients} clients"
            who = every if len(names) == clients else f"{len(names)} clients, such as {names[0]}"
        rows.append((first.severity, f"{who}, {SENSORS[first.sensor]}" if first.sensor else who, first.message))
    return sorted(rows, key=lambda row: ("error", "warning", "note").index(row[0]))


Judgement = tuple[Severity, str, str]


def plain(number: float) -> str:
    """Write a quantity with three digits, and without an exponent."""
    return f"{number:,.0f}" if 1000 <= abs(number) < 1e15 else f"{number:.3g}"


def _of_one(sensor: str, tally: Tally, declared_hz: float | None) -> Iterator[Judgement]:
    if tally.unusable:
        share = tally.unusable / (tally.rows + tally.unusable)
        causes = "NaN, a word, a huge one, a missing cell, or a time of 0"
        words = f"{tally.unusable} rows ({share:.1%}) lack a number ({causes}) and are left out"
        yield "warning", "rows_without_numbers", words
    if tally.count < MIN_SAMPLES:
        return
    if tally.all_zero:
        yield "note", "masked", f"the {SENSORS[sensor]} is zero throughout: it counts as masked"
        return
    rounded = sensor == "gyro" and tally.finest >= COARSE_ROTATION
    if rounded:
        yield "note", "rounded", f"its numbers are rounded to {plain(tally.finest)} rad/s: slower turns are 0"
    for judgement in (*_time(tally, declared_hz), *_channels(tally)):
        if not (rounded and judgement[1] in OF_ROUNDING):
            yield judgement
    scale = list(_gravity(tally)) if sensor == "acc" else []
    yield from scale
    most, unit = PEAKS[sensor]
    if tally.peak > most and not scale and not (sensor == "gyro" and tally.rotations.quantile(0.95) > ROTATION):
        words = f"single samples reach {plain(tally.peak)} {unit}, which no sensor on a body measures"
        yield "warning", "spikes", f"{words}; remove their rows, because they dominate the normalization"


def _time(tally: Tally, declared_hz: float | None) -> Iterator[Judgement]:
    if tally.backward_share > 0.01:
        words = f"{tally.backward_share:.0%} of the times go backwards"
        yield "warning", "unsorted_times", f"{words}; check whether several recordings are mixed in one session"
        return
    rate_hz = tally.rate_hz
    if not MIN_RATE_HZ <= rate_hz <= MAX_RATE_HZ:
        yield "error", "rate", _impossible_rate(tally)
        return
    if declared_hz and abs(rate_hz / declared_hz - 1) > RATE_TOLERANCE:
        half = ", about half of it" if abs(rate_hz / declared_hz - 0.5) < 0.1 else ""
        words = f"measured {rate_hz:.4g} samples per second{half}, declared {declared_hz:.4g} Hz"
        yield "warning", "declared_rate", f"{words}; correct the declared rate, or look for lost samples"
    if tally.lost_share > LOST:
        words = f"about {tally.lost_share:.0%} of the samples are missing (gaps between the times of others)"
        yield "warning", "lost_samples", f"{words}; check whether the sensor or its transmission was overloaded"
    if tally.equal_times_share > REPEATED:
        words = f"{tally.equal_times_share:.0%} of the samples carry the time of the one before"
        words = f"{words}; bursts of three and more are laid out evenly since the time before, others become their mean"
        yield "warning", "equal_times", f"{words}: check whether times were rounded or rows written twice"
    if tally.shifted_share > SHIFTED and rate_hz < INTERPOLATED_HZ:
        words = f"{tally.shifted_share:.1%} of the samples are stamped late or early, next to another"
        yield "warning", "shifted_times", f"{words}; they hardly count: are these times of arrival, or rounded?"
    if tally.repeated_share > REPEATED:
        slower = rate_hz * (1 - tally.repeated_share)
        words = f"{tally.repeated_share:.0%} of the samples repeat the one before while it moves"
        yield "warning", "repeated_samples", f"{words}; the sensor itself gives about {slower:.3g} Hz"


def _impossible_rate(tally: Tally) -> str:
    """Say that times cannot be right, and why they may be wrong."""
    if np.isinf(tally.rate_hz):
        words = f"{tally.equal_times_share:.0%} of the samples carry the time of the one before"
        return f"{words}: times were rounded, or stand still; omit the column of times and give rate_hz instead"
    return f"{plain(tally.rate_hz)} samples a second; {_time_unit(tally.rate_hz)}"


def _time_unit(rate_hz: float) -> str:
    """Guess which unit the times are really in."""
    for factor, guess in (
        (1e-3, "were milliseconds expected of times in seconds (or micro- of milliseconds)?"),
        (1e3, "were times in milliseconds taken for seconds (or micro- for milliseconds)?"),
        (1e6, "were times in microseconds taken for seconds (or nano- for milliseconds)?"),
        (1e9, "were times in nanoseconds taken for seconds?"),
        (1e-6, "were nanoseconds expected of times in milliseconds?"),
        (1e-9, "were nanoseconds expected of times in seconds?"),
    ):
        if 10 <= rate_hz * factor <= 1000:
            return f"{guess} Set the unit of time"
    return f"{MIN_RATE_HZ:.0f} to {MAX_RATE_HZ:.0f} Hz were expected; check the column and the unit of time"


def _channels(tally: Tally) -> Iterator[Judgement]:
    if tally.mixed_share > MIXED:
        words = f"for {tally.mixed_share:.0%} of the time every second sample goes on where the one before it does not"
        yield "warning", "mixed", f"{words}; if two people or two phones are mixed, distinguish them by client"
        return
    constant = [axis for axis, still in zip(AXES, tally.constant, strict=True) if still]
    if constant:
        words = f"{' and '.join(constant)} never change{'s' if len(constant) == 1 else ''}"
        yield "warning", "constant_channel", f"{words} in {tally.count} samples; check that the right column is read"
    if tally.zero_share > ZERO:
        words = f"for {tally.zero_share:.0%} of the time all three numbers are 0"
        yield "warning", "zeros", f"{words}; if it dropped out, leave these rows empty like lost samples"
        return
    if tally.frozen_share > FROZEN and len(constant) < len(AXES):
        words = f"for {tally.frozen_share:.0%} of the time it repeats the same three numbers"
        yield "warning", "frozen", f"{words}; check whether it stopped or was switched off"
    for first, second in tally.identical_axes():
        yield "warning", "identical_channels", f"{first} and {second} are the same numbers; is a column named twice?"


def _gravity(tally: Tally) -> Iterator[Judgement]:
    level, still = tally.still_level, True
    if np.isnan(level):
        level, still = tally.sizes.quantile(0.5), False
    pulled = tally.steadiness >= WITHOUT_GRAVITY or _is_pulled_in_motion(tally, level)
    odd = odd_acceleration(level, still=still)
    if odd is None and (still or pulled):
        return
    words = f"|acceleration| is {plain(level)} {'at rest' if still else 'for the most part'}"
    words = f"{words}, expected {STANDARD_GRAVITY:.2f} m/s²"
    if not (still and odd) and (level < WITHOUT_GRAVITY or not pulled):
        yield "warning", "no_gravity", f"{words}; gravity seems to be removed: use the acceleration that includes it"
        return
    yield "warning", "gravity", f"{words}; {odd or 'check unit and scale'}"


def _is_pulled_in_motion(tally: Tally, level: float) -> bool:
    """Whether sizes about that of gravity are gravity's, though the direction changes within a second."""
    if not IN_MOTION[0] <= level <= IN_MOTION[1]:
        return False
    low, high = tally.sizes.quantile(0.25), tally.sizes.quantile(0.75)
    turned = abs(level / STANDARD_GRAVITY - 1) <= TOLERANCE and high < TURNED * low
    return turned or tally.steadiness >= WITHOUT_GRAVITY_IN_MOTION


def odd_acceleration(level: float, *, still: bool) -> str | None:
    """Say what may be wrong where |acceleration| is mostly `level`, in what should be m/s² with gravity.

    None: nothing is; "": no unit explains it. In motion (not `still`) it may vary widely.
    """
    if abs(level / STANDARD_GRAVITY - 1) <= TOLERANCE if still else IN_MOTION[0] <= level <= IN_MOTION[1]:
        return None
    return next((guess for scale, guess in SCALES if abs(level / scale - 1) <= (TOLERANCE if still else 0.6)), "")


def _silence(tally: Tally, other: Tally, name: str) -> Iterator[Judgement]:
    missing_s = other.covered_s - tally.covered_s
    if min(tally.count, other.count) >= MIN_SAMPLES and missing_s > max(LAG_S, SILENT * other.covered_s):
        words = f"it gave samples for {tally.covered_s:.0f} s, the {name} for {other.covered_s:.0f} s"
        yield "warning", "silent", f"{words}; check whether it stopped or started late, because windows need both"


def _clocks(acc: Tally, gyro: Tally) -> Iterator[Judgement]:
    """Judge whether both sensors begin, and have come, equally far apart: then it is their clocks that are."""
    begin_s, newest_s = gyro.first_s - acc.first_s, gyro.last_s - acc.last_s
    if min(acc.count, gyro.count) < MIN_SAMPLES or min(acc.covered_s, gyro.covered_s) < MIN_APART_S:
        return
    if abs(begin_s) > CLOCKS_APART_S and abs(begin_s - newest_s) < SAME_SHIFT_S:
        where = "after" if begin_s > 0 else "before"
        words = f"its times, {gyro.first_s:.3f} to {gyro.last_s:.3f} s, are all {abs(begin_s):,.1f} s {where}"
        words = f"{words} the accelerometer's, {acc.first_s:.3f} to {acc.last_s:.3f} s; do their clocks differ?"
        words = f"{words} Stamp both by one, or windows pair what was measured at different times"
        yield "warning", "clocks", words


def _of_both(acc: Tally, gyro: Tally) -> Iterator[Judgement]:
    if min(acc.count, gyro.count) < MIN_SAMPLES or gyro.all_zero or acc.all_zero:
        return
    if acc.same_numbers(gyro):
        words = "its numbers equal the accelerometer's; check that the right column is read"
        yield "warning", "identical_channels", words
        return
    turning, shaking = gyro.rotations.quantile(0.95), acc.shaking.quantile(0.95)
    words = f"it turns by {plain(turning)} rad/s in the liveliest twentieth of the time"
    # beside an accelerometer in another unit, turning and shaking cannot be compared
    compared = not any(code == "gravity" for _, code, _ in _gravity(acc))
    if turning > ROTATION or (compared and turning > 3 and turning > RATIO * shaking):
        yield "warning", "rotation", f"{words}; that looks like degrees: set the unit of the gyroscope to deg/s"
    elif compared and turning < TINY_ROTATION and shaking > WALKING:
        yield "warning", "rotation", f"{words}, while it shakes by {shaking:.3g} m/s²; set its unit to rad/s"


def _reason(sensors: Mapping[str, Tally], window_s: float, max_gap_s: float) -> str:
    for sensor, name in SENSORS.items():
        if sensor not in sensors or not sensors[sensor].count:
            return f"the {name} has no samples; a window needs both sensors"
    acc, gyro = sensors["acc"], sensors["gyro"]
    for sensor, tally in sensors.items():
        if tally.count > 1 and not MIN_RATE_HZ <= tally.rate_hz <= MAX_RATE_HZ:
            return f"{SENSORS[sensor]}: {_impossible_rate(tally)}"
    if acc.last_s < gyro.first_s or gyro.last_s < acc.first_s:
        spans = f"{acc.first_s:.3f} to {acc.last_s:.3f} s and {gyro.first_s:.3f} to {gyro.last_s:.3f} s"
        return f"accelerometer and gyroscope don't overlap in time ({spans}); check their clocks"
    span_s = min(acc.last_s, gyro.last_s) - max(acc.first_s, gyro.first_s)
    if span_s < window_s:
        return f"both sensors together last {span_s:.2f} s, a window {window_s:.2f} s"
    return (
        f"no stretch of {window_s:.2f} s is without a gap of more than {max_gap_s:g} s (of a slower "
        "sensor, five of its steps) and has one of the labels"
    )
