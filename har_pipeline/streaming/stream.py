"""One client's causal stream: raw samples of either sensor in any chunks go in, finished windows come out.

Batch preparation and a live device push through this same class. A segment is where a run of the accelerometer
and a run of the gyroscope overlap; its grid starts at the later of the two starts, so that nothing depends on how
the stream was cut. A window is finished `half_width_s` + `reorder_s` after its last moment.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gaitway.errors import unknown_class
from har_pipeline.errors import SettingsError, SignalError
from har_pipeline.recording import UNLABELLED, Categorical, Recording
from har_pipeline.settings import PipelineSettings
from har_pipeline.signals.checks import Finding, SignalChecks
from har_pipeline.streaming.resample import positions
from har_pipeline.streaming.sensor_buffer import MARK, ROUNDING_S, SensorBuffer

log = logging.getLogger(__name__)

JUDGE_EVERY = 1000
"""Samples, after which a stream's samples are judged again."""
NO_LABEL = -1
UNKNOWN = -2


class Window(NamedTuple):
    """x (window, 6) float32 in m/s² and rad/s; y an index into the labels, or -1; session counts segments.

    number is the mean of its samples' numbers, NaN where fewer than `label_share` of them have one.
    """

    x: np.ndarray
    y: int
    start_s: float
    session: int
    number: float = math.nan


class StreamPipeline:
    """Turns the recordings of one client into windows; sessions come one after another, never interleaved.

    Within a session the sensors may come in any chunks, also one whole sensor before the other. For sorted input
    the windows are the same for every chunking (within rounding of float32).

    `report` is called once for each kind of trouble with the samples: wrong units, lost numbers, one sensor alone, and
    whatever else `signals.checks` finds; None where the caller checks them.
    """

    def __init__(
        self, settings: PipelineSettings, labels: tuple[str, ...], report: Callable[[str], None] | None = log.warning
    ) -> None:
        self.settings = settings
        self.labels = labels
        self._sensors = {"acc": SensorBuffer(settings), "gyro": SensorBuffer(settings)}
        self._session: str | None = None
        self._segment = -1
        self._begin_s: float | None = None
        self._rows = np.empty((0, 6), dtype=np.float32)
        self._watch = None if report is None else _Watch(settings, report)

    @property
    def dropped(self) -> int:
        """Samples left out so far: rows with NaN, and late ones where the settings say so."""
        return sum(sensor.dropped for sensor in self._sensors.values())

    def push(self, recording: Recording) -> list[Window]:
        """Take a recording or a chunk of one and return the windows that it completes, oldest first.

        Another session name ends the session before. Raises SignalError (broken times or values, with file and
        line) and SettingsError (an activity that is not among the labels, an unknown sensor).
        """
        if recording.sensor not in self._sensors:
            raise SettingsError(f"{recording.where()}: sensor {recording.sensor!r}; expected 'acc' or 'gyro'")
        finished = self.flush() if recording.session != self._session else []
        self._session = recording.session
        self._sensors[recording.sensor].add(recording, marks_of(recording, self.labels))
        finished += self._advance(final=False)
        if self._watch is not None:
            self._watch.add(recording, len(finished))
        self._check_lag(recording)
        return finished

    @property
    def buffered(self) -> tuple[int, int]:
        """How many samples of the fuller sensor, and how many resampled rows, are in memory."""
        return max(len(sensor.times) for sensor in self._sensors.values()), len(self._rows)

    def flush(self) -> list[Window]:
        """End the session: nothing more comes for it. Returns the windows that were still waiting."""
        for sensor in self._sensors.values():
            sensor.settle_all()
        finished = self._advance(final=True)
        self.discard()
        if self._watch is not None:
            self._watch.end(len(finished))
        return finished

    def discard(self) -> None:
        """End the session, and give up the windows that were still waiting."""
        for sensor in self._sensors.values():
            sensor.clear()
        self._begin_s = self._session = None

    def _advance(self, *, final: bool) -> list[Window]:
        finished: list[Window] = []
        while all(len(sensor.times) for sensor in self._sensors.values()):
            if self._begin_s is None and not self._find_segment(final):
                break
            finished += self._extend_segment(final)
            if self._begin_s is not None:
                break
        return finished

    def _find_segment(self, final: bool) -> bool:
        """Begin a segment where the first runs of both sensors overlap; drop runs that end before the other begins."""
        sensors = tuple(self._sensors.values())
        while all(len(sensor.times) and sensor.rate_hz for sensor in sensors):
            start = max(float(sensor.times[0]) for sensor in sensors)
            runs = [sensor.first_run(final=final) for sensor in sensors]
            early = [i for i, (_, end, _) in enumerate(runs) if end < start]
            if not early:
                self._begin_s = start
                self._segment += 1
                self._next = self._origin = self._window_start = 0
                self._rows = np.empty((0, 6), dtype=np.float32)
                self._marks = np.empty(0, dtype=MARK)
                return True
            count, _, closed = runs[early[0]]
            if not closed:
                return False
            sensors[early[0]].drop(count)
        return False

    def _extend_segment(self, final: bool) -> list[Window]:
        """Compute every grid point of the segment that no later sample can change; end it if a run ended."""
        begin_s, rate_hz = float(self._begin_s or 0.0), self.settings.rate_hz
        reach_s = {name: sensor.reach_s for name, sensor in self._sensors.items()}
        runs = {name: sensor.first_run(final=final) for name, sensor in self._sensors.items()}
        # An open run must reach beyond the kernel: then the neighbour of its last sample in reach is known too.
        limit = min(
            end + ROUNDING_S if closed else end - reach_s[name] - ROUNDING_S for name, (_, end, closed) in runs.items()
        )
        stop = max(self._next, int(np.floor((limit - begin_s) * rate_hz)) + 1)
        grid = begin_s + np.arange(self._next, stop) / rate_hz
        finished = self._add_rows(grid, {name: run[0] for name, run in runs.items()}) if len(grid) else []
        self._next = stop
        next_s = begin_s + stop / rate_hz
        ended = [name for name, (_, end, closed) in runs.items() if closed and next_s > end + ROUNDING_S]
        for name, sensor in self._sensors.items():
            if name in ended:
                sensor.drop(runs[name][0])
            else:
                sensor.drop_before(next_s - reach_s[name] - 2 / rate_hz)
        if ended:
            self._begin_s = None
        return finished

    def _add_rows(self, grid: np.ndarray, counts: dict[str, int]) -> list[Window]:
        rows = np.empty((len(grid), 6), dtype=np.float32)
        for name, columns in (("acc", slice(0, 3)), ("gyro", slice(3, 6))):
            rows[:, columns] = self._sensors[name].at(grid, counts[name])
        acc, count = self._sensors["acc"], counts["acc"]
        right = np.clip(positions(acc.times[:count], grid), 1, max(count - 1, 1))
        left = right - 1
        right = np.minimum(right, count - 1)
        nearest_sample = np.where(grid - acc.times[left] <= acc.times[right] - grid, left, right)
        self._rows = np.concatenate([self._rows, rows])
        self._marks = np.concatenate([self._marks, acc.marks[nearest_sample]])
        return self._cut_windows()

    def _cut_windows(self) -> list[Window]:
        length, begin_s = self.settings.window, float(self._begin_s or 0.0)
        finished: list[Window] = []
        while (at := self._window_start - self._origin) + length <= len(self._rows):
            marks = self._marks[at : at + length]
            label = majority_label(marks["code"], self.settings.label_share)
            if label != NO_LABEL or self.settings.keep_unlabelled:
                number = mean_number(marks["number"], self.settings.label_share)
                start_s = begin_s + self._window_start / self.settings.rate_hz
                finished.append(Window(self._rows[at : at + length].copy(), label, start_s, self._segment, number))
            self._window_start += self.settings.stride
        used = min(at, len(self._rows))
        self._rows, self._marks = self._rows[used:], self._marks[used:]
        self._origin += used
        return finished

    def _check_lag(self, recording: Recording) -> None:
        ahead = self._sensors[recording.sensor]
        behind = self._sensors["gyro" if recording.sensor == "acc" else "acc"]
        if not len(ahead.times) or ahead.newest - behind.newest <= self.settings.max_lag_s:
            return
        lag = ahead.recorded_s(behind.newest)
        if lag > self.settings.max_lag_s:
            raise SignalError(
                f"{recording.where()}: the other sensor is {lag:.0f} s behind {recording.sensor} (at most "
                f"{self.settings.max_lag_s:.0f} s are kept); push both in step, or flush the session"
            )


class _Watch:
    """Reports what is odd about the samples of a stream, each kind once."""

    def __init__(self, settings: PipelineSettings, report: Callable[[str], None]) -> None:
        self._settings, self._report, self._checks = settings, report, SignalChecks()
        self._client: str | None = None
        self._samples = self._windows = 0
        self._reported: set[tuple[str, str]] = set()

    def add(self, recording: Recording, windows: int) -> None:
        """Take note of samples, and of how many windows came of them."""
        self._checks.add(recording)
        self._client, self._windows = recording.client, self._windows + windows
        self._samples += len(recording.times_s)
        if self._samples >= JUDGE_EVERY:
            self._samples = 0
            self._judge()

    def end(self, windows: int) -> None:
        """Judge at the end of a session, and say why no window has come so far."""
        self._windows += windows
        self._judge()
        if self._client is not None and not self._windows:
            self._tell(self._checks.no_windows(self._client, self._settings.window_s, self._settings.max_gap_s))

    def _judge(self) -> None:
        for finding in self._checks.findings():
            if finding.severity != "note":
                self._tell(finding)

    def _tell(self, finding: Finding) -> None:
        if (finding.code, finding.sensor) not in self._reported:
            self._reported.add((finding.code, finding.sensor))
            self._report(f"{finding.where}: {finding.message}")


def marks_of(recording: Recording, labels: tuple[str, ...]) -> np.ndarray:
    """Return what is annotated of each sample (n,) MARK.

    Raises SettingsError for an unknown activity, and SignalError where there is not one number a sample.
    """
    marks = np.empty(len(recording.times_s), dtype=MARK)
    marks["code"], marks["number"] = encode_activity(recording, labels), math.nan
    if recording.number is not None:
        if np.shape(recording.number) != marks.shape:
            raise SignalError(
                f"{recording.where()}: {len(marks)} samples but numbers of shape {np.shape(recording.number)}"
            )
        marks["number"] = recording.number
    return marks


def encode_activity(recording: Recording, labels: tuple[str, ...]) -> np.ndarray:
    """Map the activity of each sample (n,) to its index in `labels`, -1 where it is unlabelled.

    Raises SettingsError for a name that is neither.
    """
    count = len(recording.times_s)
    if isinstance(recording.activity, Categorical):
        return _encode_words(recording, recording.activity, labels)
    names = np.asarray(recording.activity)
    if names.ndim == 0:
        return np.full(count, _code(str(names), recording, 0, labels), dtype=np.int64)
    if names.shape != (count,):
        raise SignalError(f"{recording.where()}: {count} samples but activities of shape {names.shape}")
    if not count:
        return np.empty(0, dtype=np.int64)
    # Labels come in long stretches: only the first sample of each is looked up.
    starts = np.concatenate([[0], np.flatnonzero(names[1:] != names[:-1]) + 1])
    codes = [_code(str(names[start]), recording, int(start), labels) for start in starts]
    return np.repeat(np.array(codes, dtype=np.int64), np.diff(np.append(starts, count)))


def _encode_words(recording: Recording, words: Categorical, labels: tuple[str, ...]) -> np.ndarray:
    if len(words) != len(recording.times_s):
        raise SignalError(f"{recording.where()}: {len(recording.times_s)} samples but {len(words)} activities")
    known = {name: code for code, name in enumerate(labels)} | dict.fromkeys(UNLABELLED, NO_LABEL)
    codes = words.coded(known, UNKNOWN)
    if (codes == UNKNOWN).any():
        at = int(np.argmax(codes == UNKNOWN))
        _code(str(words.names[words.codes[at]]), recording, at, labels)
    return codes


def _code(name: str, recording: Recording, index: int, labels: tuple[str, ...]) -> int:
    if name in UNLABELLED:
        return NO_LABEL
    if name not in labels:
        raise SettingsError(f"{recording.where(index)}: activity {name!r} isn't a label; {unknown_class(name, labels)}")
    return labels.index(name)


def majority_label(codes: np.ndarray, share: float) -> int:
    """Return the commonest code if it covers at least `share` of codes (n,), else -1; a tie takes the lower code."""
    if (codes == codes[0]).all():
        return int(codes[0])
    counts = np.bincount(codes + 1)
    winner = int(counts.argmax())
    return winner - 1 if counts[winner] >= share * len(codes) else NO_LABEL


def mean_number(numbers: np.ndarray, share: float) -> float:
    """Return the mean of the known ones of a window's numbers (n,); NaN where fewer than `share` of them are known."""
    known = ~np.isnan(numbers)
    return float(numbers[known].mean()) if known.sum() >= max(share * len(numbers), 1) else math.nan
