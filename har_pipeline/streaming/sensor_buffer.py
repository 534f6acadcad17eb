"""The samples of one sensor between their arrival and their use: sorted, deduplicated, cut into runs at gaps."""

from __future__ import annotations

import numpy as np

from har_pipeline.errors import SignalError
from har_pipeline.recording import Recording
from har_pipeline.settings import PipelineSettings

# A burst shares one time stamp among a few samples; more than this is a clock that stands still.
MOST_AT_ONE_TIME = 64
# Seconds since 1970 as float64 are exact to a quarter of a microsecond.
ROUNDING_S = 1e-6


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
        self.codes = np.empty(0, dtype=np.int64)
        self._pending = (self.times, self.values, self.codes)
        self._breaks = np.empty(0, dtype=np.int64)
        self._horizon = -np.inf

    @property
    def newest(self) -> float:
        """Time of the newest sample held, settled or not; -inf when empty."""
        pending = self._pending[0]
        if len(pending):
            return float(pending[-1])
        return float(self.times[-1]) if len(self.times) else -np.inf

    def add(self, recording: Recording, codes: np.ndarray) -> None:
        """Take the samples of `recording`, with label codes (n,), and settle what can no longer be preceded.

        Rows with NaN count as lost samples and are dropped. Raises SignalError on infinite values, a clock that
        stands still, and (late = "refuse") samples older than the reorder window.
        """
        keep = self._usable(recording)
        times = np.concatenate([self._pending[0], np.asarray(recording.times_s, dtype=np.float64)[keep]])
        values = np.concatenate([self._pending[1], np.asarray(recording.values, dtype=np.float64)[keep]])
        codes = np.concatenate([self._pending[2], codes[keep]])
        if not len(times):
            return
        if not (np.diff(times) >= 0).all():
            order = np.argsort(times, kind="stable")
            times, values, codes = times[order], values[order], codes[order]
        self._refuse_standing_clock(times, recording)
        self._horizon = max(self._horizon, float(times[-1]) - self._settings.reorder_s)
        self._settle(times, values, codes, int(np.searchsorted(times, self._horizon, side="left")))

    def settle_all(self) -> None:
        """Make every pending sample final: nothing more comes."""
        times, values, codes = self._pending
        self._settle(times, values, codes, len(times))

    def first_run(self, *, final: bool) -> tuple[int, float, bool]:
        """Samples in the first run, its last time, and whether it is closed by a gap or by the end (`final`)."""
        if len(self._breaks):
            count = int(self._breaks[0])
            return count, float(self.times[count - 1]), True
        return len(self.times), float(self.times[-1]), final

    def drop(self, count: int) -> None:
        """Forget the first `count` settled samples."""
        self.times, self.values, self.codes = self.times[count:], self.values[count:], self.codes[count:]
        breaks = self._breaks - count
        self._breaks = breaks[breaks > 0]

    def drop_before(self, time_s: float) -> None:
        """Forget samples before `time_s` within the first run, but one: it sets the width of the next."""
        limit = int(self._breaks[0]) if len(self._breaks) else len(self.times)
        count = int(np.searchsorted(self.times[:limit], time_s, side="left")) - 1
        if count > 0:
            self.drop(count)

    def _usable(self, recording: Recording) -> np.ndarray | slice:
        """Say which samples count; all of them is a slice, so that nothing is copied for it."""
        times, values = np.asarray(recording.times_s), np.asarray(recording.values)
        if times.ndim != 1 or values.shape != (len(times), 3):
            raise SignalError(
                f"{recording.where()}: expected times (n,) and values (n, 3), got {times.shape} and {values.shape}"
            )
        finite = bool(np.isfinite(times).all() and np.isfinite(values).all())
        if finite and (not len(times) or times.min() >= self._horizon):
            return slice(None)
        infinite = np.isinf(times) | np.isinf(values).any(axis=1)
        if infinite.any():
            at = int(np.argmax(infinite))
            raise SignalError(f"{recording.where(at)}: infinite time or value; remove or repair the row")
        keep: np.ndarray = ~(np.isnan(times) | np.isnan(values).any(axis=1))
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
        if len(times) <= MOST_AT_ONE_TIME:
            return
        standing = times[MOST_AT_ONE_TIME:] == times[:-MOST_AT_ONE_TIME]
        if standing.any():
            raise SignalError(
                f"{recording.where()}: more than {MOST_AT_ONE_TIME} samples carry the same time "
                f"{times[int(np.argmax(standing))]:.6f} s; without true times the recording cannot be resampled "
                "(were the time stamps rounded by an export?)"
            )

    def _settle(self, times: np.ndarray, values: np.ndarray, codes: np.ndarray, count: int) -> None:
        self._pending = (times[count:], values[count:], codes[count:])
        if not count:
            return
        times, values, codes = _merge_equal_times(times[:count], values[:count], codes[:count])
        # The horizon only moves on, so these are later than all that is settled.
        joined = np.concatenate([self.times[-1:], times])
        breaks = np.flatnonzero(np.diff(joined) > self._settings.max_gap_s + ROUNDING_S)
        offset = len(self.times) if len(self.times) else 1
        self._breaks = np.concatenate([self._breaks, breaks + offset])
        self.times = np.concatenate([self.times, times])
        self.values = np.concatenate([self.values, values])
        self.codes = np.concatenate([self.codes, codes])


def _merge_equal_times(
    times: np.ndarray, values: np.ndarray, codes: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Replace samples of one time by their mean: repeated rows collapse, bursts keep what they measured."""
    first = np.concatenate([[True], np.diff(times) > 0])
    if first.all():
        return times, values, codes
    starts = np.flatnonzero(first)
    counts = np.diff(np.append(starts, len(times)))
    return times[starts], np.add.reduceat(values, starts) / counts[:, None], codes[starts]
