"""Interpolates a sensor that is slower than the grid, by local least squares over band-limited signals.

Between the samples of a slow sensor a plain kernel leaves images (a tone f comes back at rate − f), and under jitter
its sum misses by a third at 0.4 of the rate. Here each grid point t has the weights a of the least mean square error
over signals with the covariance k (Yen, "On nonuniform sampling of bandwidth-limited signals", IRE Transactions on
Circuit Theory 3, 1956; with noise and a mean it is ordinary kriging):

    (K + ε / c) a = k(t_i − t),   y(t) = Σ_i a_i x_i,
    k(τ) = sinc(2 cutoff τ) exp(−(τ / reach)² / 2) + S exp(−(3 τ / reach)² / 2).

The second term says that movement is mostly slow, which carries it over gaps. c is a taper, so that samples enter and
leave smoothly; what the weights lack of a sum of 1 is added along it, so that gravity stays as it is. Measured at
native rates from 12.5 to 40 Hz: tones up to 0.4 of the rate come out within 1.1 percent and images lie 42 dB lower,
both also where times jitter by a fifth of a step; across four steps without samples 1.5 Hz are off by 0.2 percent
at 25 Hz and by 1.5 percent at 12.5 Hz.

ε is larger for samples whose stamps cannot be right (`_noise`), and y leaves the range of the samples in reach by no
more than OVERSHOOT of it. Of one sample in 97 stamped late by 0.9 steps, 25 m/s² became 53 without.

`readings_at` puts one sensor's readings at another's times, such as gravity at those of linear acceleration.
"""

from __future__ import annotations

import numpy as np

CUTOFF, BANDWIDTH_SHARE = 0.42, 0.4
"""Of the native rate: the band that is assumed of the signal, and that in which it comes out right."""
REACH, CELL = 9.0, 0.25
"""In steps of the native rate: how far samples count, and within what time several are averaged to one."""
NOISE, SLOW_PART = 1e-3, 1e3
SHIFTED, CLOSE, CLOSE_BAND = 0.4, 0.6, 0.1
"""In steps: a sample that stands by more than SHIFTED from the middle of its neighbours, and nearer than CLOSE to one,
was stamped late or early; sensors that jitter by a fifth of a step stay below both."""
SLOPE = 10.0
"""How far a value may be off for each step that its time is."""
OVERSHOOT = 0.15
"""Of the range of the samples in reach, how far the signal may leave it: tones between true samples need 0.13."""
BLOCK = 256


def interpolate_at(
    times_s: np.ndarray, values: np.ndarray, grid_s: np.ndarray, rate_hz: float, highest_hz: float
) -> np.ndarray:
    """Evaluate the signal at grid_s (m,) from values (n, C) at strictly increasing times_s (n,) of about rate_hz.

    Every grid point must have a sample within REACH steps. The band ends at CUTOFF × rate_hz, or at highest_hz if
    that is lower. Returns (m, C) float64; each row depends on the samples in its reach and the cells next to these
    alone, to the last bit.
    """
    times, samples = _averaged(times_s, values, rate_hz)
    noise = _noise(times, rate_hz)
    reach_s, cutoff_hz = REACH / rate_hz, min(CUTOFF * rate_hz, highest_hz)
    low = np.searchsorted(times, grid_s - reach_s)
    count = np.searchsorted(times, grid_s + reach_s, "right") - low
    result = np.empty((len(grid_s), values.shape[1]))
    for size in np.unique(count):
        # Systems of one size at a time: padding would change the last bits with the neighbours.
        same = np.flatnonzero(count == size)
        for start in range(0, len(same), BLOCK):
            part = same[start : start + BLOCK]
            index = low[part, None] + np.arange(size)
            weights = _weights(times[index] - grid_s[part, None], noise[index], reach_s, cutoff_hz)
            near = samples[index]
            lowest, highest = near.min(axis=1), near.max(axis=1)
            beyond = OVERSHOOT * (highest - lowest)
            result[part] = np.clip(np.matmul(weights[:, None, :], near)[:, 0], lowest - beyond, highest + beyond)
    return result


def _noise(times_s: np.ndarray, rate_hz: float) -> np.ndarray:
    """Return the noise (n,) that is assumed of each sample: more where its stamp cannot be right.

    A sensor does not take two samples at once: one that stands next to another, and far from that on its other side,
    has a value of another time. Fitted as it stands, it would be a slope that no body has.
    """
    noise = np.full(len(times_s), NOISE)
    steps = np.diff(times_s) * rate_hz
    least, most = np.minimum(steps[:-1], steps[1:]), np.maximum(steps[:-1], steps[1:])
    shifted = np.maximum((most - least) / 2 - SHIFTED, 0.0) * np.clip((CLOSE - least) / CLOSE_BAND, 0.0, 1.0)
    noise[1:-1] += (SLOPE * shifted) ** 2
    return noise


def cell_start(times_s: np.ndarray, index: int, rate_hz: float) -> int:
    """Return the index of the first sample in the cell of sample `index`."""
    cell = np.floor(times_s[index] * (rate_hz / CELL))
    while index and np.floor(times_s[index - 1] * (rate_hz / CELL)) == cell:
        index -= 1
    return index


def _averaged(times_s: np.ndarray, values: np.ndarray, rate_hz: float) -> tuple[np.ndarray, np.ndarray]:
    """Average what lies within one CELL of a step: bursts and faster stretches then cost no more than others.

    A sample counts the less, the less its stamp can be right.
    """
    cells = np.floor(times_s * (rate_hz / CELL))
    first = np.concatenate([[True], np.diff(cells) > 0])
    if first.all():
        return times_s, values
    starts = np.flatnonzero(first)
    shares = NOISE / _noise(times_s, rate_hz)
    wholes = np.add.reduceat(shares, starts)
    # Relative to the first time of a cell: the sum of many seconds since 1970 would lose their fractions.
    late = times_s - np.repeat(times_s[starts], np.diff(np.append(starts, len(times_s))))
    times = times_s[starts] + np.add.reduceat(shares * late, starts) / wholes
    return times, np.add.reduceat(shares[:, None] * values, starts) / wholes[:, None]


def _weights(offsets: np.ndarray, noise: np.ndarray, reach_s: float, cutoff_hz: float) -> np.ndarray:
    """Solve for the weights (M, K) of samples at `offsets` (M, K) in seconds from their grid points."""
    share, phase = offsets / reach_s, 2 * np.pi * cutoff_hz * offsets
    taper = np.maximum(np.cos(np.pi / 2 * share) ** 2, 1e-6)
    sine, cosine = np.sin(phase), np.cos(phase)
    diagonal = np.arange(offsets.shape[1])
    # sin(a − b) by the sines and cosines of a and b: K of them instead of K².
    covariance = sine[:, :, None] * cosine[:, None, :] - cosine[:, :, None] * sine[:, None, :]
    apart = phase[:, :, None] - phase[:, None, :]
    apart[:, diagonal, diagonal] = 1.0
    covariance /= apart
    covariance[:, diagonal, diagonal] = 1.0
    square = (share[:, :, None] - share[:, None, :]) ** 2
    covariance *= np.exp(-0.5 * square)
    covariance += SLOW_PART * np.exp(-4.5 * square)
    covariance[:, diagonal, diagonal] += noise / taper
    target = np.sinc(phase / np.pi) * np.exp(-0.5 * share**2) + SLOW_PART * np.exp(-4.5 * share**2)
    weights: np.ndarray = np.linalg.solve(covariance, target[:, :, None])[:, :, 0]
    weights += (1 - weights.sum(axis=1, keepdims=True)) * taper / taper.sum(axis=1, keepdims=True)
    return weights


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
