"""Whether the device is worn: it isn't when it lies stiller than a person can sit.

A pocket moves with its owner's breath and posture even while its owner sits still; a table doesn't. Over half a minute
that shows in the mean of each window, from which most of the sensor's noise is gone. The spread in a window doesn't
tell: it can be as small as the noise. No window of MotionSense's sitting or standing people is called not worn, of
1,821 that end 26 s of it (2026-11-29), and none of UCI HAR's 57. A device in a moving car counts as worn.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from har_pipeline.recording import STANDARD_GRAVITY

NOT_WORN = "not worn"
"""What a device answers in place of an activity."""
STILL_S = 26.0
"""How long it lies before that is said."""
MAX_SPREAD = 0.013 * STANDARD_GRAVITY
"""Standard deviation of a window's acceleration per axis, m/s²: noisier sensors are never called still."""
MAX_TURN = 0.0016
"""How far the windows' means of the angular velocity may lie apart, rad/s."""
MAX_DRIFT = 0.0012 * STANDARD_GRAVITY
"""How far the windows' means of the acceleration may lie apart, m/s² …"""
NOISES = 6.5
"""… or so many standard errors of such a mean, where the sensor is noisier than that."""


class WearDetector:
    """Takes a device's windows as they come, and tells of each whether somebody wears it."""

    def __init__(self) -> None:
        self._still: deque[tuple[float, np.ndarray, float]] = deque()
        """Begin, means and standard error of the still windows that end now."""
        self._session = -1

    def is_worn(self, x: np.ndarray, start_s: float, session: int = 0) -> bool:
        """Take a window (n, 6), m/s² and rad/s, and return whether the device is worn at its end.

        A single window that moves ends the stillness, and so does a gap in the recording. An image says nothing of it:
        a camera may look at the same scene for hours.
        """
        if x.ndim != 2:
            return True
        x = x.astype(np.float64)
        spread = x[:, :3].std(axis=0).max()
        has_gap = bool(self._still) and not 0 < start_s - self._still[-1][0] <= STILL_S / 2
        if session != self._session or has_gap or not spread <= MAX_SPREAD:
            self._still.clear()
        self._session = session
        if not spread <= MAX_SPREAD:
            return True
        self._still.append((start_s, x.mean(axis=0), spread / np.sqrt(len(x))))
        while start_s - self._still[1 if len(self._still) > 1 else 0][0] >= STILL_S:
            self._still.popleft()
        if start_s - self._still[0][0] < STILL_S:
            return True
        means = np.stack([mean for _, mean, _ in self._still])
        drift, turn = np.ptp(means[:, :3], axis=0).max(), np.ptp(means[:, 3:], axis=0).max()
        noise = NOISES * float(np.median([error for *_, error in self._still]))
        return bool(drift > max(MAX_DRIFT, noise) or turn > MAX_TURN)
