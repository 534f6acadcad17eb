"""One sensor's readings at another's times, such as gravity at those of an accelerometer that leaves it out."""

from __future__ import annotations

import numpy as np

MAX_GAP_S = 0.1
"""A reading further away than this from a time says nothing of it: as long as a gap that breaks windows."""


def readings_at(
    times_s: np.ndarray, known_s: np.ndarray, known: np.ndarray, max_gap_s: float = MAX_GAP_S
) -> tuple[np.ndarray, np.ndarray]:
    """Interpolate readings `known` (m, 3) at the sorted times known_s (m,) to times_s (n,), linearly.

    Returns values (n, 3), NaN where the nearest reading is further away than max_gap_s, and where it is near (n,).
    """
    if not len(known_s):
        return np.full((len(times_s), known.shape[1]), np.nan), np.zeros(len(times_s), dtype=bool)
    near = _distance(times_s, known_s) <= max_gap_s
    found = np.stack([np.interp(times_s, known_s, known[:, axis]) for axis in range(known.shape[1])], axis=1)
    found[~near] = np.nan
    return found, near


def _distance(times_s: np.ndarray, known_s: np.ndarray) -> np.ndarray:
    right = np.clip(np.searchsorted(known_s, times_s), 0, len(known_s) - 1)
    left = np.clip(right - 1, 0, len(known_s) - 1)
    distance: np.ndarray = np.minimum(np.abs(known_s[right] - times_s), np.abs(times_s - known_s[left]))
    return distance
