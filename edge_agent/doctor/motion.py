"""Whether gravity, the gyroscope at rest and the rate are what they should be."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from edge_agent.doctor.finding import Finding, failure, ok, warning
from har_pipeline.recording import STANDARD_GRAVITY

SLOWEST_HZ = 50.0
GRAVITY = (9.3, 10.3)
LIKE_G = (0.8, 1.3)
REST_SPREAD = 0.3
REST_ROTATION = 0.1
"""rad/s: a gyroscope that is further from zero at rest has a large bias."""
MOVE = "lay the device still for ten seconds, and look again"


def check_motion(acc: np.ndarray, gyro: np.ndarray, rate_hz: float | None) -> Iterator[Finding]:
    """Judge acceleration (n, 3) in m/s² and rotation (n, 3) in rad/s."""
    size = np.linalg.norm(acc, axis=1)
    size = size[np.isfinite(size)]
    if not len(size) or not len(gyro):
        yield failure(
            "sensors", "accelerometer or gyroscope gives nothing", "are both sensors there, and the columns right?"
        )
        return
    still = float(size.std()) < REST_SPREAD
    yield from gravity(float(np.median(size)), still=still)
    yield from rotation(float(np.linalg.norm(np.nanmean(gyro, axis=0))), still=still)
    yield rate(rate_hz)


def gravity(size: float, *, still: bool) -> Iterator[Finding]:
    """Judge the length of the acceleration in m/s²; in motion it may be anything."""
    words = f"acceleration is {size:.2f} m/s²{' at rest' if still else ''}"
    if LIKE_G[0] <= size <= LIKE_G[1]:
        yield failure("gravity", f"{words}: that looks like g", "set the unit to g, or the app's to m/s²")
    elif GRAVITY[0] <= size <= GRAVITY[1]:
        yield ok("gravity", words)
    elif still:
        yield failure(
            "gravity", f"{words}; expected {STANDARD_GRAVITY:.2f}", "check unit and scale; is gravity included?"
        )
    else:
        yield warning("gravity", f"{words}, in motion", MOVE)


def rotation(size: float | None, *, still: bool) -> Iterator[Finding]:
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


def rate(rate_hz: float | None) -> Finding:
    """Judge the rate of the slower sensor; None: it is not known."""
    if rate_hz is None:
        return ok("rate", "not known")
    if rate_hz < SLOWEST_HZ:
        return warning("rate", f"{rate_hz:.0f} Hz", f"at least {SLOWEST_HZ:.0f} Hz are wanted; 100 Hz is a good choice")
    return ok("rate", f"{rate_hz:.0f} Hz")
