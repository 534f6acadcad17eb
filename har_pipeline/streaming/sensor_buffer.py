"""Buffers one sensor's samples between arrival and use: sorted, deduplicated, cut into runs at gaps.

A run has one native rate, measured over its first RATE_SPAN_S. From it follow the filter and the longest gap: a sensor
of 0.9 × the grid's rate and more has the settings' own, a slower one is interpolated in the band that it holds and
bridges gaps of GAP_STEPS steps. With `anti_alias="downsampling"` the border is 1.1 × the grid's rate. A run ends where
a gap is longer, or where PIECE_S later on have another rate.

Samples that come in bursts, each under the one stamp of its arrival, are laid out evenly since the stamp before it;
other samples of one stamp become their mean.
"""

from __future__ import annotations

import numpy as np

from har_pipeline.errors import SignalError
from har_pipeline.recording import MAX_VALUE, Recording
from har_pipeline.settings import PipelineSettings
from har_pipeline.streaming.interpolate import BANDWIDTH_SHARE, CELL, REACH, cell_start, interpolate_at
from har_pipeline.streaming.resample import low_pass_at

# A burst shares one time stamp among a few samples; more than this is a clock that stands still.
MAX_AT_ONE_TIME = 64
# Seconds since 1970 as float64 are exact to a quarter of a microsecond.
ROUNDING_S = 1e-6
RATE_SPAN_S, PIECE_S = 2.0, 10.0
SLOW = {"always": 0.9, "downsampling": 1.1}
"""Of the grid's rate: below it a sensor is interpolated, for each `anti_alias`."""
GAP_STEPS = 5.0
MIN_RATE_HZ = 5.0
MIN_STEPS = 8
"""Fewer tell no rate."""
PAUSE_S, PAUSE_STEPS = 1.0, 10.0
ANOTHER_RATE = 1.5
BURST, BURST_STEPS, BURSTS, BURST_GROWTH = 3, 1.5, 4, 1.25
"""A burst is so many samples under one stamp, more than so many steps of the grid after the stamp before. From the
fourth in a row they are laid out, until a stamp has one sample. Steps grow by so much at most: lost samples stretch
none."""
HOLD_S = 2.0
"""A number counts for the samples after it until the next, at most for so long: a heart rate comes once a second."""

MARK = np.dtype([("code", np.int64), ("number", np.float64)])
"""What is annotated of a sample: the index of its label, or -1, and its number, or NaN."""


class SensorBuffer:
    """Pending samples may still be sorted in; settled ones are final and lie in runs without a long gap.

    The settled sequence is a function of the sorted samples alone, whatever the chunks they came in.
    """

    def __init__(self, settings: PipelineSettings) -> None:
        self._settings = settings
        self.dropped = 0
        self.clear()

    def clear(self) -> None:
        """Forget everything, as between two sessions."""
        self.times = np.empty(0)
        self.values = np.empty((0, 3))
        self.marks = np.empty(0, dtype=MARK)
        self._pending = (self.times, self.values, self.marks)
        self._horizon = -np.inf
        self._number, self._number_s = np.nan, -np.inf
        self._stamp_s, self._bursts, self._burst_step_s = -np.inf, 0, np.inf
        # Of closed runs, the index after their last sample and their rate; then what is known of the open one.
        self._breaks: list[int] = []
        self._rates: list[float] = []
        self._open_run(0)

    @property
    def newest(self) -> float:
        """Time of the newest sample held, settled or not; -inf when empty."""
        pending = self._pending[0]
        if len(pending):
            return float(pending[-1])
        return float(self.times[-1]) if len(self.times) else -np.inf

    def recorded_s(self, since_s: float) -> float:
        """Return how many seconds of samples later than `since_s` are held; a step that is a pause counts PAUSE_S."""
        times = np.concatenate([self.times, self._pending[0]])
        return float(np.minimum(np.diff(times[times > since_s]), PAUSE_S).sum())

    def add(self, recording: Recording, marks: np.ndarray) -> None:
        """Take the samples of `recording`, with MARK (n,) of each, and settle what can no longer be preceded.

        Rows with NaN count as lost samples and are dropped. Raises SignalError on a clock that stands still, and
        (late = "refuse"; else dropped too) values beyond MAX_VALUE and samples older than the reorder window.
        """
        keep = self._usable(recording)
        times = np.concatenate([self._pending[0], np.asarray(recording.times_s, dtype=np.float64)[keep]])
        values = np.concatenate([self._pending[1], np.asarray(recording.values, dtype=np.float64)[keep]])
        marks = np.concatenate([self._pending[2], marks[keep]])
        if not len(times):
            return
        if not (np.diff(times) >= 0).all():
            order = np.argsort(times, kind="stable")
            times, values, marks = times[order], values[order], marks[order]
        self._refuse_standing_clock(times, recording)
        self._horizon = max(self._horizon, float(times[-1]) - self._settings.reorder_s)
        self._settle(times, values, marks, int(np.searchsorted(times, self._horizon, side="left")))
        self._divide(final=False)

    def settle_all(self) -> None:
        """Make every pending sample final: nothing more comes."""
        times, values, marks = self._pending
        self._settle(times, values, marks, len(times))
        self._divide(final=True)

    def first_run(self, *, final: bool) -> tuple[int, float, bool]:
        """Return samples in the first run, its last time, and whether it is closed by a gap or by the end (`final`).

        Of a slow sensor's open run it is the last time of a cell that no later sample can change.
        """
        if self._breaks:
            count = self._breaks[0]
            return count, float(self.times[count - 1]), True
        last = len(self.times) - 1
        if not final and self._is_slow(self.rate_hz):
            last = max(cell_start(self.times, last, self.rate_hz) - 1, 0)
        return len(self.times), float(self.times[last]), final

    @property
    def rate_hz(self) -> float:
        """Native rate of the first run: infinite where a few samples are all, 0 while it is not yet measured."""
        return self._rates[0] if self._rates else self._rate_hz

    @property
    def reach_s(self) -> float:
        """How far from a grid point samples of the first run still count."""
        return (REACH + CELL) / self.rate_hz if self._is_slow(self.rate_hz) else self._settings.half_width_s

    def at(self, grid_s: np.ndarray, count: int) -> np.ndarray:
        """Filter the first `count` samples, all of the first run, to values (m, 3) float64 at grid_s (m,)."""
        times, values, settings = self.times[:count], self.values[:count], self._settings
        if self._is_slow(self.rate_hz):
            return interpolate_at(times, values, grid_s, self.rate_hz, settings.cutoff_hz)
        return low_pass_at(times, values, grid_s, settings)

    def drop(self, count: int) -> None:
        """Forget the first `count` settled samples."""
        self.times, self.values, self.marks = self.times[count:], self.values[count:], self.marks[count:]
        self._breaks = [position - count for position in self._breaks if position > count]
        self._rates = self._rates[len(self._rates) - len(self._breaks) :]
        self._start -= count
        self._looked -= count
        self._piece -= count

    def drop_before(self, time_s: float) -> None:
        """Forget samples before `time_s` within the first run, but one, or its cell and one: the next depends on it."""
        limit = self._breaks[0] if self._breaks else len(self.times)
        count = int(np.searchsorted(self.times[:limit], time_s, side="left")) - 1
        if count > 0 and self._is_slow(self.rate_hz):
            count = cell_start(self.times, count, self.rate_hz) - 1
        if count > 0:
            self.drop(count)

    def _usable(self, recording: Recording) -> np.ndarray | slice:
        """Say which samples count; all of them is a slice, so that nothing is copied for it."""
        times, values = np.asarray(recording.times_s), np.asarray(recording.values)
        if times.ndim != 1 or values.shape != (len(times), 3):
            raise SignalError(
                f"{recording.where()}: expected times (n,) and values (n, 3), got {times.shape} and {values.shape}"
            )
        for what, numbers in (("times", times), ("values", values)):
            if numbers.dtype.kind not in "fiub":
                raise SignalError(
                    f"{recording.where()}: {what} are {numbers.dtype}; expected numbers, times in seconds: of dates, "
                    "(times - times[0]) / numpy.timedelta64(1, 's')"
                )
        if not len(times):
            return slice(None)
        sound = bool(np.isfinite(times).all() and values.max() <= MAX_VALUE and values.min() >= -MAX_VALUE)
        if sound and times.min() >= self._horizon:
            return slice(None)
        wild = np.isinf(times) | (np.abs(values) > MAX_VALUE).any(axis=1)
        if wild.any() and self._settings.late == "refuse":
            at = int(np.argmax(wild))
            raise SignalError(
                f"{recording.where(at)}: infinite time or value, or one beyond {MAX_VALUE:,.0f} m/s² or rad/s; "
                "remove or repair the row, or correct unit and scale"
            )
        keep: np.ndarray = ~(wild | np.isnan(times) | np.isnan(values).any(axis=1))
        late = keep & (times < self._horizon)
        if late.any() and self._settings.late == "refuse":
            at = int(np.argmax(late))
            raise SignalError(
                f"{recording.where(at)}: the sample at {times[at]:.6f} s comes after later ones were already used; "
                f"sort the recording, start a new session where a clock restarts, or raise reorder_s (now "
                f"{self._settings.reorder_s} s)"
            )
        keep &= ~late
        self.dropped += int(len(times) - keep.sum())
        return keep

    def _refuse_standing_clock(self, times: np.ndarray, recording: Recording) -> None:
        if len(times) <= MAX_AT_ONE_TIME:
            return
        standing = times[MAX_AT_ONE_TIME:] == times[:-MAX_AT_ONE_TIME]
        if standing.any():
            raise SignalError(
                f"{recording.where()}: more than {MAX_AT_ONE_TIME} samples carry the same time "
                f"{times[int(np.argmax(standing))]:.6f} s; without true times the recording cannot be resampled "
                "(were the time stamps rounded by an export?)"
            )

    def _settle(self, times: np.ndarray, values: np.ndarray, marks: np.ndarray, count: int) -> None:
        self._pending = (times[count:], values[count:], marks[count:])
        if not count:
            return
        settled = times[:count]
        if self._bursts or not (np.diff(settled, prepend=self._stamp_s) > 0).all():
            settled = self._spread_bursts(settled, values[:count])
        self._stamp_s = float(times[count - 1])
        held = self._hold(settled, marks[:count])
        times, values, marks = _merge_equal_times(settled, values[:count], held)
        # The horizon only moves on, so these are later than all that is settled.
        self.times = np.concatenate([self.times, times])
        self.values = np.concatenate([self.values, values])
        self.marks = np.concatenate([self.marks, marks])

    def _spread_bursts(self, times: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Lay the samples of each burst out over the time since the stamp before; others keep their times (n,)."""
        starts = np.flatnonzero(np.diff(times, prepend=-np.inf) > 0)
        passed_s, counts = np.diff(times[starts], prepend=self._stamp_s), np.diff(np.append(starts, len(times)))
        # Equal rows are one row written again, unless bursts are under way: then the sensor is at rest.
        ranges = np.ptp(np.stack([np.maximum.reduceat(values, starts), np.minimum.reduceat(values, starts)]), axis=0)
        bursts = (counts >= BURST) & (passed_s > BURST_STEPS / self._settings.rate_hz) & (ranges > 0).any(axis=1)
        spread_times, latest = times.copy(), -1
        for group in np.flatnonzero((counts > 1) & (passed_s <= PAUSE_S)).tolist():
            if group != latest + 1:
                self._bursts, self._burst_step_s = 0, np.inf
            self._bursts += int(bursts[group])
            if self._bursts >= BURSTS:
                step_s = float(min(passed_s[group] / counts[group], BURST_GROWTH * self._burst_step_s))
                self._burst_step_s, first = step_s, starts[group]
                spread_times[first : first + counts[group]] -= step_s * np.arange(counts[group])[::-1]
            latest = group
        if latest != len(starts) - 1:
            self._bursts, self._burst_step_s = 0, np.inf
        return spread_times

    def _hold(self, times: np.ndarray, marks: np.ndarray) -> np.ndarray:
        """Put the last known number in place of unknown ones, for HOLD_S."""
        known = np.flatnonzero(~np.isnan(marks["number"]))
        if len(known) == len(marks) or (not len(known) and np.isnan(self._number)):
            if len(known):
                self._number, self._number_s = float(marks["number"][-1]), float(times[-1])
            return marks
        numbers = np.concatenate([[self._number], marks["number"][known]])
        since_s = np.concatenate([[self._number_s], times[known]])
        last = np.searchsorted(known, np.arange(len(marks)), side="right")
        marks = marks.copy()
        marks["number"] = np.where(times - since_s[last] <= HOLD_S, numbers[last], np.nan)
        self._number, self._number_s = float(numbers[-1]), float(since_s[-1])
        return marks

    def _is_slow(self, rate_hz: float) -> bool:
        return is_slow(rate_hz, self._settings)

    def _open_run(self, start: int) -> None:
        """Begin a run at sample `start`; gaps were looked for up to it, and a piece for the rate begins there."""
        self._start = self._looked = self._piece = start
        self._piece_s: float | None = None
        self._rate_hz = 0.0

    def _close_run(self, end: int) -> None:
        self._breaks.append(end)
        self._rates.append(self._rate_hz)
        self._open_run(end)

    def _divide(self, *, final: bool) -> None:
        """Cut the settled samples into runs, as far as their rates can be known; a function of the samples alone."""
        while self._start < len(self.times):
            if not self._rate_hz and not self._measure(final=final):
                return
            end = int(np.searchsorted(self.times, float(self._piece_s or 0.0) + PIECE_S))
            longest_s = self._settings.max_gap_s
            if self._is_slow(self._rate_hz):
                longest_s = max(longest_s, GAP_STEPS / self._rate_hz)
            gaps = np.flatnonzero(np.diff(self.times[self._looked : end + 1]) > longest_s + ROUNDING_S)
            if len(gaps):
                self._close_run(self._looked + int(gaps[0]) + 1)
                continue
            self._looked = min(end, len(self.times) - 1)
            if end == len(self.times):
                return
            self._look_at_piece(end)

    def _measure(self, *, final: bool) -> bool:
        """Measure the open run's rate over its first RATE_SPAN_S; False while these have not come."""
        start_s = float(self.times[self._start])
        end = int(np.searchsorted(self.times, start_s + RATE_SPAN_S))
        if end == len(self.times) and not final:
            return False
        self._rate_hz, self._piece_s = native_rate(self.times[self._start : end]), start_s
        return True

    def _look_at_piece(self, end: int) -> None:
        """Close the run at sample `end`, where PIECE_S are over, if they had another rate, and another filter."""
        rate_hz = (end - self._piece) / float(self.times[end] - (self._piece_s or 0.0))
        slow = self._is_slow(rate_hz) or self._is_slow(self._rate_hz)
        if slow and not 1 / ANOTHER_RATE < rate_hz / self._rate_hz < ANOTHER_RATE:
            self._close_run(end)
        else:
            self._piece, self._piece_s = end, float(self.times[end])


def is_slow(rate_hz: float, settings: PipelineSettings) -> bool:
    """Whether a sensor of this native rate is interpolated."""
    return rate_hz < SLOW[settings.anti_alias] * settings.rate_hz


def bandwidth_hz(rate_hz: float, settings: PipelineSettings) -> float:
    """Return up to which frequency windows hold what a sensor of this native rate has measured."""
    if is_slow(rate_hz, settings):
        return min(BANDWIDTH_SHARE * rate_hz, settings.cutoff_hz)
    # Half the transition of a Kaiser window of 60 dB: 7 Hz at 0.13 s.
    return max(settings.cutoff_hz - 0.91 / settings.half_width_s, 0.0)


def native_rate(times_s: np.ndarray) -> float:
    """Return the samples a second of increasing times (n,), gaps left out; infinite where they are too few to tell."""
    steps = np.diff(times_s)
    steps = steps[steps <= PAUSE_S]
    for _ in range(3):
        if len(steps) < MIN_STEPS:
            return float("inf")
        steps = steps[steps <= PAUSE_STEPS * steps.mean()]
    return max(float(1 / steps.mean()), MIN_RATE_HZ)


def _merge_equal_times(
    times: np.ndarray, values: np.ndarray, marks: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Replace samples of one time by their mean: repeated rows collapse, bursts keep what they measured."""
    first = np.concatenate([[True], np.diff(times) > 0])
    if first.all():
        return times, values, marks
    starts = np.flatnonzero(first)
    counts = np.diff(np.append(starts, len(times)))
    return times[starts], np.add.reduceat(values, starts) / counts[:, None], marks[starts]
