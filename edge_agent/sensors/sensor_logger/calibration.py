"""Whether a phone's units and signs are those that its settings say, put into words for the phone's user.

The length of gravity tells g from m/s² in any position. Its sign cannot be told from the samples alone (with all
three axes turned round, gravity still turns as the gyroscope says), so it is checked in a known position: the phone
lies flat, screen up, and the user writes the annotation "calibrate".
"""

from __future__ import annotations

import numpy as np

from edge_agent.sensors.sensor_logger.message import SampleBatch
from har_pipeline.recording import STANDARD_GRAVITY
from har_pipeline.units import AccelerationConvention, specific_force

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
        return "calibrate: no gravity came with the annotation; switch on Accelerometer and Gravity, and try again"
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
