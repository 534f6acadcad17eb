"""Counts statistics of one sensor's samples as they pass, in constant memory."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from har_pipeline.recording import MAX_VALUE

AXES = ("x", "y", "z")
BLOCK = 64
STILL = 0.03
"""A block is still where |v| varies by less than this share of its mean, in whatever unit."""
MOVING = 0.1
MIXED = 0.25
"""From a sample to the next but one, signals change by more than to the next (squared; white noise by as much)."""
NEXT_TO = 0.4
"""Steps shorter than this share of the usual one lie between a sample that was stamped late and the next."""
PAUSE = 20.0
"""A step this many times the mean is a pause, not a gap."""


class Histogram:
    """Counts of positive numbers in 32 bins an octave, from 2⁻³⁰ to 2³⁰: quantiles to 1.6 percent, in 15 kB."""

    LOWEST, HIGHEST = -30, 30
    SHIFT = 52 - 5
    FIRST = (1023 + LOWEST) << 5
    BINS = (HIGHEST - LOWEST) << 5

    def __init__(self) -> None:
        self.counts = np.zeros(self.BINS, dtype=np.int64)
        self.sums = np.zeros(self.BINS)

    def add(self, numbers: np.ndarray, *, summed: bool = False) -> None:
        """Count `numbers` (n,) float64, and sum them bin by bin; what is tiny or negative goes to the lowest bin."""
        # The leading bits of a float are its exponent and five bits of its fraction: no logarithm is needed.
        bins = np.ascontiguousarray(numbers).view(np.int64) >> self.SHIFT
        bins -= self.FIRST
        np.clip(bins, 0, self.BINS - 1, out=bins)
        self.counts += np.bincount(bins, minlength=self.BINS)
        if summed:
            self.sums += np.bincount(bins, weights=numbers, minlength=self.BINS)

    @property
    def total(self) -> int:
        """How many numbers were counted."""
        return int(self.counts.sum())

    @cached_property
    def middles(self) -> np.ndarray:
        """The number in the middle of each bin (BINS,); the lowest bin counts as 0."""
        edges = ((np.arange(self.BINS + 1, dtype=np.int64) + self.FIRST) << self.SHIFT).view(np.float64)
        middles: np.ndarray = (edges[:-1] + edges[1:]) / 2
        middles[0] = 0.0
        return middles

    def quantile(self, share: float) -> float:
        """Return the number below which `share` of all lie; NaN of none."""
        if not self.total:
            return float("nan")
        at = int(np.searchsorted(np.cumsum(self.counts), share * self.total))
        return float(self.middles[min(at, self.BINS - 1)])


class Tally:
    """Counts over the sessions of one sensor; the shares and levels are NaN where nothing was counted."""

    def __init__(self) -> None:
        self.rows = self.count = self.unusable = 0
        self.first_s, self.last_s = np.inf, -np.inf
        self.steps, self.sizes, self.still = Histogram(), Histogram(), Histogram()
        self.shaking, self.rotations, self.directions = Histogram(), Histogram(), Histogram()
        self._backward = self._moved = self._repeated = self._frozen = self._zero = self._mixed = 0
        self.finest = np.inf
        """The smallest number of any axis that is not 0, without its sign: a step of a sensor that rounds."""
        self._lowest, self._highest = np.full(3, np.inf), np.full(3, -np.inf)
        self._sums, self._squares = np.zeros(3), np.zeros(3)
        self._session: str | None = None
        self._forget()

    def _forget(self) -> None:
        self._rest = np.empty((3, 0))
        self._time_before: float | None = None

    def add(self, session: str, times_s: np.ndarray, values: np.ndarray) -> None:
        """Count samples at times_s (n,) of values (n, 3); another session's first step is none."""
        if session != self._session:
            self._forget()
            self._session = session
        times, columns = np.asarray(times_s, dtype=np.float64), np.ascontiguousarray(np.asarray(values, np.float64).T)
        if not len(times):
            return
        if not (np.isfinite(times.sum()) and columns.max() <= MAX_VALUE and columns.min() >= -MAX_VALUE):
            usable = np.isfinite(times) & (np.abs(columns) <= MAX_VALUE).all(axis=0)
            self.unusable += int(len(times) - usable.sum())
            times, columns = times[usable], columns[:, usable]
            if not len(times):
                return
        self.rows += len(times)
        self.count += len(times)
        self._count_times(times)
        self._count_values(columns)

    def _count_times(self, times: np.ndarray) -> None:
        steps = np.diff(times) if self._time_before is None else np.diff(times, prepend=self._time_before)
        self._time_before = float(times[-1])
        self._backward += int((steps < 0).sum())
        self.steps.add(steps, summed=True)
        self.first_s, self.last_s = min(self.first_s, float(times.min())), max(self.last_s, float(times.max()))

    def _count_values(self, columns: np.ndarray) -> None:
        np.minimum(self._lowest, columns.min(axis=1), out=self._lowest)
        np.maximum(self._highest, columns.max(axis=1), out=self._highest)
        self._sums += columns.sum(axis=1)
        self._squares += np.einsum("cn,cn->c", columns, columns)
        sizes = np.abs(columns)
        self.finest = min(self.finest, float(sizes.min(initial=np.inf, where=sizes > 0)))
        self._zero += int(np.count_nonzero(~columns.any(axis=0)))
        if self._rest.shape[1]:
            columns = np.concatenate([self._rest, columns], axis=1)
        whole = columns.shape[1] // BLOCK * BLOCK
        self._rest = columns[:, whole:].copy()
        if whole:
            self._count_blocks(columns[:, :whole])

    def _count_blocks(self, columns: np.ndarray) -> None:
        blocks = columns.reshape(3, -1, BLOCK)
        square = np.einsum("cn,cn->n", columns, columns)
        size = np.sqrt(square)
        self.sizes.add(size)
        mean, power = size.reshape(-1, BLOCK).mean(axis=1), square.reshape(-1, BLOCK).mean(axis=1)
        spread = np.sqrt(np.maximum(power - mean**2, 0.0))
        self.still.add(mean[spread < STILL * mean])
        self.shaking.add(spread)
        self.rotations.add(np.sqrt(power))
        direction = np.sqrt((blocks.mean(axis=2) ** 2).sum(axis=0))
        self.directions.add(direction[power > 0] / np.sqrt(power[power > 0]))
        moving = spread > MOVING * mean
        one_on, two_on = blocks[:, :, 1:-1] - blocks[:, :, :-2], blocks[:, :, 2:] - blocks[:, :, :-2]
        changed, changed_by_two = (np.einsum("cbn,cbn->b", change, change) for change in (one_on, two_on))
        self._mixed += int((changed_by_two < MIXED * changed).sum())
        same = (blocks[:, :, 1:] == blocks[:, :, :-1]).all(axis=0).sum(axis=1)
        self._frozen += int((same == BLOCK - 1).sum())
        self._moved += int(moving.sum()) * (BLOCK - 1)
        self._repeated += int(same[moving].sum())

    @property
    def peak(self) -> float:
        """The largest number of any axis, without its sign."""
        return float(max(self._highest.max(), -self._lowest.min()))

    @property
    def all_zero(self) -> bool:
        """Whether nothing but zeros came."""
        return self.count > 0 and not (self._lowest.any() or self._highest.any())

    @property
    def constant(self) -> list[bool]:
        """Whether each axis never changed."""
        return [bool(same) for same in self._lowest == self._highest]

    @property
    def _mean_step(self) -> float:
        """Mean step in seconds without pauses: a burst counts for the time that it covers."""
        counts, sums = self.steps.counts.astype(np.float64), self.steps.sums.copy()
        sums[0] = 0.0  # steps backwards
        for _ in range(3):
            pauses = self.steps.middles > PAUSE * sums.sum() / max(counts.sum(), 1.0)
            counts[pauses], sums[pauses] = 0.0, 0.0
        return float(sums.sum() / max(counts.sum(), 1.0))

    @property
    def rate_hz(self) -> float:
        """Samples a second, pauses left out; infinite where time stands still."""
        step = self._mean_step
        return 1 / step if step > 0 else float("inf")

    @property
    def covered_s(self) -> float:
        """For how long samples came, pauses left out."""
        return self.count * self._mean_step

    @property
    def zero_share(self) -> float:
        """The share of samples whose three numbers are 0."""
        return self._zero / max(self.count, 1)

    @property
    def mixed_share(self) -> float:
        """The share of blocks in which every second sample goes on, and the ones between are of another sensor."""
        return self._mixed / max(self.sizes.total // BLOCK, 1)

    @property
    def frozen_share(self) -> float:
        """The share of blocks in which nothing at all changes."""
        return self._frozen / max(self.sizes.total // BLOCK, 1)

    @property
    def lost_share(self) -> float:
        """The share of samples that is missing between the others; 0 where steps are too irregular to tell."""
        steps, counts, mean = self.steps.middles, self.steps.counts.astype(np.float64), self._mean_step
        usual = self.steps.quantile(0.5)
        if self.steps.quantile(0.1) < 0.5 * usual:
            usual = 3 * mean  # samples come in bursts
        gaps = (steps > 1.5 * usual) & (steps <= PAUSE * 5 * mean)
        missing = float(counts[gaps] @ (steps[gaps] / usual - 1)) if usual > 0 else 0.0
        return missing / max(missing + self.steps.total, 1)

    @property
    def equal_times_share(self) -> float:
        """The share of samples at the time of the one before."""
        return (int(self.steps.counts[0]) - self._backward) / max(self.steps.total, 1)

    @property
    def shifted_share(self) -> float:
        """The share of samples that stand next to another after nearly two steps; 0 where samples come in bursts."""
        usual, steps, counts = self.steps.quantile(0.5), self.steps.middles, self.steps.counts
        if not usual > 0 or self.steps.quantile(0.1) < 0.5 * usual:
            return 0.0
        near = int(counts[(steps > 0) & (steps < NEXT_TO * usual)].sum())
        far = int(counts[(steps > (2 - NEXT_TO) * usual) & (steps < 2 * usual)].sum())
        return min(near, far) / max(self.steps.total, 1)

    @property
    def backward_share(self) -> float:
        """The share of samples that are older than the one before."""
        return self._backward / max(self.steps.total, 1)

    @property
    def repeated_share(self) -> float:
        """The share of samples in motion that equal the one before in all three axes."""
        return self._repeated / max(self._moved, 1)

    @property
    def still_level(self) -> float:
        """Median of |v| over still blocks; NaN where there are hardly any."""
        enough = self.still.total >= max(2, 0.02 * self.directions.total)
        return self.still.quantile(0.5) if enough else float("nan")

    @property
    def steadiness(self) -> float:
        """The share of |v| that keeps its direction within a block: near 1 under gravity, near 0 without."""
        return self.directions.quantile(0.5)

    def identical_axes(self) -> list[tuple[str, str]]:
        """Return the pairs of axes with the same numbers, other than constant ones."""
        signs = self._signatures()
        pairs = [(0, 1), (1, 2), (0, 2)]
        same = [(i, j) for i, j in pairs if np.allclose(signs[i], signs[j], 1e-9, 0) and not self.constant[i]]
        return [(AXES[i], AXES[j]) for i, j in same]

    def same_numbers(self, other: Tally) -> bool:
        """Whether another sensor has given the same numbers."""
        return self.count == other.count and bool(np.allclose(self._signatures(), other._signatures(), 1e-9, 0))

    def _signatures(self) -> np.ndarray:
        return np.stack([self._lowest, self._highest, self._sums, self._squares], axis=1)
