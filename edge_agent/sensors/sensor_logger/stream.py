"""Turns a phone's late, repeated and out-of-order messages into recordings in order of time.

A sample becomes final `reorder_s` after the newest one; until then samples are sorted by time, so the result doesn't
depend on the order of messages. Total acceleration is `accelerometer` + `gravity`, the latter interpolated; a phone
that sends `totalacceleration` needs neither.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Protocol

import numpy as np

from edge_agent.sensors.sensor_logger.message import MOTION, Annotation, PhoneSamples, SampleBatch
from har_pipeline import Recording
from har_pipeline.recording import Sensor
from har_pipeline.streaming.interpolate import readings_at

MAX_GAP_S = 60.0
"""A message so much later than the one before it begins a new stretch; so much earlier, the clock was set back."""
MAX_MESSAGE_NUMBERS = 10_000
"""Message numbers of a session, and sessions below, that are known to have come."""
MAX_SESSIONS = 16
MAX_WAITING = 100_000
"""Samples that wait to become final; a phone that sends more is not believed its times."""
MAX_ANNOTATIONS = 1000
GRAVITY_WAIT_S = 1.0
"""How much longer an accelerometer sample waits for gravity than for being final."""


class Sink(Protocol):
    """Where the samples go."""

    def push(self, recording: Recording) -> None:
        """Take a stretch of one sensor."""
        ...

    def end_session(self) -> None:
        """Finish what is under way."""
        ...


class PhoneStream:
    """One phone at a time; `activity_of` turns an annotation's text into an activity, '' (none) or None (unknown).

    `counts` says what was left out: late, duplicates, broken, without gravity, clock jumps, unknown annotations.
    """

    _newest: float
    _horizon: float
    _waiting: dict[str, ReorderBuffer]

    def __init__(self, sink: Sink, reorder_s: float, activity_of: Callable[[str], str | None]) -> None:
        self.sink, self.reorder_s, self.activity_of = sink, reorder_s, activity_of
        self.counts: Counter[str] = Counter()
        self._ended: deque[str] = deque(maxlen=MAX_SESSIONS)
        self._begin("")

    def accept(self, batch: SampleBatch) -> None:
        """Take a message whose units and signs are right."""
        self.counts["broken"] += batch.broken
        if batch.session in self._ended:
            self.counts["late"] += batch.samples
            return
        if batch.session != self._session:
            self.finish()
            if self._session:
                self._ended.append(self._session)
            self._begin(batch.session)
        if not self._is_new(batch):
            self.counts["duplicates"] += 1
            return
        if batch.motion:
            self._follow_clock(batch)
        self._annotate(batch.notes)
        for name, samples in batch.motion.items():
            self.counts["late"] += self._waiting[name].add(samples, self._horizon)
        if batch.motion:
            self._newest = max(self._newest, _latest(batch))
            self._settle(self._newest - self.reorder_s)
        if self.waiting > MAX_WAITING:
            self.counts["too many samples"] += 1
            self._waiting = {name: ReorderBuffer() for name in MOTION}
            self.finish()

    @property
    def waiting(self) -> int:
        """Samples that are not final yet."""
        return sum(len(buffer.times_s) for buffer in self._waiting.values())

    def finish(self) -> None:
        """Make everything final: the session is over, or silent for long."""
        self._settle(np.inf)
        self._horizon = self._newest
        self.sink.end_session()

    def _begin(self, session: str) -> None:
        self._session = session
        self._numbers: dict[int, None] = {}
        self._highest = -1
        self._activity = ""
        self._annotations: list[tuple[float, str]] = []
        self._restart_clock()

    def _restart_clock(self) -> None:
        self._newest = self._horizon = -np.inf
        self._waiting = {name: ReorderBuffer() for name in MOTION}
        self._direct = False

    def _is_new(self, batch: SampleBatch) -> bool:
        if batch.number is None:
            return True
        if batch.number in self._numbers or batch.number <= self._highest - MAX_MESSAGE_NUMBERS:
            return False
        self._numbers[batch.number] = None
        if len(self._numbers) > MAX_MESSAGE_NUMBERS:
            self._numbers.pop(next(iter(self._numbers)))
        return True

    def _follow_clock(self, batch: SampleBatch) -> None:
        """Begin a new stretch where the times jump; a late message is not a jump back."""
        later = batch.number is None or batch.number > self._highest
        earliest, latest = _earliest(batch), _latest(batch)
        if earliest > self._newest + MAX_GAP_S and np.isfinite(self._newest):
            self.finish()
        elif latest < self._newest - MAX_GAP_S and later:
            self.counts["clock jumps"] += 1
            self.finish()
            self._restart_clock()
        self._highest = max(self._highest, -1 if batch.number is None else batch.number)

    # ---- annotations

    def _annotate(self, notes: tuple[Annotation, ...]) -> None:
        for note in notes:
            activity = self.activity_of(note.text)
            if activity is None or len(self._annotations) >= MAX_ANNOTATIONS:
                self.counts["unknown annotations"] += 1
            else:
                self._annotations.append((note.time_s, activity))
        self._annotations.sort(key=lambda stamped: stamped[0])

    def _activities(self, times_s: np.ndarray) -> np.ndarray:
        """Name the activity at each time (n,): that of the last annotation before it."""
        names = np.array([self._activity, *(activity for _, activity in self._annotations)])
        when = np.array([time_s for time_s, _ in self._annotations])
        found: np.ndarray = names[np.searchsorted(when, times_s, side="right")]
        return found

    def _forget_annotations(self, horizon: float) -> None:
        while self._annotations and self._annotations[0][0] < horizon - GRAVITY_WAIT_S:
            self._activity = self._annotations.pop(0)[1]

    # ---- samples that become final

    def _settle(self, horizon: float) -> None:
        horizon = max(horizon, self._horizon)
        gyro = self._waiting["gyroscope"].take(horizon)
        total = self._waiting["totalacceleration"].take(horizon)
        self._direct = self._direct or bool(len(total.times_s))
        acc = total if self._direct else self._total(horizon)
        # in steps, so that neither sensor runs ahead of the other by much
        self._push("acc", acc)
        self._push("gyro", gyro)
        self._horizon = horizon
        self._forget_annotations(horizon)

    def _total(self, horizon: float) -> PhoneSamples:
        acc, gravity = self._waiting["accelerometer"], self._waiting["gravity"]
        found, lost = add_gravity(acc, gravity, horizon, GRAVITY_WAIT_S)
        self.counts["without gravity"] += lost
        return found

    def _push(self, sensor: Sensor, samples: PhoneSamples) -> None:
        if not len(samples.times_s):
            return
        activity = self._activities(samples.times_s)
        self.sink.push(Recording("phone", self._session, activity, sensor, samples.times_s, samples.values))


def _latest(batch: SampleBatch) -> float:
    return max(float(samples.times_s.max()) for samples in batch.motion.values())


def _earliest(batch: SampleBatch) -> float:
    return min(float(samples.times_s.min()) for samples in batch.motion.values())


class ReorderBuffer:
    """times_s (n,) and values (n, 3), in any order until they are taken."""

    def __init__(self) -> None:
        self.times_s = np.empty(0)
        self.values = np.empty((0, 3))

    def add(self, samples: PhoneSamples, horizon: float) -> int:
        """Take samples that are not before the horizon; returns how many were."""
        on_time = samples.times_s >= horizon
        self.times_s = np.concatenate([self.times_s, samples.times_s[on_time]])
        self.values = np.concatenate([self.values, samples.values[on_time]])
        return int(len(on_time) - on_time.sum())

    def take(self, horizon: float) -> PhoneSamples:
        """Return, in order of time, what lies before the horizon, and forget it."""
        final = self.times_s < horizon
        found = PhoneSamples(self.times_s[final], self.values[final])
        self.times_s, self.values = self.times_s[~final], self.values[~final]
        return _sorted(found)

    def final(self, horizon: float) -> PhoneSamples:
        """Return, in order of time, what lies before the horizon, and keep it."""
        final = self.times_s < horizon
        return _sorted(PhoneSamples(self.times_s[final], self.values[final]))

    def forget(self, before_s: float) -> None:
        """Forget what lies before a time."""
        kept = self.times_s >= before_s
        self.times_s, self.values = self.times_s[kept], self.values[kept]


def add_gravity(
    acc: ReorderBuffer, gravity: ReorderBuffer, horizon: float, patience_s: float
) -> tuple[PhoneSamples, int]:
    """Take accelerometer samples whose gravity is final: their sum, and how many had to go without.

    Both neighbours of a sample must be final, else another order of the same messages would give other numbers.
    """
    known = gravity.final(horizon)
    last = float(known.times_s[-1]) if len(known.times_s) else -np.inf
    over = horizon == np.inf
    ready = acc.take(np.inf if over else np.nextafter(last, np.inf))
    lost = 0
    if not over:
        lost = len(acc.take(horizon - patience_s).times_s)  # gravity was switched off, or its messages were lost
    if not len(known.times_s):
        return PhoneSamples(np.empty(0), np.empty((0, 3))), lost + len(ready.times_s)
    there, near = readings_at(ready.times_s, known.times_s, known.values)
    times_s, total = ready.times_s[near], ready.values[near] + there[near]
    gravity.forget(last)  # the last one is the left neighbour of what comes next
    return PhoneSamples(times_s, total), lost + int(len(near) - near.sum())


def _sorted(samples: PhoneSamples) -> PhoneSamples:
    order = np.argsort(samples.times_s, kind="stable")
    return PhoneSamples(samples.times_s[order], samples.values[order])
