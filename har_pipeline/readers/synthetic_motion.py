"""The true motion of a body segment for the synthetic recordings: angles, shaking and gravity, at 500 Hz."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from har_pipeline.recording import STANDARD_GRAVITY

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
