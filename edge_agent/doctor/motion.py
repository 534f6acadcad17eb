"""Whether gravity, the gyroscope at rest and the rate are what they should be."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from edge_agent.doctor.check_result import CheckResult, failure, ok, warning
from edge_agent.sensors.health import REST_SPREAD
from har_pipeline import PipelineSettings
from har_pipeline.recording import STANDARD_GRAVITY
from har_pipeline.signals.checks import odd_acceleration
from har_pipeline.streaming.sensor_buffer import bandwidth_hz, is_slow

REST_ROTATION = 0.1
"""rad/s: a gyroscope that is further from zero at rest has a large bias."""
MOVE = "lay the device still for ten seconds, and look again"


def check_motion(acc: np.ndarray, gyro: np.ndarray, rate_hz: float | None) -> Iterator[CheckResult]:
    """Judge acceleration (n, 3) in m/s² and rotation (n, 3) in rad/s."""
    size = np.linalg.norm(acc, axis=1)
    size = size[np.isfinite(size)]
    gyro = gyro[np.isfinite(gyro).all(axis=1)]
    if not len(size) or not len(gyro):
        yield failure(
            "sensors", "accelerometer or gyroscope gives nothing", "are both sensors there, and the columns right?"
        )
        return
    still = float(size.std()) < REST_SPREAD
    yield from gravity(float(np.median(size)), still=still)
    if len(gyro) > 1 and (gyro == gyro[0]).all():
        todo = "is there one, and is the right column read? A model that had one to learn from needs it"
        yield warning("gyroscope", f"it reads the same in all of {len(gyro)} samples", todo)
    else:
        yield from rotation(float(np.linalg.norm(gyro.mean(axis=0))), still=still)
    yield rate(rate_hz)


def gravity(size: float, *, still: bool) -> Iterator[CheckResult]:
    """Judge the length of the acceleration in m/s²; in motion it may be anything."""
    words = f"acceleration is {size:.2f} m/s²{' at rest' if still else ''}"
    odd = odd_acceleration(size, still=still)
    if odd is None:
        yield ok("gravity", words)
    elif still or odd:
        todo = odd or "check unit and scale; is gravity included?"
        yield failure("gravity", f"{words}; expected {STANDARD_GRAVITY:.2f}", todo)
    else:
        yield warning("gravity", f"{words}, in motion", MOVE)


def rotation(size: float | None, *, still: bool) -> Iterator[CheckResult]:
    """Judge the mean rotation in rad/s; None: nothing came."""
    if size is None:
        return
    if not still:
        yield ok("gyroscope", f"{size:.2f} rad/s on average, in motion")
    elif size > REST_ROTATION:
        todo = "check the unit (rad/s, not °/s), or calibrate the gyroscope"
        yield warning("gyroscope", f"{size:.2f} rad/s at rest; expected near 0", todo)
    else:
        yield ok("gyroscope", f"{size:.3f} rad/s at rest")


def rate(rate_hz: float | None) -> CheckResult:
    """Judge the rate of the slower sensor; None: it is not known."""
    if rate_hz is None:
        return ok("rate", "not known")
    usual = PipelineSettings()
    if is_slow(rate_hz, usual):
        words = f"{rate_hz:.0f} Hz: only movements up to {bandwidth_hz(rate_hz, usual):.0f} Hz are kept"
        todo = (
            f"{usual.rate_hz:.0f} Hz or more keep {bandwidth_hz(usual.rate_hz, usual):.0f} Hz; 100 Hz is a good choice"
        )
        return warning("rate", words, todo)
    return ok("rate", f"{rate_hz:.0f} Hz")
